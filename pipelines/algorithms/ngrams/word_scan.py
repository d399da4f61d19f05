"""Finds the words of texts in UTF-8, lower-cases and hashes them, chunk by chunk.

First each byte of a text gets a bit if it belongs to a word (`word_bits`). Then each run of such bytes is hashed, 8
bytes at a time; a word of which more than ASCII letters must change (`Bits.rare`) is lower-cased character by
character, to the same hash. A chunk is many short texts or a part of a long one, so memory is bounded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pipelines.algorithms.kernels.byte_scan import LARGE_BLOCK, byte_at, lowest_bit, put_byte, put_word, word_at
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
    Bits,
    Reading,
    character_at,
    is_any_set,
    mark,
    new_bits,
)

CHUNK_BYTES = 1 << 17
# What stores past the end of the normalized text may overwrite.
SLACK = 32

# A long text is divided at an ASCII character that no word contains, if there is one.
_DIVIDER = re.compile(rb"[\x00-&(-/:-@\[-`{-\x7f]")
_SPACE = 0x20
_NONE, _ONE, _TWO, _TOP, _HALF = np.uint64(0), np.uint64(1), np.uint64(2), np.uint64(63), np.uint64(32)
_HIGH_BITS = np.uint64(0x8080808080808080)
# Of a word of so many bytes, those in the first 8 and those in the second.
_FIRST = np.array([(1 << 8 * min(size, 8)) - 1 for size in range(17)], np.uint64)
_SECOND = np.array([(1 << 8 * max(size - 8, 0)) - 1 for size in range(17)], np.uint64)
_MIX_1, _MIX_2, _MIX_3 = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F), np.uint64(0xD6E8FEB86659FD93)
_SHIFT = np.uint64(29)
_FIRST_WORD = np.zeros(1, np.int64)

Numbers = npt.NDArray[np.int64]


class WordArrays(NamedTuple):
    """Room for the words of a chunk.

    `hashes`; where the words begin and end in the bytes of the texts; where each begins in the normalized text, which
    has a space after each word, and last where that ends; the words with which runs begin; and room for `word_bits`.
    """

    hashes: npt.NDArray[np.uint64]
    starts: Numbers
    ends: Numbers
    normal_starts: Numbers
    normal: npt.NDArray[np.uint8]
    runs: Numbers
    bits: Bits


class Chunk(NamedTuple):
    """The words of a chunk: the first `words` of `arrays`, which the next chunk overwrites.

    `kept`: how many of them are from the chunk before. `runs`: the words with which runs begin that an n-gram does not
    leave, and last `words`; the first run `continues` that of the chunk before if there is one. `texts`: the first text
    of the chunk and the one after its last. `documents`: for each text the number of words up to its end.
    """

    arrays: WordArrays
    words: int
    kept: int
    runs: Numbers
    continues: bool
    texts: tuple[int, int]
    documents: Numbers


def read_words(
    data: npt.NDArray[np.uint8], starts: npt.NDArray[Any], reading: Reading, keep: int = 0
) -> Iterator[Chunk]:
    """Yield the words of texts `data[starts[i]:starts[i + 1]]`, which are UTF-8, in chunks of some 128 KiB of text.

    Where a chunk ends within a text, at most `keep` last words of its last run are the first words of the next chunk.
    Memory: some 8 bytes for each byte of a chunk, which is longer only where a word is. Raises ValueError for texts
    that are not within the data.
    """
    if len(starts) and (starts[0] < 0 or starts[-1] > len(data) or (starts[1:] < starts[:-1]).any()):
        raise ValueError(f"texts span bytes {starts[0]} to {starts[-1]}, but there are {len(data)} bytes")
    data, starts = as_read_only(data), as_read_only(starts.astype(np.int64))
    documents = np.zeros(len(starts), np.int64)
    arrays = word_arrays(0, 0)
    kept, fresh = 0, True
    for first, last, begin, end in _chunks(data, starts):
        arrays = _with_room(arrays, end - begin, last - first, kept)
        continues = not fresh and begin > starts[first]
        words, runs, fresh = find_words(
            data, starts, first, last, begin, end, reading, arrays, kept, not continues, documents
        )
        runs_of_chunk = np.concatenate([_FIRST_WORD[: int(continues)], arrays.runs[:runs], np.array([words])])
        yield Chunk(arrays, words, kept, runs_of_chunk, continues, (first, last), documents[first + 1 : last + 1])
        fresh = fresh or end == starts[last]
        kept = 0 if fresh else min(keep, words - int(runs_of_chunk[-2]))
        if kept:
            _move_to_front(arrays, words - kept, words)


def _chunks(data: npt.NDArray[np.uint8], starts: Numbers) -> Iterator[tuple[int, int, int, int]]:
    """Yield the first text of each chunk, the one after its last, and the bytes where it begins and ends."""
    first, texts = 0, len(starts) - 1
    while first < texts:
        begin = int(starts[first])
        last = int(np.searchsorted(starts, begin + CHUNK_BYTES, side="right")) - 1
        if last > first:
            yield first, last, begin, int(starts[last])
            first = last
            continue
        stop = int(starts[first + 1])
        while begin < stop:
            divider = _DIVIDER.search(data.data, begin + CHUNK_BYTES, stop)
            end = divider.start() if divider else stop
            yield first, first + 1, begin, end
            begin = end
        first += 1


# Room


def room_for(size: int, texts: int, kept: int = 0, kept_bytes: int = 0) -> tuple[int, int]:
    """Return the most words and bytes of normalized text that texts of so many bytes have, after those that are kept.

    A word is followed by a byte that ends it or by the end of its text; a character of 2 bytes may grow to 3.
    """
    texts = min(texts, size)
    return kept + size // 2 + texts + 1, kept_bytes + size + size // 2 + 2 * texts + 2 + SLACK


def word_arrays(size: int, texts: int, kept: int = 0, kept_bytes: int = 0) -> WordArrays:
    """Return arrays with as much room as `room_for` says."""
    words, normal = room_for(size, texts, kept, kept_bytes)
    hashes, normalized = np.empty(words, np.uint64), np.empty(normal, np.uint8)
    starts, ends, normal_starts, runs = (np.empty(words + 1, np.int64) for _ in range(4))
    return WordArrays(hashes, starts, ends, normal_starts, normalized, runs, new_bits(size))


def _with_room(arrays: WordArrays, size: int, texts: int, kept: int) -> WordArrays:
    """Return arrays with room for texts of so many bytes; the words that are kept stay."""
    kept_bytes = int(arrays.normal_starts[kept]) if kept else 0
    words, normal = room_for(size, texts, kept, kept_bytes)
    blocks = size // LARGE_BLOCK + 2
    if words <= len(arrays.hashes) and normal <= len(arrays.normal) and blocks <= len(arrays.bits.words):
        return arrays
    larger = word_arrays(size + size // 8, texts + texts // 8, kept, kept_bytes)
    for old, new in zip(arrays[:4], larger[:4], strict=True):
        new[: kept + 1] = old[: kept + 1]
    larger.normal[:kept_bytes] = arrays.normal[:kept_bytes]
    return larger


def _move_to_front(arrays: WordArrays, first: int, end: int) -> None:
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
    """Lower-case 8 bytes of words: a letter or digit of ASCII has bit 5 set in lower case, other bytes stay."""
    return word | ((~word & _HIGH_BITS) >> _TWO)


@helper
def _absorb(state, first, second):  # type: ignore[no-untyped-def]
    """Take 16 bytes into a hash; one to one in `first` where `second` is 0, so short words never share a hash."""
    state = (state ^ first) * _MIX_1
    state = ((state ^ (state >> _HALF)) + second * _MIX_2) * _MIX_3
    return state ^ (state >> _SHIFT)


@helper
def _hash_normal(normal, start, end, seed):  # type: ignore[no-untyped-def]
    """Return the hash of a normalized word, 16 bytes at a time, zeros after the last; `normal` has 16 more bytes."""
    state = seed
    while end - start > 16:
        state = _absorb(state, word_at(normal, start), word_at(normal, start + 8))
        start += 16
    size = end - start
    return _absorb(state, word_at(normal, start) & _FIRST[size], word_at(normal, start + 8) & _SECOND[size])


@helper
def _put_long_word(buffer, start, end, normal, size):  # type: ignore[no-untyped-def]
    """Write a word with ASCII letters in lower case and return where it ends."""
    for at in range(start, end):
        byte = byte_at(buffer, at)
        put_byte(normal, size, byte if byte >= 0x80 else byte | np.uint8(0x20))
        size += 1
    return size


@kernel
def find_words(buffer, starts, first, last, begin, end, reading, arrays, words, fresh, documents):  # type: ignore[no-untyped-def]
    """Find the words of bytes `begin` to `end`, of the texts `first` to before `last`, after so many words.

    `fresh`: whether the next word begins a run. Writes the number of words up to the end of each text into `documents`,
    after the text's number. Returns the words, the runs that began, and `fresh`.
    """
    size = arrays.normal_starts[words] if words else np.int64(0)
    runs = np.int64(0)
    for text in range(first, last):
        text_begin, text_end = starts[text], starts[text + 1]
        fresh = fresh or text_begin >= begin
        if text_begin < text_end:
            words, size, runs, fresh = _find_in_text(
                buffer, text_begin, text_end, max(text_begin, begin), min(text_end, end), reading, arrays, words, size,
                runs, fresh,
            )  # fmt: skip
        documents[text + 1] = words
    return words, runs, fresh


@helper
def _find_in_text(buffer, text_begin, text_end, begin, end, reading, arrays, words, size, runs, fresh):  # type: ignore[no-untyped-def]
    """Find the words of a part of a text; return the new numbers of words, of normalized bytes and of runs."""
    bits = arrays.bits
    blocks = mark(buffer, begin, end, reading, bits)
    all_words, all_rare, all_lines, seed = bits.words, bits.rare, bits.lines, reading.seed
    hashes, starts, stops, normal_starts, normal, firsts, _ = arrays
    carry = rare = _NONE
    start = np.int64(0)
    safe = len(buffer) - 16
    for block in range(blocks):
        inside, lines, at = all_words[block], all_lines[block], begin + block * LARGE_BLOCK
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
            stop = at + lowest_bit(ends)
            ends &= ends - _ONE
            is_open = False
            normal_starts[words] = size
            length = stop - start
            if rare != _NONE and is_any_set(all_rare, start - begin, stop - begin):
                stop, normal_end = _put_rare_word(buffer, start, stop, text_begin, text_end, reading, normal, size)
                put_word(normal, normal_end, _NONE)
                value = _hash_normal(normal, size, normal_end, seed)
                size = normal_end
            elif length <= 16 and start <= safe:
                first = _lower(word_at(buffer, start)) & _FIRST[length]
                second = _lower(word_at(buffer, start + 8)) & _SECOND[length]
                put_word(normal, size, first)
                put_word(normal, size + 8, second)
                value = _absorb(seed, first, second)
                size += length
            else:
                normal_end = _put_long_word(buffer, start, stop, normal, size)
                value = _hash_normal(normal, size, normal_end, seed)
                size = normal_end
            put_byte(normal, size, np.uint8(_SPACE))
            size += 1
            hashes[words] = value
            starts[words] = start
            stops[words] = stop
            if fresh:
                firsts[runs] = words
                runs += 1
                fresh = False
            words += 1
        if not is_open:
            rare = _NONE
            if lines != _NONE:
                fresh = True
        elif start >= at:
            rare = all_rare[block]
    normal_starts[words] = size
    return words, size, runs, fresh
