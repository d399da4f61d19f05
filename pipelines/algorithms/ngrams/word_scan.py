"""Finds the words of texts in UTF-8, lower-cases and hashes them; numba kernels under `fingerprints` and `ngram_index`.

A text is read in pieces. First each byte of a piece gets a bit if it belongs to a word (`word_bits`). Then each run of
such bytes is hashed, 8 bytes at a time; a word of which more than ASCII letters must change (`Bits.rare`) goes
character by character, to the same hash.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pipelines.algorithms.bpe.pair_table import at_least
from pipelines.algorithms.kernels.byte_scan import byte_at, lowest_bit, word_at
from pipelines.algorithms.kernels.compilation import kernel
from pipelines.algorithms.ngrams.character_tables import (
    CASED,
    CODE,
    DOTTED_I,
    FINAL_SIGMA,
    IGNORABLE,
    SIGMA,
    SMALL_SIGMA,
)
from pipelines.algorithms.ngrams.word_bits import APOSTROPHE, CURLY_APOSTROPHE, character_at, is_any_set, mark
from pipelines.algorithms.ngrams.word_blocks import BLOCK, put_byte, put_word

# A longer text is cut where an ASCII character is that no word holds, if there is one: memory is bounded by pieces.
PIECE_BYTES = 1 << 17
# What stores past the end of the normalized text may overwrite.
SLACK = 32

_SPACE = 0x20
_NONE, _ONE, _TWO, _TOP, _HALF = np.uint64(0), np.uint64(1), np.uint64(2), np.uint64(63), np.uint64(32)
_HIGH_BITS = np.uint64(0x8080808080808080)
# Of a word of so many bytes, those in the first 8 and those in the second.
_FIRST = np.array([(1 << 8 * min(size, 8)) - 1 for size in range(17)], np.uint64)
_SECOND = np.array([(1 << 8 * max(size - 8, 0)) - 1 for size in range(17)], np.uint64)
_MIX_1, _MIX_2, _MIX_3 = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F), np.uint64(0xD6E8FEB86659FD93)
_SHIFT = np.uint64(29)


class Found(NamedTuple):
    """Room for the words of a piece.

    `hashes`; where the words begin and end in the buffer; where each begins in the normalized text, which has a space
    after each word, and last where that ends; and the numbers of the words with which the runs of words begin that
    n-grams do not leave.
    """

    hashes: npt.NDArray[np.uint64]
    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    normal_starts: npt.NDArray[np.int64]
    normal: npt.NDArray[np.uint8]
    segments: npt.NDArray[np.int64]


class Count(NamedTuple):
    """How much of `Found` is filled, and whether the next word begins a run of words."""

    words: np.int64
    normal: np.int64
    segments: np.int64
    fresh: bool


def as_read_only(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return an array as one that is not written, as numba compiles for each kind; memory maps become plain arrays."""
    view: npt.NDArray[Any] = np.asarray(array).view(np.ndarray)[:]
    view.flags.writeable = False
    return view


# Pieces


@kernel
def piece_end(buffer, start, stop):  # type: ignore[no-untyped-def]
    """Return where the piece of a text that begins at `start` ends."""
    if stop - start <= PIECE_BYTES:
        return stop
    for at in range(start + PIECE_BYTES, start, -1):
        if _divides(byte_at(buffer, at)):
            return at
    for at in range(start + PIECE_BYTES, stop):
        if _divides(byte_at(buffer, at)):
            return at
    return stop


@kernel
def _divides(byte):  # type: ignore[no-untyped-def]
    if byte >= 0x80 or byte == APOSTROPHE or 0x30 <= byte <= 0x39:
        return False
    return not 0x61 <= (byte | 0x20) <= 0x7A


@kernel
def longest_piece(buffer, starts):  # type: ignore[no-untyped-def]
    """Return the bytes of the longest piece of all texts."""
    longest = 0
    for text in range(len(starts) - 1):
        start, stop = starts[text], starts[text + 1]
        while start < stop:
            end = piece_end(buffer, start, stop)
            longest = max(longest, end - start)
            start = end
    return longest


@kernel
def most_words(size):  # type: ignore[no-untyped-def]
    """Return how many words so many bytes may hold, and no more: each but the last has a byte that ends it."""
    return size // 2 + 1


@kernel
def most_normal(size):  # type: ignore[no-untyped-def]
    """Return how many bytes the normalized text of so many bytes may have: a character of 2 bytes may grow to 3."""
    return size + size // 2 + 2 + SLACK


@kernel
def new_found(words, normal):  # type: ignore[no-untyped-def]
    """Return room for so many words and bytes of normalized text."""
    return Found(
        np.empty(words, np.uint64),
        np.empty(words, np.int64),
        np.empty(words, np.int64),
        np.empty(words + 1, np.int64),
        np.empty(normal, np.uint8),
        np.empty(words + 1, np.int64),
    )


@kernel
def with_normal_room(found, normal):  # type: ignore[no-untyped-def]
    """Return room for so many bytes of normalized text, and the same room for words; what is there stays."""
    if normal <= len(found.normal):
        return found
    larger = at_least(found.normal, max(normal, 2 * len(found.normal)))
    return Found(found.hashes, found.starts, found.ends, found.normal_starts, larger, found.segments)


@kernel
def _check_room(size, bits, found, count, spans):  # type: ignore[no-untyped-def]
    """Raise IndexError where a piece of so many bytes might not fit: no store after this is checked."""
    words, segments = count.words + most_words(size), count.segments + most_words(size)
    enough = words <= len(found.hashes) and words < len(found.normal_starts) and segments <= len(found.segments)
    if spans:
        enough = enough and words <= len(found.starts) and words <= len(found.ends)
    enough = enough and count.normal + most_normal(size) <= len(found.normal)
    if not enough or size // BLOCK + 2 > len(bits.words):
        raise IndexError("there is no room for the words of a piece")


# Characters


@kernel
def _put_character(normal, size, code):  # type: ignore[no-untyped-def]
    """Write a character as UTF-8 and return where the next one goes."""
    if code < 0x80:
        put_byte(normal, size, np.uint8(code))
        return size + 1
    if code < 0x800:
        put_byte(normal, size, np.uint8(0xC0 | code >> 6))
    elif code < 0x10000:
        put_byte(normal, size, np.uint8(0xE0 | code >> 12))
        size += 1
        put_byte(normal, size, np.uint8(0x80 | code >> 6 & 0x3F))
    else:
        put_byte(normal, size, np.uint8(0xF0 | code >> 18))
        put_byte(normal, size + 1, np.uint8(0x80 | code >> 12 & 0x3F))
        put_byte(normal, size + 2, np.uint8(0x80 | code >> 6 & 0x3F))
        size += 2
    put_byte(normal, size + 1, np.uint8(0x80 | code & 0x3F))
    return size + 2


@kernel
def _entry(code, reading):  # type: ignore[no-untyped-def]
    return reading.entries[reading.pages[code >> 8], code & 0xFF]


@kernel
def _small_sigma(buffer, at, first, stop, reading):  # type: ignore[no-untyped-def]
    """Return what the sigma at a position of a text from `first` to `stop` becomes: the final one where a word with
    case ends. It is `str.lower`'s rule: marks, apostrophes and the like on either side are passed over."""
    before, code = at, np.int64(0)
    entry = np.int64(IGNORABLE)
    while before > first and entry & IGNORABLE:
        before -= 1
        while before > first and byte_at(buffer, before) & 0xC0 == 0x80:
            before -= 1
        code, _ = character_at(buffer, before, stop)
        entry = np.int64(_entry(code, reading))
    if not entry & CASED:
        return SMALL_SIGMA
    after = at + 2
    while after < stop:
        code, size = character_at(buffer, after, stop)
        entry = np.int64(_entry(code, reading))
        if not entry & IGNORABLE:
            return SMALL_SIGMA if entry & CASED else FINAL_SIGMA
        after += size
    return FINAL_SIGMA


@kernel
def _put_rare_word(buffer, start, end, first, stop, reading, normal, size):  # type: ignore[no-untyped-def]
    """Write a word in lower case, character by character; return where it ends in the buffer and in `normal`."""
    at = start
    while at < end:
        code, bytes_read = character_at(buffer, at, stop)
        at += bytes_read
        if code in (APOSTROPHE, CURLY_APOSTROPHE):
            continue
        if code == SIGMA:
            code = np.int64(_small_sigma(buffer, at - 2, first, stop, reading))
        elif code == DOTTED_I:
            code = np.int64(0x69)
        else:
            code = (code + np.int64(_entry(code, reading))) & CODE
        size = _put_character(normal, size, code)
    return at, size


# Hashes


@kernel
def _lower(word):  # type: ignore[no-untyped-def]
    """Lower-case 8 bytes of words: a letter or digit of ASCII has bit 5 set in lower case, other bytes stay."""
    return word | ((~word & _HIGH_BITS) >> _TWO)


@kernel
def _absorb(state, first, second):  # type: ignore[no-untyped-def]
    """Take 16 bytes into a hash; one to one in `first` where `second` is 0, so short words never share a hash."""
    state = (state ^ first) * _MIX_1
    state = ((state ^ (state >> _HALF)) + second * _MIX_2) * _MIX_3
    return state ^ (state >> _SHIFT)


@kernel
def _hash_normal(normal, start, end, seed):  # type: ignore[no-untyped-def]
    """Return the hash of a normalized word, 16 bytes at a time, zeros after the last; `normal` has 16 more bytes."""
    state = seed
    while end - start > 16:
        state = _absorb(state, word_at(normal, start), word_at(normal, start + 8))
        start += 16
    size = end - start
    return _absorb(state, word_at(normal, start) & _FIRST[size], word_at(normal, start + 8) & _SECOND[size])


@kernel
def _put_long_word(buffer, start, end, normal, size):  # type: ignore[no-untyped-def]
    """Write a word with ASCII letters in lower case and return where it ends."""
    for at in range(start, end):
        byte = byte_at(buffer, at)
        put_byte(normal, size, byte if byte >= 0x80 else byte | np.uint8(0x20))
        size += 1
    return size


@kernel
def find_words(buffer, text, piece, reading, bits, found, count, spans):  # type: ignore[no-untyped-def]
    """Find the words of a piece (start, stop) of a text (start, stop), add them to `found`, return the new count.

    Raises IndexError where `found` might lack room for them.
    """
    _check_room(piece[1] - piece[0], bits, found, count, spans)
    blocks = mark(buffer, piece[0], piece[1], reading, bits)
    words, size, segments, fresh = count
    # numba counts references where a field is taken, so none is taken in the loop.
    all_words, all_rare, all_lines, seed = bits.words, bits.rare, bits.lines, reading.seed
    hashes, starts, stops, normal_starts, normal, firsts = found
    carry = rare = _NONE
    start = np.int64(0)
    safe = len(buffer) - 16
    for block in range(blocks):
        inside, lines, at = all_words[block], all_lines[block], piece[0] + block * BLOCK
        shifted = (inside << _ONE) | carry
        ends, begins = shifted & ~inside, inside & ~shifted
        rare |= all_rare[block]
        is_open = carry != _NONE
        carry = inside >> _TOP
        while True:
            if not is_open:
                if begins == _NONE:
                    break
                bit = lowest_bit(begins)
                start = at + bit
                earlier = (begins & (_NONE - begins)) - _ONE
                begins &= begins - _ONE
                if lines & earlier != _NONE:
                    fresh = True
                    lines &= ~earlier
            is_open = True
            if ends == _NONE:
                break
            end = at + lowest_bit(ends)
            ends &= ends - _ONE
            is_open = False
            normal_starts[words] = size
            length = end - start
            if rare != _NONE and is_any_set(all_rare, start - piece[0], end - piece[0]):
                end, stop = _put_rare_word(buffer, start, end, text[0], text[1], reading, normal, size)
                put_word(normal, stop, _NONE)
                value = _hash_normal(normal, size, stop, seed)
                size = stop
            elif length <= 16 and start <= safe:
                first = _lower(word_at(buffer, start)) & _FIRST[length]
                second = _lower(word_at(buffer, start + 8)) & _SECOND[length]
                put_word(normal, size, first)
                put_word(normal, size + 8, second)
                value = _absorb(seed, first, second)
                size += length
            else:
                stop = _put_long_word(buffer, start, end, normal, size)
                value = _hash_normal(normal, size, stop, seed)
                size = stop
            put_byte(normal, size, np.uint8(_SPACE))
            size += 1
            hashes[words] = value
            if spans:
                starts[words] = start
                stops[words] = end
            if fresh:
                firsts[segments] = words
                segments += 1
                fresh = False
            words += 1
        if not is_open:
            rare = _NONE
            if lines != _NONE:
                fresh = True
        elif start >= at:
            rare = all_rare[block]
    normal_starts[words] = size
    return Count(words, size, segments, fresh)
