"""The Bloom filter against sets of bit positions, and what it says of its errors against what it does."""

from __future__ import annotations

import itertools
import math
import mmap

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from whole_filter import add, measure

from pipelines.algorithms.bloom.blocked import (
    BLOCK_BYTES,
    add_range,
    blocks_by_bits_set,
    contains,
    empty_bits,
    measurement_of,
)
from pipelines.algorithms.bloom.sizing import size_for

_STEP = 0x9E3779B97F4A7C15
_WORD = (1 << 64) - 1

_hashes = st.lists(st.integers(0, _WORD), max_size=150)
_shapes = st.tuples(st.integers(1, 40), st.integers(1, 40), st.integers(0, _WORD))


def _mixed(number: int) -> int:
    number = (number ^ (number >> 30)) * 0xBF58476D1CE4E5B9 & _WORD
    number = (number ^ (number >> 27)) * 0x94D049BB133111EB & _WORD
    return number ^ (number >> 31)


def _positions(hashed: int, blocks: int, k: int, seed: int) -> set[int]:
    word = _mixed(hashed ^ _mixed(seed))
    block = word * blocks >> 64
    found = set()
    for number in range(k):
        mixture = _mixed((word + (number // 5 + 1) * _STEP) & _WORD)
        found.add(block * 4096 + (mixture >> 12 * (number % 5)) % 4096)
    return found


def _set_positions(bits: npt.NDArray[np.uint8]) -> set[int]:
    return set(np.flatnonzero(np.unpackbits(bits.reshape(-1), bitorder="little")).tolist())


def _array(hashes: list[int]) -> npt.NDArray[np.uint64]:
    return np.array(hashes, np.uint64)


def _random(count: int, seed: int) -> npt.NDArray[np.uint64]:
    return np.random.default_rng(seed).integers(0, 1 << 64, count, dtype=np.uint64)


def _filled(hashes: npt.NDArray[np.uint64], blocks: int, k: int, seed: int = 0) -> npt.NDArray[np.uint8]:
    bits = empty_bits(blocks)
    add(bits, hashes, k, seed)
    return bits


@given(_hashes, _hashes, _shapes)
@settings(max_examples=60, deadline=None)
def test_bits_and_lookups_match_sets_of_positions(
    added: list[int], asked: list[int], shape: tuple[int, int, int]
) -> None:
    blocks, k, seed = shape
    bits = _filled(_array(added), blocks, k, seed)
    reference = {position for hashed in added for position in _positions(hashed, blocks, k, seed)}
    assert _set_positions(bits) == reference
    answers = contains(bits, _array(asked + added), k, seed).tolist()
    assert answers == [_positions(hashed, blocks, k, seed) <= reference for hashed in asked + added]


@pytest.mark.parametrize("blocks", [1, 3, 4096, 1_000_003])
def test_blocks_are_used_uniformly(blocks: int) -> None:
    hashes = _random(200_000, 7)
    used = np.flatnonzero(_filled(hashes, blocks, 1).any(axis=1))
    assert used[0] <= blocks / 10_000
    assert used[-1] >= blocks - 1 - blocks / 10_000
    assert len(used) == pytest.approx(blocks * -math.expm1(-len(hashes) / blocks), rel=0.01)
    assert {min(_positions(hashed, blocks, 1, 0)) // 4096 for hashed in hashes[:300].tolist()} <= set(used.tolist())


@given(_hashes, _hashes, _shapes, st.randoms(use_true_random=False))
@settings(max_examples=40, deadline=None)
def test_bits_do_not_depend_on_parts_order_or_repeats(
    left: list[int], right: list[int], shape: tuple[int, int, int], random: object
) -> None:
    blocks, k, seed = shape
    together = left + right + left[:20]
    random.shuffle(together)  # type: ignore[attr-defined]
    merged = _filled(_array(left), blocks, k, seed)
    other = _filled(_array(right), blocks, k, seed)
    for first in range(0, blocks, 7):
        merged[first : first + 7] |= other[first : first + 7]
    assert merged.tobytes() == _filled(_array(together), blocks, k, seed).tobytes()


@given(_hashes, _shapes, st.lists(st.integers(0, 40), max_size=5))
@settings(max_examples=60, deadline=None)
def test_ranges_of_any_size_build_the_same_filter(
    hashes: list[int], shape: tuple[int, int, int], cuts: list[int]
) -> None:
    blocks, k, seed = shape
    bounds = sorted({0, blocks, *(cut for cut in cuts if cut < blocks)})
    pieces = []
    for first, last in itertools.pairwise(bounds):
        piece = empty_bits(last - first)
        add_range(piece, _array(hashes), k, seed, first, blocks)
        pieces.append(piece)
    whole = _filled(_array(hashes), blocks, k, seed)
    assert np.concatenate(pieces).tobytes() == whole.tobytes()
    counted = np.sum([blocks_by_bits_set(piece) for piece in pieces], axis=0)
    assert measurement_of(counted, k) == measure(whole, k)


def test_a_part_outside_the_filter_is_refused() -> None:
    with pytest.raises(ValueError, match="3 blocks from number 8 on are not a part of 10"):
        add_range(empty_bits(3), _array([1]), 5, 0, 8, 10)


def test_there_are_no_false_negatives() -> None:
    hashes = _random(300_000, 1)
    size = size_for(len(hashes), 1e-8)
    bits = _filled(hashes, size.blocks, size.k)
    assert contains(bits, hashes, size.k).all()
    assert not contains(bits, hashes, size.k, seed=1).any()


def test_an_empty_filter_finds_nothing_and_a_full_one_everything() -> None:
    bits = empty_bits(3)
    hashes = _random(1000, 2)
    assert not contains(bits, hashes, 25).any()
    assert (measure(bits, 25).fill, measure(bits, 25).items, measure(bits, 25).error_bound) == (0.0, 0, 0.0)
    bits[:] = 255
    assert contains(bits, hashes, 25).all()
    assert (measure(bits, 25).fill, measure(bits, 25).error_bound) == (1.0, 1.0)


# The last is filled twice over: the bound follows the bits, not the plan.
@pytest.mark.parametrize(("items", "error_rate", "load"), [(60_000, 1e-2, 1), (60_000, 1e-3, 1), (40_000, 1e-4, 2)])
def test_the_rate_of_a_million_probes_matches_the_bound(items: int, error_rate: float, load: int) -> None:
    size = size_for(items, error_rate)
    added = _random(items * load, 3)
    bits = _filled(added, size.blocks, size.k)
    bound = measure(bits, size.k).error_bound
    assert bound == pytest.approx(error_rate, rel=0.05) or load > 1
    probes = _random(1_000_000, 4)  # of 2**64 values: none of them was added
    wrong = int(contains(bits, probes, size.k).sum())
    assert abs(wrong - bound * len(probes)) < 4.5 * math.sqrt(bound * (1 - bound) * len(probes))


def test_consecutive_hashes_have_the_same_false_positive_rate() -> None:
    """The hashes may be as bad as they like, as long as they differ: the filter mixes them."""
    size = size_for(50_000, 1e-3)
    bits = _filled(np.arange(50_000, dtype=np.uint64) << np.uint64(44), size.blocks, size.k)
    bound = measure(bits, size.k).error_bound
    wrong = int(contains(bits, np.arange(50_000, 1_000_000, dtype=np.uint64) << np.uint64(44), size.k).sum())
    assert bound == pytest.approx(1e-3, rel=0.05)
    assert abs(wrong - bound * 950_000) < 4.5 * math.sqrt(bound * 950_000)


@given(st.lists(st.integers(0, 255), min_size=1, max_size=20), st.integers(1, 30), st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_the_measured_fill_matches_a_count_of_bits(pattern: list[int], k: int, blocks: int) -> None:
    bits = np.resize(np.array(pattern, np.uint8), (blocks, BLOCK_BYTES))
    counts = [sum(int(byte).bit_count() for byte in block) for block in bits]
    measured = measure(bits, k)
    assert measured.fill == sum(counts) / (4096 * blocks)
    error = sum((count / 4096) ** k for count in counts) / blocks
    assert measured.error_bound == pytest.approx(min(1.0, error + measured.items / 2**64), rel=1e-9)


@pytest.mark.parametrize("items", [1, 30, 3000, 200_000])
def test_items_are_estimated_from_the_fill(items: int) -> None:
    size = size_for(items, 1e-8)
    measured = measure(_filled(_random(items, 5), size.blocks, size.k), size.k)
    assert abs(measured.items - items) <= max(2, 0.02 * items)


def test_read_only_memory_can_be_queried() -> None:
    hashes = _random(1000, 6)
    bits = _filled(hashes, 10, 25)
    mapped = mmap.mmap(-1, 4096 + bits.size)
    mapped[4096:] = bits.tobytes()
    read_only = np.frombuffer(mapped, np.uint8, offset=4096).reshape(10, BLOCK_BYTES)
    read_only.flags.writeable = False
    assert contains(read_only, hashes, 25).all()
    assert measure(read_only, 25) == measure(bits, 25)


def test_arrays_of_other_types_are_refused() -> None:
    bits, hashes = empty_bits(2), _random(5, 1)
    with pytest.raises(ValueError, match="hashes must be a flat array of uint64, not int64"):
        add(bits, hashes.astype(np.int64), 5)
    with pytest.raises(ValueError, match=r"bits must be of uint8 and shape \(blocks, 512\)"):
        contains(bits.reshape(-1), hashes, 5)
    with pytest.raises(ValueError, match="k must be at least 1, not 0"):
        contains(bits, hashes, 0)
    with pytest.raises(ValueError, match="blocks, not 0"):
        empty_bits(0)
