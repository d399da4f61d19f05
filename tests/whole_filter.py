"""A blocked Bloom filter in one part: the stages add to and measure its parts."""

from __future__ import annotations

from pipelines.algorithms.bloom.blocked import (
    Bits,
    Hashes,
    Measurement,
    add_range,
    blocks_by_bits_set,
    measurement_of,
)


def add(bits: Bits, hashes: Hashes, k: int, seed: int = 0) -> None:
    """Add uint64 hashes in place."""
    add_range(bits, hashes, k, seed, 0, len(bits))


def measure(bits: Bits, k: int) -> Measurement:
    """Measure fill, items and error bound."""
    return measurement_of(blocks_by_bits_set(bits), k)
