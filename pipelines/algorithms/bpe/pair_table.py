"""Counts adjacent pairs of symbols in words."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pipelines.algorithms.kernels.compilation import helper, kernel
from pipelines.algorithms.kernels.hash_table import Keys, find_or_add, new_table, table_of

LOW = np.uint64(0xFFFFFFFF)
HALF = np.uint64(32)
_INITIAL_PAIRS = 1 << 12

Integers = npt.NDArray[np.int64]


class Words(NamedTuple):
    """The symbols of words: word i is `ids[starts[i]:starts[i] + lengths[i]]` and occurs `counts[i]` times."""

    ids: npt.NDArray[Any]
    starts: Integers
    lengths: npt.NDArray[np.int32]
    counts: Integers

    def first(self, words: int, symbols: int) -> Words:
        """Return the first words, which have so many symbols together."""
        return Words(self.ids[:symbols], self.starts[:words], self.lengths[:words], self.counts[:words])


class PairCounts(NamedTuple):
    """Distinct pairs: their keys, how often each occurs, and at how many positions of distinct words."""

    keys: Keys
    counts: Integers
    positions: Integers


def words_of(symbols: npt.NDArray[Any], starts: Integers, counts: Integers, ids: int) -> Words:
    """Return words as the kernels take them, in arrays that they may overwrite; all ids are below `ids`."""
    kind = np.uint16 if ids <= np.iinfo(np.uint16).max + 1 else np.int32
    lengths = np.diff(starts).astype(np.int32)
    return Words(symbols.astype(kind), starts[:-1].astype(np.int64), lengths, counts.astype(np.int64))


def count_pairs(words: Words) -> PairCounts:
    """Count all adjacent pairs of symbols."""
    word, size = 0, 0
    pairs = PairCounts._make(np.empty(_INITIAL_PAIRS, kind) for kind in (np.uint64, np.int64, np.int64))
    table = new_table(_INITIAL_PAIRS)
    while True:
        word, size = _count(words, word, pairs, size, table)
        if word == len(words.starts):
            return PairCounts._make(column[:size] for column in pairs)
        room = max(4 * len(pairs.keys), size + int(words.lengths[word]))
        pairs = PairCounts._make(enlarged(column, room) for column in pairs)
        table = table_of(pairs.keys[:size], room)


def enlarged(array: npt.NDArray[Any], room: int) -> npt.NDArray[Any]:
    """Return a copy of an array with room for so many entries."""
    larger = np.empty(room, array.dtype)
    larger[: len(array)] = array
    return larger


@helper
def key_of(left, right):  # type: ignore[no-untyped-def]
    """Return a pair as one number: the left id in the high bits."""
    return (np.uint64(left) << HALF) | np.uint64(right)


@kernel
def _count(words, word, pairs, size, table):  # type: ignore[no-untyped-def]
    """Count from a word on; return the next word, whose pairs there may be no room for, and the number of pairs."""
    ids, keys = words.ids, pairs.keys
    while word < len(words.starts) and size + words.lengths[word] <= len(keys):
        start, weight = words.starts[word], words.counts[word]
        for at in range(start, start + words.lengths[word] - 1):
            key = key_of(ids[at], ids[at + 1])
            number = find_or_add(table, key, size)
            if number == size:
                keys[size] = key
                pairs.counts[size] = 0
                pairs.positions[size] = 0
                size += 1
            pairs.counts[number] += weight
            pairs.positions[number] += 1
        word += 1
    return word, size
