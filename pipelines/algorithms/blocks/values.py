"""Learned values of words and of parts of class names, which kernels look up by the hash of the name."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pipelines.algorithms.kernels.compilation import as_read_only, helper
from pipelines.algorithms.kernels.hash_table import FREE, Keys, slot_of, table_of

Floats = npt.NDArray[np.float32]
Numbers = npt.NDArray[np.int32]


class Values(NamedTuple):
    """The slots of a hash table: the key of each, or FREE, and its value, or NaN."""

    keys: Keys
    values: Floats


def values_table(hashes: npt.NDArray[np.uint32], values: Floats) -> Values:
    """Return the table of the values of distinct hashes."""
    table = table_of(hashes.astype(np.uint64))
    is_used = table.keys != FREE
    by_slot = np.full(len(table.keys), np.nan, np.float32)
    by_slot[is_used] = values[table.numbers[is_used]]
    return Values(as_read_only(table.keys), as_read_only(by_slot))


@helper
def value_of(table: Any, word: Any) -> Any:
    """Return the value of a hash, NaN if it has none."""
    return table.values[slot_of(table.keys, np.uint64(word))]
