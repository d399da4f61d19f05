"""GPT-2's pre-tokenization over bytes, for numba kernels: word starts, 32 bytes at a time if all of them are ASCII.

Equivalent to the pattern `GPT2_SPLIT` with the character classes of `split_classes`. In a block of ASCII, each class is
a bit mask with one bit per byte, and a word starts at a character

- that is not white space, has another class than the previous character, and does not follow a space, which would be
  part of the word;
- that is white space next to a character that is not: the last character of a run of white space belongs to the next
  word if it is a space, and is a word of its own otherwise.

A contraction (`'s`, `'ll`) always ends after two or three bytes.
"""

from __future__ import annotations

import numpy as np

from pipelines.algorithms.bpe.split_classes import SPACE
from pipelines.algorithms.kernels.byte_scan import (
    BLOCK,
    blanks,
    byte_at,
    digits,
    letters,
    lowest_bit,
    not_ascii,
    tabs_and_line_ends,
)
from pipelines.algorithms.kernels.compilation import helper

# The split of GPT-2's own code. A word is letters, digits, or other characters that are not white space, each with one
# space before it if there is one; or white space, whose last character belongs to the next word.
GPT2_SPLIT = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""

# Maximum number of words that `next_words` appends per step: one per byte, and one after a contraction.
MAX_WORDS_PER_STEP = 2 * BLOCK
_STEP = BLOCK - 2
_APOSTROPHE, _BLANK = ord("'"), ord(" ")
_D, _E, _L, _M, _R, _S, _T, _V = (ord(letter) for letter in "delmrstv")
_ONE, _ZERO = np.uint64(1), np.uint64(0)
_WHOLE = np.uint64((1 << BLOCK) - 1)


@helper
def next_words(data, pos, stop, forced, begins, words, most, classes):  # type: ignore[no-untyped-def]
    """Append the starts of the words of a text to `begins`, whose last entry is the word start at or before `pos`.

    Stops at the end of the text, or before `begins` has more than `most` entries. Returns the position reached (`stop`
    at the end), the start of the word after a contraction (0 for none), and the number of words.
    """
    while pos < stop and words <= most - MAX_WORDS_PER_STEP:
        if pos + BLOCK > len(data) or _is_not_ascii(data, pos, stop):
            pos, forced, words = _plain_words(data, stop, forced, begins, words, most, classes)
            continue
        bits = _begins_in_block(data, pos, stop)
        while bits != _ZERO:
            at = pos + np.int64(lowest_bit(bits))
            bits &= bits - _ONE
            if at < forced:
                continue
            if forced and at > forced:
                begins[words] = forced
                words += 1
            begins[words] = at
            words += 1
            forced = after_contraction(data, at, stop)
        pos += _STEP
        if pos + 1 >= stop:
            pos = stop
    if pos >= stop and forced:
        if forced < stop:
            begins[words] = forced
            words += 1
        forced = np.int64(0)
    return min(pos, stop), forced, words


@helper
def after_contraction(data, at, stop):  # type: ignore[no-untyped-def]
    """Return the end of the contraction that starts at a position, 0 if there is none."""
    if byte_at(data, at) != _APOSTROPHE:
        return np.int64(0)
    length = _contraction(data, at, stop)
    return at + length if length else np.int64(0)


@helper
def _is_not_ascii(data, pos, stop):  # type: ignore[no-untyped-def]
    bits = not_ascii(data, pos)
    return bits != _ZERO and pos + np.int64(lowest_bit(bits)) < stop


@helper
def _begins_in_block(data, pos, stop):  # type: ignore[no-untyped-def]
    """Return a bit mask of the bytes of a block at which a word starts, without its first and last byte.

    Bytes after the end of the text count as white space, so that white space at its end is one word.
    """
    letter, digit, blank = letters(data, pos), digits(data, pos), blanks(data, pos)
    space = blank | tabs_and_line_ends(data, pos)
    inside = _WHOLE
    if stop - pos < BLOCK:
        inside = (_ONE << np.uint64(stop - pos)) - _ONE
        space |= ~inside
    other = ~(letter | digit | space)
    continues = (letter & letter << _ONE) | (digit & digit << _ONE) | (other & other << _ONE)
    begins = ~(space | continues | blank << _ONE) | (space & ~(space << _ONE & space >> _ONE))
    return begins & inside & (_WHOLE >> _ONE & ~_ONE)


@helper
def _plain_words(data, stop, forced, begins, words, most, classes):  # type: ignore[no-untyped-def]
    """Split one word at a time, from the last word start, until the next 32 bytes are ASCII."""
    at = begins[words - 1]
    if forced:
        if forced >= stop:
            return stop, np.int64(0), words
        at = forced
        begins[words] = at
        words += 1
    while words < most:
        at = word_end(data, at, stop, classes)
        if at >= stop:
            return stop, np.int64(0), words
        begins[words] = at
        words += 1
        if at + BLOCK <= len(data) and not _is_not_ascii(data, at, stop):
            return at, after_contraction(data, at, stop), words
    return at, np.int64(0), words


@helper
def word_end(data, at, stop, classes):  # type: ignore[no-untyped-def]
    """Return the end of the word that starts at a position."""
    byte = byte_at(data, at)
    code, after = _character(data, at)
    kind = classes[code]
    if kind == SPACE:
        last, after = _last_space(data, at, after, stop, classes)
        if after == stop:
            return after
        if last > at:
            return last
        if byte != _BLANK:
            return after
        code, after = _character(data, after)
        return _run_end(data, after, stop, classes, classes[code])
    if byte == _APOSTROPHE:
        contraction = _contraction(data, at, stop)
        if contraction:
            return at + contraction
    return _run_end(data, after, stop, classes, kind)


@helper
def _last_space(data, at, after, stop, classes):  # type: ignore[no-untyped-def]
    """Return the start of the last character of a run of white space, and the end of the run."""
    while after < stop:
        code, then = _character(data, after)
        if classes[code] != SPACE:
            break
        at, after = after, then
    return at, after


@helper
def _run_end(data, at, stop, classes, kind):  # type: ignore[no-untyped-def]
    """Return the end of a run of characters of a class."""
    while at < stop:
        code, after = _character(data, at)
        if classes[code] != kind:
            return at
        at = after
    return at


@helper
def _contraction(data, at, stop):  # type: ignore[no-untyped-def]
    """Return the length in bytes of 's, 't, 'm, 'd, 're, 've or 'll at a position, 0 if there is none."""
    if at + 1 >= stop:
        return 0
    first = byte_at(data, at + 1)
    if first in (_S, _T, _M, _D):
        return 2
    if at + 2 >= stop:
        return 0
    second = byte_at(data, at + 2)
    if first in (_R, _V) and second == _E:
        return 3
    return 3 if first == _L and second == _L else 0


@helper
def _character(data, at):  # type: ignore[no-untyped-def]
    """Return the code point of the character at a position, and its end."""
    byte = np.int64(byte_at(data, at))
    if byte < 0x80:
        return byte, at + 1
    second = np.int64(byte_at(data, at + 1)) & 0x3F
    if byte < 0xE0:
        return (byte & 0x1F) << 6 | second, at + 2
    third = np.int64(byte_at(data, at + 2)) & 0x3F
    if byte < 0xF0:
        return (byte & 0x0F) << 12 | second << 6 | third, at + 3
    return (byte & 0x07) << 18 | second << 12 | third << 6 | np.int64(byte_at(data, at + 3)) & 0x3F, at + 4
