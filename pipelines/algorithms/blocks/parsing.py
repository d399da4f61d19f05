"""Parses pages with lexbor, after a pass that leaves out what is not read of them: code, comments, most attributes."""

from __future__ import annotations

from typing import Any

import numpy as np
from selectolax.lexbor import LexborHTMLParser

from pipelines.algorithms.blocks.markup import FNV_FACTOR, FNV_START, MAX_NAME, find_byte, tag_of
from pipelines.algorithms.blocks.tags import KINDS, NOT_NESTED, RAW, TAGS, fnv_hash
from pipelines.algorithms.kernels.compilation import as_read_only, helper, kernel

# The time that lexbor takes grows with the square of the depth: 20,000 nested elements take 2 s. Real pages have fewer
# tags, and a depth of 50 at most. libxml2 has the same limit.
_MANY_TAGS, _MAX_DEPTH = 20_000, 256
_SLACK = 16
# Read by segmentation, and by those who look for what a page declares.
_ATTRIBUTES = as_read_only(
    np.array(
        [fnv_hash(name.encode()) for name in ("class id role itemprop style hidden aria-hidden name property content "
                                              "rel type datetime").split()],
        np.uint64,
    )
)  # fmt: skip
_IFRAME, _MATH, _NOSCRIPT, _SCRIPT, _SVG, _TEXTAREA, _TITLE = (
    TAGS[name] for name in ("iframe", "math", "noscript", "script", "svg", "textarea", "title")
)
_END_OF_FRAME, _LESS = (as_read_only(np.frombuffer(text, np.uint8)) for text in (b"</iframe>", b"&lt;"))


def parse_html(page: bytes | str) -> LexborHTMLParser:
    """Parse a page, in UTF-8 or decoded, without its code and comments, half of an average page, and unread attributes.

    The tags of elements that are nested more than 256 deep are left out if there are many tags; their text stays.
    """
    data = page if isinstance(page, bytes) else page.encode()
    # Padded, since a kernel has no bounds checks and looks a few bytes ahead.
    html = as_read_only(np.frombuffer(data + bytes(_SLACK), np.uint8))
    # A frame may become longer by its end, and a sign becomes a reference.
    reduced, sizes = np.empty(4 * len(data), np.uint8), np.zeros(2, np.int64)
    _reduce(html, len(data), len(data), reduced, sizes)
    if sizes[1] > _MANY_TAGS:
        _reduce(html, len(data), _MAX_DEPTH, reduced, sizes)
    return LexborHTMLParser(reduced[: sizes[0]].tobytes())


@helper
def _at(html: Any, position: Any) -> Any:
    """Return the byte at a position, which numba does not check to be negative if it is unsigned."""
    return html[np.uint64(position)]


@helper
def _is_space(byte: Any) -> Any:
    return byte == 32 or 9 <= byte <= 13


@helper
def _read_name(html: Any, position: Any, end: Any) -> Any:
    """Return the hash of the lower-cased name of a tag or attribute, and the position after it."""
    value = FNV_START
    while position < end:
        byte = int(_at(html, position))
        if _is_space(byte) or byte == 47 or byte == 62 or (byte == 61 and value != FNV_START):
            break
        value = (value ^ np.uint64(byte + 32 if 65 <= byte <= 90 else byte)) * FNV_FACTOR
        position += 1
    return value, position


@helper
def _end_of_attribute(html: Any, position: Any, end: Any) -> Any:
    """Return the position after the value of an attribute whose name ends here; after the name if it has none."""
    start = position
    while _is_space(_at(html, position)):
        position += 1
    if _at(html, position) != 61:  # =
        return start
    position += 1
    while _is_space(_at(html, position)):
        position += 1
    quote = _at(html, position)
    if quote == 34 or quote == 39:
        return min(end, find_byte(html, position + 1, end, quote) + 1)
    while position < end and not _is_space(_at(html, position)) and _at(html, position) != 62:
        position += 1
    return position


@helper
def _end_of_comment(html: Any, position: Any, end: Any) -> Any:
    """Return the position after a comment whose first two hyphens are here."""
    position += 2
    if _at(html, position) == 62:
        return position + 1
    if _at(html, position) == 45 and _at(html, position + 1) == 62:
        return position + 2
    while position < end:
        if _at(html, position) == 45 and _at(html, position + 1) == 45:
            if _at(html, position + 2) == 62:
                return position + 3
            if _at(html, position + 2) == 33 and _at(html, position + 3) == 62:
                return position + 4
        position += 1
    return end


@helper
def _names(html: Any, position: Any, end: Any, tag: Any) -> Any:
    """Return whether the name that begins here is that of a tag."""
    return tag_of(_read_name(html, position, min(end, position + MAX_NAME))[0]) == tag


@helper
def _find_end_tag(html: Any, position: Any, end: Any, tag: Any) -> Any:
    """Return the position of the end tag of an element whose content is not markup, or the end."""
    # In a comment in a script, the end tag of a script that begins there does not end the outer one.
    in_comment = in_script = False
    while position < end:
        if not in_comment:
            position = find_byte(html, position, end, 60)
        byte = _at(html, position)
        if byte == 60:  # <
            following = _at(html, position + 1)
            if following == 47 and _names(html, position + 2, end, tag):
                if not in_script:
                    return position
                in_script = False
            elif tag == _SCRIPT and following == 33 and _at(html, position + 2) == 45 and _at(html, position + 3) == 45:
                in_comment = True
            elif in_comment and _names(html, position + 1, end, tag):
                in_script = True
        elif in_comment and byte == 45 and _at(html, position + 1) == 45 and _at(html, position + 2) == 62:  # -->
            in_comment = in_script = False
        position += 1
    return end


@helper
def _copy(html: Any, start: Any, end: Any, reduced: Any, filled: Any) -> Any:
    for position in range(start, end):
        reduced[np.uint64(filled)] = _at(html, position)
        filled += 1
    return filled


@kernel
def _reduce(html: Any, end: Any, max_depth: Any, reduced: Any, sizes: Any) -> None:
    position = filled = depth = tags = 0
    foreign = 0
    while position < end:
        while position < end and _at(html, position) != 60:
            reduced[filled] = _at(html, position)
            filled += 1
            position += 1
        if position == end:
            break
        start = position
        byte = int(_at(html, start + 1))
        if byte == 33 and _at(html, start + 2) == 45 and _at(html, start + 3) == 45:  # <!--
            position = _end_of_comment(html, start + 2, end)
            continue
        is_end = byte == 47
        letter = int(_at(html, start + 2 if is_end else start + 1)) | 32
        if not 97 <= letter <= 122:
            if is_end or byte == 33 or byte == 63:
                position = min(end, find_byte(html, start, end, 62) + 1)
                filled = _copy(html, start, position, reduced, filled)
            else:  # a sign, also if what follows is left out
                position = start + 1
                filled = _copy(_LESS, 0, len(_LESS), reduced, filled)
            continue
        tags += 1
        name, position = _read_name(html, start + (2 if is_end else 1), end)
        tag = tag_of(name)
        is_deep = False
        if not NOT_NESTED[tag]:
            depth = max(0, depth + (-1 if is_end else 1))
            is_deep = depth + is_end > max_depth
        tag_start = filled
        filled = _copy(html, start, position, reduced, filled)
        is_closed = is_json = False
        while position < end and _at(html, position) != 62:
            if _is_space(_at(html, position)) or _at(html, position) == 47:
                is_closed = _at(html, position) == 47
                position += 1
                continue
            is_closed = False
            first = position
            name, position = _read_name(html, position, end)
            position = _end_of_attribute(html, position, end)
            for known in _ATTRIBUTES:
                if name == known and not is_end:
                    reduced[filled] = 32
                    filled = _copy(html, first, position, reduced, filled + 1)
                    if tag == _SCRIPT:  # ld+json, ld&#x2B;json
                        sign = min(find_byte(html, first, position, 43), find_byte(html, first, position, 38))
                        is_json |= sign < position
        if position >= end:  # a tag without end is not one
            filled = tag_start
            break
        position += 1
        if is_deep:
            reduced[tag_start] = 32
            filled = tag_start + 1
            continue
        if is_closed:
            if filled - tag_start < position - start - 2:  # else there is no value before it that it could belong to
                reduced[filled] = 32
                filled += 1
            reduced[filled] = 47
            filled += 1
        reduced[filled] = 62
        filled += 1
        if (tag == _SVG or tag == _MATH) and not is_closed:  # noqa: SIM109 - for numba
            foreign = max(0, foreign + (-1 if is_end else 1))
        if is_end or (foreign and is_closed):  # in HTML the slash says nothing
            continue
        if tag == _TITLE or tag == _TEXTAREA or is_json:  # noqa: SIM109 - for numba
            first = position
            position = _find_end_tag(html, position, end, tag)
            filled = _copy(html, first, position, reduced, filled)
        elif KINDS[tag] & RAW:
            if tag == _IFRAME:
                # A browser does not parse what is in noscript; a frame without an end would contain the rest.
                first = position
                while _is_space(_at(html, first)):
                    first += 1
                if _at(html, first + 1) == 47 and _names(html, first + 2, end, _NOSCRIPT):
                    filled = _copy(_END_OF_FRAME, 0, len(_END_OF_FRAME), reduced, filled)
                    continue
            first = position
            position = _find_end_tag(html, first, end, tag)
            if foreign:  # there it need not have an end tag
                position = _find_end_tag(html, first, position, _SVG)
                position = _find_end_tag(html, first, position, _MATH)
    sizes[0], sizes[1] = filled, tags
