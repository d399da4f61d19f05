"""Reads HTML byte by byte: names of tags, attributes and their values, and the characters of text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pipelines.algorithms.kernels.byte_scan import byte_at, word_at
from pipelines.algorithms.kernels.compilation import helper
from pipelines.algorithms.kernels.hash_table import slot_of, table_of

# Their content is not text of the page; that of RAW elements is not markup either.
_SKIPPED = (
    "script style template svg iframe noframes object canvas datalist option noembed math xmp audio video textarea "
    "select title rt rp"
)
_RAW = "script style iframe noframes noembed xmp"
# A block of text ends where such an element begins or ends.
_BLOCK_LEVEL = (
    "address article aside blockquote body center dd details dialog dir div dl dt fieldset figcaption figure footer "
    "form h1 h2 h3 h4 h5 h6 header hgroup hr html legend li main menu nav ol p pre search section summary table tbody "
    "td tfoot th thead tr ul caption noscript button"
)
_INLINE = (
    "head a abbr b bdi bdo big br cite code data del dfn em font i img input ins kbd label map mark meta link "
    "base meter nobr output picture progress q ruby s samp small source span strike strong sub sup time track tt "
    "u var wbr area embed col colgroup param listing d-math"
)
_WITHOUT_END = "area base br col embed hr img input link meta param source track wbr"
# An element without an end tag is ended by the next one of its kind, so a row of them is not nested.
_ENDED_BY_NEXT = "p li dt dd tr td th thead tbody tfoot option a nobr html head body"
_STRONG = "b strong em h1 h2 h3 h4 h5 h6 th"
_CODE = "code kbd samp tt"
# A browser shows something in place of such an element, so it separates words.
_REPLACED = "svg iframe object canvas math audio video textarea select img input embed picture"

NAMES = ("", *_SKIPPED.split(), *_BLOCK_LEVEL.split(), *_INLINE.split())
TAGS = {name: number for number, name in enumerate(NAMES) if name}

SKIPPED, BLOCK_LEVEL, WITHOUT_END, RAW, STRONG, REPLACED, CODE = 1, 2, 4, 8, 16, 32, 64

FNV_START, FNV_FACTOR = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)


def fnv_hash(name: bytes) -> int:
    """Return the 64-bit FNV-1a hash of bytes, as the segmentation hashes names and words."""
    value = int(FNV_START)
    for byte in name:
        value = (value ^ byte) * int(FNV_FACTOR) & 0xFFFFFFFFFFFFFFFF
    return value


def tag_groups(groups: Sequence[str]) -> npt.NDArray[np.int8]:
    """Return for each tag the number of the group that has its name, or -1."""
    numbers = np.full(256, -1, np.int8)
    for number, names in enumerate(groups):
        numbers[[TAGS[name] for name in names.split()]] = number
    return numbers


KINDS = np.zeros(256, np.uint8)
for _kind, _names in zip(
    (SKIPPED, BLOCK_LEVEL, WITHOUT_END, RAW, STRONG, REPLACED, CODE),
    (_SKIPPED, _BLOCK_LEVEL, _WITHOUT_END, _RAW, _STRONG, _REPLACED, _CODE),
    strict=True,
):
    KINDS[[TAGS[name] for name in _names.split()]] |= _kind
NOT_NESTED = (KINDS & WITHOUT_END) != 0
NOT_NESTED[[TAGS[name] for name in _ENDED_BY_NEXT.split()]] = True
# Positions in NAMES by the hash of the name; no name has the hash of the first, the unknown tag.
_NAME_KEYS, _NAME_NUMBERS = table_of(np.array([fnv_hash(name.encode()) for name in NAMES], np.uint64))

# Flags of elements, inherited from their ancestors: hidden by style or attribute, white space kept as it is, in <pre>,
# not text of the page.
STYLED_HIDDEN, HIDDEN, ARIA_HIDDEN, KEEPS_SPACE, IN_PRE, NO_TEXT = 1, 2, 4, 8, 16, 32

LOW_BITS = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_ONES, _HIGH_BITS = np.uint64(0x0101010101010101), np.uint64(0x8080808080808080)
_MAX_TOKENS = 24
# Longer than the names of RAW elements: reading to the end of the page from each of many `<` would take long.
_MAX_NAME = 16
_SCRIPT = TAGS["script"]
_CLASS, _ID, _ROLE, _ITEMPROP, _STYLE, _HIDDEN_NAME, _ARIA = (
    np.uint64(fnv_hash(name)) for name in (b"class", b"id", b"role", b"itemprop", b"style", b"hidden", b"aria-hidden")
)


@helper
def find_byte(html: Any, position: Any, end: Any, byte: Any) -> Any:
    """Return the first position of a byte, or the end."""
    same = np.uint64(byte) * _ONES
    while position + 8 <= end:
        difference = word_at(html, position) ^ same
        if (difference - _ONES) & ~difference & _HIGH_BITS != 0:  # a byte of it is 0
            break
        position += 8
    while position < end and byte_at(html, position) != byte:
        position += 1
    return position


@helper
def is_space(byte: Any) -> Any:
    """Return whether a byte is white space within a tag."""
    return byte == 32 or 9 <= byte <= 13


@helper
def hash_name(html: Any, position: Any, end: Any) -> Any:
    """Return the hash of the lower-cased name of a tag or attribute, and the position after it."""
    value = FNV_START
    while position < end:
        byte = int(byte_at(html, position))
        if is_space(byte) or byte == 47 or byte == 62 or (byte == 61 and value != FNV_START):
            break
        value = (value ^ np.uint64(byte + 32 if 65 <= byte <= 90 else byte)) * FNV_FACTOR
        position += 1
    return value, position


@helper
def tag_of(name: Any) -> Any:
    """Return the number of a tag by the hash of its name; 0 for an unknown one, which is treated as inline."""
    slot = slot_of(_NAME_KEYS, name)
    return np.int64(_NAME_NUMBERS[slot] if _NAME_KEYS[slot] == name else 0)


@helper
def end_of_comment(html: Any, position: Any, end: Any) -> Any:
    """Return the position after a comment whose first two hyphens are here."""
    position += 2
    if byte_at(html, position) == 62:
        return position + 1
    if byte_at(html, position) == 45 and byte_at(html, position + 1) == 62:
        return position + 2
    while position < end:
        position = find_byte(html, position, end, 45)
        if byte_at(html, position) == 45 and byte_at(html, position + 1) == 45:
            if byte_at(html, position + 2) == 62:
                return position + 3
            if byte_at(html, position + 2) == 33 and byte_at(html, position + 3) == 62:
                return position + 4
        position += 1
    return end


@helper
def is_name(html: Any, position: Any, end: Any, tag: Any) -> Any:
    """Return whether the name that begins here is that of a tag."""
    return tag_of(hash_name(html, position, min(end, position + _MAX_NAME))[0]) == tag


@helper
def find_end_tag(html: Any, position: Any, end: Any, tag: Any) -> Any:
    """Return the position of the end tag of an element whose content is not markup, or the end."""
    # In a comment in a script, the end tag of a script that begins there does not end the outer one.
    in_comment = in_script = False
    while position < end:
        if not in_comment:
            position = find_byte(html, position, end, 60)
        byte = byte_at(html, position)
        if byte == 60:  # <
            following = byte_at(html, position + 1)
            if following == 47 and is_name(html, position + 2, end, tag):
                if not in_script:
                    return position
                in_script = False
            elif (
                tag == _SCRIPT
                and following == 33
                and byte_at(html, position + 2) == 45
                and byte_at(html, position + 3) == 45
            ):
                in_comment = True
            elif in_comment and is_name(html, position + 1, end, tag):
                in_script = True
        elif (
            in_comment and byte == 45 and byte_at(html, position + 1) == 45 and byte_at(html, position + 2) == 62
        ):  # -->
            in_comment = in_script = False
        position += 1
    return end


@helper
def read_attributes(html: Any, position: Any, end: Any, tokens: Any, count: Any) -> Any:
    """Return the position after a start tag, the number of tokens, and its own flags."""
    flag = 0
    limit = min(len(tokens), count + _MAX_TOKENS)
    while position < end and html[position] != 62:
        if html[position] == 32:
            position += 1
            continue
        name, position = hash_name(html, position, end)
        start = stop = position
        if position + 1 < end and html[position] == 61:
            start = position + 2
            stop = find_byte(html, start, end, 34)
            position = stop
        position += 1 if position < end and html[position] != 62 else 0
        if name == _CLASS or name == _ID or name == _ROLE or name == _ITEMPROP:  # noqa: SIM109 - for numba
            count = _add_tokens(html, start, stop, tokens, count, limit)
        elif name == _STYLE:
            flag |= _style_flags(html, start, stop)
        elif name == _HIDDEN_NAME:
            flag |= HIDDEN
        elif name == _ARIA and stop > start and html[start] == 116:  # true
            flag |= ARIA_HIDDEN
    return position + 1, count, flag


@helper
def _style_flags(html: Any, start: Any, end: Any) -> Any:
    """Return the flags of a style: for `display: none`, `visibility: hidden` and `white-space: pre` or `pre-wrap`."""
    flag = 0
    for colon in range(start + 7, end):
        if html[colon] == 58:
            value = colon + 1
            while value < end and html[value] == 32:
                value += 1
            if value + 3 <= end:
                # The last letters of the property, the first of the value.
                first, second = html[value], html[value + 1]
                before, last = html[colon - 2], html[colon - 1]
                is_none = first == 110 and second == 111 and before == 97 and last == 121
                if is_none or (first == 104 and second == 105 and before == 116 and last == 121):
                    flag |= STYLED_HIDDEN
                elif first == 112 and second == 114 and before == 99 and last == 101:
                    flag |= KEEPS_SPACE
    return flag


@helper
def _add_tokens(html: Any, start: Any, end: Any, tokens: Any, count: Any, limit: Any) -> Any:
    """Add hashes of the parts of a class or id: runs of letters, divided before capitals; and each whole name.

    Digits are left out of whole names, so that names such as `post-1234` are equal.
    """
    part = whole = FNV_START
    letters = characters = 0
    was_small = False
    for position in range(start, end + 1):
        byte = np.int64(html[position]) if position < end else 32
        is_capital = 65 <= byte <= 90
        small = byte + 32 if is_capital else byte
        is_letter = 97 <= small <= 122
        if letters > 0 and (not is_letter or (is_capital and was_small)):
            if letters > 1 and count < limit:
                tokens[count] = np.uint32(part & LOW_BITS)
                count += 1
            part, letters = FNV_START, 0
        if is_letter:
            part = (part ^ np.uint64(small)) * FNV_FACTOR
            letters += 1
        if byte == 32 or byte == 10 or byte == 9:
            if characters > 2 and count < limit:
                tokens[count] = np.uint32(whole >> _HALF)
                count += 1
            whole, characters = FNV_START, 0
        elif not 48 <= byte <= 57:
            whole = (whole ^ np.uint64(small)) * FNV_FACTOR
            characters += 1
        was_small = bool(is_letter and not is_capital)
    return count


# Kinds of punctuation: marks that end sentences, commas, other signs that are counted.
_SENTENCE, _COMMA, _SIGN = 1, 2, 3


@helper
def decode_reference(html: Any, position: Any, end: Any) -> Any:
    """Return the character of `&amp;`, `&lt;`, `&gt;` or `&nbsp;` (a space), and the position after it."""
    if position + 2 < end:
        first, second = html[position], html[position + 1]
        if first == 97 and second == 109:
            return np.int64(38), position + 4
        if first == 108 and second == 116:
            return np.int64(60), position + 3
        if first == 103 and second == 116:
            return np.int64(62), position + 3
        if first == 110 and second == 98:
            return np.int64(32), position + 5
    return np.int64(38), position


@helper
def is_word_byte(byte: Any) -> Any:
    """Return whether an ASCII character is a letter, a digit or an underscore."""
    return 97 <= byte <= 122 or 65 <= byte <= 90 or 48 <= byte <= 57 or byte == 95


@helper
def is_small_or_digit(byte: Any) -> Any:
    """Return whether a character is a small ASCII letter or a digit."""
    return 97 <= byte <= 122 or 48 <= byte <= 57


@helper
def is_letter(first: Any, second: Any, third: Any) -> Any:
    """Return whether a character outside ASCII is part of a word; punctuation and symbols are not."""
    if first == 194:
        return second == 170 or second == 181 or second == 186
    if first == 195:
        return second != 151 and second != 183
    if first == 226:
        return not (second <= 0x81 or 0x86 <= second <= 0xAF)
    if first == 227:
        return second != 128
    if first == 239 and second == 188:  # full-width forms
        return 0x90 <= third <= 0x99 or 0xA1 <= third <= 0xBA
    return not (first == 239 and second == 187 and third == 191)


@helper
def is_white_space(first: Any, second: Any, third: Any) -> Any:
    """Return whether a character outside ASCII is white space, or of an icon font (in the private use area)."""
    if first == 226:
        return second == 128 and (third <= 0x8A or third == 0xA8 or third == 0xA9 or third == 0xAF)
    return (
        (first == 194 and second == 160)
        or (first == 227 and second == 128 and third == 128)
        or first == 238
        or (first == 239 and second <= 0xA3)
    )


@helper
def is_invisible(first: Any, second: Any, third: Any, last: Any) -> Any:
    """Return whether a character is dropped: soft hyphen, zero width space, direction mark, byte-order mark.

    Joiners are kept after a character outside ASCII, whose last byte is `last`: emoji and some scripts need them.
    """
    if first == 226 and second == 128:
        return (
            third == 0x8B
            or third == 0x8E
            or third == 0x8F
            or 0xAA <= third <= 0xAE
            or (third >> 1 == 0x46 and last < 128)
        )
    return (
        (first == 194 and second == 173)
        or (first == 226 and second == 129 and 0xA0 <= third <= 0xAF)
        or (first == 239 and second == 187 and third == 191)
    )


@helper
def ascii_sign_kind(byte: Any) -> Any:
    """Return the kind of sign of an ASCII character, or 0."""
    if byte == 46 or byte == 33 or byte == 63:
        return _SENTENCE
    if byte == 44 or byte == 59:
        return _COMMA
    return _SIGN if byte == 124 or byte == 35 or byte == 36 or byte == 62 or byte == 47 else 0


@helper
def sign_kind(first: Any, second: Any, third: Any) -> Any:
    """Return the kind of sign of a character outside ASCII, or 0."""
    if (first == 227 and second == 128) or (first == 239 and second == 188):
        if third == 130 or third == 159 or (third == 129 and first == 239):
            return _SENTENCE
        return _COMMA if third == 129 or third == 140 else 0
    return _SIGN if first == 194 or first == 226 else 0
