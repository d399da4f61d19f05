"""HyperLogLog: estimates the number of distinct hashes of a stream in 256 KB, with Ertl's improved estimator.

Each hash selects one of 2**18 registers, which stores the highest rank (leading zeros + 1). The estimator is that of
Otmar Ertl, "New cardinality estimation algorithms for HyperLogLog sketches" (arXiv 1702.01284), algorithm 6: one
formula from zero to 2**64 without correction tables. Its standard error is 1.04 / sqrt(2**18) = 0.20%. Registers
do not depend on the order of the hashes, on duplicates, or on how the stream was split before a merge.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from pipelines.algorithms.kernels.compilation import as_read_only, helper, kernel
from pipelines.algorithms.kernels.splitmix import STEP, mix

Registers: TypeAlias = npt.NDArray[np.uint8]

_INDEX_BITS = 18
REGISTERS = 1 << _INDEX_BITS
_RANK_BITS = 64 - _INDEX_BITS
STANDARD_ERROR = 1.04 / math.sqrt(REGISTERS)

# For small counts, collisions are not normally distributed; this many are as rare as four standard errors.
_DEVIATIONS = 4
_COLLIDING = 4

_mixed = helper(mix)


def empty_registers() -> Registers:
    """Return the registers of an empty sketch: uint8, shape (REGISTERS,)."""
    return np.zeros(REGISTERS, np.uint8)


def add(registers: Registers, hashes: npt.NDArray[np.uint64]) -> None:
    """Add uint64 hashes, in place; raise ValueError for other arrays."""
    _check(registers)
    if hashes.dtype != np.uint64 or hashes.ndim != 1:
        raise ValueError(f"hashes must be a flat array of uint64, not {hashes.dtype} of shape {hashes.shape}")
    _add(registers, as_read_only(hashes))


def merge(into: Registers, other: Registers) -> None:
    """Merge the registers of another sketch into the first, in place."""
    _check(into)
    _check(other)
    np.maximum(into, other, out=into)


def estimate(registers: Registers) -> float:
    """Estimate the number of distinct hashes: Ertl's improved raw estimator, algorithm 6 of his paper."""
    _check(registers)
    counts = np.bincount(registers, minlength=_RANK_BITS + 2).tolist()
    total = REGISTERS * _tau(1 - counts[_RANK_BITS + 1] / REGISTERS)
    for rank in range(_RANK_BITS, 0, -1):
        total = 0.5 * (total + counts[rank])
    total += REGISTERS * _sigma(counts[0] / REGISTERS)
    # There are 2**64 hashes at most; the estimate of saturated registers would be infinite.
    return min(2.0**64, REGISTERS * REGISTERS / (2 * math.log(2) * total)) if total else 2.0**64


def upper_bound(registers: Registers) -> int:
    """Return an upper bound of the number of distinct hashes at 99.99% confidence: 0.8% above the estimate.

    It is the number whose estimate would be low by four standard errors, plus four for collisions; 0 for an empty
    sketch.
    """
    value = estimate(registers)
    return math.ceil(value / (1 - _DEVIATIONS * STANDARD_ERROR)) + _COLLIDING if value else 0


def _check(registers: Registers) -> None:
    if registers.dtype != np.uint8 or registers.shape != (REGISTERS,):
        raise ValueError(f"registers must be {REGISTERS} of uint8, not {registers.shape} of {registers.dtype}")


@kernel
def _add(registers, hashes):  # type: ignore[no-untyped-def]
    for at in range(len(hashes)):
        # Offset by one step, so that the Bloom filter mixes other numbers.
        word = _mixed(hashes[at] + STEP)
        index = word >> np.uint64(_RANK_BITS)
        rest = word << np.uint64(_INDEX_BITS)
        rank = registers[index]
        # Most hashes have a lower rank than their register.
        if rank > 0 and rest >> np.uint64(64 - rank):
            continue
        rank += 1
        while rank <= _RANK_BITS and not rest >> np.uint64(64 - rank):
            rank += 1
        registers[index] = rank


def _sigma(share: float) -> float:
    """Return the term of the empty registers: share + sum of 2**(i - 1) * share**(2**i), i from 1."""
    if share == 1.0:
        return math.inf
    weight, total, before = 1.0, share, -1.0
    while total != before:
        share, before = share * share, total
        total += share * weight
        weight += weight
    return total


def _tau(share: float) -> float:
    """Return the term of the saturated registers: (1 - share - sum of 2**-i * (1 - share**(2**-i))**2) / 3."""
    if share in (0.0, 1.0):
        return 0.0
    weight, total, before = 1.0, 1 - share, -1.0
    while total != before:
        share, before, weight = math.sqrt(share), total, weight * 0.5
        total -= (1 - share) ** 2 * weight
    return total / 3
