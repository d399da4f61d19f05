"""The hash of an n-gram from the sum of its words' hashes, in kernels and in NumPy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from pipelines.algorithms.ngrams.word_scan import Chunk, Totals

BASE = np.uint64(0xD1342543DE82EF95)
_MIX_1, _MIX_2 = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)
_HALF = np.uint64(32)


def mix_total(total: Any) -> Any:
    """Return the hash of an n-gram from the sum of its words, one to one: a uint64, or each of an array."""
    total = (total ^ (total >> _HALF)) * _MIX_1
    total = (total ^ (total >> _HALF)) * _MIX_2
    return total ^ (total >> _HALF)


def add_short_texts(chunk: Chunk, totals: Totals, is_cut: bool, n: int, mask: np.uint64) -> Chunk:
    """Return a chunk with an n-gram of all words for each of its texts that has words, but fewer than `n`.

    `is_cut`: the last text continues in the next chunk.
    """
    arrays, first, last = chunk.arrays, chunk.first, chunk.last
    sizes = np.diff(totals.words[first : last + 1])
    if is_cut:
        sizes[-1] = 0
    is_short = (sizes > 0) & (sizes < n)
    rows = np.flatnonzero(is_short)
    if not len(rows):
        return chunk
    firsts = totals.words[first + rows] - chunk.first_word
    positions = totals.ngrams[first + rows] - (totals.ngrams[last] - chunk.ngrams)
    sums = np.zeros(len(rows), np.uint64)
    for step in range(int(sizes[rows].max())):
        longer = step < sizes[rows]
        sums[longer] = sums[longer] * BASE + arrays.hashes[firsts[longer] + step]
    ngrams = chunk.ngrams + len(rows)
    arrays.ngrams[:ngrams] = np.insert(arrays.ngrams[: chunk.ngrams], positions, mix_total(sums) & mask)
    arrays.firsts[:ngrams] = np.insert(arrays.firsts[: chunk.ngrams], positions, firsts)
    totals.ngrams[first + 1 : last + 1] += is_short.cumsum()
    return chunk._replace(ngrams=ngrams)
