"""Replaces code that editors, highlighters and forums divide into elements by a `<pre>` with its lines.

Line numbers, prompts that cannot be selected, and buttons and labels next to code are removed.
"""

from __future__ import annotations

import html
import re
from textwrap import dedent

from selectolax.lexbor import LexborHTMLParser, LexborNode

# Elements with code, those that only pages with certain class names or fonts have, and the lines of an editor.
_BOXES = (
    "pre:has(div, li, p, tr), listing, xmp, plaintext, code:not(pre *), tt:not(pre *), samp:not(pre *), "
    "p:has(> code + br + code), [class*=rompt]"
)
_EDITORS = (
    ".CodeMirror, .cm-editor, .monaco-editor, .ace_editor, .syntaxhighlighter, .dp-highlighter, .crayon-syntax, "
    ".js-file-line-container, textarea[class*=code]:not([class*=embed]), div.code, div.codebox, div.codeblock, "
    "div.code-block, div[style*=monospace], div[style*=onsolas], div[style*=ourier]"
)
_EDITOR = re.compile("CodeMirror|(cm-|monaco-|ace_)editor|syntaxhighlighter|dp-highl|crayon-syntax|js-file-line-")
_PART = ".CodeMirror-code, .cm-content, .view-lines, .ace_text-layer, .lines, .crayon-pre, td.code, ol"
# Elements that may be no code, or lines of it.
_INNER = "button, [class*=lin], [class*=ln], [class*=gutter], td[class*=num], [class*=copy], [style*=user-select]"
_NOT_CODE = re.compile(
    r"^(button|clipboard-copy)|^td.*'number'|^span.*user-select: ?none|'([^']* )?(linenos?|gutter|lnt?|line-?number|"
    r"hljs-ln-numbers|blob-num|copy-?btn|CodeMirror-gutter-wrapper|(in|out)put_prompt|jp-(In|Out)putArea-prompt)[ ']"
)
_IS_LINE = re.compile(r"^span.*(display: ?block|'([^']* )?(token-)?line[ '])")
_ENDED = re.compile(r"(\n|<br>)(</span>)+$")
_BOX = re.compile("div|pre|table|listing|xmp|plaintext|textarea")
_INLINE = frozenset(("br", "code", "samp", "tt"))
# What is more than code, and the signs of code.
_PROSE, _SIGN = "h1, h2, h3, h4, h5, h6, img, form, article, section", re.compile(r"[;{}()=<>$#/\\]")
_LABEL = frozenset("code php html copy copied to clipboard select all view plain expand source".split())
_LABEL_CLASS = re.compile(r"copy|clipboard|toolbar|lang(?:uage)?(?![a-z])|code-?(?:block-?)?header", re.I)

_BREAK = re.compile(r"<(?:br|div|p|li)[ >]")
_SEVERAL = re.compile(r"\n.*\n|\n[ \t]")  # else it can be a line end of the HTML
_START, _END, _LINE_BREAK = "\ufdd2\ufdd3\ufdd4"
_TAG = re.compile(r'<(/?[a-z][\w-]*)(?:[^<>"]|"[^"]*")*>')
_LINES = "dd div li ol p pre table tbody tr ul".split()
_MARKS = dict.fromkeys(_LINES, _START) | {f"/{name}": _END for name in _LINES} | {"br": _LINE_BREAK}
# A line end of the HTML, an element without text, which is an empty line, and a border of one at which no line ends.
_HTML_LINE_END = re.compile(rf"([{_START}{_END}])\s*\n|({_LINE_BREAK})[^\S\n]*\n")
_EMPTY = re.compile(rf"{_START}[^\S\n]*{_END}")
_BORDER = re.compile(rf"(?:^|(?<=[\n{_START}{_END}]))[^\S\n]*[{_START}{_END}]")
_SIDES = ("prev", "next")
_MAX_CHARACTERS = 4_000_000
_TOP = re.compile(r"top: ?(-?\d+)")


def restore_code(tree: LexborHTMLParser, has_editors: bool) -> None:
    """Replace the code of a page that is not plain text in a `<pre>` by one that is."""
    boxes = f"{_BOXES}, {_EDITORS}" if has_editors else _BOXES
    inner, left = set[int](), _MAX_CHARACTERS
    for node in tree.css(f"{boxes}, pre :is({_INNER}, [style*=display])"):
        names = f"{node.tag} {node.attributes}"
        if node.mem_id in inner or left < 0:
            continue
        if _NOT_CODE.search(names):
            node.replace_with("")
        elif _IS_LINE.search(names):
            if node.next and not re.match(r"\n|<br", node.next.html or "") and not _ENDED.search(node.html or ""):
                node.insert_after("\n")
        elif _may_be_code(node, names):
            part = node.css_first(_PART) if _EDITOR.search(names) else None
            code = node.text() if node.tag in ("plaintext", "xmp") else _code_of(part or node)
            lines, left = code.split("\n"), left - len(code)
            is_prose = node.tag == "div" and 3 * sum(map(bool, map(_SIGN.search, lines))) < len(lines)
            if part or node.tag == "pre" or (len(lines) > 1 and not is_prose):
                inner.update(other.mem_id for other in node.css(boxes))
                # Its class names and those of its `<code>` name the language.
                parts, pre = (node, node.css_first("code")), tree.create_node("pre")
                pre.attrs["class"] = " ".join(part.attributes.get("class") or "" for part in parts if part)
                pre.insert_child("\n".join(map(str.rstrip, lines)).strip("\n"))
                node.replace_with(pre)
    for node in tree.css("pre"):
        lines = [*map(str.strip, node.text().strip().split("\n"))]
        first = int(lines[0]) if lines[0].isdecimal() and len(lines[0]) < 9 else -1
        if len(lines) > 1 and lines == [*map(str, range(first, first + len(lines)))]:
            node.replace_with("")
        else:
            _remove_labels(node)


def _may_be_code(node: LexborNode, names: str) -> bool:
    """Return whether an element can be code on lines of its own."""
    if node.tag == "p":
        return all(child.tag in _INLINE or _is_blank(child) for child in node.iter(include_text=True))
    if node.tag not in _INLINE or not node.parent:
        is_plain = names[:3] == "div" and not _EDITOR.search(names)
        return bool(_BOX.match(names)) and not node.css_first(f"{_PROSE}, pre, table, a" if is_plain else _PROSE)
    has_lines = node.parent.tag not in ("td", "th", "li", "a", "span") and _SEVERAL.search(node.text().strip())
    return bool(has_lines or _BREAK.search(node.html or "")) and is_alone(node)


def is_alone(node: LexborNode) -> bool:
    """Return whether nothing else is on the line of an element."""
    return all(not other or other.tag in _MARKS for other in map(_neighbor, [node] * 2, _SIDES))


def _is_blank(node: LexborNode) -> bool:
    return node.tag == "-text" and not (node.text(deep=False) or "").strip()


def _neighbor(node: LexborNode, side: str) -> LexborNode | None:
    """Return the `next` or `prev` of an element, without white space."""
    other: LexborNode | None = getattr(node, side)
    while other and _is_blank(other):
        other = getattr(other, side)
    return other


def _code_of(node: LexborNode) -> str:
    """Return the code in an element: lines of its text, and a line per element that is one."""
    for other in node.css(_INNER):
        if _NOT_CODE.search(f"{other.tag} {other.attributes}"):
            other.replace_with("")
    # An editor writes them in any order.
    shown = sorted(node.css(".view-line"), key=lambda line: int(*_TOP.findall(f"{line.attributes}")[:1] or [0]))
    marked = _TAG.sub(lambda tag: _MARKS.get(tag[1], ""), "".join(line.html or "" for line in shown or [node]))
    marked = _EMPTY.sub(f"{_START}\n{_END}", _HTML_LINE_END.sub(r"\1\2", marked)).replace(_LINE_BREAK, "\n")
    code = _BORDER.sub("", marked).replace(_START, "\n").replace(_END, "\n")
    return html.unescape(code if node.css_first("pre") else dedent(code)).replace("\xa0", " ")


def _remove_labels(node: LexborNode) -> None:
    """Remove buttons, and labels such as the language, before and after code in the elements that have nothing else."""
    for _ in range(3):
        for side in _SIDES:
            while (other := _neighbor(node, side)) and _is_label(other):
                other.replace_with("")
        if _neighbor(node, "prev") or _neighbor(node, "next") or not node.parent:
            return
        node = node.parent


def _is_label(node: LexborNode) -> bool:
    text = (node.text() or "").strip()
    if not text or len(text) > 60 or node.tag in ("-text", "pre", "h1", "h2", "h3", "h4", "h5", "h6"):
        return False
    words = {*re.findall(r"\w+", text.lower())} - _LABEL
    is_toolbar = node.css_first("button") or _LABEL_CLASS.search(node.attributes.get("class") or "")
    return not words or bool(is_toolbar and len(words) < 3 and "." not in text)
