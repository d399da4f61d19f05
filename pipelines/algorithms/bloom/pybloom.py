"""Figures of a pybloom-live filter: its memory, fill and false-positive rate."""

from __future__ import annotations

import math
from typing import Any


def filter_bytes(capacity: int, error_rate: float) -> int:
    """Return the size in bytes of the bits of a pybloom-live filter with these options."""
    slices = math.ceil(math.log2(1.0 / error_rate))
    slice_bits = math.ceil(capacity * abs(math.log(error_rate)) / (slices * math.log(2) ** 2))
    return (slices * slice_bits + 7) // 8


def fill(bloom: Any) -> float:
    """Return the share of a filter's bits that are set."""
    return float(sum(_bits_set(bloom)) / bloom.num_bits)


def false_positive_rate(bloom: Any) -> float:
    """Return the probability that the filter contains a key that was never added, from the bits that are set.

    It is the product over the slices of the probability that a hash selects a set bit: about fill to the power of the
    number of slices. pybloom-live reduces a 16-, 32- or 64-bit number modulo the bits of a slice, so the first bits of
    a slice are selected slightly more often; this is included, so the result is exact.
    """
    hash_range = 1 << (64 if bloom.bits_per_slice >= 1 << 31 else 32 if bloom.bits_per_slice >= 1 << 15 else 16)
    rounds, favored = divmod(hash_range, bloom.bits_per_slice)
    rate = 1.0
    for number, bits_set in enumerate(_bits_set(bloom)):
        start = number * bloom.bits_per_slice
        favored_set = bloom.bitarray.count(1, start, start + favored)
        rate *= (rounds * bits_set + favored_set) / hash_range
    return rate


def estimated_items(bloom: Any) -> int:
    """Estimate the number of distinct keys of a filter from its fill; at most its capacity."""
    empty = 1.0 - fill(bloom)
    if empty <= 0.0:
        return int(bloom.capacity)
    return min(int(bloom.capacity), round(-int(bloom.bits_per_slice) * math.log(empty)))


def _bits_set(bloom: Any) -> list[int]:
    """Return the number of bits set in each slice."""
    width = bloom.bits_per_slice
    return [bloom.bitarray.count(1, number * width, (number + 1) * width) for number in range(bloom.num_slices)]
