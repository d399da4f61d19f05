"""Builds the exact index of benchmarks' n-grams and finds which n-gram begins at each of their words."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pipelines.algorithms.kernels.compilation import kernel
from pipelines.algorithms.ngrams.hashing import SEED
from pipelines.algorithms.ngrams.index import NgramIndex, Settings, directory_and_sieve, same_bytes, settings_array
from pipelines.algorithms.ngrams.word_bits import reading_of
from pipelines.algorithms.ngrams.word_scan import SLACK, WHOLE_HASH, Numbers, new_totals, read_ngrams
from pipelines.algorithms.ngrams.words import DEFAULT, Normalization


class Examples(NamedTuple):
    """Where the index's n-grams occur in the examples.

    `ids`: int32, or int64 past 2**31 words: for each word of each example the id of the n-gram that begins there, or
    -1. `words`: int64, the number of each example's first word, and last the number of words.
    """

    ids: npt.NDArray[Any]
    words: Numbers


class _Part(NamedTuple):
    """Words and n-grams of some examples: normalized text, where each word begins in it, hashes and first words."""

    text: npt.NDArray[np.uint8]
    word_starts: npt.NDArray[Any]
    ngrams: npt.NDArray[np.uint64]
    firsts: Numbers


class IndexBuilder:
    """Collects examples and builds the index of their n-grams.

    Peak memory, in `finish`, is ~8 times the size of the text, and the index is ~3 times as large as the text (measured
    on 120 MB of English, where 80% of the n-grams are distinct). `mask` weakens the hash for tests.
    """

    def __init__(
        self, n: int, normalization: Normalization = DEFAULT, *, seed: int = SEED, mask: int = WHOLE_HASH
    ) -> None:
        self._settings = Settings(n, normalization, seed, mask)
        self._parts: list[_Part] = []
        self._words: list[Numbers] = []
        self._total_words = 0

    def add(self, data: npt.NDArray[np.uint8], starts: npt.NDArray[Any]) -> None:
        """Add a batch of examples (UTF-8; int32 or int64 `starts`, one more than examples)."""
        settings, totals = self._settings, new_totals(starts)
        reading = reading_of(settings.normalization, settings.seed)
        for chunk in read_ngrams(data, starts, settings.n, reading, totals, settings.mask):
            arrays = chunk.arrays
            word_starts = arrays.normal_starts[chunk.kept : chunk.words]
            begin, end = int(arrays.normal_starts[chunk.kept]), int(arrays.normal_starts[chunk.words])
            self._parts.append(
                _Part(
                    text=arrays.normal[begin:end].copy(),
                    word_starts=(word_starts - begin).astype(np.uint32 if end < 1 << 32 else np.int64),
                    ngrams=arrays.ngrams[: chunk.ngrams].copy(),
                    firsts=arrays.firsts[: chunk.ngrams] + (chunk.first_word + self._total_words),
                )
            )
        self._words.append(totals.words[1:] + self._total_words)
        self._total_words += int(totals.words[-1])

    def finish(self) -> tuple[NgramIndex, Examples]:
        """Return the index, which does not depend on the batches, and where its n-grams occur; remove the examples."""
        parts, examples, words = self._parts, self._words, self._total_words
        self.__init__(*self._settings[:2], seed=self._settings.seed, mask=self._settings.mask)  # type: ignore[misc]
        text, word_starts = _joined_text(parts, words)
        hashes, places = _sorted_ngrams(parts, words)
        ids = np.full(words, -1, places.dtype)
        starts = np.empty(len(hashes), word_starts.dtype)
        distinct = _number(hashes, places, text, word_starts, self._settings.n, ids, starts)
        del places
        hashes, starts = _trimmed(hashes, distinct), _trimmed(starts, distinct)
        index = NgramIndex(settings_array(self._settings), text, hashes, starts, *directory_and_sieve(hashes))
        return index, Examples(ids, np.concatenate([np.zeros(1, np.int64), *examples]))


def _trimmed(array: npt.NDArray[Any], size: int) -> npt.NDArray[Any]:
    """Return the first entries of an array, copied if over a quarter of its memory would be wasted."""
    return array[:size] if size * 4 >= len(array) * 3 else array[:size].copy()


def _joined_text(parts: list[_Part], words: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[Any]]:
    """Return the text of all parts, where each word begins in it, and last its size; remove both from the parts."""
    size = sum(len(part.text) for part in parts)
    text = np.empty(size + SLACK, np.uint8)
    text[size:] = 0
    word_starts = np.empty(words + 1, np.uint32 if size < 1 << 32 else np.int64)
    at = word = 0
    for number, part in enumerate(parts):
        text[at : at + len(part.text)] = part.text
        np.add(part.word_starts, at, out=word_starts[word : word + len(part.word_starts)], casting="unsafe")
        at, word = at + len(part.text), word + len(part.word_starts)
        parts[number] = part._replace(text=part.text[:0], word_starts=part.word_starts[:0])
    word_starts[word] = at
    return text, word_starts


def _sorted_ngrams(parts: list[_Part], words: int) -> tuple[npt.NDArray[np.uint64], npt.NDArray[Any]]:
    """Return the hashes and first words of all n-grams, sorted by hash and then by position; clear the parts."""
    hashes = np.concatenate([np.empty(0, np.uint64), *(part.ngrams for part in parts)])
    places = np.concatenate([np.empty(0, np.int64), *(part.firsts for part in parts)])
    parts.clear()
    order = np.argsort(hashes, kind="stable")
    return hashes[order], places[order].astype(np.int32 if words < 1 << 31 else np.int64)


@kernel
def _number(hashes, places, text, word_starts, n, ids, starts):  # type: ignore[no-untyped-def]
    """Number the n-grams by hash and then by first occurrence; return how many are distinct.

    Writes each n-gram's id into `ids` at its first word, the hashes of distinct n-grams into `hashes`, in place, and
    where they begin in the text into `starts`.
    """
    distinct = same = 0
    previous = ~np.uint64(0)
    for number in range(len(hashes)):
        value, word = hashes[number], np.int64(places[number])
        start, id = np.int64(word_starts[word]), distinct
        if number == 0 or value != previous:
            same, previous = distinct, value
        else:
            length = np.int64(word_starts[word + n]) - start
            id = same
            while id < distinct and not same_bytes(text, start, text, np.int64(starts[id]), length):
                id += 1
        if id == distinct:
            hashes[distinct], starts[distinct] = value, start
            distinct += 1
        ids[word] = id
    return distinct
