"""Replaces code that editors, highlighters and forums divide into elements by a `<pre>` with its lines.

Line numbers, prompts that cannot be selected, and buttons and labels next to code are removed.
"""

from __future__ import annotations

import html
import re
from textwrap import dedent

from selectolax.lexbor import LexborHTMLParser, LexborNode

# Elements with code. The part of an editor that has its lines.
_BOXES = (
    ".CodeMirror, .cm-editor, .monaco-editor, .ace_editor, .syntaxhighlighter, .dp-highlighter, .crayon-syntax, "
    ".js-file-line-container, pre:has(div, li, p, tr), listing, xmp, plaintext, textarea[class*=code]:not([class*=embed]), "
    "code:not(pre *), tt:not(pre *), samp:not(pre *), code + br, div.code, div.codebox, div.codeblock, div.code-block, "
    "div[style*=monospace], div[style*=onsolas], div[style*=ourier]"
)
_PART = ".CodeMirror-code, .cm-content, .view-lines, .ace_text-layer, .lines, .crayon-pre, td.code, ol, tbody:has(.blob-code)"
_EDITOR = re.compile(r"CodeMirror|(?:cm-|monaco-|ace_)editor|syntaxhighlighter|dp-highlighter|crayon-syntax|js-file-line-")
_NOT_CODE = (
    "button, clipboard-copy, .copybtn, .copy-btn, span[style*='user-select: none'], span[style*='user-select:none'], "
    ".lineno, .linenos, .gutter, .lnt, .ln, .line-number, .linenumber, .hljs-ln-numbers, .blob-num, td.number, "
    ".CodeMirror-gutter-wrapper, .input_prompt, .output_prompt, .jp-InputArea-prompt, .jp-OutputArea-prompt"
)
_LINE_SPANS = "pre span.line, pre .token-line, pre [style*='display:block'], pre [style*='display: block']"
_INLINE = frozenset(("br", "code", "samp", "tt"))
# What is more than code, and the signs of code.
_PROSE, _SIGN = "h1, h2, h3, h4, h5, h6, img, form, article, section", re.compile(r"[;{}()=<>$#/\\]")
_LABEL = frozenset("code php html copy copied to clipboard select all view plain expand source".split())
_LABEL_CLASS = re.compile(r"copy|clipboard|toolbar|lang(?:uage)?(?![a-z])|code-?(?:block-?)?header", re.I)

_BREAK = re.compile(r"<(?:br|div|p|li)[ >]")
_START, _END, _LINE_BREAK = "\ufdd2\ufdd3\ufdd4"
_TAG = re.compile(r'<(/?)([a-z][\w-]*)(?:[^<>"]|"[^"]*")*>')
_PIECE = re.compile("[\n\ufdd2-\ufdd4]|[^\n\ufdd2-\ufdd4]+")
_LINE_TAGS = frozenset("dd div li ol p pre table tbody tr ul".split())
_TOP = re.compile(r"top: ?(-?[\d.]+)")


def restore_code(tree: LexborHTMLParser) -> None:
    """Replace the code of a page that is not plain text in a `<pre>` by one that is."""
    inner = set[int]()
    for node in tree.css(_BOXES):
        box = None if node.mem_id in inner else _box_of(node)
        if not box:
            continue
        part = box.css_first(_PART) if _EDITOR.search(box.attributes.get("class") or "") else None
        code = box.text() if box.tag in ("plaintext", "xmp") else _code_of(part or box)
        lines = code.split("\n")
        is_prose = box.css_first("pre, table, a") or 3 * sum(map(bool, map(_SIGN.search, lines))) < len(lines)
        if part or node.tag == "pre" or (len(lines) > 1 and not (node.tag == "div" and is_prose)):
            inner.update(other.mem_id for other in box.css(_BOXES))
            _replace(tree, box, lines)
    for node in tree.css(_NOT_CODE):
        if "prompt" in (node.attributes.get("class") or "").lower() or _is_in_pre(node):
            node.replace_with("")
    for node in tree.css(_LINE_SPANS):
        following, last = node.next, node.last_child
        if following and "br" not in (following.tag, last and last.tag):
            if not following.text().startswith("\n") and not node.text().endswith("\n"):
                node.insert_after("\n")
    for node in tree.css("pre"):
        first, *others = map(str.strip, node.text().strip().split("\n"))
        if others and first.isdigit() and others == [str(int(first) + number) for number in range(1, len(others) + 1)]:
            node.replace_with("")
        else:
            _remove_labels(node)


def _is_in_pre(node: LexborNode) -> bool:
    parent = node.parent
    while parent and parent.tag != "pre":
        parent = parent.parent
    return bool(parent)


def _box_of(node: LexborNode) -> LexborNode | None:
    """Return the element with the lines of code to which an element belongs; None if it is within a text."""
    parent = node.parent
    if node.tag not in _INLINE or not parent:
        return None if node.css_first(_PROSE) else node
    has_breaks = node.tag == "br" or _BREAK.search(node.html or "")
    if not has_breaks and ("\n" not in node.text().strip() or parent.tag in ("td", "th", "li", "a", "span")):
        return None
    if parent.tag in ("dd", "div", "p") and all(
        child.tag in _INLINE or _is_blank(child) for child in parent.iter(include_text=True)
    ):
        return parent
    is_alone = all(not other or other.tag == "br" or other.tag in _LINE_TAGS for other in _neighbors(node))
    return node if is_alone and node.tag != "br" else None


def _is_blank(node: LexborNode) -> bool:
    return node.tag == "-text" and not (node.text(deep=False) or "").strip()


def _neighbors(node: LexborNode) -> tuple[LexborNode | None, LexborNode | None]:
    """Return what is before and after an element, without white space."""
    before, after = node.prev, node.next
    while before and _is_blank(before):
        before = before.prev
    while after and _is_blank(after):
        after = after.next
    return before, after


def _code_of(node: LexborNode) -> str:
    """Return the code in an element: lines of its text, and a line per element that is one."""
    for other in node.css(_NOT_CODE):
        other.replace_with("")
    shown = node.css(".view-line")  # an editor writes them in any order
    shown.sort(key=lambda line: float(top[1]) if (top := _TOP.search(line.attributes.get("style") or "")) else 0.0)
    marked = _TAG.sub(_mark, "".join(line.html or "" for line in shown or [node]))
    lines, line, last = list[str](), "", _START
    for piece in _PIECE.findall(marked):
        if piece not in ("\n", _START, _END, _LINE_BREAK):
            line += piece
            last = last if piece.isspace() else ""
        elif piece == "\n" and last in (_START, _END, _LINE_BREAK) and not line.strip():
            line, last = "", "" if last == _LINE_BREAK else last  # a line end of the HTML
        else:
            # An element without text is an empty line.
            if line.strip() or piece in ("\n", _LINE_BREAK) or (piece == _END and last == _START):
                lines.append(line)
            line, last = "", piece
    code = "\n".join([*lines, line])
    return html.unescape(code if node.css_first("pre") else dedent(code)).replace("\xa0", " ")


def _mark(tag: re.Match[str]) -> str:
    if tag[2] == "br":
        return _LINE_BREAK
    return "" if tag[2] not in _LINE_TAGS else _END if tag[1] else _START


def _replace(tree: LexborHTMLParser, node: LexborNode, lines: list[str]) -> None:
    """Replace an element by a `<pre>` with its class names and those of its `<code>`, which name the language."""
    inner, pre = node.css_first("code"), tree.create_node("pre")
    pre.attrs["class"] = " ".join(part.attributes.get("class") or "" for part in (node, inner) if part)
    pre.insert_child("\n".join(map(str.rstrip, lines)).strip("\n"))
    node.replace_with(pre)


def _remove_labels(node: LexborNode) -> None:
    """Remove buttons, and labels such as the language, before and after code in the elements that have nothing else."""
    for _ in range(3):
        for side in range(2):
            while (other := _neighbors(node)[side]) and _is_label(other):
                other.replace_with("")
        if any(_neighbors(node)) or not node.parent:
            return
        node = node.parent


def _is_label(node: LexborNode) -> bool:
    text = (node.text() or "").strip()
    if not text or len(text) > 60 or node.tag in ("-text", "pre", "h1", "h2", "h3", "h4", "h5", "h6"):
        return False
    words = {*re.findall(r"\w+", text.lower())} - _LABEL
    is_toolbar = node.css_first("button") or _LABEL_CLASS.search(node.attributes.get("class") or "")
    return not words or bool(is_toolbar and len(words) < 3 and "." not in text)
