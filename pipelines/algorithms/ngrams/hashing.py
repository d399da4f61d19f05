"""64-bit hashes of words and word n-grams, straight from the bytes of a column of text; no Python object for a word.

Texts are passed as `data, starts`: the bytes of a column and where each text begins in them, last where all end, one
more entry than texts (`text_columns.text_arrays`). Words are those of `ngrams.words`; property tests check that both
agree on all of Unicode. A hash depends only on the words, in order, and on the seed.

**Words** are hashed 16 bytes at a time by multiplications and shifts; words of up to 8 bytes never share a hash.
**N-grams** are hashed as a polynomial in their words' hashes modulo 2**64, a rolling hash: moving the window by a word
removes one term and adds one. The terms are well mixed before they are added, so two n-grams share the sum only if one
word's hash equals an expression of the others', with probability 2**-64. It is higher only for related words; the base
is 5 modulo 8, so n-grams that differ in the order of their words, or in one repeated word, lose at most 5 of the 64
bits up to n = 16. The last step mixes the sum, one to one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pipelines.algorithms.kernels.compilation import helper, kernel
from pipelines.algorithms.ngrams.word_bits import Reading, reading_of
from pipelines.algorithms.ngrams.word_scan import Chunk, Numbers, read_words, room_for
from pipelines.algorithms.ngrams.words import DEFAULT, Normalization

SEED = 0x2545F4914F6CDD1D
# Identifies the hash in files; another hash needs another name.
NAME = "ngram-polynomial-1"
WHOLE_HASH = (1 << 64) - 1

_BASE = np.uint64(0xD1342543DE82EF95)
_MIX_1, _MIX_2 = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)
_SHIFT = np.uint64(32)
_ONE = np.uint64(1)

_Hashes = npt.NDArray[np.uint64]


class Words(NamedTuple):
    """The words of all texts, in order.

    `hashes`; `starts`, `ends`: where each word is in `data`. `documents`: the number of the first word of each text,
    and last the number of words. `runs`: the first word of each run of words that an n-gram does not leave, none of
    them empty, and last the number of words.
    """

    hashes: _Hashes
    starts: Numbers
    ends: Numbers
    documents: Numbers
    runs: Numbers


class NgramHashes(NamedTuple):
    """The hashes of the n-grams of all texts, in order; the number of the first n-gram, and word, of each text.

    `documents` and `words` have one entry more than there are texts, the number of all.
    """

    hashes: _Hashes
    documents: Numbers
    words: Numbers


class NgramChunk(NamedTuple):
    """The n-grams of a chunk of texts: their hashes, and the number of each one's first word in `words`.

    `ngram_counts`, `word_counts`: how many n-grams and new words each of its texts has.
    """

    words: Chunk
    hashes: _Hashes
    firsts: Numbers
    ngram_counts: Numbers
    word_counts: Numbers


def word_hashes(
    data: npt.NDArray[np.uint8], starts: npt.NDArray[Any], normalization: Normalization = DEFAULT, *, seed: int = SEED
) -> Words:
    """Return the words of texts (UTF-8; int32 or int64 `starts`): 64-bit hashes and where they are."""
    columns: list[list[npt.NDArray[Any]]] = [[np.empty(0, np.uint64)], [np.empty(0, np.int64)], [np.empty(0, np.int64)]]
    documents, runs, words = np.zeros(max(1, len(starts)), np.int64), [np.empty(0, np.int64)], 0
    for chunk in read_words(data, starts, reading_of(normalization, seed)):
        for column, array in zip(columns, chunk.arrays[:3], strict=True):
            column.append(array[: chunk.words].copy())
        documents[chunk.texts[0] + 1 : chunk.texts[1] + 1] = chunk.documents + words
        runs.append(chunk.runs[int(chunk.continues) : -1] + words)
        words += chunk.words
    runs.append(np.array([words]))
    return Words._make([*map(np.concatenate, columns), documents, np.concatenate(runs)])


def text_ngram_hashes(
    data: npt.NDArray[np.uint8],
    starts: npt.NDArray[Any],
    n: int,
    normalization: Normalization = DEFAULT,
    *,
    seed: int = SEED,
) -> NgramHashes:
    """Return the hashes of the n-grams of texts (UTF-8; int32 or int64 `starts`)."""
    documents, words = (np.zeros(max(1, len(starts)), np.int64) for _ in range(2))
    # As many as there can be; the system provides the memory of those that are written.
    hashes = np.empty(room_for(int(starts[-1] - starts[0]), len(starts))[0] if len(starts) else 0, np.uint64)
    size = 0
    for chunk in read_ngrams(data, starts, n, reading_of(normalization, seed)):
        first, last = chunk.words.texts
        hashes[size : size + len(chunk.hashes)] = chunk.hashes
        size += len(chunk.hashes)
        documents[first + 1 : last + 1] += chunk.ngram_counts
        words[first + 1 : last + 1] += chunk.word_counts
    return NgramHashes(hashes[:size], np.cumsum(documents), np.cumsum(words))


def read_ngrams(
    data: npt.NDArray[np.uint8], starts: npt.NDArray[Any], n: int, reading: Reading, mask: int = WHOLE_HASH
) -> Iterator[NgramChunk]:
    """Yield the n-grams of texts in chunks, whose arrays the next chunk overwrites; `mask` selects bits of the hash."""
    hashes, firsts = np.empty(0, np.uint64), np.empty(0, np.int64)
    for chunk in read_words(data, starts, reading, keep=n - 1):
        if chunk.words > len(hashes):
            hashes, firsts = np.empty(len(chunk.arrays.hashes), np.uint64), np.empty(len(chunk.arrays.hashes), np.int64)
        size = roll(chunk.arrays.hashes, chunk.runs, n, np.uint64(mask), hashes, firsts)
        ends = np.searchsorted(firsts[:size], chunk.documents)
        ngram_counts, word_counts = _differences(ends, 0), _differences(chunk.documents, chunk.kept)
        yield NgramChunk(chunk, hashes[:size], firsts[:size], ngram_counts, word_counts)


def _differences(ends: Numbers, start: int) -> Numbers:
    """Return the sizes of neighboring parts (`np.diff` takes 10 times as long for the few texts of a chunk)."""
    sizes = ends.copy()
    sizes[1:] -= ends[:-1]
    sizes[:1] -= start
    return sizes


@kernel
def roll(words, runs, n, mask, hashes, firsts):  # type: ignore[no-untyped-def]
    """Hash each n words in a row of each run; write the hashes and the first words; return how many they are."""
    at = 0
    for run in range(len(runs) - 1):
        start, end = runs[run], runs[run + 1]
        if end - start < n:
            continue
        total, leaves = np.uint64(0), _ONE
        for word in range(start, start + n - 1):
            total = total * _BASE + words[word]
            leaves *= _BASE
        for word in range(start + n - 1, end):
            total = total * _BASE + words[word]
            hashes[at] = _mixed(total) & mask
            firsts[at] = word - n + 1
            at += 1
            total -= words[word - n + 1] * leaves
    return at


@helper
def _mixed(total):  # type: ignore[no-untyped-def]
    total = (total ^ (total >> _SHIFT)) * _MIX_1
    total = (total ^ (total >> _SHIFT)) * _MIX_2
    return total ^ (total >> _SHIFT)
