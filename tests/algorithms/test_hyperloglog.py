"""The distinct count against exact ones, and its registers against a sketch in plain Python."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.algorithms.bloom.hyperloglog import (
    REGISTERS,
    STANDARD_ERROR,
    add,
    empty_registers,
    estimate,
    merge,
    upper_bound,
)

_WORD = (1 << 64) - 1
_hashes = st.lists(st.integers(0, _WORD), max_size=300)


def _registers(hashes: list[int] | npt.NDArray[np.uint64]) -> npt.NDArray[np.uint8]:
    registers = empty_registers()
    add(registers, np.array(hashes, np.uint64))
    return registers


def _random(count: int, seed: int) -> npt.NDArray[np.uint64]:
    """Distinct hashes: an odd number times 0, 1, 2, ..."""
    factor = np.random.default_rng(seed).integers(0, 1 << 64, dtype=np.uint64) | np.uint64(1)
    return np.arange(count, dtype=np.uint64) * factor


def _plain_registers(hashes: list[int]) -> dict[int, int]:
    """Count leading zeros in the digits of the mixed number."""
    registers: dict[int, int] = {}
    for hashed in hashes:
        number = (hashed + 0x9E3779B97F4A7C15) & _WORD
        number = (number ^ (number >> 30)) * 0xBF58476D1CE4E5B9 & _WORD
        number = (number ^ (number >> 27)) * 0x94D049BB133111EB & _WORD
        digits = f"{number ^ (number >> 31):064b}"
        index, rest = int(digits[:18], 2), digits[18:]
        registers[index] = max(registers.get(index, 0), len(rest) - len(rest.lstrip("0")) + 1)
    return registers


@given(_hashes)
@settings(max_examples=50, deadline=None)
def test_registers_match_plain_python(hashes: list[int]) -> None:
    registers = _registers(hashes)
    seen = np.flatnonzero(registers)
    assert dict(zip(seen.tolist(), registers[seen].tolist(), strict=True)) == _plain_registers(hashes)


def test_a_hash_mixed_to_zero_saturates_its_register() -> None:
    """The hash that is mixed to 0: the first register, and a rank of one more than the 46 bits that are left."""
    assert _registers([-0x9E3779B97F4A7C15 & _WORD])[0] == 47


@given(_hashes, _hashes, st.randoms(use_true_random=False))
@settings(max_examples=50, deadline=None)
def test_registers_do_not_depend_on_parts_order_or_repeats(left: list[int], right: list[int], random: object) -> None:
    together = left + right + left[:50]
    random.shuffle(together)  # type: ignore[attr-defined]
    merged = _registers(left)
    merge(merged, _registers(right))
    assert merged.tobytes() == _registers(together).tobytes()


@pytest.mark.parametrize("count", [0, 1, 2, 3, 10, 100, 600, 1000, 10**4, 10**5, 3 * 10**5, 10**6, 10**7])
def test_estimates_are_within_the_stated_error(count: int) -> None:
    for seed in range(20 if count <= 10**5 else 5 if count <= 10**6 else 1):
        registers = _registers(_random(count, seed))
        about = estimate(registers)
        assert abs(about - count) <= 4 * STANDARD_ERROR * count + (4 if 10 < count < 10**4 else 0.01)
        assert count <= upper_bound(registers) <= count * (1 + 8.5 * STANDARD_ERROR) + 8


def test_estimates_are_unbiased_and_spread_as_stated() -> None:
    """The mean and the deviation of the relative error over 60 sketches, where all registers are in use."""
    errors = [estimate(_registers(_random(600_000, 100 + seed))) / 600_000 - 1 for seed in range(60)]
    assert abs(np.mean(errors)) < 4 * STANDARD_ERROR / 60**0.5
    assert 0.6 * STANDARD_ERROR < np.std(errors, ddof=1) < 1.4 * STANDARD_ERROR


def test_no_hashes_estimate_zero_items() -> None:
    assert (estimate(empty_registers()), upper_bound(empty_registers())) == (0.0, 0)


def test_full_registers_estimate_the_maximum() -> None:
    full = np.full(REGISTERS, 47, np.uint8)
    assert estimate(full) == 2.0**64


def test_arrays_of_other_types_are_refused() -> None:
    with pytest.raises(ValueError, match="hashes must be a flat array of uint64, not int64"):
        add(empty_registers(), np.zeros(3, np.int64))
    with pytest.raises(ValueError, match="registers must be 262144 of uint8"):
        estimate(np.zeros(100, np.uint8))
    with pytest.raises(ValueError, match="registers must be"):
        merge(empty_registers(), np.zeros(REGISTERS, np.int64))  # type: ignore[arg-type]
