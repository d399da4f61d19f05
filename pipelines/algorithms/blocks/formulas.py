"""Replaces formulas by their LaTeX: `$...$` within a line, `$$...$$` on a line of its own.

The source is in attributes, scripts, annotations of MathML, or between delimiters; its copies are removed.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

from selectolax.lexbor import LexborHTMLParser, LexborNode

from pipelines.algorithms.blocks.code import is_alone
from pipelines.algorithms.blocks.mathml import latex_of

# The values of these attributes are formulas.
SOURCE_ATTRIBUTES = "data-latex data-tex data-math data-expr data-formula data-katex tex"
_MAX_CHARACTERS = 10_000
# Invisible, deprecated characters around formulas; the segmentation drops them.
_DISPLAY, _INLINE = "\u206b", "\u206a"

_SCRIPT, _MATH = 'script[type^="math/" i]', r"math, mml\:math, m\:math"
_COPIES = "[class^=MathJax]:not(mjx-container), .mjx-chtml"
_FORMULAS = (
    f"{_SCRIPT}, {_MATH}, img, {_COPIES}, mjx-container, [class*=katex], .mwe-math-element, [data-eeimg], d-math, "
    f"[{'], ['.join(SOURCE_ATTRIBUTES.split())}], .js-render-math, :is(span, div, code, pre, tt)[class*=math], span.tex"
)
_ANNOTATION = 'annotation[encoding*="x-tex" i], annotation[encoding*="latex" i], annotation[encoding="tex" i]'
# An element that contains one of these is more than a formula.
_PROSE = "main, p, li, h1, h2, h3, h4, article, section, form"
_DISPLAYED = re.compile(
    r"(?i)\s(?:block=|(?:class|type|mode|display|data-(?:display|math-style|eeimg|formula-type|mathmethod))="
    r'(?:"|&quot;)(?:[^"&]*(?:display|(?<!inline-)block|latexcenter|numberedequation)|2"|true"))'
)
# Classes of elements whose text is a formula; the first are also used for other things.
_SOURCE_CLASSES = re.compile(
    r"(?:(?:math|inline|display|tex|wp-katex-eq|katex-display|language-math|math-inline|math-display)(?:\s+|$))+|d-math|"
    r"((?:.*\s)?(?:katex-error|js-render-math|mjx-copytext)(?:\s.*)?)"
)
_IMAGE_CLASS = re.compile(r"(?<![\w-])((la)?tex(render|center)?(?![\w-])|ql-img|[\w-]*(formula|equation|math))")
_IMAGE_URL = re.compile(
    r"[?&;](?:latex|tex|math|formula|cht=tx&.*?chl)=([^&]+)|(?:\.(?:latex|image|download)|(?:mime|math)tex[\w.]*)\?(.+)|"
    r"(?:upmath|s2cms)\.\w+/\w+/(.+)"
)
# What formulas have, what only they have, and what values and descriptions have.
_SIGN, _SURE = re.compile(r"[\\^_{}=<>+]|^\s*\S{1,3}\s*$"), re.compile(r"[\\^_=]")
_COMMAND, _LETTERS = re.compile(r"\\[a-z]+\s*\{"), re.compile(r"[a-z]{4}|[A-Z][a-z]{2}")
_WORDS = re.compile(
    r"(?i)(?<![\\\w])[a-z]{3,},? [a-z]{2,}|\"|"
    r"^\W*(formula|equation|image|(la)?tex|math|true|false|inline|block|and|or|to)?\W*$"
)
_DELIMITED = re.compile(
    r"\s*(?:\$\$([^$]+)\$\$|\\\[(.+)\\\]|\\begin\{displaymath\}(.+)\\end\{displaymath\}|"
    r"\$([^$]+)\$|\\\((.+)\\\)|\[i?tex\](.+)\[/i?tex\]|(?i:(?:la)?tex(?: code)?:)(.+))\s*", re.S
)  # fmt: skip
_COMMENT = re.compile(r"(?<!\\)%[^\n]*\n\s*|%\s*\]\]>\s*$|\\documentclass(?s:.*?)\\begin\{document\}|\\end\{document\}")
_COLOR = r"\\(?:(?:text|page)?color|colorbox)\s*(?:\[\w+\]\s*)?\{[^{}]*\}\s*"
_COLORED = re.compile(rf"(?<![\^_]){_COLOR}\{{([^{{}}]*)\}}(?![a-zA-Z])|{_COLOR}")
_SETTINGS = re.compile(r"(?i)^(\s*\\(inline|dpi *\{\d+\}|(bg|fn)(_\w+| *\{\w+\})|tiny|small|large|huge)(?![a-z]))+\s*")


def replace_elements(tree: LexborHTMLParser) -> None:
    """Replace the elements of a page that are formulas; `replace_delimiters` then completes its HTML."""
    for node in tree.css(f":is({_COPIES}):not(:has({_PROSE}, {_SCRIPT}))") if tree.css_first(_SCRIPT) else ():
        node.replace_with("")
    for row in tree.css("tr.ltx_equation, tr.ltx_eqn_row"):
        latex = " ".join(_source_of(cell) or "" for cell in row.css("math")).replace("\\displaystyle", "")
        for number, cell in enumerate(row.css("math")):
            cell.replace_with("" if number else _write(latex, True))
        for cell in row.css("td"):
            if not cell.text(strip=True):
                cell.decompose()
    inner = set[int]()
    for node in tree.css(f":is({_FORMULAS}):not(html, body, main, :has({_PROSE}))"):
        source = None if node.mem_id in inner else _source_of(node)
        if source and len(source) <= _MAX_CHARACTERS:
            inner.update(part.mem_id for part in node.css(_FORMULAS))
            html, parent = node.html or "", node.parent or node
            borders = ("dd", "p", "div", "center") if node.tag == "img" and "inline" not in html else ("dd",)
            is_alone_there = parent.tag in borders and is_alone(node)
            text = _write(source, bool(is_alone_there or node.tag in ("div", "pre") or _DISPLAYED.search(html)))
            if parent.tag == "noscript":  # a copy of an image that is loaded later
                node, text = parent, "" if parent.prev and parent.prev.text()[-1:] in (_DISPLAY, _INLINE) else text
            node.replace_with(text)


def _source_of(node: LexborNode) -> str | None:
    """Return the source of a formula, or None."""
    tag, names = (node.tag or "").rpartition(":")[2], {name: value or "" for name, value in node.attributes.items()}
    for value in filter(None, map(names.get, SOURCE_ATTRIBUTES.split())):
        if _is_latex(latex := value if "\\" in value else unquote(value)):
            return latex
    if tag == "math":
        annotation = node.css_first(_ANNOTATION)
        text = annotation.text() if annotation else names.get("alttext", "")
        return text if annotation or _is_latex(text) else latex_of(node) or node.text()
    kind = names.get("type", "mml") if tag == "script" else ""
    if kind and "mml" not in kind:
        text = node.text().replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
        return f"`{text.strip()}`" if "asciimath" in kind else text
    if mathml := node.text() if kind else names.get("data-mathml", "").translate(_WIRIS):
        node = LexborHTMLParser(mathml).body or node
    elif tag == "img":
        text, address = names.get("alt", ""), names.get("src", "")
        url, is_named = _IMAGE_URL.search(address), _IMAGE_CLASS.search(names.get("class", "")) or "/math/" in address
        if _DELIMITED.fullmatch(text) or ((url or is_named) and _is_latex(text)) or (not url and _COMMAND.match(text)):
            return text
        return unquote((url[1] or url[2] or url[3]).replace("&space;", " ").replace("&plus;", "+")) if url else None
    for inner in filter(None, map(node.css_first, (".mjx-copytext", _SCRIPT, _MATH, "[data-latex]", "img"))):
        if inner.mem_id != node.mem_id and (source := _source_of(inner)):
            return source
    text, classes = node.text(), _SOURCE_CLASSES.fullmatch(names.get("class") or tag)
    is_plain = next(node.iter(), None) is None and "\\(" not in text and _is_latex(text)
    return text if classes and (is_plain or classes[1]) else None


def _is_latex(text: str) -> bool:
    return bool(_SIGN.search(text) or not _LETTERS.search(text)) and ("\\" in text or not _WORDS.search(text))


def _write(source: str, is_display: bool) -> str:
    """Return the text of a formula: without colors, comments, line breaks, and settings of CodeCogs."""
    source = _COMMENT.sub("", source)
    if delimited := _DELIMITED.fullmatch(source):
        is_display |= any(delimited.groups()[:3])
        source = next(filter(None, delimited.groups()))
    source = _SETTINGS.sub("", " ".join(_COLORED.sub(r"\1", source).split()))
    mark, dollars = (_DISPLAY, "$$") if is_display else (_INLINE, "$")
    return source if source[:1] in ("", "`") else f"{mark}{dollars}{source}{dollars}{mark}"


_TAGS, _TAG = r"</?(?:br|wbr|em|strong|[ibua]|sub|sup|span|nobr|font)(?:\s[^<>]*)?>", re.compile(r"<(/?)(\w+)[^<>]*>")
# What Markdown made of underscores, and editors of indices.
_MARKUP = {"em": "_", "/em": "_", "sub": "_{", "/sub": "}", "sup": "^{", "/sup": "}", "br": " "}
# What WordPress made of characters of LaTeX, and WIRIS of those of HTML.
_TYPOGRAPHY, _WIRIS = str.maketrans("’‘–", "''-", "\u200b"), str.maketrans("«»¨§", '<>"&')


def _between(opening: str, closing: str, name: str, again: str = "") -> str:
    """Return the pattern of a formula in delimiters, which contains no block and does not begin again."""
    character = rf"[^\\$<\[]|{_TAGS}|(?!{again or opening})[\\$\[]"
    return rf"{opening}(?P<{name}>(?:{character})+?)(?<![^\\]\\){closing}"


# Each alternative begins with a character, not a group or letter: only so does the regular expression engine search for
# these characters first. The names of displayed formulas begin with `d`, those of what stays as it is with `k`.
_PATTERNS = [
    rf"{_DISPLAY}(?P<k1>[^{_DISPLAY}]*{_DISPLAY})",
    rf"{_INLINE}(?P<k2>[^{_INLINE}]*{_INLINE})",
    r"<(?P<k_code>pre|code|textarea|script|style|title)[\s>].*?</(?P=k_code)",
    _between(r"\\\((?<!\\\\\()", r"\\\)", "i1"),
    _between(r"\\\[(?<!\\\\\[)", r"\\\]", "d1"),
    _between(r"\$\$(?<![\\$]\$\$)(?!\$)", r"\$\$(?<!\$\$\$)(?!\$)", "d2"),
    _between(r"\$latex(?=[\s\\&])", r"\$", "i2"),
    _between(r"\[(?P<tag>i?tex|math|latex|TEX|MATH|LATEX)\]", r"\[/(?P=tag)\]", "i4", r"\[(?P=tag)\]"),
    _between(
        r"\\begin ?\{(?P<kind>(?:sub)?equations?|(?:fl)?align(?:at|ed)?|gather(?:ed)?|multline|eqnarray|displaymath|"
        r"array|d?cases|split|[pbvBV]?matrix)\*?\}",
        r"\\end ?\{(?P=kind)\*?\}", "d_environment", r"\\begin ?\{(?P=kind)",
    ),
]  # fmt: skip
# Codeforces has three and six dollars; prices have spaces around them.
_DOLLARS = [
    _between(r"\$\${5}", r"\${6}", "d3"),
    _between(r"\$\$\$(?<!\$\$\$\$)(?![\s$])", r"\$\$\$(?!\$)", "i5"),
    _between(r"\$(?<!\\\$)(?=\S)(?=[^$]*(?:[\\^_{}=+&]|<su|<em)|.{1,3}\$)", r"(?<!\s)\$(?!\d)", "i6", r"\$"),
]
_ENGINES = (b"athJax", b"athjax", b"aTeX", b"katex", b"renderMath")
_FORMULA, _DOLLAR, _WITH_DOLLARS = (
    re.compile("|".join(patterns), re.S) for patterns in (_PATTERNS, _DOLLARS, _PATTERNS + _DOLLARS)
)
# Emphasis that begins at an index in a formula and ends at one in a later formula.
_EMPHASIS = re.compile(r"<em>(?<=[^\s>]<em>)((?>[^<\\$]*(?:\\\)[^<$]*?\\\(|\$[^<$]*\$))[^<$]*)</em>(?=[^\s<])")
_ADJACENT = re.compile(rf"{_INLINE}((?:<[^<>]*>)*){_INLINE}")
_OWN_LINE = re.compile(rf"(?:<br>\s*{_DISPLAY}|{_DISPLAY})(?:\s*{_DISPLAY})*(?:\s*<br>)?")


def replace_delimiters(html: str, page: bytes) -> str:
    """Replace the formulas between delimiters in the text of a page, given its HTML as serialized and as it was.

    They are neither in code nor across the border of a paragraph. Delimiters without a counterpart remain. Single `$`
    delimit formulas on pages with MathJax or KaTeX, if there is a sign of one and no space inside them; else they mean
    money.
    """

    def replace(match: re.Match[str]) -> str:
        name = match.lastgroup or ""
        if name[0] == "k":
            return match[0]
        source = _without_markup(match[0 if name == "d_environment" else name])
        is_prose = not source or (_WORDS.search(source) and not _SURE.search(source))
        return match[0] if is_prose else _write(source, name[0] == "d")

    html = _EMPHASIS.sub(r"_\1_", html)
    # The search of a page that was not reduced takes 2 ms per megabyte.
    has_dollars = _DOLLAR.search(html) and any(name in page for name in _ENGINES)
    html = (_WITH_DOLLARS if has_dollars else _FORMULA).sub(replace, html)
    if _DISPLAY in html:
        html = _OWN_LINE.sub(lambda lines: "<br>" + lines[0].count(_DISPLAY) * _DISPLAY, html)
    return _ADJACENT.sub(r" \1", html)


def _without_markup(source: str) -> str:
    """Return a formula without the markup that Markdown or an editor added; an empty string if it is more than that."""
    is_whole = sum(-1 if tag[1] else tag[2] not in ("br", "wbr") for tag in _TAG.finditer(source)) == 0
    source = _TAG.sub(lambda tag: _MARKUP.get(tag[1] + tag[2], ""), source.translate(_TYPOGRAPHY))
    return source.replace("&nbsp;", " ").replace("^_", "^*") if is_whole and len(source) <= _MAX_CHARACTERS else ""
