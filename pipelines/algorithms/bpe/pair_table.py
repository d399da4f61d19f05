"""A hash table of pairs of symbols, by open addressing, and arrays that grow. For numba kernels."""

from __future__ import annotations

import numpy as np

from pipelines.algorithms.kernels.compilation import kernel

FREE = np.uint64(0xFFFFFFFFFFFFFFFF)
LOW = np.uint64(0xFFFFFFFF)
HALF = np.uint64(32)
_ONE = np.uint64(1)
_SPREAD = np.uint64(0x9E3779B97F4A7C15)


@kernel
def key_of(left, right):  # type: ignore[no-untyped-def]
    """Return a pair as one number: the left id in the high bits."""
    return (np.uint64(left) << HALF) | np.uint64(right)


@kernel
def slot_of(table, key):  # type: ignore[no-untyped-def]
    """Return where a key is in the table, or the free place where it belongs."""
    mask = np.uint64(len(table) - 1)
    slot = ((key * _SPREAD) >> np.uint64(20)) & mask
    while table[slot] != key and table[slot] != FREE:
        slot = (slot + _ONE) & mask
    return slot


@kernel
def table_of(keys, room):  # type: ignore[no-untyped-def]
    """Return a table with at least so many places that holds keys by their numbers."""
    places = 1
    while places < room:
        places *= 2
    table, numbers = np.full(places, FREE, np.uint64), np.empty(places, np.int32)
    for number in range(len(keys)):
        slot = slot_of(table, keys[number])
        table[slot] = keys[number]
        numbers[slot] = number
    return table, numbers


@kernel
def grown(array):  # type: ignore[no-untyped-def]
    """Return an array with twice the room."""
    return at_least(array, 2 * len(array))


@kernel
def at_least(array, room):  # type: ignore[no-untyped-def]
    """Return an array with so much room."""
    larger = np.empty(room, array.dtype)
    larger[: len(array)] = array
    return larger
