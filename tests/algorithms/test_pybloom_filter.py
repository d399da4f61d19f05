"""What is said of a Bloom filter against what it does."""

from __future__ import annotations

import math

import pytest
from pybloom_live import BloomFilter

from pipelines.algorithms.bloom.pybloom import estimated_items, false_positive_rate, fill, filter_bytes


@pytest.mark.parametrize("capacity", [1, 7, 1000, 12345])
@pytest.mark.parametrize("error_rate", [1e-8, 1e-3, 0.1, 0.5])
def test_the_size_is_known_before_the_filter_is_built(capacity: int, error_rate: float) -> None:
    assert filter_bytes(capacity, error_rate) == len(BloomFilter(capacity, error_rate).bitarray.tobytes())


# Slices of less and of more than 2**15 bits, which pybloom-live fills from 16- and from 32-bit hashes.
@pytest.mark.parametrize(("capacity", "error_rate"), [(3000, 0.05), (15000, 0.05), (40000, 0.2)])
def test_the_rate_matches_probes(capacity: int, error_rate: float) -> None:
    bloom = BloomFilter(capacity, error_rate)
    for number in range(capacity):
        bloom.add(f"in {number}", skip_check=True)
    probes = 20000
    wrong = sum(f"out {number}" in bloom for number in range(probes))
    rate = false_positive_rate(bloom)
    assert abs(wrong / probes - rate) < 5 * math.sqrt(rate * (1 - rate) / probes)
    assert rate == pytest.approx(fill(bloom) ** bloom.num_slices, rel=0.2)


def test_items_are_estimated_from_the_fill() -> None:
    bloom = BloomFilter(5000, 1e-6)
    for number in [*range(3000), *range(1000)]:
        bloom.add(str(number), skip_check=True)
    assert estimated_items(bloom) == pytest.approx(3000, rel=0.03)


def test_an_empty_filter_finds_nothing_and_a_full_one_everything() -> None:
    bloom = BloomFilter(100, 0.01)
    assert (false_positive_rate(bloom), fill(bloom), estimated_items(bloom)) == (0.0, 0.0, 0)
    bloom.bitarray.setall(True)
    assert (false_positive_rate(bloom), fill(bloom), estimated_items(bloom)) == (1.0, 1.0, 100)
