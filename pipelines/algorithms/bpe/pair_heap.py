"""A heap of pairs: the greatest count on top, of equal counts the pair with the lowest ids. For numba kernels."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pipelines.algorithms.kernels.compilation import kernel


class PairHeap(NamedTuple):
    """Pairs by number with the count that each had when it was put in; more room than what is in use."""

    counts: npt.NDArray[np.int64]
    pairs: npt.NDArray[np.int32]


@kernel
def is_above(heap, keys, count, pair, place):  # type: ignore[no-untyped-def]
    """Whether a pair with a count belongs above what stands at a place."""
    if count != heap.counts[place]:
        return count > heap.counts[place]
    return keys[pair] < keys[heap.pairs[place]]


@kernel
def push(heap, keys, size, count, pair):  # type: ignore[no-untyped-def]
    """Add a pair to a heap of so many; `keys` are the ids of each pair, see `key_of`."""
    place = size
    while place > 0:
        parent = (place - 1) >> 1
        if not is_above(heap, keys, count, pair, parent):
            break
        heap.counts[place] = heap.counts[parent]
        heap.pairs[place] = heap.pairs[parent]
        place = parent
    heap.counts[place] = count
    heap.pairs[place] = pair


@kernel
def sink(heap, keys, size, count, pair):  # type: ignore[no-untyped-def]
    """Put a pair in the place of the top, and then where it belongs."""
    place = 0
    while 2 * place + 1 < size:
        child = 2 * place + 1
        other = child + 1
        if other < size and is_above(heap, keys, heap.counts[other], heap.pairs[other], child):
            child = other
        if is_above(heap, keys, count, pair, child):
            break
        heap.counts[place] = heap.counts[child]
        heap.pairs[place] = heap.pairs[child]
        place = child
    heap.counts[place] = count
    heap.pairs[place] = pair
