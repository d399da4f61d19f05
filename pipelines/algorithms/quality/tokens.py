"""Tokens of English text as spaCy's tokenizer makes them, on which datatrove's counts of words are based.

Text is split at white space; marks are split off at both ends of each chunk; then the rest is split within: at hyphens
between letters, at contractions, at ellipses. Of spaCy's exceptions, only the frequent ones are known. How often tokens
differ is measured in benchmarks/filter.md.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pipelines.algorithms.kernels.byte_scan import word_at
from pipelines.algorithms.kernels.compilation import helper
from pipelines.algorithms.quality.characters import (
    ALPHA,
    CONTINUATION,
    DIGIT,
    EDGE,
    HYPHEN,
    LOWER,
    PICTURE,
    PREFIX,
    QUOTE,
    SPACE,
    UPPER,
)

_OFFSET, _PRIME, _ALL = 0xCBF29CE484222325, 0x9E3779B97F4A7C15, (1 << 64) - 1
# Chunks that are one token.
_WHOLE = (
    "a.m. p.m. e.g. E.g. i.e. I.e. vs. v.s. and/or w/o Adm. Apr. Aug. Bros. Co. Corp. D.C. Dec. Dr. Feb. Gen. Gov. "
    "Inc. Jan. Jr. Jul. Jun. Ltd. Mar. Md. Messrs. Mo. Mr. Mrs. Ms. Mt. Nov. Oct. Ph.D. Prof. Rep. Rev. Sen. Sep. "
    "Sept. St. :) :( :-) ;) '' :D 's ’s 'S 'll 're 've 'd 'm 'em n't"
)
_LONGEST_WHOLE = 7
_UNITS = (
    "km m dm cm mm nm ha ft in yd kg g mg t lb oz m/s km/h kmh mph hPa Pa mbar mb MB kb KB gb GB tb TB T G M K % am pm"
)
_LONGEST_UNIT = 4
# Their last bytes.
_CURLY_APOSTROPHE, BULLET, ELLIPSIS = 0x99, 0xA2, 0xA6


def hashes_of(words: str) -> npt.NDArray[np.uint64]:
    """Return the hashes of words, as `hash_bytes` makes them."""
    values = []
    for word in map(str.encode, words.split()):
        value = _OFFSET ^ len(word)
        for start in range(0, len(word), 8):
            value = (value ^ int.from_bytes(word[start : start + 8], "little")) * _PRIME % 2**64
            value ^= value >> 32
        values.append(value)
    return np.array(values, np.uint64)


_WHOLE_HASHES, _UNIT_HASHES = hashes_of(_WHOLE), hashes_of(_UNITS)


@helper
def find_tokens(text: Any, classes: Any, begins: Any, ends: Any) -> Any:
    """Fill in where tokens begin and end in a text of which each byte has a class; return how many there are.

    `begins` and `ends` have an entry per byte and one more.
    """
    count, size, position = 0, len(text), 0
    while position < size:
        kind = classes[position]
        if kind & (SPACE | CONTINUATION):  # of a space: of any other character, they are skipped below
            position += 1
            continue
        first = position
        while position < size and classes[position] & (ALPHA | CONTINUATION):
            position += 1
        if position < size and not classes[position] & SPACE:
            while position < size and not classes[position] & SPACE:
                position += 1
            count = _split_chunk(text, classes, first, position, begins, ends, count)
            continue
        middle = _middle_of_cannot(text, first, position)
        if middle < position:
            begins[count], ends[count] = first, middle
            count, first = count + 1, middle
        begins[count], ends[count] = first, position
        count += 1
    return count


_CANNOT = hashes_of("cannot Cannot")


@helper
def _middle_of_cannot(text: Any, low: Any, high: Any) -> Any:
    """Return where `not` begins in the word cannot; of other words, the end."""
    return low + 3 if high - low == 6 and is_in(_CANNOT, hash_bytes(text, low, high)) else high


@helper
def _split_chunk(text: Any, classes: Any, low: Any, high: Any, begins: Any, ends: Any, count: Any) -> Any:
    """Add the tokens of a chunk that is more than letters."""
    size = len(begins)
    split_off = 0  # tokens at the end of the chunk are kept at the end of the arrays, in reverse
    end = high
    changed = True
    while changed and low < high and not _is_whole(text, low, high):
        changed = False
        length = _prefix_size(text, classes, low, high)
        if length:
            begins[count], ends[count] = low, low + length
            count, low, changed = count + 1, low + length, True
            if low < high and _is_whole(text, low, high):
                break
        length = _suffix_size(text, classes, low, high)
        if length:
            split_off += 1
            begins[size - split_off] = high - length
            high, changed = high - length, True
    if low < high:
        if _is_whole(text, low, high) or _is_url(text, low, high):
            begins[count], ends[count] = low, high
            count += 1
        else:
            middle = min(_contraction(text, classes, low, high), _middle_of_cannot(text, low, high))
            count = _split_within(text, classes, low, middle, begins, ends, count)
            if middle < high:
                begins[count], ends[count] = middle, high
                count += 1
    while split_off:
        start = begins[size - split_off]
        split_off -= 1
        begins[count], ends[count] = start, begins[size - split_off] if split_off else end
        count += 1
    return count


@helper
def _prefix_size(text: Any, classes: Any, low: Any, high: Any) -> Any:
    if low >= high:
        return 0
    byte = text[low]
    if byte == 46:  # two periods or more
        return _run_of_periods(text, low, high) if low + 1 < high and text[low + 1] == 46 else 0
    if byte == 43:  # a plus, unless it is the sign of a number
        return 1 if low + 1 < high and not classes[low + 1] & DIGIT else 0
    return _character_size(classes, low, high) if classes[low] & (EDGE | PREFIX) else 0


@helper
def _suffix_size(text: Any, classes: Any, low: Any, high: Any) -> Any:
    if low >= high:
        return 0
    last = last_character(classes, low, high)
    before = last_character(classes, low, last) if last > low else low
    byte, kind = text[last], classes[last]
    if byte == 46 and last > low:
        if text[last - 1] == 46:
            first = last
            while first > low and text[first - 1] == 46:
                first -= 1
            return high - first
        if classes[before] & (LOWER | DIGIT | EDGE | QUOTE | PREFIX) or text[before] == 45 or text[before] == 43:
            return 1
        is_capital = classes[before] & UPPER and before > low and classes[last_character(classes, low, before)] & UPPER
        return 1 if is_capital else 0
    if (byte == 115 or byte == 83) and last > low:
        if text[last - 1] == 39:
            return 2
        if is_mark(text, last - 3, low, _CURLY_APOSTROPHE):
            return 4
    if kind & EDGE:
        return high - last
    if last > low and classes[before] & DIGIT and (byte == 43 or kind & PREFIX):
        return high - last
    first = last
    while first > low and high - first < _LONGEST_UNIT and not classes[first - 1] & DIGIT:
        first -= 1
    if first > low and classes[first - 1] & DIGIT and is_in(_UNIT_HASHES, hash_bytes(text, first, high)):
        return high - first
    return 0


@helper
def _split_within(text: Any, classes: Any, low: Any, high: Any, begins: Any, ends: Any, count: Any) -> Any:
    """Add the tokens of a chunk without marks at its ends."""
    first, position = low, low
    while position < high:
        length = 0
        if classes[position] & PICTURE or (text[position] == 46 and position + 1 < high and text[position + 1] == 46):
            length = _run_of_periods(text, position, high) or _character_size(classes, position, high)
        elif position > low and position + 1 < high:
            length = _infix_size(text, classes, low, position, high)
        if length:
            if position > first:
                begins[count], ends[count] = first, position
                count += 1
            begins[count], ends[count] = position, position + length
            count, position = count + 1, position + length
            first = position
        else:
            position += _character_size(classes, position, high)
    if first < high:
        begins[count], ends[count] = first, high
        count += 1
    return count


@helper
def _infix_size(text: Any, classes: Any, low: Any, position: Any, high: Any) -> Any:
    before = classes[last_character(classes, low, position)]
    byte = text[position]
    if classes[position] & HYPHEN and before & (ALPHA | DIGIT):
        end = position + _character_size(classes, position, high)
        while end < high and text[end] == byte and classes[end] & HYPHEN:  # two or three in a row
            end += _character_size(classes, end, high)
        if end < high and classes[end] & ALPHA:
            return end - position
    after = classes[position + 1]
    if byte == 44:
        return 1 if before & ALPHA and after & ALPHA else 0
    if byte == 46:
        return 1 if before & (LOWER | QUOTE) and after & (UPPER | QUOTE) else 0
    if byte == 58 or byte == 60 or byte == 61 or byte == 62 or byte == 47:  # : < = > /
        return 1 if before & (ALPHA | DIGIT) and after & ALPHA else 0
    if byte == 43 or byte == 45 or byte == 42 or byte == 94:  # + - * ^
        return 1 if before & DIGIT and (after & DIGIT or text[position + 1] == 45) else 0
    return 0


@helper
def _contraction(text: Any, classes: Any, low: Any, high: Any) -> Any:
    """Return where the second part of a contraction begins (`n't`, `'ll`, `'ve`, `'re`, `'d`, `'m`), else the end."""
    for apostrophe in range(high - 2, max(low, high - 6), -1):
        if text[apostrophe] == 39:
            after = apostrophe + 1
        elif is_mark(text, apostrophe, low, _CURLY_APOSTROPHE):
            after = apostrophe + 3
        else:
            continue
        length = high - after
        byte = text[after] if length else 0
        second = text[after + 1] if length == 2 else 0
        if length == 1 and byte == 116 and text[apostrophe - 1] == 110:
            start = apostrophe - 1
        elif (length == 1 and (byte == 100 or byte == 109)) or (
            (byte == 108 and second == 108) or ((byte == 118 or byte == 114) and second == 101)
        ):
            start = apostrophe
        else:
            return high
        for position in range(low, start):
            if not classes[position] & (ALPHA | CONTINUATION):
                return high
        return start if start > low else high
    return high


@helper
def _is_whole(text: Any, low: Any, high: Any) -> Any:
    if high - low == 2 and text[high - 1] == 46:
        return 97 <= text[low] | 0x20 <= 122  # an initial
    first, last = text[low], text[high - 1]
    is_likely = last == 46 or last == 40 or last == 41 or first == 39 or first == 0xE2 or first == 58
    is_likely |= first == 110 or last == 114 or last == 111  # n't and/or w/o
    if not is_likely or high - low > _LONGEST_WHOLE:
        return False
    return is_in(_WHOLE_HASHES, hash_bytes(text, low, high))


@helper
def _is_url(text: Any, low: Any, high: Any) -> Any:
    """Return whether a chunk is an address with a scheme, or begins with `www.`."""
    if high - low > 4 and text[low] | 0x20 == 119 and text[low + 1] | 0x20 == 119 and text[low + 3] == 46:
        return True
    for position in range(low + 2, min(high - 4, low + 9)):
        if text[position] == 58 and text[position + 1] == 47 and text[position + 2] == 47:
            for dot in range(position + 4, high - 1):
                if text[dot] == 46:
                    return True
    return False


@helper
def is_in(hashes: Any, value: Any) -> Any:
    """Return whether a hash is among a few."""
    is_there = False
    for place in range(len(hashes)):
        is_there |= hashes[place] == value
    return is_there


@helper
def _run_of_periods(text: Any, position: Any, high: Any) -> Any:
    end = position
    while end < high and text[end] == 46:
        end += 1
    return end - position


@helper
def is_mark(text: Any, position: Any, low: Any, last_byte: Any) -> Any:
    """Return whether a character of U+2000 to U+203F, by its last byte, begins at a position from `low` on."""
    if position < low or position + 3 > len(text):
        return False
    return text[position] == 0xE2 and text[position + 1] == 0x80 and text[position + 2] == last_byte


@helper
def _character_size(classes: Any, position: Any, high: Any) -> Any:
    end = position + 1
    while end < high and classes[end] & CONTINUATION:
        end += 1
    return end - position


@helper
def last_character(classes: Any, low: Any, high: Any) -> Any:
    """Return where the character before a position begins."""
    position = high - 1
    while position > low and classes[position] & CONTINUATION:
        position -= 1
    return position


@helper
def hash_bytes(text: Any, start: Any, stop: Any) -> Any:
    """Return a hash of some bytes: of 8 at a time, as in FNV-1a of 1."""
    value = np.uint64(_OFFSET) ^ np.uint64(stop - start)
    for position in range(start, stop, 8):
        size = min(8, stop - position)
        if position + 8 <= len(text):
            word = word_at(text, position)
            word &= np.uint64(_ALL) >> np.uint64(64 - 8 * size)
        else:
            word = np.uint64(0)
            for offset in range(size):
                word |= np.uint64(text[position + offset]) << np.uint64(8 * offset)
        value = (value ^ word) * np.uint64(_PRIME)
        value ^= value >> np.uint64(32)
    return value
