"""Reads the tags of HTML that lexbor serialized: their names, the parts of their class names, and what hides them."""

from __future__ import annotations

from typing import Any

import numpy as np

from pipelines.algorithms.blocks.tags import NAME_TABLE, fnv_hash
from pipelines.algorithms.kernels.compilation import as_read_only, helper
from pipelines.algorithms.kernels.hash_table import slot_of

# Flags of elements, inherited from their ancestors: hidden by style or attribute, white space kept as it is, in <pre>,
# not text of the page.
STYLED_HIDDEN, HIDDEN, ARIA_HIDDEN, KEEPS_SPACE, IN_PRE, NO_TEXT = 1, 2, 4, 8, 16, 32

FNV_START, FNV_FACTOR = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)
LOW_BITS = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_NAME_KEYS, _NAME_NUMBERS = NAME_TABLE
_ONES, _HIGH_BITS = np.uint64(0x0101010101010101), np.uint64(0x8080808080808080)
_MAX_TOKENS = 24
# Names of elements whose content is not markup are shorter; reading to the end from each of many signs would take long.
MAX_NAME = 16
_CLASS, _ID, _ROLE, _ITEMPROP, _STYLE, _HIDDEN_NAME, _ARIA = (
    np.uint64(fnv_hash(name)) for name in (b"class", b"id", b"role", b"itemprop", b"style", b"hidden", b"aria-hidden")
)
# Their digits are left out, as in all names.
_LINE_NUMBERS = as_read_only(
    np.array(
        [fnv_hash(name) >> 32 for name in (b"lineno", b"linenos", b"line-number", b"linenumber", b"gutter",
                                           b"hljs-ln-numbers", b"rouge-gutter")],
        np.uint32,
    )
)  # fmt: skip


@helper
def _word_at(html: Any, position: Any) -> Any:
    """Return eight bytes as a number, which LLVM makes one load of."""
    word = np.uint64(0)
    for offset in range(8):
        word |= np.uint64(html[np.uint64(position + offset)]) << np.uint64(8 * offset)
    return word


@helper
def find_byte(html: Any, position: Any, end: Any, byte: Any) -> Any:
    """Return the first position of a byte, or the end."""
    same = np.uint64(byte) * _ONES
    while position + 8 <= end:
        difference = _word_at(html, position) ^ same
        if (difference - _ONES) & ~difference & _HIGH_BITS != 0:  # a byte of it is 0
            break
        position += 8
    while position < end and html[np.uint64(position)] != byte:
        position += 1
    return position


@helper
def hash_name(html: Any, position: Any, end: Any) -> Any:
    """Return the hash of the name of a tag or attribute, and the position after it."""
    value = FNV_START
    while position < end:
        byte = html[position]
        if byte == 62 or byte == 32 or byte == 61 or byte == 10:
            break
        value = (value ^ np.uint64(byte)) * FNV_FACTOR
        position += 1
    return value, position


@helper
def tag_of(name: Any) -> Any:
    """Return the number of a tag by the hash of its name; 0 for an unknown one, which is treated as inline."""
    slot = slot_of(_NAME_KEYS, name)
    return np.int64(_NAME_NUMBERS[slot] if _NAME_KEYS[slot] == name else 0)


@helper
def end_of_comment(html: Any, position: Any, end: Any) -> Any:
    """Return the position after the comment or doctype that begins here."""
    if position + 3 < end and html[position + 2] == 45 and html[position + 3] == 45:
        position += 4
        while position + 2 < end:
            if html[position] == 45 and html[position + 1] == 45 and html[position + 2] == 62:
                return position + 3
            position += 1
        return end
    return find_byte(html, position, end, 62) + 1


@helper
def find_end_tag(html: Any, position: Any, end: Any, name: Any) -> Any:
    """Return the position of the end tag of an element whose content is not markup."""
    while position + 1 < end:
        is_end_tag = html[position] == 60 and html[position + 1] == 47
        if is_end_tag and hash_name(html, position + 2, min(end, position + MAX_NAME))[0] == name:
            return position
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
def is_line_number(tokens: Any, start: Any, end: Any) -> Any:
    """Return whether a class name says that an element within code contains line numbers."""
    for token in tokens[start:end]:
        for name in _LINE_NUMBERS:
            if token == name:
                return True
    return False


@helper
def _add_tokens(html: Any, start: Any, end: Any, tokens: Any, count: Any, limit: Any) -> Any:
    """Add hashes of the parts of a class or id: runs of letters, divided before capitals; and each whole name.

    Digits are left out of whole names, which then are those of all of their kind (`post-1234`).
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
