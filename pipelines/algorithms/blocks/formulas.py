"""Replaces formulas by their LaTeX: `$...$` within a line, `$$...$$` on a line of its own.

The source is in an attribute, a script, an annotation of MathML, or in the text between delimiters. Previews, rendered
copies and images next to it are removed. AsciiMath stays as it is written.
"""

from __future__ import annotations

import re
from itertools import accumulate
from urllib.parse import unquote

from selectolax.lexbor import LexborHTMLParser, LexborNode

from pipelines.algorithms.blocks.code import is_alone
from pipelines.algorithms.blocks.mathml import latex_of

# The values of these attributes are formulas.
SOURCE_ATTRIBUTES = "data-latex data-tex data-math data-expr data-formula"
_SINGLE_DOLLARS = re.compile(rb"""inlineMath["']?\s*:[^;]{0,200}?\[\s*["']\$["']|left["']?\s*:\s*["']\$["']""")
_MAX_CHARACTERS = 10_000
# Invisible, deprecated characters around formulas; the segmentation drops them.
_DISPLAY, _INLINE = "\u206b", "\u206a"

_SCRIPT = 'script[type^="math/" i]'
_COPIES = "[class^=MathJax]:not(mjx-container), .mjx-chtml"
_FORMULAS = (
    f"{_SCRIPT}, math, img, {_COPIES}, mjx-container, [class^=katex], .mwe-math-element, [data-eeimg], "
    f"[{'], ['.join(SOURCE_ATTRIBUTES.split())}], .js-render-math, span[class^=math], div[class^=math]"
)
_ANNOTATION = 'annotation[encoding*="x-tex" i], annotation[encoding*="latex" i], annotation[encoding="tex" i]'
# An element that contains one of these is more than a formula.
_PROSE = "html, body, main, p, li, h1, h2, h3, h4, article, section, form"
_NAMES = "class type mode display data-math-style data-eeimg".split()
_DISPLAY_NAME = re.compile(r"display|(?<!inline-)block|latexcenter|numberedequation|(?<!\S)(2|true)(?!\S)", re.I)
_IMAGE_CLASS = re.compile(r"(?<![\w-])((la)?tex(render|center)?(?![\w-])|math|mwe-math|\w*formula|numberedequation)")
_IMAGE_URL = re.compile(r"[?&;](?:latex|tex|math)=([^&]+)|(?:\.(?:latex|image|download)|(?:mime|math)tex[\w.]*)\?(.+)")
# What formulas have, and what values and descriptions have.
_SIGN, _SURE = re.compile(r"[\\^_{}=<>+]|^\s*\S{1,3}\s*$"), re.compile(r"[\\^_=]")
_WORDS = re.compile(
    r"(?i)(?<![\\\w])[a-z]{3,},? [a-z]{2,}|^\W*(formula|(la)?tex|math|true|false|inline|block|and|or|to)?\W*$|\""
)
_DELIMITED = re.compile(r"\s*(?:\$\$([^$]+)\$\$|\\\[(.+)\\\]|\$([^$]+)\$|\\\((.+)\\\)|(\{\\\w+style.+\}))\s*", re.S)
_STYLE = re.compile(
    r"(?i)^(\s*\\(inline|(display|text)style|dpi\s*\{\d+\}|(bg|fn)(_\w+|\s*\{\w+\})|tiny|small|large|huge)(?![a-z]))+\s*"
)
_WRAPPER = re.compile(r"^\{\s*\\(?:display|text|script)style(?![a-zA-Z])\s*(.*)\}$")
_COMMENT = re.compile(r"(?<!\\)%[^\n]*\n\s*|%\s*\]\]>\s*$")
_COLOR = r"\\(?:(?:text|page)?color|colorbox)\s*(?:\[\w+\]\s*)?\{[^{}]*\}\s*"
_COLORED = re.compile(rf"(?<![\^_]){_COLOR}\{{([^{{}}]*)\}}(?![a-zA-Z])|{_COLOR}")


def replace_elements(tree: LexborHTMLParser) -> None:
    """Replace the elements of a page that are formulas; `replace_delimiters` then completes its HTML."""
    for node in tree.css(_COPIES) if tree.css_first(_SCRIPT) else ():
        if not node.css_first(f"{_PROSE}, {_SCRIPT}"):
            node.replace_with("")
    inner = set[int]()
    for node in tree.css(_FORMULAS):
        is_other = node.mem_id in inner or node.css_first(_PROSE)
        source, is_display = (None, False) if is_other else _source_of(node)
        if source and len(source) <= _MAX_CHARACTERS:
            inner.update(part.mem_id for part in node.css(_FORMULAS))
            node.replace_with(_write(source, is_display))


def _source_of(node: LexborNode) -> tuple[str | None, bool]:
    """Return the source of a formula, or None, and whether it is displayed on a line of its own."""
    tag, attributes = node.tag or "", node.attributes
    names = " ".join(filter(None, map(attributes.get, _NAMES)))
    is_display = bool(_DISPLAY_NAME.search(names))
    if tag == "img":
        return _source_of_image(node, names, is_display)
    for value in map(attributes.get, SOURCE_ATTRIBUTES.split()):
        if value and _is_latex(value):
            return value, is_display
    if tag == "math":
        annotation = node.css_first(_ANNOTATION)
        text = annotation.text() if annotation else attributes.get("alttext") or ""
        return text if annotation or _is_latex(text) else latex_of(node), is_display
    if tag == "script" and "mml" not in names:
        text = node.text().replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
        return f"`{text.strip()}`" if "asciimath" in names else text, is_display
    if mathml := node.text() if tag == "script" else attributes.get("data-mathml"):
        node = LexborHTMLParser(mathml).body or node
    for inner in filter(None, map(node.css_first, (_SCRIPT, "math", "[data-latex]", "img"))):
        source, is_displayed = _source_of(inner) if inner.mem_id != node.mem_id else (None, False)
        if source:
            return source, is_display or is_displayed
    text, classes = node.text(), {*names.split()}
    is_plain = bool(classes) and classes <= {"math", "inline", "display"} and next(node.iter(), None) is None
    is_source = is_plain and _is_latex(text) and "\\(" not in text
    is_source |= not classes.isdisjoint(("katex-error", "js-render-math"))
    return text if is_source else None, is_display or tag == "div"


def _source_of_image(node: LexborNode, names: str, is_display: bool) -> tuple[str | None, bool]:
    text, address = node.attributes.get("alt") or "", node.attributes.get("src") or ""
    url = _IMAGE_URL.search(address)
    if not (url or _IMAGE_CLASS.search(names) or "/math/" in address or _DELIMITED.fullmatch(text)):
        return None, False
    encoded = (url[1] or url[2]) if url else ""
    source = text if _is_latex(text) else unquote(encoded.replace("&space;", " ").replace("&plus;", "+"))
    is_inline = "inline" in names or "\\inline" in unquote(address) or _DELIMITED.fullmatch(text)
    in_paragraph = node.parent and node.parent.tag in ("p", "div", "center")
    return source, is_display or bool(in_paragraph and not is_inline and is_alone(node))


def _is_latex(text: str) -> bool:
    return bool(_SIGN.search(text)) and ("\\" in text or not _WORDS.search(text))


def _write(source: str, is_display: bool) -> str:
    """Return the text of a formula: without colors, comments, line breaks, and commands for the style of all of it."""
    if delimited := _DELIMITED.fullmatch(source):
        is_display |= bool(delimited[1] or delimited[2])
        source = next(filter(None, delimited.groups()))
    source = " ".join(_COLORED.sub(r"\1", _COMMENT.sub("", source)).split())
    wrapped = _WRAPPER.sub(r"\1", source)
    depths = accumulate((brace == "{") - (brace == "}") for brace in re.findall(r"\\.|[{}]", wrapped))
    source = _STYLE.sub("", source if min(depths, default=0) < 0 else wrapped)
    if not source or source.startswith("`"):
        return source
    return f"{_DISPLAY}$${source}$${_DISPLAY}" if is_display else f"{_INLINE}${source}${_INLINE}"


# Each alternative begins with another character than a letter, by which the regular expression engine searches.
_OPENING = re.compile(
    rf"{_DISPLAY}[^{_DISPLAY}]*{_DISPLAY}|{_INLINE}[^{_INLINE}]*{_INLINE}|\\[(\[]|\$\$?(?!\$)"
    r"|\\begin\{(?:equation|align|alignat|flalign|gather|multline|eqnarray|displaymath|math)\*?\}"
    r"|\[(?:i?tex|math|latex|TEX|MATH|LATEX)\]|<(pre|code|textarea|script|style|title)[\s>](?s:.*?)</\1"
)
_CLOSING = {"\\(": "\\)", "\\[": "\\]", "$$": "$$", "$": "$"}
# Emphasis that begins at an index in a formula and ends at one in a later formula.
_EMPHASIS = re.compile(r"(?<=[^\s>])<em>((?>[^<\\$]*(?:\\\)[^<$]*?\\\(|\$[^<$]*\$))[^<$]*)</em>(?=[^\s<])")
_TAG = re.compile(r"<(/?)(br|wbr|em|strong|i|b|u|sub|sup|span|a|nobr|font)(?:\s[^<>]*)?>")
# What Markdown made of underscores, and editors of indices.
_MARKUP = {"em": "_", "/em": "_", "sub": "_{", "/sub": "}", "sup": "^{", "/sup": "}", "br": " "}
_ADJACENT = re.compile(rf"{_INLINE}((?:<[^<>]*>)*){_INLINE}")
_OWN_LINE = re.compile(rf"(?:<br>\s*)?{_DISPLAY}(?:\s*{_DISPLAY})*(?:\s*<br>)?")


def replace_delimiters(html: str, page: bytes) -> str:
    """Replace the formulas between delimiters in the text of a page, given its HTML as serialized and as it was.

    They are neither in code nor across the border of a paragraph. Delimiters without a counterpart remain. Single `$`
    are delimiters where MathJax or KaTeX is configured so; elsewhere they mean money.
    """
    has_single_dollars = (b"inlineMath" in page or b"renderMath" in page) and _SINGLE_DOLLARS.search(page)
    html = _EMPHASIS.sub(r"_\1_", html)
    parts, position = list[str](), 0
    ends = dict[str, int]()  # the next of each closing delimiter, so that the page is searched once for each
    for match in _OPENING.finditer(html):
        opening, start = match[0], match.end()
        is_escaped = html[match.start() - 1] in "\\$" and opening[0] in "\\$"
        is_other = opening[0] in (_DISPLAY, _INLINE, "<") or (opening == "$" and not has_single_dollars)
        if match.start() < position or is_escaped or is_other:
            continue
        closing = _CLOSING.get(opening) or opening.replace("begin", "end").replace("[", "[/")
        if ends.get(closing, -1) < start:
            end = html.find(closing, start)
            while end > 0 and (html[end - 1] == "\\" != html[end - 2] or html[end : end + 3] == "$$$"):
                end = html.find(closing, end + 1)
            ends[closing] = end if end >= 0 else len(html) + _MAX_CHARACTERS
        end = ends[closing]
        if end - start <= _MAX_CHARACTERS and (opening == closing or html.find(opening, start, end) < 0):
            source = _without_markup(html[start:end])
            if source and (_is_latex(source) if opening == "$" else not _WORDS.search(source) or _SURE.search(source)):
                name = opening[7:-1] if opening[:2] == "\\b" else ""
                source = source if not name or "math" in name else opening + source + closing
                is_display = opening in ("$$", "\\[") or name not in ("", "math")
                parts += [html[position : match.start()], _write(source, is_display)]
                position = end + len(closing)
    html = "".join([*parts, html[position:]])
    if _DISPLAY in html:
        html = _OWN_LINE.sub(lambda lines: "<br>" + lines[0].count(_DISPLAY) * _DISPLAY, html)
    return _ADJACENT.sub(r" \1", html)


def _without_markup(source: str) -> str | None:
    """Return a formula without the markup that Markdown or an editor added; None if there is other markup."""
    source = source.replace("’", "'").replace("&nbsp;", " ")
    if sum(-1 if tag[1] else tag[2] not in ("br", "wbr") for tag in _TAG.finditer(source)):
        return None
    source = _TAG.sub(lambda tag: _MARKUP.get(tag[1] + tag[2], ""), source).replace("^_", "^*")
    return source if "<" not in source and re.search(r"\w", source) else None
