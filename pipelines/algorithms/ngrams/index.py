"""An exact index of the n-grams of benchmarks, for one pass over a corpus: no false positives.

The index contains the 64-bit hash of each distinct n-gram, sorted, and the position of its words in the benchmarks'
normalized text. `scan` normalizes a text, hashes each n-gram and tests it in a small Bloom filter (the sieve) that fits
in the CPU cache. The few n-grams that pass are looked up by hash, and their words are compared byte by byte. N-grams
with the same hash are distinct entries. The index consists of plain arrays that can be stored and memory-mapped.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.algorithms.kernels.byte_scan import prefetch, word_at
from pipelines.algorithms.kernels.compilation import as_read_only, helper, kernel
from pipelines.algorithms.ngrams.word_bits import reading_of
from pipelines.algorithms.ngrams.word_scan import SLACK, WHOLE_HASH, Numbers, new_totals, read_ngrams
from pipelines.algorithms.ngrams.words import DEFAULT, Normalization

_ONE, _SIX_BITS = np.uint64(1), np.uint64(63)
# Prefetch memory for the n-gram this many positions later.
_AHEAD = 8
_SECOND, _THIRD = np.uint64(6), np.uint64(12)

Texts = tuple[npt.NDArray[np.uint8], npt.NDArray[Any]]


class IndexArrays(NamedTuple):
    """The distinct n-grams of benchmarks; an n-gram's id is its number in `hashes`.

    `text`: the words of all examples as UTF-8, each followed by a space, and zeros for padding. `hashes`: uint64,
    ascending. `starts`, `ends`: where each n-gram begins in `text`, and ends after its last space. `directory`: for
    each value of the hashes' high bits the number of the first such hash, and last the number of hashes. `sieve`: a
    Bloom filter, uint64; a hash's high bits select the word and its low bits three bits in it.
    """

    text: npt.NDArray[np.uint8]
    hashes: npt.NDArray[np.uint64]
    starts: npt.NDArray[Any]
    ends: npt.NDArray[Any]
    directory: npt.NDArray[Any]
    sieve: npt.NDArray[np.uint64]


class NgramIndex(NamedTuple):
    """An index, and what it was built with: the words of an n-gram, the normalization, and a mask of the hashes."""

    n: int
    normalization: Normalization
    arrays: IndexArrays
    mask: int = WHOLE_HASH


class Examples(NamedTuple):
    """Where the index's n-grams occur in the examples.

    `ids`: int32, or int64 past 2**31 words: for each word of each example the id of the n-gram that begins there, or
    -1. `words`: int64, the number of each example's first word, and last the number of words.
    """

    ids: npt.NDArray[Any]
    words: Numbers


class Hits(NamedTuple):
    """The n-grams of texts that an index contains, in order, one entry per occurrence; all int64.

    `documents`: the number of the text; `words`: the number of the n-gram's first word in it; `ids`: the n-gram.
    `ngram_counts`: the n-grams of each text.
    """

    documents: Numbers
    words: Numbers
    ids: Numbers
    ngram_counts: Numbers


def build_index(
    batches: Iterable[Texts], n: int, normalization: Normalization = DEFAULT, *, mask: int = WHOLE_HASH
) -> tuple[NgramIndex, Examples]:
    """Return the index of the n-grams of examples, and where they occur; the batches do not change the result.

    A batch is UTF-8 with int32 or int64 starts, one more than examples. Peak memory is ~8 times the size of the text,
    and the index is ~3 times as large as the text (measured on 120 MB of English, where 80% of the n-grams are
    distinct). `mask` weakens the hash for tests.
    """
    reading = reading_of(normalization)
    texts: list[npt.NDArray[np.uint8]] = []
    word_starts: list[npt.NDArray[Any]] = []
    ngrams, firsts = [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
    example_words = [np.zeros(1, np.int64)]
    size = words = 0
    for data, starts in batches:
        totals = new_totals(starts)
        for chunk in read_ngrams(data, starts, n, reading, totals, mask):
            normal_starts = chunk.arrays.normal_starts[chunk.kept : chunk.words + 1]
            begin, end = int(normal_starts[0]), int(normal_starts[-1])
            texts.append(chunk.arrays.normal[begin:end].copy())
            word_starts.append((normal_starts[:-1] + (size - begin)).astype(_offset_type(size + end - begin)))
            ngrams.append(chunk.arrays.ngrams[: chunk.ngrams].copy())
            firsts.append(chunk.arrays.firsts[: chunk.ngrams] + (chunk.first_word + words))
            size += end - begin
        example_words.append(totals.words[1:] + words)
        words += int(totals.words[-1])
    text = np.concatenate([*texts, np.zeros(SLACK, np.uint8)])
    all_starts = np.concatenate([*word_starts, np.array([size], _offset_type(size))])
    del texts, word_starts
    hashes, first_words = np.concatenate(ngrams), np.concatenate(firsts)
    del ngrams, firsts
    order = np.argsort(hashes, kind="stable")
    hashes = hashes[order]
    first_words = first_words[order].astype(np.int32 if words < 1 << 31 else np.int64)
    del order
    ids = np.full(words, -1, first_words.dtype)
    ngram_starts, ngram_ends = (np.empty(len(hashes), all_starts.dtype) for _ in range(2))
    distinct = _number(hashes, first_words, text, all_starts, n, ids, ngram_starts, ngram_ends)
    trimmed = (array[:distinct] for array in (hashes, ngram_starts, ngram_ends))
    if distinct * 4 < len(hashes) * 3:  # over a quarter of their memory would be wasted
        trimmed = (array.copy() for array in trimmed)
    hashes, ngram_starts, ngram_ends = trimmed
    arrays = IndexArrays(text, hashes, ngram_starts, ngram_ends, *_directory_and_sieve(hashes))
    return NgramIndex(n, normalization, arrays, mask), Examples(ids, np.concatenate(example_words))


def ngram_texts(index: NgramIndex, ids: Numbers) -> pa.StringArray:
    """Return the words of n-grams, separated by single spaces."""
    starts, ends = (np.asarray(array[ids], np.int64) for array in (index.arrays.starts, index.arrays.ends))
    sizes = ends - starts - 1
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    positions = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], sizes)
    data = np.asarray(index.arrays.text)[positions]
    return pa.LargeStringArray.from_buffers(len(ids), pa.py_buffer(offsets), pa.py_buffer(data)).cast(pa.string())


def scan(index: NgramIndex, data: npt.NDArray[np.uint8], starts: npt.NDArray[Any]) -> Hits:
    """Find the index's n-grams in texts (UTF-8; int32 or int64 `starts`, one more than texts).

    Releases the GIL and can run in several threads. Memory: the hits and the buffers of `read_ngrams`.
    """
    n = index.n
    arrays = IndexArrays(*(as_read_only(array) for array in index.arrays))
    totals = new_totals(starts)
    matches = [np.empty((2, 0), np.int64)]
    firsts, ids = np.empty(0, np.int64), np.empty(0, np.int64)
    for chunk in read_ngrams(data, starts, n, reading_of(index.normalization), totals, index.mask):
        if chunk.ngrams > len(ids):
            firsts, ids = (np.empty(len(chunk.arrays.ngrams), np.int64) for _ in range(2))
        size = _look_up(arrays, chunk.arrays, chunk.ngrams, n, firsts, ids)
        if size:
            matches.append(np.stack([firsts[:size] + chunk.first_word, ids[:size]]))
    words, ids = np.concatenate(matches, axis=1)
    documents = np.searchsorted(totals.words, words, side="right") - 1
    return Hits(documents, words - totals.words[documents], ids, np.diff(totals.ngrams))


# Building


def _offset_type(size: int) -> type[np.integer[Any]]:
    return np.uint32 if size < 1 << 32 else np.int64


@kernel
def _number(hashes, first_words, text, word_starts, n, ids, starts, ends):  # type: ignore[no-untyped-def]
    """Number the n-grams by hash and then by first occurrence; return how many are distinct.

    Writes each n-gram's id into `ids` at its first word, the hashes of distinct n-grams into `hashes`, in place, and
    where they begin and end in the text into `starts` and `ends`.
    """
    distinct = same = 0
    previous = ~np.uint64(0)
    for number in range(len(hashes)):
        value, word = hashes[number], np.int64(first_words[number])
        start, end, id = np.int64(word_starts[word]), np.int64(word_starts[word + n]), distinct
        if number == 0 or value != previous:
            same, previous = distinct, value
        else:
            id = same
            while id < distinct and not _is_same(text, np.int64(starts[id]), np.int64(ends[id]), text, start, end):
                id += 1
        if id == distinct:
            hashes[distinct], starts[distinct], ends[distinct] = value, start, end
            distinct += 1
        ids[word] = id
    return distinct


def _directory_and_sieve(hashes: npt.NDArray[np.uint64]) -> tuple[npt.NDArray[Any], npt.NDArray[np.uint64]]:
    """Return the directory of sorted hashes, 1 to 2 hashes per entry, and the sieve, 8 to 16 bits per hash."""
    bits = max(1, len(hashes).bit_length() - 1)
    kind = np.uint32 if len(hashes) < 1 << 32 else np.int64
    directory, sieve = np.zeros((1 << bits) + 1, kind), np.zeros(max(2, 1 << bits >> 2), np.uint64)
    _fill(hashes, directory, sieve)
    return directory, sieve


@helper
def _shift_for(entries):  # type: ignore[no-untyped-def]
    """Return the shift that leaves the high bits of a hash as an index into `entries`, a power of two."""
    shift = 64
    while entries > 1:
        entries //= 2
        shift -= 1
    return np.uint64(shift)


@kernel
def _fill(hashes, directory, sieve):  # type: ignore[no-untyped-def]
    to_entry, to_word = _shift_for(len(directory) - 1), _shift_for(len(sieve))
    for number in range(len(hashes)):
        directory[np.int64(hashes[number] >> to_entry) + 1] = number + 1
        sieve[hashes[number] >> to_word] |= _sieve_bits(hashes[number])
    for entry in range(1, len(directory)):
        directory[entry] = max(directory[entry], directory[entry - 1])


@helper
def _sieve_bits(value):  # type: ignore[no-untyped-def]
    first, second = _ONE << (value & _SIX_BITS), _ONE << ((value >> _SECOND) & _SIX_BITS)
    return first | second | _ONE << ((value >> _THIRD) & _SIX_BITS)


# Scanning


@helper
def _is_same(left, left_start, left_end, right, right_start, right_end):  # type: ignore[no-untyped-def]
    """Return whether two n-grams are equal, byte by byte; both arrays have 7 more bytes."""
    size = left_end - left_start
    if size != right_end - right_start:
        return False
    last = size - 8
    at = 0
    while at < last:
        if word_at(left, left_start + at) != word_at(right, right_start + at):
            return False
        at += 8
    differing = word_at(left, left_start + at) ^ word_at(right, right_start + at)
    return differing << np.uint64(8 * (8 - (size - at))) == 0


@kernel
def _look_up(index, arrays, count, n, words, ids):  # type: ignore[no-untyped-def]
    """Write the first word and the id of each n-gram that is in the index; return how many are.

    Memory is prefetched for later candidates: in a large index their entries are in no cache.
    """
    text, hashes, starts, ends, directory, sieve = index
    ngrams, firsts, normal, normal_starts = arrays.ngrams, arrays.firsts, arrays.normal, arrays.normal_starts
    to_entry = _shift_for(len(directory) - 1)
    candidates = _pass_sieve(sieve, ngrams, count, words)
    size = 0
    for candidate in range(candidates):
        if candidate + 3 * _AHEAD < candidates:
            prefetch(directory, np.int64(ngrams[words[candidate + 3 * _AHEAD]] >> to_entry))
        if candidate + 2 * _AHEAD < candidates:
            number = np.int64(directory[ngrams[words[candidate + 2 * _AHEAD]] >> to_entry])
            prefetch(hashes, number)
            prefetch(starts, number)
        if candidate + _AHEAD < candidates:
            number = np.int64(directory[ngrams[words[candidate + _AHEAD]] >> to_entry])
            prefetch(text, np.int64(starts[min(number, len(starts) - 1)]))
        value, word = ngrams[words[candidate]], firsts[words[candidate]]
        start, entry = normal_starts[word], np.int64(value >> to_entry)
        end = normal_starts[word + n]
        for id in range(np.int64(directory[entry]), np.int64(directory[entry + 1])):
            if hashes[id] == value and _is_same(text, np.int64(starts[id]), np.int64(ends[id]), normal, start, end):
                # There are at most as many hits as candidates so far, so no later candidate is overwritten.
                words[size], ids[size] = word, id
                size += 1
                break
    return size


@helper
def _pass_sieve(sieve, ngrams, count, candidates):  # type: ignore[no-untyped-def]
    """Write the numbers of the n-grams that pass the sieve; return how many do."""
    to_word = _shift_for(len(sieve))
    size = 0
    for number in range(count):
        needed = _sieve_bits(ngrams[number])
        candidates[size] = number
        size += sieve[ngrams[number] >> to_word] & needed == needed
    return size
