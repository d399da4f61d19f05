"""Finds, lower-cases and hashes the words and n-grams of UTF-8 texts, chunk by chunk.

`word_bits` finds where words begin and end. Each word is then lower-cased and hashed 16 bytes at a time; one with
letters outside ASCII that change (`Bits.rare`) is lower-cased character by character, with the same hash as a result.
A chunk is many short texts or a part of a long one, so memory is bounded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pipelines.algorithms.kernels.byte_scan import LARGE_BLOCK, byte_at, put_byte, put_word, word_at
from pipelines.algorithms.kernels.compilation import as_read_only, helper, kernel
from pipelines.algorithms.ngrams.character_tables import (
    CASED,
    CODE,
    DOTTED_I,
    FINAL_SIGMA,
    IGNORABLE,
    SIGMA,
    SMALL_SIGMA,
)
from pipelines.algorithms.ngrams.word_bits import (
    APOSTROPHE,
    CURLY_APOSTROPHE,
    SPAN_SLACK,
    Bits,
    Reading,
    character_at,
    find_spans,
    is_any_set,
    new_bits,
)

# Bytes after the normalized text that 8-byte stores may overwrite.
SLACK = 32
WHOLE_HASH = (1 << 64) - 1
SEED = 0x2545F4914F6CDD1D

_SPACE = 0x20
_SEED = np.uint64(SEED)
_NONE, _ONE, _TWO, _HALF = np.uint64(0), np.uint64(1), np.uint64(2), np.uint64(32)
_HIGH_BITS = np.uint64(0x8080808080808080)
# Masks of the first and second 8 bytes of a word, by its length.
_FIRST = np.array([(1 << 8 * min(size, 8)) - 1 for size in range(17)], np.uint64)
_SECOND = np.array([(1 << 8 * max(size - 8, 0)) - 1 for size in range(17)], np.uint64)
_MIX_1, _MIX_2, _MIX_3 = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F), np.uint64(0xD6E8FEB86659FD93)
_SHIFT = np.uint64(29)
# The hash of an n-gram is a polynomial in this base of its words' hashes, mixed with these factors.
_BASE = np.uint64(0xD1342543DE82EF95)
_MIX_SUM_1, _MIX_SUM_2 = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)

CHUNK_BYTES = 1 << 17
# A long text is split at an ASCII character that is part of no word, if it has one.
_ENDS = rb"[\x00-&(-/:-@\[-`{-\x7f]"
DIVIDER = re.compile(_ENDS)
# Or before a character of Thai, Lao, Tibetan, Burmese, Khmer, kana or Han, if it cannot be inside of a word.
UNSPACED_DIVIDER = re.compile(_ENDS + rb"|\xe0[\xb8-\xbf]|\xe1[\x80\x81\x9e\x9f]|\xe3[\x81-\x83]|[\xe4-\xe9]")

Numbers = npt.NDArray[np.int64]


class ChunkArrays(NamedTuple):
    """Buffers for the words and n-grams of a chunk.

    Per word: `hashes`; `starts` and `ends` in the bytes of the texts; `normal_starts`, in the normalized text `normal`,
    where a space follows each word, and last where that text ends. Per n-gram: its hash in `ngrams`, the number of its
    first word in `firsts`. `bits`: see `word_bits`.
    """

    hashes: npt.NDArray[np.uint64]
    starts: Numbers
    ends: Numbers
    normal_starts: Numbers
    normal: npt.NDArray[np.uint8]
    ngrams: npt.NDArray[np.uint64]
    firsts: Numbers
    bits: Bits


class Totals(NamedTuple):
    """The number of words and of n-grams in all texts before each text, and last in all texts."""

    words: Numbers
    ngrams: Numbers


class Chunk(NamedTuple):
    """The first `words` and `ngrams` entries of `arrays`, which the next chunk overwrites.

    The first `kept` words are the last of the previous chunk, whose n-grams continue in this one. `first_word` is the
    number of the first word among those of all texts. The chunk belongs to the texts `first` to `last` - 1.
    """

    arrays: ChunkArrays
    words: int
    ngrams: int
    kept: int
    first_word: int
    first: int
    last: int


def new_totals(starts: npt.NDArray[Any]) -> Totals:
    """Allocate totals for texts; `read_ngrams` fills them in."""
    return Totals(*(np.zeros(max(1, len(starts)), np.int64) for _ in Totals._fields))


def read_ngrams(
    data: npt.NDArray[np.uint8],
    starts: npt.NDArray[Any],
    n: int,
    reading: Reading,
    totals: Totals,
    mask: int = WHOLE_HASH,
) -> Iterator[Chunk]:
    """Yield the words and n-grams of texts `data[starts[i]:starts[i + 1]]` (UTF-8) in chunks of ~128 KiB of text.

    `totals` is complete after the last chunk; `mask` selects bits of an n-gram's hash. Memory: ~10 bytes per byte of a
    chunk, which is longer only to hold a long word, and twice the size of n - 1 words. Raises ValueError if the texts
    are not within the data.
    """
    if len(starts) and (starts[0] < 0 or starts[-1] > len(data) or (starts[1:] < starts[:-1]).any()):
        raise ValueError(f"texts span bytes {starts[0]} to {starts[-1]}, but there are {len(data)} bytes")
    data, starts = as_read_only(data), as_read_only(starts.astype(np.int64))
    arrays, kept, hash_mask = new_arrays(0, 0), 0, np.uint64(mask)
    divider = UNSPACED_DIVIDER if reading.is_shingling else DIVIDER
    for first, last, begin, end in list_chunks(data, starts, divider):
        arrays = _with_room(arrays, end - begin, last - first, kept)
        words, ngrams, keep = find_ngrams(
            data, starts, first, last, begin, end, reading, n, hash_mask, arrays, kept, totals
        )
        yield Chunk(arrays, words, ngrams, kept, int(totals.words[last]) - words, first, last)
        kept = keep
        if kept:
            _move_to_front(arrays, words - kept, words)


def list_chunks(
    data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], divider: re.Pattern[bytes]
) -> Iterator[tuple[int, int, int, int]]:
    """Yield the first text of each chunk, the one after its last, and the bytes where it begins and ends.

    A text of more than 128 KiB has several chunks, which are cut where a match of `divider` begins.
    """
    first, texts = 0, len(starts) - 1
    while first < texts:
        begin = int(starts[first])
        last = int(starts.searchsorted(begin + CHUNK_BYTES, side="right")) - 1
        if last > first:
            yield first, last, begin, int(starts[last])
            first = last
            continue
        stop = int(starts[first + 1])
        while begin < stop:
            match = divider.search(data.data, begin + CHUNK_BYTES, stop)
            end = match.start() if match else stop
            yield first, first + 1, begin, end
            begin = end
        first += 1


# Buffers


def room_for(size: int, texts: int, kept: int = 0, kept_bytes: int = 0) -> tuple[int, int]:
    """Return the maximum number of words, and of bytes of normalized text, in `size` bytes after the kept words.

    A word is followed by a byte that ends it, by the end of its text, or by a word of 3 bytes; a character of 2 bytes
    may grow to 3.
    """
    texts = min(texts, size)
    return kept + size // 2 + texts + 1, kept_bytes + size + 5 * size // 8 + 2 * texts + 2 + SLACK


def new_arrays(size: int, texts: int, kept: int = 0, kept_bytes: int = 0) -> ChunkArrays:
    """Allocate arrays of the sizes that `room_for` returns."""
    words, normal = room_for(size, texts, kept, kept_bytes)
    hashes, ngrams = (np.empty(words, np.uint64) for _ in range(2))
    starts, ends, normal_starts, firsts = (np.empty(words + SPAN_SLACK, np.int64) for _ in range(4))
    return ChunkArrays(hashes, starts, ends, normal_starts, np.empty(normal, np.uint8), ngrams, firsts, new_bits(size))


def _with_room(arrays: ChunkArrays, size: int, texts: int, kept: int) -> ChunkArrays:
    """Return arrays with room for `size` bytes of text after the kept words, which are copied if the arrays are new."""
    kept_bytes = int(arrays.normal_starts[kept]) if kept else 0
    words, normal = room_for(size, texts, kept, kept_bytes)
    blocks = size // LARGE_BLOCK + 2
    if words <= len(arrays.hashes) and normal <= len(arrays.normal) and blocks <= len(arrays.bits.words):
        return arrays
    larger = new_arrays(size + size // 8, texts + texts // 8, kept, kept_bytes)
    for old, new in zip(arrays[:4], larger[:4], strict=True):
        new[: kept + 1] = old[: kept + 1]
    larger.normal[:kept_bytes] = arrays.normal[:kept_bytes]
    return larger


def _move_to_front(arrays: ChunkArrays, first: int, end: int) -> None:
    """Move words to the front, where the next chunk of their text continues."""
    begin, stop = int(arrays.normal_starts[first]), int(arrays.normal_starts[end])
    arrays.normal[: stop - begin] = arrays.normal[begin:stop].copy()
    for column in arrays[:4]:
        column[: end - first] = column[first:end].copy()
    arrays.normal_starts[: end - first] -= begin
    arrays.normal_starts[end - first] = stop - begin


# Characters


@helper
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


@helper
def _entry(code, reading):  # type: ignore[no-untyped-def]
    return reading.entries[reading.pages[code >> 8], code & 0xFF]


@helper
def _small_sigma(buffer, at, first, stop, reading):  # type: ignore[no-untyped-def]
    """Return the lower-case form of the sigma at a position of a text from `first` to `stop`, as `str.lower` does.

    It is final after a cased letter and not before one; marks, apostrophes and the like in between are ignored.
    """
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


@helper
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


@helper
def _lower(word):  # type: ignore[no-untyped-def]
    """Lower-case 8 bytes of a word: set bit 5 of ASCII bytes (digits have it set), and keep the others."""
    return word | ((~word & _HIGH_BITS) >> _TWO)


@helper
def _absorb(state, first, second):  # type: ignore[no-untyped-def]
    """Add 16 bytes to a hash; one to one in `first` if `second` is 0, so words of up to 8 bytes never collide."""
    state = (state ^ first) * _MIX_1
    state = ((state ^ (state >> _HALF)) + second * _MIX_2) * _MIX_3
    return state ^ (state >> _SHIFT)


@helper
def _hash_normal(normal, start, end):  # type: ignore[no-untyped-def]
    """Return the hash of a normalized word, padded with zeros to 16 bytes; `normal` has 16 bytes after the word."""
    state = _SEED
    while end - start > 16:
        state = _absorb(state, word_at(normal, start), word_at(normal, start + 8))
        start += 16
    size = end - start
    return _absorb(state, word_at(normal, start) & _FIRST[size], word_at(normal, start + 8) & _SECOND[size])


@helper
def _mixed(total):  # type: ignore[no-untyped-def]
    """Return the hash of an n-gram from the sum of its words, one to one."""
    total = (total ^ (total >> _HALF)) * _MIX_SUM_1
    total = (total ^ (total >> _HALF)) * _MIX_SUM_2
    return total ^ (total >> _HALF)


@helper
def _put_long_word(buffer, start, end, normal, size):  # type: ignore[no-untyped-def]
    """Write a word with its ASCII letters in lower case and return where it ends."""
    for at in range(start, end):
        byte = byte_at(buffer, at)
        put_byte(normal, size, byte if byte >= 0x80 else byte | np.uint8(0x20))
        size += 1
    return size


# Kernel


@kernel
def find_ngrams(buffer, starts, first, last, begin, end, reading, n, mask, arrays, kept, totals):  # type: ignore[no-untyped-def]
    """Find the words and n-grams of bytes `begin` to `end` of the texts `first` to `last` - 1, after the kept words.

    If texts are shingled, one with fewer than n words is one n-gram. Adds each text to `totals`. Returns the number of
    words and of n-grams, and how many words to keep for the next chunk: n-grams that begin with one of them end there.
    """
    previous = first + int(begin > starts[first])
    words_before, ngrams_before = totals.words[previous] - kept, totals.ngrams[previous]
    words, ngrams, run = kept, np.int64(0), np.int64(0)
    size = arrays.normal_starts[kept] if kept else np.int64(0)
    # `total` is the sum of the run's last n - 1 words; in the sum of n words, `factor` multiplies the first.
    total, factor = _NONE, _ONE
    for word in range(kept):
        total = total * _BASE + arrays.hashes[word]
    for _ in range(n - 1):
        factor *= _BASE
    any_length = reading.is_shingling and not reading.stop_at_lines
    for number in range(first, last):
        text = (starts[number], starts[number + 1])
        if text[0] >= begin:
            run, total = words, _NONE
        if text[0] < text[1]:
            part, state = (max(text[0], begin), min(text[1], end)), (words, size, ngrams, run, total)
            state = _find_in_text(buffer, text, part, reading, (n, mask, factor), arrays, state)
            words, size, ngrams, run, total = state
        totals.words[number + 1] = words_before + words
        text_words = totals.words[number + 1] - totals.words[number]
        if any_length and text[1] <= end and 0 < text_words < n:
            put_word(arrays.ngrams, ngrams, _mixed(total) & mask)
            put_word(arrays.firsts, ngrams, words - text_words)
            ngrams += 1
        totals.ngrams[number + 1] = ngrams_before + ngrams
    arrays.normal_starts[words] = size
    return words, ngrams, min(n - 1, words - run) if end < starts[last] else np.int64(0)


@helper
def _find_in_text(buffer, text, part, reading, ngram_hash, arrays, state):  # type: ignore[no-untyped-def]
    """Find the words and n-grams of a part of a text; both are given as (begin, end).

    `ngram_hash`: n, the mask and the factor of the first word. `state`, which is returned: how many words, bytes of
    normalized text and n-grams the arrays contain, the first word of the current run of words that n-grams do not
    cross, and the sum of its last n - 1 words.
    """
    (begin, end), (n, mask, factor), (words, size, ngrams, run, total) = part, ngram_hash, state
    bits = arrays.bits
    all_rare, all_lines, stop_at_lines = bits.rare, bits.lines, reading.stop_at_lines
    hashes, starts, ends, normal_starts, normal, ngram_hashes, firsts, _ = arrays
    first, safe, stop = words, len(buffer) - 16, begin
    words, any_rare = find_spans(buffer, begin, end, reading, bits, starts, ends, first)
    for word in range(first, words):
        start = np.int64(word_at(starts, word))
        if stop_at_lines and is_any_set(all_lines, stop - begin, start - begin):
            run, total = word, _NONE
        stop = np.int64(word_at(ends, word))
        length = stop - start
        put_word(normal_starts, word, size)
        if any_rare and is_any_set(all_rare, start - begin, stop - begin):
            stop, normal_end = _put_rare_word(buffer, start, stop, *text, reading, normal, size)
            put_word(ends, word, stop)
            put_word(normal, normal_end, _NONE)
            value = _hash_normal(normal, size, normal_end)
            size = normal_end
        elif length <= 16 and start <= safe:
            low = _lower(word_at(buffer, start)) & word_at(_FIRST, length)
            high = _lower(word_at(buffer, start + 8)) & word_at(_SECOND, length)
            put_word(normal, size, low)
            put_word(normal, size + 8, high)
            value = _absorb(_SEED, low, high)
            size += length
        else:
            normal_end = _put_long_word(buffer, start, stop, normal, size)
            value = _hash_normal(normal, size, normal_end)
            size = normal_end
        put_byte(normal, size, np.uint8(_SPACE))
        size += 1
        put_word(hashes, word, value)
        total = total * _BASE + value
        if word - run >= n - 1:
            put_word(ngram_hashes, ngrams, _mixed(total) & mask)
            put_word(firsts, ngrams, word - n + 1)
            ngrams += 1
            total -= word_at(hashes, word - n + 1) * factor
    if stop_at_lines and is_any_set(all_lines, stop - begin, end - begin):
        run, total = words, _NONE
    return words, size, ngrams, run, total
