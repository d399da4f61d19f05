"""An exact index of the n-grams of benchmarks, for one pass over a corpus: no false positives.

The index contains the 64-bit hash of each distinct n-gram, sorted, and the position of its words in the benchmarks'
normalized text. `scan` normalizes a text, hashes each n-gram and tests it in a small Bloom filter (the sieve) that fits
in the CPU cache. The few n-grams that pass are looked up by hash, and their words are compared byte by byte. N-grams
with the same hash are distinct entries. The index consists of plain arrays that can be stored and memory-mapped.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pipelines.algorithms.kernels.byte_scan import prefetch, word_at
from pipelines.algorithms.kernels.compilation import as_read_only, helper, kernel
from pipelines.algorithms.ngrams.word_bits import reading_of
from pipelines.algorithms.ngrams.word_scan import SLACK, new_totals, read_ngrams
from pipelines.algorithms.ngrams.words import Normalization

VERSION = 1

_APOSTROPHES, _LETTERS, _LINES = ("split", "drop"), ("unicode", "ascii"), ("cross", "stop")
_ONE, _SIX_BITS = np.uint64(1), np.uint64(63)
# Prefetch memory for the n-gram this many positions later.
_AHEAD = 8
_SECOND, _THIRD = np.uint64(6), np.uint64(12)


class NgramIndex(NamedTuple):
    """The distinct n-grams of benchmarks; an n-gram's id is its number in `hashes`.

    `settings`: uint64, see `settings_of`. `text`: the words of all examples as UTF-8, each followed by a space, and
    zeros for padding. `hashes`: uint64, ascending. `starts`: where each n-gram begins in `text`. `directory`: for each
    value of the hashes' high bits the number of the first such hash, and last the number of hashes. `sieve`: a Bloom
    filter, uint64; a hash's high bits select the word and its low bits three bits in it.
    """

    settings: npt.NDArray[np.uint64]
    text: npt.NDArray[np.uint8]
    hashes: npt.NDArray[np.uint64]
    starts: npt.NDArray[Any]
    directory: npt.NDArray[Any]
    sieve: npt.NDArray[np.uint64]


class Settings(NamedTuple):
    """What an index was built with: words per n-gram, normalization, hash seed, and a mask of the hash's bits."""

    n: int
    normalization: Normalization
    seed: int
    mask: int


class Hits(NamedTuple):
    """The n-grams of texts that an index contains, in order, one entry per occurrence; all int64.

    `documents`: the number of the text; `words`: the number of the n-gram's first word in it; `ids`: the n-gram;
    `starts`, `ends`: its bytes in the text. `word_counts`, `ngram_counts`: per text.
    """

    documents: npt.NDArray[np.int64]
    words: npt.NDArray[np.int64]
    ids: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    word_counts: npt.NDArray[np.int64]
    ngram_counts: npt.NDArray[np.int64]


def settings_of(index: NgramIndex) -> Settings:
    """Return the settings that an index was built with; raise ValueError if it has another version."""
    version, n, seed, mask, apostrophes, letters, lines = (int(value) for value in index.settings)
    if version != VERSION:
        raise ValueError(f"the index of n-grams is of version {version}, not {VERSION}")
    normalization = Normalization(_APOSTROPHES[apostrophes], _LETTERS[letters], _LINES[lines])  # type: ignore[arg-type]
    return Settings(n, normalization, seed, mask)


def settings_array(settings: Settings) -> npt.NDArray[np.uint64]:
    """Return settings as stored in an index."""
    normalization = settings.normalization
    codes = (
        _APOSTROPHES.index(normalization.apostrophes),
        _LETTERS.index(normalization.letters),
        _LINES.index(normalization.lines),
    )
    return np.array([VERSION, settings.n, settings.seed, settings.mask, *codes], np.uint64)


def ngram_text(index: NgramIndex, id: int) -> str:
    """Return the words of an n-gram, separated by spaces."""
    start, n = int(index.starts[id]), int(index.settings[1])
    size = 64
    while True:
        words = index.text[start : start + size].tobytes().split(b" ")
        if len(words) > n:
            return b" ".join(words[:n]).decode()
        size *= 2


def scan(index: NgramIndex, data: npt.NDArray[np.uint8], starts: npt.NDArray[Any]) -> Hits:
    """Find the index's n-grams in texts (UTF-8; int32 or int64 `starts`, one more than texts).

    Releases the GIL and can run in several threads. Memory: the hits and the buffers of `read_ngrams`.
    """
    settings = settings_of(index)
    n = settings.n
    index = NgramIndex(*(as_read_only(array) for array in index))
    totals = new_totals(starts)
    matches = [np.empty((4, 0), np.int64)]
    firsts, ids = np.empty(0, np.int64), np.empty(0, np.int64)
    reading = reading_of(settings.normalization, settings.seed)
    for chunk in read_ngrams(data, starts, n, reading, totals, settings.mask):
        arrays = chunk.arrays
        if chunk.ngrams > len(ids):
            firsts, ids = (np.empty(len(arrays.ngrams), np.int64) for _ in range(2))
        size = _look_up(index, arrays, chunk.ngrams, n, firsts, ids)
        if size:
            words = firsts[:size]
            word_starts, word_ends = arrays.starts[words], arrays.ends[words + n - 1]
            matches.append(np.stack([words + chunk.first_word, ids[:size], word_starts, word_ends]))
    words, ids, word_starts, word_ends = np.concatenate(matches, axis=1)
    documents = np.searchsorted(totals.words, words, side="right") - 1
    text_starts = starts[documents]
    return Hits(
        documents=documents,
        words=words - totals.words[documents],
        ids=ids,
        starts=word_starts - text_starts,
        ends=word_ends - text_starts,
        word_counts=np.diff(totals.words),
        ngram_counts=np.diff(totals.ngrams),
    )


# The index's directory and sieve


def directory_and_sieve(hashes: npt.NDArray[np.uint64]) -> tuple[npt.NDArray[Any], npt.NDArray[np.uint64]]:
    """Return the directory of sorted hashes, 1 to 2 hashes per entry, and the sieve, 8 to 16 bits per hash."""
    bits = max(1, len(hashes).bit_length() - 1)
    kind = np.uint32 if len(hashes) < 1 << 32 else np.int64
    directory, sieve = np.zeros((1 << bits) + 1, kind), np.zeros(max(2, 1 << bits >> 2), np.uint64)
    _fill(hashes, directory, sieve)
    return directory, sieve


@helper
def shift_for(entries):  # type: ignore[no-untyped-def]
    """Return the shift that leaves the high bits of a hash as an index into `entries`, a power of two."""
    shift = 64
    while entries > 1:
        entries //= 2
        shift -= 1
    return np.uint64(shift)


@kernel
def _fill(hashes, directory, sieve):  # type: ignore[no-untyped-def]
    to_entry, to_word = shift_for(len(directory) - 1), shift_for(len(sieve))
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
def same_bytes(left, left_start, right, right_start, size):  # type: ignore[no-untyped-def]
    """Return whether `size` bytes, at least one, are equal; both arrays have 7 more bytes."""
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
    directory, hashes, starts, text = index.directory, index.hashes, index.starts, index.text
    ngrams, firsts, normal, normal_starts = arrays.ngrams, arrays.firsts, arrays.normal, arrays.normal_starts
    to_entry, text_end = shift_for(len(directory) - 1), len(text) - SLACK
    candidates = pass_sieve(index.sieve, ngrams, count, words)
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
        length = normal_starts[word + n] - start
        for id in range(np.int64(directory[entry]), np.int64(directory[entry + 1])):
            fits = hashes[id] == value and starts[id] + length <= text_end
            if fits and same_bytes(text, np.int64(starts[id]), normal, start, length):
                # There are at most as many hits as candidates so far, so no later candidate is overwritten.
                words[size], ids[size] = word, id
                size += 1
                break
    return size


@helper
def pass_sieve(sieve, ngrams, count, candidates):  # type: ignore[no-untyped-def]
    """Write the numbers of the n-grams that pass the sieve; return how many do."""
    to_word = shift_for(len(sieve))
    size = 0
    for number in range(count):
        needed = _sieve_bits(ngrams[number])
        candidates[size] = number
        size += sieve[ngrams[number] >> to_word] & needed == needed
    return size
