"""GPT-2's split as a walk over bytes: where words begin, 32 bytes at a time where all are ASCII. For numba kernels.

It does what the pattern `GPT2_SPLIT` of `word_counts` says, with the characters of `split_classes`. In a block of
ASCII, one bit a byte tells its class, and a word begins where, with C its class:

- C is no white space, differs from the class before it, and no blank is before it, which would be the word's own;
- C is white space, and what is before it or behind it is not: such a run leaves its last character to the next word.

What an apostrophe begins (`'s`, `'ll`) ends after two or three bytes, whatever is next.
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

# The most words that `next_words` appends in a step: one a byte, and one after a contraction.
MOST_WORDS_A_STEP = 2 * BLOCK
_STEP = BLOCK - 2
_APOSTROPHE, _BLANK = ord("'"), ord(" ")
_D, _E, _L, _M, _R, _S, _T, _V = (ord(letter) for letter in "delmrstv")
_ONE, _ZERO = np.uint64(1), np.uint64(0)
_WHOLE = np.uint64((1 << BLOCK) - 1)


@helper
def next_words(data, pos, stop, forced, begins, words, most, classes):  # type: ignore[no-untyped-def]
    """Append where words of a text begin, from a word's beginning `pos` on that is the last of `begins` or before it.

    Stops at the end of the text or before `begins` has more than `most`. Returns the place that was reached (`stop` at
    the end), where a word begins after a contraction (0: nowhere), and the words.
    """
    while pos < stop and words <= most - MOST_WORDS_A_STEP:
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
    """Return where a contraction ends that begins at a place, 0 where none does."""
    if byte_at(data, at) != _APOSTROPHE:
        return np.int64(0)
    length = _contraction(data, at, stop)
    return at + length if length else np.int64(0)


@helper
def _is_not_ascii(data, pos, stop):  # type: ignore[no-untyped-def]
    found = not_ascii(data, pos)
    return found != _ZERO and pos + np.int64(lowest_bit(found)) < stop


@helper
def _begins_in_block(data, pos, stop):  # type: ignore[no-untyped-def]
    """Return a bit for each byte of a block at which a word begins, but for the first and the last of the block.

    What is behind the end of the text counts as white space, so that the white space at its end is one word.
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
    """Continue one word at a time, from the last that began, until the next 32 bytes are ASCII."""
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
    """Return where the word that begins at a place ends."""
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
    """Return where the last character of a run of white space begins, and where the run ends."""
    while after < stop:
        code, then = _character(data, after)
        if classes[code] != SPACE:
            break
        at, after = after, then
    return at, after


@helper
def _run_end(data, at, stop, classes, kind):  # type: ignore[no-untyped-def]
    """Return where a run of characters of a class ends."""
    while at < stop:
        code, after = _character(data, at)
        if classes[code] != kind:
            return at
        at = after
    return at


@helper
def _contraction(data, at, stop):  # type: ignore[no-untyped-def]
    """Return the bytes of 's, 't, 'm, 'd, 're, 've or 'll at a position, 0 where there is none."""
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
    """Return the code point of the character at a place, and where it ends."""
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
