"""Replaces code that editors, highlighters and forums divide into elements by a `<pre>` with its lines.

Line numbers, prompts that cannot be selected, and buttons and labels next to code are removed.
"""

from __future__ import annotations

import html
import re
from textwrap import dedent

from selectolax.lexbor import LexborHTMLParser, LexborNode

# Elements with code, those that only pages with certain class names or fonts have, and the lines of an editor. `lines`
# marks what `page` reads as code, unless it is on one line, and what is in a `<pre>`: a search for it takes 30 ns per
# element, one for all names 1 us. `page` also looks for the beginnings of the names of editors.
_BOXES = "[lines]:is(pre, listing, xmp, :not(pre *)), plaintext, p:has(> code + br + code), [class*=rompt]"
EDITOR_NAMES = (
    "cm-editor monaco-editor ace_editor ace_static_highlight syntaxhighlighter crayon-syntax dp-highlighter "
    "enlighter-default csharpcode fragment"
).split()
_EDITORS = (
    f".{', .'.join(EDITOR_NAMES)}, .CodeMirror, .EnlighterJS, .react-code-lines, ol:has(> * > .de1), "
    "table:has(.blob-code-inner, .lines-code), table.code, td.code, textarea:is([class*=code], [name=code]):not("
    "[class*=embed]), div:is(.code, .codebox, .codeblock, .code-block, .codemain, .w3-code), "
    ":is(div, span):is([style*=monospace], [style*=onsolas], [style*=ourier])"
)
_EDITOR = re.compile(f"{'|'.join(EDITOR_NAMES)}|CodeMirror|enlighter|react-code|^ol|^table")
_PART = ".CodeMirror-code, .cm-content, .view-lines, .ace_text-layer, .lines, .crayon-pre, .enlighter-raw, td.code, ol"
# Elements that may be no code, or lines of it.
_INNER = (
    "button, [class*=lin], [class*=ln], [class*=gutter], td[class*=num], [class*=copy], [style*=user-select], "
    ".conum, .conum + b"
)
_NOT_CODE = re.compile(
    r"^(button |clipboard-copy|b \{('lines': None)?\})|^td.*'number'|^span.*user-select: ?none|'([^']* )?(linenos?|"
    r"gutter|lnt?|conum|line-?number|hljs-ln-numbers|blob-num|copy-?btn|CodeMirror-gutter-wrapper|(in|out)put_prompt|"
    r"jp-\w+-prompt)[ ']"
)
_IS_LINE = re.compile(r"^span.*(display: ?block|'([^']* )?([\w-]+-)?line[ '])")
_ENDED = re.compile(r"(\n|<br>)(</span>)+$")
_BOX = frozenset("div pre table ol td listing xmp plaintext textarea".split())
_INLINE = frozenset(("br", "code", "samp", "tt"))
# What is more than code, and the signs of code.
_PROSE, _SIGN = "h1, h2, h3, h4, h5, h6, img, form, article, section", re.compile(r"[;{}()=<>$#/\\]")
_LABEL = frozenset("code php html copy copied to clipboard select all view plain expand source run".split())
_LABEL_CLASS = re.compile(r"copy|clipboard|toolbar|lang(?:uage)?(?![a-z])|(?:code|example)-?(?:block-?)?header", re.I)

_BREAK = re.compile(r"<(?:br|div|p|li)[ >]")
_SEVERAL = re.compile(r"\n.*\n|\n[ \t]")  # else it can be a line end of the HTML
_START, _END, _LINE_BREAK = "\ufdd2\ufdd3\ufdd4"
_TAG = re.compile(r'<[a-z/][^<>"]*(?:"[^"]*"[^<>"]*)*>')
_LINES = frozenset("blockquote br dd div figure h1 h2 h3 h4 h5 h6 hr li ol p pre table tbody tr ul".split())
_LINE_TAG = re.compile(rf'<(/?)({"|".join(_LINES)})(?:[ "][^<>"]*(?:"[^"]*"[^<>"]*)*)?>')
# A line end of the HTML, an element without text, which is an empty line, and a border of one at which no line ends.
_HTML_LINE_END = re.compile(rf"([{_START}{_END}])\s*\n|(?:\n[^\S\n]*)?({_LINE_BREAK})(?:[^\S\n]*\n)?")
# An element at the beginning of a line with nothing but its number, which no highlighter marks as a number of the code.
_NUMBER = re.compile(
    rf"(^|[\n{_START}{_END}{_LINE_BREAK}])"
    r'(?:[^\S\n]|<(?![^<>]*"(?:token |hljs-n|cm-n|ace_[cn]|mi?"|lit"|value"|pl-c1))[^<>]*>)*'
    rf"(?<=[>{_START}])\s*(\d+):?[^\S\n]*(?=\s*(?:</|{_END}))"
)
_EMPTY = re.compile(rf"{_START}[^\S\n]*{_END}")
_BORDER = re.compile(rf"(?:^|(?<=[\n{_START}{_END}]))[^\S\n]*[{_START}{_END}]")
_SIDES = ("prev", "next")
_MAX_CHARACTERS = 4_000_000
_TOP = re.compile(r"top: ?(-?\d+)")


def restore_code(tree: LexborHTMLParser, has_editors: bool) -> None:
    """Replace the code of a page that is not plain text in a `<pre>` by one that is."""
    boxes = f"{_BOXES}, {_EDITORS}" if has_editors else _BOXES
    done, left = set[int](), _MAX_CHARACTERS
    for node in tree.css(f"{boxes}, pre [lines]:is({_INNER}, [style*=display])"):
        if node.mem_id in done or left < 0:
            continue
        names = f"{node.tag} {node.attributes}"
        if _NOT_CODE.search(names):
            node.replace_with("")
        elif _IS_LINE.match(names):
            if node.next and not re.match(r"\n|<br", node.next.html or "") and not _ENDED.search(node.html or ""):
                node.insert_after("\n")
        elif _may_be_code(node, names):
            part = node.css_first(_PART) if _EDITOR.search(names) else None
            code = node.text() if node.tag in ("plaintext", "xmp") else _code_of(part or node)
            lines, left = code.strip("\n").split("\n"), left - len(code)
            is_prose = node.tag in ("div", "span", "td") and 3 * sum(map(bool, map(_SIGN.search, lines))) < len(lines)
            if part or node.tag == "pre" or (len(lines) > 1 and not is_prose):
                done.update(other.mem_id for other in node.css("*"))
                # Its class names and those of its `<code>` name the language.
                parts, pre = (node, node.css_first("code")), tree.create_node("pre")
                pre.attrs["class"] = " ".join(part.attributes.get("class") or "" for part in parts if part)
                pre.insert_child("\n".join(map(str.rstrip, lines)))
                node.replace_with(pre)
    for pre in tree.css("pre"):
        _remove_labels(pre)


def _may_be_code(node: LexborNode, names: str) -> bool:
    """Return whether an element can be code on lines of its own."""
    if node.tag == "p":
        return all(child.tag in _INLINE or _is_blank(child) for child in node.iter(include_text=True))
    if node.tag == "pre" and not node.css_first("div, li, p, tr"):
        return bool(_NUMBER.match(node.html or ""))
    if node.tag not in (*_INLINE, "span") or not node.parent:
        is_plain = node.tag in ("div", "td") and not _EDITOR.search(names)
        outside = f"{_PROSE}, pre, table, a, code > br" if is_plain else _PROSE
        return node.tag in _BOX and not node.css_first(outside)
    has_lines = node.parent.tag not in ("td", "th", "li", "a", "span") and _SEVERAL.search(node.text().strip())
    return bool(has_lines or _BREAK.search(node.html or "")) and is_alone(node)


def is_alone(node: LexborNode) -> bool:
    """Return whether nothing else is on the line of an element."""
    return all(not other or other.tag in _LINES for other in map(_neighbor, [node] * 2, _SIDES))


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
    marked = _LINE_TAG.sub(
        lambda tag: _LINE_BREAK if tag[2] == "br" else _END if tag[1] else _START,
        "".join(line.html or "" for line in shown or [node]),
    )
    code, numbers = _lines_of(marked), [number.lstrip("0") for _, number in _NUMBER.findall(marked)]
    without = _lines_of(_NUMBER.sub(r"\1", marked)) if len(numbers) > 1 else code
    if _is_gutter(numbers, without.strip("\n") + "\n"):
        # There can be a space after each number.
        code = without if re.search(r"(?m)^\S", without) else re.sub("(?m)^ ", "", without)
    if not node.css_first("pre"):  # else all spaces are those of the code, and not of the HTML before `&nbsp;`
        code = dedent(re.sub("(?m)^[ \t]+", "", code) if re.search("(?m)^[ \t]*&nbsp;", code) else code)
    return html.unescape(code).replace("\xa0", " ")


def _lines_of(marked: str) -> str:
    """Return lines of text from HTML with marks."""
    marked = _HTML_LINE_END.sub(r"\1\2", _TAG.sub("", marked))
    marked = _EMPTY.sub(f"{_START}\n{_END}", marked).replace(_LINE_BREAK, "\n")
    return _BORDER.sub("", marked).replace(_START, "\n").replace(_END, "\n")


def _remove_labels(pre: LexborNode) -> None:
    """Remove buttons, line numbers, and labels such as the language, next to code in the elements around it."""
    node: LexborNode | None = pre
    for _ in range(9):
        others = []
        for side in _SIDES:
            while (other := node and _neighbor(node, side)) and _is_label(other, pre):
                other.replace_with("")
            others.append(other)
        node = None if any(others) else node and node.parent


def _is_gutter(words: list[str], code: str) -> bool:
    """Return whether words are the numbers of the lines of code, the last of which may be empty."""
    if len(words) < 2 or code.count("\n") + 1 - len(words) not in (0, 1) or not words[0].isdecimal():
        return False
    return words == [*map(str, range(int(words[0][:8]), int(words[0][:8]) + len(words)))]


def _is_label(node: LexborNode, pre: LexborNode) -> bool:
    text = (node.text() or "").strip()
    if text[:1].isdecimal() and _is_gutter(node.text(separator="\n").split(), (pre.html or "").replace("<br>", "\n")):
        return True
    if not text:
        return not node.css_first(":not(div, span, td, hr, pre)")
    if len(text) > 60 or node.tag in ("-text", "pre", "h1", "h2", "h3", "h4", "h5", "h6"):
        return False
    words = {*re.findall(r"\w+", text.lower())} - _LABEL
    is_toolbar = node.css_first("button") or _LABEL_CLASS.search(node.attributes.get("class") or "")
    return not words or bool(is_toolbar and len(words) < 3 and "." not in text)
