"""The size of a Bloom filter against trials, and the bits a key against the bar."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from whole_filter import add, measure

from pipelines.algorithms.bloom.blocked import BLOCK_BITS, empty_bits
from pipelines.algorithms.bloom.sizing import expected_error, size_for


@pytest.mark.parametrize("items", [100_000, 10**7, 10**9])
def test_bits_per_key_are_within_a_tenth_of_a_classic_filter(items: int) -> None:
    size = size_for(items, 1e-8)
    classic = math.log2(1e8) / math.log(2)
    assert classic == pytest.approx(38.3, abs=0.05)
    assert size.size_bytes * 8 / items <= 1.1 * classic
    assert size.size_bytes * 8 / items == pytest.approx(41.4, abs=0.1)


@pytest.mark.parametrize("items", [1, 99, 105, 2000, 123_456])
@pytest.mark.parametrize("error_rate", [0.5, 0.03, 1e-8, 1e-12])
def test_the_number_of_blocks_is_minimal(items: int, error_rate: float) -> None:
    size = size_for(items, error_rate)
    left = error_rate - items / 2**64
    assert expected_error(items, size.blocks, size.k) <= left
    fewer = [expected_error(items, size.blocks - 1, k) for k in range(1, 65) if size.blocks > 1]
    assert all(error > left for error in fewer)


@pytest.mark.parametrize(("items", "blocks", "k"), [(2, 1, 3), (5, 1, 2), (4, 3, 2), (3, 2, 4)])
def test_the_expected_rate_matches_direct_sums(items: int, blocks: int, k: int) -> None:
    assert expected_error(items, blocks, k) == pytest.approx(float(_expectation(items, blocks, k)), rel=1e-9)


def _expectation(items: int, blocks: int, k: int) -> Fraction:
    """Sum over the loads of a block and over the bits they set, in fractions."""
    total = Fraction(0)
    for load in range(items + 1):
        chance = math.comb(items, load) * Fraction(1, blocks) ** load * Fraction(blocks - 1, blocks) ** (items - load)
        law = {0: Fraction(1)}
        for _ in range(load * k):
            after: dict[int, Fraction] = {}
            for bits_set, share in law.items():
                hit = Fraction(bits_set, BLOCK_BITS)
                after[bits_set] = after.get(bits_set, Fraction(0)) + share * hit
                after[bits_set + 1] = after.get(bits_set + 1, Fraction(0)) + share * (1 - hit)
            law = after
        total += chance * sum(share * Fraction(bits_set, BLOCK_BITS) ** k for bits_set, share in law.items())
    return total


@pytest.mark.parametrize(("items", "error_rate"), [(300, 1e-4), (20_000, 1e-2), (400_000, 1e-8)])
def test_measured_bounds_match_the_expected_ones(items: int, error_rate: float) -> None:
    size = size_for(items, error_rate)
    bounds = []
    for seed in range(40 if items < 100_000 else 4):
        bits = empty_bits(size.blocks)
        add(bits, np.random.default_rng(seed).integers(0, 1 << 64, items, dtype=np.uint64), size.k)
        bounds.append(measure(bits, size.k).error_bound)
    deviation = np.std(bounds, ddof=1) / math.sqrt(len(bounds))
    assert abs(np.mean(bounds) - expected_error(items, size.blocks, size.k)) < 5 * deviation


def test_zero_items_need_one_block() -> None:
    assert size_for(0, 1e-8).blocks == 1
    assert size_for(0, 1e-8).size_bytes == 512


def test_impossible_sizes_are_refused() -> None:
    for rate in (0.0, 1.0, -1.0, 2.0):
        with pytest.raises(ValueError, match="must be between 0 and 1"):
            size_for(10, rate)
    with pytest.raises(ValueError, match=r"hash collisions alone give 5\.4e-11; allow 1\.1e-10 or more"):
        size_for(10**9, 1e-15)
    with pytest.raises(ValueError, match="blocks, too few for 40,000,000,000,000"):
        size_for(40 * 10**12, 1e-5)
    assert expected_error(10**6, 1, 25) == 1.0
    assert size_for(10**9, 1.1e-10).k > size_for(10**9, 1e-9).k
