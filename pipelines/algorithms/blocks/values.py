"""Learned values of words and of parts of class names, as hash tables that kernels read."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pipelines.algorithms.kernels.compilation import as_read_only, helper

Floats = npt.NDArray[np.float32]
Numbers = npt.NDArray[np.int32]


class Values(NamedTuple):
    """An open-addressing table: slots of 32-bit hashes (0: empty), and the value of each."""

    hashes: npt.NDArray[np.uint32]
    values: npt.NDArray[np.float32]


def values_table(hashes: npt.NDArray[np.uint32], values: npt.NDArray[np.float32]) -> Values:
    """Return the table of values, at most half full."""
    slots = 16
    while slots < 2 * len(hashes) + 2:
        slots *= 2
    table = Values(np.zeros(slots, np.uint32), np.zeros(slots, np.float32))
    for number, value in zip(hashes.tolist(), values.tolist(), strict=True):
        slot = number & (slots - 1)
        while table.hashes[slot] not in (0, number):
            slot = (slot + 1) & (slots - 1)
        if number:
            table.hashes[slot], table.values[slot] = number, value
    return Values(as_read_only(table.hashes), as_read_only(table.values))


@helper
def value_of(hashes: Any, values: Any, number: Any) -> Any:
    """Return the value of a hash, NaN if it has none."""
    mask = len(hashes) - 1
    slot = np.int64(number) & mask
    while hashes[slot] != 0:
        if hashes[slot] == number:
            return values[slot]
        slot = (slot + 1) & mask
    return np.float32(np.nan)


@helper
def is_in(hashes: Any, number: Any) -> Any:
    """Return whether a table has a hash."""
    mask = len(hashes) - 1
    slot = np.int64(number) & mask
    while hashes[slot] != 0 and hashes[slot] != number:
        slot = (slot + 1) & mask
    return hashes[slot] != 0
