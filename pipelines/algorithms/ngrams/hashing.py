"""64-bit hashes of words and word n-grams from the bytes of a column of text, without a Python object per word.

Texts are passed as `data, starts`: the bytes of a column, and where each text begins in them and the last one ends, so
`starts` has one more entry than there are texts (`columns.text_arrays`). Words are those of `ngrams.words`, which
property tests check on all of Unicode. A hash depends only on the words and their order.

**Words** are hashed 16 bytes at a time by multiplications and shifts; words of up to 8 bytes never share a hash.
**N-grams** have a rolling hash, a polynomial in their words' hashes modulo 2**64: moving the window by a word removes
one term and adds one. The word hashes are well mixed, so two n-grams have the same sum with probability 2**-64. It is
higher only for related n-grams: the base is 5 modulo 8, so n-grams that differ in the order of their words, or in one
repeated word, lose at most 5 of the 64 bits up to n = 16. The last step mixes the sum, one to one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pipelines.algorithms.ngrams.word_bits import reading_of
from pipelines.algorithms.ngrams.word_scan import Numbers, new_totals, read_ngrams, room_for
from pipelines.algorithms.ngrams.words import DEFAULT, Normalization

# Identifies the hash in files; another hash needs another name.
NAME = "ngram-polynomial-1"

_Hashes = npt.NDArray[np.uint64]


class Words(NamedTuple):
    """The words of all texts, in order: their hashes, and where each starts and ends in `data`.

    `documents`: the number of the first word of each text, and last the number of words.
    """

    hashes: _Hashes
    starts: Numbers
    ends: Numbers
    documents: Numbers


class NgramHashes(NamedTuple):
    """The hashes of the n-grams of all texts, in order.

    `documents`, `words`: the number of the first n-gram, and word, of each text, and last the number of all.
    """

    hashes: _Hashes
    documents: Numbers
    words: Numbers


def word_hashes(data: npt.NDArray[np.uint8], starts: npt.NDArray[Any], normalization: Normalization = DEFAULT) -> Words:
    """Return the words of texts (UTF-8; int32 or int64 `starts`): 64-bit hashes and positions."""
    columns: list[list[npt.NDArray[Any]]] = [[np.empty(0, kind)] for kind in (np.uint64, np.int64, np.int64)]
    totals = new_totals(starts)
    for chunk in read_ngrams(data, starts, 1, reading_of(normalization), totals):
        for column, array in zip(columns, chunk.arrays[:3], strict=True):
            column.append(array[: chunk.words].copy())
    return Words._make([*map(np.concatenate, columns), totals.words])


def word_spans(text: str, normalization: Normalization = DEFAULT) -> list[tuple[int, int]]:
    """Return the position of each word of a text: (start, end) in characters."""
    data = np.frombuffer(text.encode(), np.uint8)
    words = word_hashes(data, np.array([0, len(data)]), normalization)
    characters = np.cumsum(data & 0xC0 != 0x80)
    return list(zip((characters[words.starts] - 1).tolist(), characters[words.ends - 1].tolist(), strict=True))


def text_ngram_hashes(
    data: npt.NDArray[np.uint8], starts: npt.NDArray[Any], n: int, normalization: Normalization = DEFAULT
) -> NgramHashes:
    """Return the hashes of the n-grams of texts (UTF-8; int32 or int64 `starts`)."""
    totals = new_totals(starts)
    # The maximum number; the system provides memory only for what is written.
    hashes = np.empty(room_for(int(starts[-1] - starts[0]), len(starts))[0] if len(starts) else 0, np.uint64)
    size = 0
    for chunk in read_ngrams(data, starts, n, reading_of(normalization), totals):
        hashes[size : size + chunk.ngrams] = chunk.arrays.ngrams[: chunk.ngrams]
        size += chunk.ngrams
    return NgramHashes(hashes[:size], totals.ngrams, totals.words)
