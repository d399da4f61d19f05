"""Parses pages with lexbor, after a pass that removes what is not read: code, comments, most attributes."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from selectolax.lexbor import LexborHTMLParser

from pipelines.algorithms.blocks import code, formulas, markup
from pipelines.algorithms.blocks import segmentation as seg
from pipelines.algorithms.blocks.text_features import value_of, values_table
from pipelines.algorithms.kernels.byte_scan import byte_at, put_word, word_at
from pipelines.algorithms.kernels.compilation import as_read_only, helper, kernel
from pipelines.algorithms.kernels.hash_table import slot_of, table_of
from pipelines.algorithms.web.metadata import Declared, read_declared

# lexbor's time grows with the square of the depth: 20,000 nested elements take 2 s. Real pages have fewer tags, and a
# depth of at most 50. libxml2 has the same limit of depth. A search of code or formulas in all of them takes longer.
_MANY_TAGS, _MANY_TO_SEARCH, _MAX_DEPTH = 20_000, 4_000, 256
_SLACK = 16
# Read by segmentation, by those who look for what a page declares, and after `href` of formulas, which are read with
# all attributes. An element with `alttext` or one of those after it is a formula.
_READ = (
    " class id role itemprop style hidden aria-hidden name property content rel type datetime start data-lang "
    "data-language href alt src alttext data-mathml data-math-style data-eeimg xmlns:mml xmlns:m "
    + formulas.SOURCE_ATTRIBUTES
).split(" ")
# Positions in it by the hash of the name; that of an unknown one is 0.
_KEYS, _NUMBERS = table_of(np.array([markup.fnv_hash(name.encode()) for name in _READ], np.uint64))
_CLASS, _STYLE, _NAME, _TYPE, _HREF, _ALT, _SRC, _ALTTEXT = map(
    _READ.index, "class style name type href alt src alttext".split()
)
_A, _BASE, _IFRAME, _IMG, _LINK, _MATH, _NOSCRIPT, _PRE, _SCRIPT, _SVG, _TEXTAREA, _TITLE, _XMP = (
    markup.TAGS[name] for name in "a base iframe img link math noscript pre script svg textarea title xmp".split()
)
# What a page may have: elements or delimiters of formulas, code by its tags, code by class names or fonts.
_FORMULAS, _DELIMITERS, _CODE, _EDITORS = 1, 2, 4, 8
# Which of them a tag shows, and which four bytes at the beginning of a class or type (of an editor, with more of its
# name after them; a NUL stands for a space), in a style, in the attributes of an image
# (`latex`, `mimetex`, `equation`, `alt="$x$"`), and after `[`, each with a digit for what it shows.
_BY_TAG = np.maximum(0, markup.tag_groups(["", "math d-math", "", "", "pre code xmp listing tt samp"]))
_LOWER = np.uint32(0x20202020)
# Of the class names of editors.
_EDITOR_STARTS, _EDITOR_ENDS = (
    " ".join(f"{part}8" for part in sorted({name[start : start + 4] for name in code.EDITOR_NAMES})).encode()
    for start in (0, 3)
)
_BEGINNINGS, _EDITOR_WORDS, _FONTS, _IMAGES, _FORUM_TAGS, _LICENSES = (
    values_table(
        np.array([int.from_bytes(word[:4], "little") for word in words.split()], np.uint32) | _LOWER,
        np.array([float(word[4:]) for word in words.split()], np.float32),
    )
    for words in (
        b"math1 wp-k1 tex\"1 kate1 code8 blob8 li1\"8 w3-c8 " + _EDITOR_STARTS,
        b"""ode"8 ode'8 ode\08 ode>8 odeb8 -blo8 -nav8 -vie8 odem8 b-co8 li1"8 """ + _EDITOR_ENDS,
        b"nosp8 olas8 urie8",
        b"""math1 atex1 imet1 "tex1 rmul1 quat1 t="$1 t="\\1 cht=1 t='$1 t='\\1""",
        b"math2 late2 tex]2 itex2", b"crea1 lice1",
    )
)  # fmt: skip
# What the text of a page ends with, and delimiters of formulas begin with: `<`, `$`, `[` and `\`.
_IS_SIGN = np.isin(np.arange(256), [*b"<$[\\"])
# Padded to words, by which they are copied.
_END_OF_FRAME, _LESS, _MARK = (
    as_read_only(np.frombuffer(text, np.uint8)) for text in (b"</iframe>       ", b"&lt;    ", b" lines  ")
)


class Tree(NamedTuple):
    """The tree of a page, in UTF-8; which formulas and code were found in the page."""

    tree: LexborHTMLParser
    page: bytes
    found: int


def parse_html(page: bytes | str) -> Tree:
    """Parse a page, in UTF-8 or decoded, without code, comments (half of an average page) and unread attributes.

    Formulas become LaTeX, and code lines of a `<pre>`. If there are many tags, those of elements nested more than 256
    deep are removed; their text is kept.
    """
    data = page if isinstance(page, bytes) else page.encode()
    # Padded, since a kernel has no bounds checks and looks a few bytes ahead.
    html = as_read_only(np.frombuffer(data + bytes(_SLACK), np.uint8))
    # An end tag is added to a frame, and `<` becomes `&lt;`: up to four bytes per byte.
    reduced, sizes = np.empty(4 * len(data) + _SLACK, np.uint8), np.zeros(3, np.int64)
    _reduce(html, len(data), len(data), reduced, sizes)
    _, tags, found = sizes.tolist()
    is_large = tags > (_MANY_TO_SEARCH if found & ~_DELIMITERS else _MANY_TAGS)
    if is_large or found & _FORMULAS:
        _reduce(html, len(data), _MAX_DEPTH if is_large else len(data), reduced, sizes)
    tree = LexborHTMLParser(reduced[: sizes[0]].tobytes())
    # Before the code, which becomes plain text; formulas between delimiters are replaced after it, outside of it.
    if found & _FORMULAS:
        formulas.replace_elements(tree)
    if found & (_CODE | _EDITORS):
        code.restore_code(tree, found & _EDITORS > 0)
    return Tree(tree, data, found)


@helper
def _end_of_attribute(html: Any, position: Any, end: Any) -> Any:
    """Return the position after the value of an attribute whose name ends here; after the name if it has none."""
    start = position
    while markup.is_space(byte_at(html, position)):
        position += 1
    if byte_at(html, position) != 61:  # =
        return start
    position += 1
    while markup.is_space(byte_at(html, position)):
        position += 1
    quote = byte_at(html, position)
    if quote == 34 or quote == 39:
        return min(end, markup.find_byte(html, position + 1, end, quote) + 1)
    while position < end and not markup.is_space(byte_at(html, position)) and byte_at(html, position) != 62:
        position += 1
    return position


@helper
def _copy(html: Any, start: Any, end: Any, reduced: Any, filled: Any) -> Any:
    for offset in range(0, end - start, 8):
        put_word(reduced, filled + offset, word_at(html, start + offset))
    return filled + end - start


@helper
def _find(html: Any, start: Any, end: Any, markers: Any) -> Any:
    """Return what the last of the markers in a range shows."""
    found = np.int64(0)
    for position in range(start, end - 3):
        value = value_of(markers, np.uint32(word_at(html, position) & markup.LOW_BITS) | _LOWER)
        if value == value:  # not NaN
            found = np.int64(value)
    return found


@helper
def _is_one_line(html: Any, position: Any, end: Any, letter: Any) -> Any:
    """Return whether an element is text on one line, given the first letter of its tag, and `<br>` does not follow."""
    stop = markup.find_byte(html, position, end, 60)
    following = markup.find_byte(html, stop + 1, end, 60)
    is_end = byte_at(html, stop + 1) == 47 and byte_at(html, stop + 2) | 32 == letter
    is_break = byte_at(html, following + 1) | 32 == 98 and byte_at(html, following + 2) | 32 == 114
    return is_end and not is_break and markup.find_byte(html, position, stop, 10) == stop


@kernel
def _reduce(html: Any, end: Any, max_depth: Any, reduced: Any, sizes: Any) -> None:
    """Copy what is read of a page; attributes of formulas if there are some according to `sizes`, which then is set."""
    has_formulas = sizes[2] & _FORMULAS
    position = filled = depth = tags = found = in_pre = 0
    foreign = 0
    while position < end:
        while position < end and not _IS_SIGN[byte_at(html, position)]:
            reduced[filled] = byte_at(html, position)
            filled += 1
            position += 1
        if position == end:
            break
        start = position
        sign, byte = byte_at(html, start), int(byte_at(html, start + 1))
        if sign != 60:  # $ \( \[ \begin [tex]
            is_shown = byte == 36 or byte == 40 or byte == 91 or byte == 92 or byte == 98
            if is_shown or (sign == 36 and 97 <= byte | 32 <= 122):  # `$5` is money
                found |= _DELIMITERS
            elif sign == 91:
                found |= _find(html, start + 1, start + 5, _FORUM_TAGS)
            position = start + 1
            filled = _copy(html, start, position, reduced, filled)
            continue
        if byte == 33 and byte_at(html, start + 2) == 45 and byte_at(html, start + 3) == 45:  # <!--
            position = markup.end_of_comment(html, start + 2, end)
            continue
        is_end = byte == 47
        letter = int(byte_at(html, start + 2 if is_end else start + 1)) | 32
        if not 97 <= letter <= 122:
            if is_end or byte == 33 or byte == 63:
                position = min(end, markup.find_byte(html, start, end, 62) + 1)
                filled = _copy(html, start, position, reduced, filled)
            else:  # a `<` of the text, whatever is removed after it
                position = start + 1
                filled = _copy(_LESS, 0, 4, reduced, filled)
            continue
        tags += 1
        name, position = markup.hash_name(html, start + (2 if is_end else 1), end)
        tag = markup.tag_of(name)
        is_deep = False
        if not markup.NOT_NESTED[tag]:
            depth = max(0, depth + (-1 if is_end else 1))
            is_deep = depth + is_end > max_depth
        tag_start = filled
        filled = _copy(html, start, position, reduced, filled)
        is_closed = is_copied = False
        while position < end and byte_at(html, position) != 62:
            if markup.is_space(byte_at(html, position)) or byte_at(html, position) == 47:
                is_closed = byte_at(html, position) == 47
                position += 1
                continue
            is_closed = False
            first = position
            name, position = markup.hash_name(html, position, end)
            position = _end_of_attribute(html, position, end)
            slot = slot_of(_KEYS, name)
            number = _NUMBERS[slot] if _KEYS[slot] == name else 0
            is_unread = number == _HREF and tag != _LINK and tag != _BASE  # a page has many links
            is_unread &= tag != _A or not _find(html, first + 5, min(first + 80, position), _LICENSES)
            if is_end or is_unread:
                continue
            shown = _FORMULAS if number >= _ALTTEXT else 0
            if tag == _IMG and (number == _CLASS or number == _SRC or number == _ALT):  # noqa: SIM109
                shown = _find(html, first, min(first + (6 if number == _ALT else 80), position), _IMAGES)
            elif number == _STYLE:
                shown = _find(html, first, position, _FONTS)
            elif number == _CLASS or number == _TYPE or (number == _NAME and tag == _TEXTAREA):  # noqa: SIM109
                shown = _find(html, first + 5, min(first + 11, position), _BEGINNINGS)
                if shown & _EDITORS:
                    shown = _find(html, first + 5, min(first + 18, position), _EDITOR_WORDS)
                is_copied |= tag == _SCRIPT and shown & _FORMULAS != 0
            found |= shown
            if not has_formulas and (number == 0 or number > _HREF):
                continue
            reduced[filled] = 32
            filled = _copy(html, first, position, reduced, filled + 1)
            if tag == _SCRIPT:  # ld+json, ld&#x2B;json
                is_copied |= markup.find_byte(html, first, position, 43) < position
                is_copied |= markup.find_byte(html, first, position, 38) < position
        if position >= end:  # a tag that does not end is not a tag
            filled = tag_start
            break
        position += 1
        if is_deep:
            reduced[tag_start] = 32
            filled = tag_start + 1
            continue
        if is_closed:
            if filled - tag_start < position - start - 2:  # else it cannot be part of a value before it
                reduced[filled] = 32
                filled += 1
            reduced[filled] = 47
            filled += 1
        shown = 0 if is_end else int(_BY_TAG[tag])
        in_pre = max(0, in_pre + (-1 if is_end else 1)) if tag == _PRE else in_pre
        is_inline = shown == _CODE and (letter == 99 or letter == 115 or letter == 116)  # code, samp, tt
        if is_inline and _is_one_line(html, position, end, letter):
            shown = 0
        if shown == _CODE or (in_pre and not is_end and not markup.KINDS[tag] & markup.WITHOUT_END):
            filled = _copy(_MARK, 0, 6, reduced, filled)
        found |= shown
        reduced[filled] = 62
        filled += 1
        if (tag == _SVG or tag == _MATH) and not is_closed:  # noqa: SIM109 - for numba
            foreign = max(0, foreign + (-1 if is_end else 1))
        if is_end or (foreign and is_closed):  # HTML ignores the slash
            depth -= 0 if is_end or markup.NOT_NESTED[tag] else 1
            continue
        if tag == _TITLE or tag == _TEXTAREA or tag == _XMP or is_copied:  # noqa: SIM109 - for numba
            first = position
            position = markup.find_end_tag(html, position, end, tag)
            filled = _copy(html, first, position, reduced, filled)
        elif markup.KINDS[tag] & markup.RAW:
            if tag == _IFRAME:
                # A browser does not parse the content of noscript; a frame without an end would contain the rest.
                first = position
                while markup.is_space(byte_at(html, first)):
                    first += 1
                if byte_at(html, first + 1) == 47 and markup.is_name(html, first + 2, end, _NOSCRIPT):
                    filled = _copy(_END_OF_FRAME, 0, 9, reduced, filled)
                    continue
            first = position
            position = markup.find_end_tag(html, first, end, tag)
            if foreign:  # in SVG and MathML it need not have an end tag
                position = markup.find_end_tag(html, first, position, _SVG)
                position = markup.find_end_tag(html, first, position, _MATH)
    sizes[0], sizes[1], sizes[2] = filled, tags, found


# As lexbor serializes it; `<body` alone may be in a script in the head.
_BODY = b"</head><body"
_MARKUP = re.compile(r"</?[a-zA-Z][^<>]*>")
_JSON_LD_TEXT = 40
_JSON_LD_TEXTS = ("articleBody", "description", "text", "reviewBody", "recipeInstructions")
_DESCRIPTIONS = ("description", "og:description", "twitter:description")


class ParsedPage(NamedTuple):
    """What a page declares, and its segments; the first `descriptions` elements of the body are declared texts."""

    declared: Declared
    segments: seg.Segments
    descriptions: int

    def address(self, url: str | None) -> str:
        """Return the URL of the page; if it is unknown, the declared one, or an empty string."""
        return url or self.declared.url()[0] or ""

    def are_descriptions(self) -> npt.NDArray[np.bool_]:
        """Return which blocks are declared texts."""
        element = self.segments.blocks[:, seg.ELEMENT]
        body = int(np.argmax(self.segments.tags == markup.TAGS["body"]))
        return np.asarray((element > body) & (element <= body + self.descriptions))


def parse_page(page: bytes | str) -> ParsedPage:
    """Parse a page; descriptions in its metadata become its first blocks, since some pages have no other text."""
    tree, data, found = parse_html(page)
    declared = read_declared(tree)
    html = tree.html or ""
    if found & (_FORMULAS | _DELIMITERS):
        html = formulas.replace_delimiters(html, data)
    normalized = html.encode("utf-8", "replace")
    body = normalized.find(_BODY)
    start = normalized.find(b">", body + len(_BODY)) + 1 if body >= 0 else 0
    texts = list(dict.fromkeys(_descriptions(declared))) if start else []
    added = "".join(f'<section class="page-description">{text}</section>' for text in texts)
    segments = seg.segment(normalized[:start], added.encode("utf-8", "replace"), normalized[start:])
    return ParsedPage(declared, segments, len(texts))


def _descriptions(declared: Declared) -> Iterator[str]:
    """Yield the descriptions and texts in the metadata of a page, as HTML without elements."""
    texts = [declared.meta.get(name, "") for name in _DESCRIPTIONS]
    values = [item.get(name) for item in declared.objects for name in _JSON_LD_TEXTS]
    texts += [value for value in values if isinstance(value, str) and len(value) > _JSON_LD_TEXT]
    plain = (" ".join(_MARKUP.sub(" ", html.unescape(text)).split()) for text in texts)
    # The segmentation reads only the references that lexbor writes, which escapes no quotes.
    return (html.escape(text, quote=False) for text in plain if text)
