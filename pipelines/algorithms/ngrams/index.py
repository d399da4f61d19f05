"""An exact index of the n-grams of benchmarks, past which a corpus is streamed once: no false positives.

The index holds each distinct n-gram's 64-bit hash, in ascending order, and where its words stand in the benchmarks'
normalized text. To `scan` a text is to normalize it, to hash each n-gram, to ask a small Bloom filter (the sieve) that
fits the processor's cache, and then, seldom, to look the hash up and to compare the words, byte by byte. N-grams that
share a hash are distinct entries. It is made of plain arrays, which can be stored and mapped into memory as they are.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pipelines.algorithms.kernels.byte_scan import word_at
from pipelines.algorithms.kernels.compilation import kernel
from pipelines.algorithms.ngrams.hashing import arrays_to_scan, roll, run_of
from pipelines.algorithms.ngrams.word_bits import new_bits, reading_of
from pipelines.algorithms.ngrams.word_blocks import prefetch, put_byte
from pipelines.algorithms.ngrams.word_scan import (
    SLACK,
    Count,
    as_read_only,
    find_words,
    longest_piece,
    most_normal,
    most_words,
    new_found,
    piece_end,
    with_normal_room,
)
from pipelines.algorithms.ngrams.words import Normalization

VERSION = 1
WHOLE_HASH = (1 << 64) - 1

_APOSTROPHES, _LETTERS, _LINES = ("split", "drop"), ("unicode", "ascii"), ("cross", "stop")
_ONE, _SIX_BITS = np.uint64(1), np.uint64(63)
# N-grams that lie between asking for memory and using it.
_AHEAD = 8
_SECOND, _THIRD = np.uint64(6), np.uint64(12)


class NgramIndex(NamedTuple):
    """The distinct n-grams of benchmarks; an n-gram's id is its number in `hashes`.

    `settings`: uint64, see `settings_of`. `text`: the words of all examples, each followed by a space, as UTF-8, and
    some zeros. `hashes`: uint64, ascending. `starts`: where each n-gram begins in `text`. `directory`: the number of
    the first hash that begins with each number of so many bits, and last how many there are. `sieve`: uint64, three
    bits of the word that a hash begins with for each n-gram.
    """

    settings: npt.NDArray[np.uint64]
    text: npt.NDArray[np.uint8]
    hashes: npt.NDArray[np.uint64]
    starts: npt.NDArray[Any]
    directory: npt.NDArray[Any]
    sieve: npt.NDArray[np.uint64]


class Settings(NamedTuple):
    """What an index was made with: words of an n-gram, normalization, the hash's seed, and which of its bits count."""

    n: int
    normalization: Normalization
    seed: int
    mask: int


class Hits(NamedTuple):
    """The n-grams of some texts that an index holds, in order, one entry each; all int64.

    `documents`: the number of the text; `words`: the number of the n-gram's first word in it; `ids`: the n-gram;
    `starts`, `ends`: where it stands, in bytes of the text. `word_counts`, `ngram_counts`: of each text.
    """

    documents: npt.NDArray[np.int64]
    words: npt.NDArray[np.int64]
    ids: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    word_counts: npt.NDArray[np.int64]
    ngram_counts: npt.NDArray[np.int64]


def settings_of(index: NgramIndex) -> Settings:
    """Return what an index was made with. Raises ValueError where it is of another version."""
    version, n, seed, mask, apostrophes, letters, lines = (int(value) for value in index.settings)
    if version != VERSION:
        raise ValueError(f"the index of n-grams is of version {version}, not {VERSION}")
    normalization = Normalization(_APOSTROPHES[apostrophes], _LETTERS[letters], _LINES[lines])  # type: ignore[arg-type]
    return Settings(n, normalization, seed, mask)


def settings_array(settings: Settings) -> npt.NDArray[np.uint64]:
    """Return settings as an index holds them."""
    normalization = settings.normalization
    codes = (
        _APOSTROPHES.index(normalization.apostrophes),
        _LETTERS.index(normalization.letters),
        _LINES.index(normalization.lines),
    )
    return np.array([VERSION, settings.n, settings.seed, settings.mask, *codes], np.uint64)


def ngram_text(index: NgramIndex, id: int) -> str:
    """Return the words of an n-gram, a space between."""
    start, n = int(index.starts[id]), int(index.settings[1])
    size = 64
    while True:
        words = index.text[start : start + size].tobytes().split(b" ")
        if len(words) > n:
            return b" ".join(words[:n]).decode()
        size *= 2


def scan(index: NgramIndex, data: npt.NDArray[np.uint8], starts: npt.NDArray[Any]) -> Hits:
    """Find the index's n-grams in texts (UTF-8; int32 or int64 `starts`, one more than texts).

    Lets go of the interpreter's lock, and may run in several threads. Memory: the hits, and some 8 bytes for each byte
    of the longest text, or of 128 KiB of it (of its longest word, where that has more); and twice what n - 1 words in
    a row of a text of many pieces have at most.
    """
    settings = settings_of(index)
    arrays = NgramIndex(*(as_read_only(array) for array in index))
    reading = reading_of(settings.normalization, settings.seed)
    return Hits(*_scan(arrays, *arrays_to_scan(data, starts), settings.n, np.uint64(settings.mask), reading))


# The index's directory and sieve


def directory_and_sieve(
    hashes: npt.NDArray[np.uint64],
) -> tuple[npt.NDArray[Any], npt.NDArray[np.uint64]]:
    """Return what leads to ascending hashes: one or two of them for each entry, 8 to 16 bits of the sieve for each."""
    bits = max(1, len(hashes).bit_length() - 1)
    kind = np.uint32 if len(hashes) < 1 << 32 else np.int64
    directory, sieve = np.zeros((1 << bits) + 1, kind), np.zeros(max(2, 1 << bits >> 2), np.uint64)
    _fill(hashes, directory, sieve)
    return directory, sieve


@kernel
def shift_for(entries):  # type: ignore[no-untyped-def]
    """Return how far a hash is shifted for its number among so many entries, a power of two."""
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


@kernel
def _sieve_bits(value):  # type: ignore[no-untyped-def]
    first, second = _ONE << (value & _SIX_BITS), _ONE << ((value >> _SECOND) & _SIX_BITS)
    return first | second | _ONE << ((value >> _THIRD) & _SIX_BITS)


# Scanning


@kernel
def same_bytes(left, left_start, right, right_start, size):  # type: ignore[no-untyped-def]
    """Say whether so many bytes, at least one, are equal; both arrays go on for 7 bytes more."""
    last = size - 8
    at = 0
    while at < last:
        if word_at(left, left_start + at) != word_at(right, right_start + at):
            return False
        at += 8
    differing = word_at(left, left_start + at) ^ word_at(right, right_start + at)
    return differing << np.uint64(8 * (8 - (size - at))) == 0


@kernel
def _scan(index, buffer, starts, n, mask, reading):  # type: ignore[no-untyped-def]
    longest = longest_piece(buffer, starts)
    bits = new_bits(longest)
    # Up to n - 1 words of a piece stand before those of the next one. How many bytes they have is known only then.
    found = new_found(most_words(longest) + n, most_normal(longest))
    ngrams = np.empty(most_words(longest) + n, np.uint64)
    candidates = np.empty(most_words(longest) + n, np.int64)
    hits = np.empty((1024, 5), np.int64)
    texts = max(0, len(starts) - 1)
    word_counts, ngram_counts = np.zeros(texts, np.int64), np.zeros(texts, np.int64)
    size = 0
    for text in range(texts):
        start, kept, kept_bytes, fresh = starts[text], np.int64(0), np.int64(0), True
        while start < starts[text + 1]:
            end = piece_end(buffer, start, starts[text + 1])
            span = (starts[text], starts[text + 1])
            found = with_normal_room(found, kept_bytes + most_normal(end - start))
            count = Count(kept, kept_bytes, np.int64(0), fresh)
            count = find_words(buffer, span, (start, end), reading, bits, found, count, True)
            if size + count.words > len(hits):
                hits = _more_rows(hits, size + count.words)
            for number in range(count.segments + 1):
                run_start, run_end = run_of(found, count, number)
                ngram_count = roll(found.hashes, run_start, run_end, n, mask, ngrams, 0)
                before = size
                size = _look_up(index, ngrams, ngram_count, candidates, found, run_start, n, hits, size)
                for hit in range(before, size):
                    hits[hit, 0] = text
                    hits[hit, 1] += word_counts[text] - kept
                    hits[hit, 3] -= starts[text]
                    hits[hit, 4] -= starts[text]
                ngram_counts[text] += ngram_count
            word_counts[text] += count.words - kept
            run_start, run_end = run_of(found, count, count.segments)
            kept, kept_bytes = _keep(found, run_end - min(n - 1, run_end - run_start), run_end)
            fresh, start = count.fresh, end
    rows = hits[:size]
    columns = rows[:, 0].copy(), rows[:, 1].copy(), rows[:, 2].copy(), rows[:, 3].copy(), rows[:, 4].copy()
    return *columns, word_counts, ngram_counts


@kernel
def _look_up(index, ngrams, count, candidates, found, first, n, hits, size):  # type: ignore[no-untyped-def]
    """Add a row (0, word, id, start, end) to `hits` for each n-gram that is in the index; `first` is the first word.

    What is needed a few rounds later is asked for ahead: in a large index it stands all over memory.
    """
    # numba counts references where a field is taken, so none is taken in the loop.
    directory, hashes, starts, text = index.directory, index.hashes, index.starts, index.text
    normal, normal_starts, word_starts, word_ends = found.normal, found.normal_starts, found.starts, found.ends
    to_entry, text_end = shift_for(len(directory) - 1), len(text) - SLACK
    left = _sieved(index.sieve, ngrams, count, candidates)
    for candidate in range(left):
        if candidate + 3 * _AHEAD < left:
            prefetch(directory, np.int64(ngrams[candidates[candidate + 3 * _AHEAD]] >> to_entry))
        if candidate + 2 * _AHEAD < left:
            number = np.int64(directory[ngrams[candidates[candidate + 2 * _AHEAD]] >> to_entry])
            prefetch(hashes, number)
            prefetch(starts, number)
        if candidate + _AHEAD < left:
            number = np.int64(directory[ngrams[candidates[candidate + _AHEAD]] >> to_entry])
            prefetch(text, np.int64(starts[min(number, len(starts) - 1)]))
        value, word = ngrams[candidates[candidate]], first + candidates[candidate]
        start, entry = normal_starts[word], np.int64(value >> to_entry)
        length = normal_starts[word + n] - start
        for id in range(np.int64(directory[entry]), np.int64(directory[entry + 1])):
            fits = hashes[id] == value and starts[id] + length <= text_end
            if fits and same_bytes(text, np.int64(starts[id]), normal, start, length):
                hits[size, 0], hits[size, 1], hits[size, 2] = 0, word, id
                hits[size, 3], hits[size, 4] = word_starts[word], word_ends[word + n - 1]
                size += 1
                break
    return size


@kernel
def _sieved(sieve, ngrams, count, candidates):  # type: ignore[no-untyped-def]
    """Write the numbers of the n-grams that the sieve lets through into `candidates`; return how many they are."""
    to_word = shift_for(len(sieve))
    left = 0
    for number in range(count):
        needed = _sieve_bits(ngrams[number])
        candidates[left] = number
        left += sieve[ngrams[number] >> to_word] & needed == needed
    return left


@kernel
def _keep(found, start, end):  # type: ignore[no-untyped-def]
    """Move some words to the front, where the next piece of their text goes on; return how many, and their bytes."""
    normal = found.normal_starts[start]
    for word in range(start, end):
        found.hashes[word - start] = found.hashes[word]
        found.starts[word - start], found.ends[word - start] = found.starts[word], found.ends[word]
        found.normal_starts[word - start] = found.normal_starts[word] - normal
    size = found.normal_starts[end] - normal
    for at in range(size):
        put_byte(found.normal, at, found.normal[normal + at])
    return end - start, size


@kernel
def _more_rows(rows, least):  # type: ignore[no-untyped-def]
    larger = np.empty((max(least, 2 * len(rows)), rows.shape[1]), rows.dtype)
    larger[: len(rows)] = rows
    return larger
