"""What can be said of a pybloom-live filter: the memory it needs, how full it is, how often it errs."""

from __future__ import annotations

import math
from typing import Any


def filter_bytes(capacity: int, error_rate: float) -> int:
    """Return the size in bytes of the bits of a pybloom-live filter, before it is made."""
    slices = math.ceil(math.log2(1.0 / error_rate))
    slice_bits = math.ceil(capacity * abs(math.log(error_rate)) / (slices * math.log(2) ** 2))
    return (slices * slice_bits + 7) // 8


def fill(bloom: Any) -> float:
    """Return the share of a filter's bits that are set."""
    return float(sum(_bits_set(bloom)) / bloom.num_bits)


def false_positive_rate(bloom: Any) -> float:
    """Return the probability that a key that was never added is found, from the bits that are set.

    It is the product over the filter's slices of the probability that a hash falls on a set bit: fill to the power of
    the slices, but for one thing. pybloom-live takes a 16-, 32- or 64-bit number modulo the slice's bits, so the first
    bits of a slice are hit a little more often; that is counted here, so the figure is no estimate.
    """
    range_of_hash = 1 << (64 if bloom.bits_per_slice >= 1 << 31 else 32 if bloom.bits_per_slice >= 1 << 15 else 16)
    rounds, favoured = divmod(range_of_hash, bloom.bits_per_slice)
    rate = 1.0
    for number, bits_set in enumerate(_bits_set(bloom)):
        start = number * bloom.bits_per_slice
        favoured_set = bloom.bitarray.count(1, start, start + favoured)
        rate *= (rounds * bits_set + favoured_set) / range_of_hash
    return rate


def estimated_items(bloom: Any) -> int:
    """Return about how many distinct keys a filter holds, from its fill; at most its capacity."""
    empty = 1.0 - fill(bloom)
    if empty <= 0.0:
        return int(bloom.capacity)
    return min(int(bloom.capacity), round(-int(bloom.bits_per_slice) * math.log(empty)))


def _bits_set(bloom: Any) -> list[int]:
    """Return the number of bits set in each slice."""
    width = bloom.bits_per_slice
    return [bloom.bitarray.count(1, number * width, (number + 1) * width) for number in range(bloom.num_slices)]
