"""Makes the exact index of benchmarks' n-grams (`ngram_index`), and says which n-gram begins at each of their words."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pipelines.algorithms.bpe.pair_table import at_least
from pipelines.algorithms.kernels.compilation import kernel
from pipelines.algorithms.ngrams.hashing import SEED, arrays_to_scan, roll
from pipelines.algorithms.ngrams.index import (
    WHOLE_HASH,
    NgramIndex,
    Settings,
    directory_and_sieve,
    same_bytes,
    settings_array,
    shift_for,
)
from pipelines.algorithms.ngrams.word_bits import new_bits, reading_of
from pipelines.algorithms.ngrams.word_blocks import prefetch
from pipelines.algorithms.ngrams.word_scan import (
    SLACK,
    Count,
    Found,
    find_words,
    longest_piece,
    most_normal,
    most_words,
    piece_end,
)
from pipelines.algorithms.ngrams.words import DEFAULT, Normalization

# About as many n-grams are sorted at a time as fit the processor's cache; more parts than these would thrash it.
_PART_NGRAMS = 1 << 15
_MOST_PARTS = 1 << 11
# N-grams that lie between asking for memory and using it.
_AHEAD = 12


class Examples(NamedTuple):
    """Where the index's n-grams stand in the examples.

    `ids`: int32, or int64 past 2**31 words: for each word of each example the id of the n-gram that begins there, or
    -1. `words`: int64, the number of each example's first word, and last the number of words.
    """

    ids: npt.NDArray[Any]
    words: npt.NDArray[np.int64]


class _Batch(NamedTuple):
    """What is kept of a batch: normalized text, where its words begin, n-grams, runs of words, first words of texts."""

    text: npt.NDArray[np.uint8]
    word_starts: npt.NDArray[Any]
    ngrams: npt.NDArray[np.uint64]
    segments: npt.NDArray[np.int64]
    documents: npt.NDArray[np.int64]


class IndexBuilder:
    """Collects examples and makes the index of their n-grams.

    Memory is some 8 times the examples' text at its height, in `finish`, and the index is some 3 times as large as the
    text (measured on 120 MB of English of which 80% of the n-grams are distinct; 15 to 18 bytes for each of them and
    the text). `mask` says which bits of the hash count; tests make it weak.
    """

    def __init__(
        self, n: int, normalization: Normalization = DEFAULT, *, seed: int = SEED, mask: int = WHOLE_HASH
    ) -> None:
        self._settings = Settings(n, normalization, seed, mask)
        self._batches: list[_Batch] = []

    def add(self, data: npt.NDArray[np.uint8], starts: npt.NDArray[Any]) -> None:
        """Add a batch of examples (UTF-8; int32 or int64 `starts`, one more than examples)."""
        n, normalization, seed, mask = self._settings
        reading = reading_of(normalization, seed)
        text, word_starts, *rest = _normalize(*arrays_to_scan(data, starts), n, np.uint64(mask), reading)
        # Room that was not needed is given back.
        self._batches.append(_Batch(text.copy(), word_starts.astype(_offsets(len(text))), *rest))

    def finish(self) -> tuple[NgramIndex, Examples]:
        """Return the index, the same whatever the batches were, and where its n-grams stand; forget the examples."""
        batches, self._batches = self._batches, []
        words = sum(len(batch.word_starts) for batch in batches)
        examples = _joined([batch.documents for batch in batches], [len(batch.word_starts) for batch in batches])
        text, word_starts = _joined_text(batches)
        hashes, places, parts = _parted(batches, self._settings.n, words)
        ids = np.full(words, -1, places.dtype)
        starts = np.empty(len(hashes), word_starts.dtype)
        distinct = _number(hashes, places, parts, text, word_starts, self._settings.n, ids, starts)
        del places
        hashes, starts = _trimmed(hashes, distinct), _trimmed(starts, distinct)
        index = NgramIndex(settings_array(self._settings), text, hashes, starts, *directory_and_sieve(hashes))
        return index, Examples(ids, examples)


def _trimmed(array: npt.NDArray[Any], size: int) -> npt.NDArray[Any]:
    """Return the first entries of an array, as a copy where the rest would hold much memory for nothing."""
    return array[:size] if size * 4 >= len(array) * 3 else array[:size].copy()


def _offsets(size: int) -> type[np.uint32] | type[np.int64]:
    return np.uint32 if size < 1 << 32 else np.int64


def _joined(parts: list[npt.NDArray[np.int64]], sizes: list[int]) -> npt.NDArray[np.int64]:
    """Join the numbers of first words, which begin at 0 in each batch."""
    firsts, base = [np.zeros(1, np.int64)], 0
    for part, size in zip(parts, sizes, strict=True):
        firsts.append(part[1:] + base)
        base += size
    return np.concatenate(firsts)


def _joined_text(batches: list[_Batch]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[Any]]:
    """Return the text of all batches, where each word begins in it, and last where all end; they are gone there."""
    size = sum(len(batch.text) for batch in batches)
    text = np.empty(size + SLACK, np.uint8)
    text[size:] = 0
    word_starts = np.empty(sum(len(batch.word_starts) for batch in batches) + 1, _offsets(size))
    at = word = 0
    for number, batch in enumerate(batches):
        text[at : at + len(batch.text)] = batch.text
        np.add(batch.word_starts, at, out=word_starts[word : word + len(batch.word_starts)], casting="unsafe")
        at, word = at + len(batch.text), word + len(batch.word_starts)
        batches[number] = batch._replace(text=batch.text[:0], word_starts=batch.word_starts[:0])
    word_starts[word] = at
    return text, word_starts


def _parted(
    batches: list[_Batch], n: int, words: int
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[Any], npt.NDArray[np.int64]]:
    """Return the n-grams in parts by the first bits of their hashes: hashes, first words, where each part begins."""
    total = sum(len(batch.ngrams) for batch in batches)
    parts = 1 << max(1, min(_MOST_PARTS.bit_length() - 1, (total // _PART_NGRAMS).bit_length()))
    ends = np.zeros(parts + 1, np.int64)
    for batch in batches:
        _count_parts(batch.ngrams, ends)
    np.cumsum(ends, out=ends)
    hashes, places = np.empty(total, np.uint64), np.empty(total, np.int32 if words < 1 << 31 else np.int64)
    word, next_at = 0, ends[:-1].copy()
    while batches:
        batch = batches.pop(0)
        _part(batch.ngrams, batch.segments, n, word, next_at, hashes, places)
        word += int(batch.documents[-1])
    return hashes, places, ends


@kernel
def _normalize(buffer, starts, n, mask, reading):  # type: ignore[no-untyped-def]
    """Return a batch's normalized text, where each word begins in it, n-grams, runs of words, and words by text."""
    longest = longest_piece(buffer, starts)
    bits = new_bits(longest)
    size = starts[-1] - starts[0] if len(starts) else 0
    hashes, normal_starts = (
        np.empty(size // 5 + most_words(longest), np.uint64),
        np.empty(size // 5 + most_words(longest) + 1, np.int64),
    )
    normal, segments = (
        np.empty(size + most_normal(longest), np.uint8),
        np.empty(len(starts) + most_words(longest), np.int64),
    )
    documents, unused = np.zeros(max(1, len(starts)), np.int64), np.empty(0, np.int64)
    words = runs = normal_size = np.int64(0)
    for text in range(len(starts) - 1):
        start, fresh = starts[text], True
        while start < starts[text + 1]:
            end = piece_end(buffer, start, starts[text + 1])
            most = most_words(end - start)
            if words + most > len(hashes):
                hashes = at_least(hashes, 2 * (words + most))
                normal_starts = at_least(normal_starts, 2 * (words + most) + 1)
            if runs + most + 1 > len(segments):
                segments = at_least(segments, 2 * (runs + most + 1))
            if normal_size + most_normal(end - start) > len(normal):
                normal = at_least(normal, 2 * (normal_size + most_normal(end - start)))
            found = Found(hashes, unused, unused, normal_starts, normal, segments)
            span = (starts[text], starts[text + 1])
            count = Count(words, normal_size, runs, fresh)
            words, normal_size, runs, fresh = find_words(buffer, span, (start, end), reading, bits, found, count, False)
            start = end
        documents[text + 1] = words
    segments[runs] = words
    ngrams, at = np.empty(words, np.uint64), 0
    for run in range(runs):
        at = roll(hashes, segments[run], segments[run + 1], n, mask, ngrams, at)
    return normal[:normal_size], normal_starts[:words], ngrams[:at].copy(), segments[: runs + 1].copy(), documents


@kernel
def _count_parts(ngrams, counts):  # type: ignore[no-untyped-def]
    """Add up how many hashes each part has, each in the place after its own."""
    shift = shift_for(len(counts) - 1)
    for number in range(len(ngrams)):
        counts[np.int64(ngrams[number] >> shift) + 1] += 1


@kernel
def _part(ngrams, segments, n, first, next_at, hashes, places):  # type: ignore[no-untyped-def]
    """Put the n-grams of a batch, whose words are numbered from `first` on, where the next one of their part goes."""
    shift = shift_for(len(next_at))
    number = 0
    for run in range(len(segments) - 1):
        for word in range(segments[run], segments[run + 1] - n + 1):
            part = ngrams[number] >> shift
            hashes[next_at[part]] = ngrams[number]
            places[next_at[part]] = first + word
            next_at[part] += 1
            number += 1


@kernel
def _number(hashes, places, parts, text, word_starts, n, ids, starts):  # type: ignore[no-untyped-def]
    """Give ids to the n-grams, by hash and then by where they come first; return how many are distinct.

    Writes the id of each into `ids` at its word, each distinct hash into `hashes`, in place, and where each distinct
    n-gram begins in the text into `starts`.
    """
    largest = 1
    for part in range(len(parts) - 1):
        largest = max(largest, parts[part + 1] - parts[part])
    values, words = np.empty(largest, hashes.dtype), np.empty(largest, places.dtype)
    distinct = 0
    for part in range(len(parts) - 1):
        size = parts[part + 1] - parts[part]
        _sort_part(hashes, places, parts[part], size, len(parts) - 1, values, words)
        same = distinct
        for number in range(size):
            later = number + _AHEAD
            if later + _AHEAD < size:
                prefetch(word_starts, np.int64(words[later + _AHEAD]))
                prefetch(ids, np.int64(words[later + _AHEAD]))
                if values[later] == values[later - 1] or values[later] == values[later + 1]:
                    prefetch(text, np.int64(word_starts[words[later]]))
            word = np.int64(words[number])
            start, id = np.int64(word_starts[word]), distinct
            if number == 0 or values[number] != values[number - 1]:
                same = distinct
            else:
                id = same
                while id < distinct and not same_bytes(
                    text, start, text, np.int64(starts[id]), word_starts[word + n] - start
                ):
                    id += 1
            if id == distinct:
                hashes[distinct], starts[distinct] = values[number], start
                distinct += 1
            ids[word] = id
    return distinct


@kernel
def _sort_part(hashes, places, start, size, parts, values, words):  # type: ignore[no-untyped-def]
    """Sort a part by hash, equal ones in the order in which they are: by a few more bits, then by insertion."""
    buckets = 2
    while buckets < size:
        buckets *= 2
    part_bits, shift = np.uint64(64) - shift_for(parts), shift_for(buckets)
    next_at = np.zeros(buckets + 1, np.int64)
    for number in range(start, start + size):
        next_at[np.int64((hashes[number] << part_bits) >> shift) + 1] += 1
    for bucket in range(buckets):
        next_at[bucket + 1] += next_at[bucket]
    for number in range(start, start + size):
        slot = np.int64((hashes[number] << part_bits) >> shift)
        values[next_at[slot]], words[next_at[slot]] = hashes[number], places[number]
        next_at[slot] += 1
    for number in range(1, size):
        value, word, at = values[number], words[number], number
        while at > 0 and values[at - 1] > value:
            values[at], words[at] = values[at - 1], words[at - 1]
            at -= 1
        values[at], words[at] = value, word
