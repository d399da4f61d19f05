"""The hash table of kernels: 64-bit keys with open addressing, and arrays that have an entry per slot.

`article_index` and `word_table` have their own: the one stores half of each key, so that a slot has eight bytes, the
other compares words behind equal keys.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pipelines.algorithms.kernels.compilation import helper, kernel

Keys = npt.NDArray[np.uint64]

FREE = np.uint64(0xFFFFFFFFFFFFFFFF)
_ONE = np.uint64(1)
_SHIFT = np.uint64(20)
_FACTOR = np.uint64(0x9E3779B97F4A7C15)


class Table(NamedTuple):
    """A power of two of slots: the key of each, or FREE, and its number."""

    keys: Keys
    numbers: npt.NDArray[np.int32]


def new_table(room: int) -> Table:
    """Return an empty table with room for so many keys, which then is at most half full."""
    slots = 1 << (2 * max(room, 1) - 1).bit_length()
    return Table(np.full(slots, FREE), np.empty(slots, np.int32))


def table_of(keys: Keys, room: int = 0) -> Table:
    """Return a table of keys with their positions as numbers, the first of equal ones; `room` is for further keys."""
    table = new_table(max(room, len(keys)))
    _fill(keys, table)
    return table


@helper
def slot_of(keys: Any, key: Any) -> Any:
    """Return the slot of a key, or the free slot where it belongs."""
    mask = np.uint64(len(keys) - 1)
    slot = ((key * _FACTOR) >> _SHIFT) & mask
    while keys[slot] != key and keys[slot] != FREE:
        slot = (slot + _ONE) & mask
    return slot


@helper
def find_or_add(table: Any, key: Any, number: Any) -> Any:
    """Return the number of a key; one that is not there is added with the number given."""
    slot = slot_of(table.keys, key)
    if table.keys[slot] == FREE:
        table.keys[slot] = key
        table.numbers[slot] = number
    return table.numbers[slot]


@kernel
def _fill(keys: Any, table: Any) -> None:
    for number in range(len(keys)):
        find_or_add(table, keys[number], number)
