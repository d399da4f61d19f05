"""How many blocks a Bloom filter needs for so many hashes: the exact expectation of its error, not the usual formula.

The hashes of a block follow a binomial law, and a block with more than its share errs more; and the bits that are set
by so many hashes are not always as many. Both are computed here, not bounded: at an error of 1e-8 a filter of 4,096-bit
blocks takes 41.4 bits per hash, where the usual formula (for one large block) says 38.3.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np
import numpy.typing as npt

from pipelines.algorithms.bloom.blocked import BLOCK_BITS, BLOCK_BYTES, MOST_BLOCKS
from pipelines.algorithms.kernels.compilation import kernel

# Bits thrown at one block; beyond, it counts as full. At the best k about 0.7 * BLOCK_BITS are thrown.
_MAX_THROWN = 3 * BLOCK_BITS
_MAX_K = 64


@dataclasses.dataclass(frozen=True, slots=True)
class FilterSize:
    """How many blocks of 4,096 bits a filter has, and how many bits a hash sets in one of them."""

    blocks: int
    k: int

    @property
    def size_bytes(self) -> int:
        """The size of the bits."""
        return self.blocks * BLOCK_BYTES


def size_for(items: int, error_rate: float) -> FilterSize:
    """Return the fewest blocks whose expected error with so many distinct hashes is at most the error rate.

    Among values of k that need equally few, the least. Raises ValueError for an error rate that is not between 0 and 1,
    or one that 64-bit hashes cannot keep: of so many, another n-gram has one with the probability items / 2**64.
    """
    if not 0 < error_rate < 1:
        raise ValueError(f"an error rate lies between 0 and 1, not at {error_rate:g}")
    collisions = items / 2.0**64
    if collisions > error_rate / 2:
        raise ValueError(
            f"an error rate of {error_rate:g} is out of reach for {items:,} n-grams: their 64-bit hashes alone err at "
            f"{collisions:.1e}; allow {2.1 * collisions:.1e} or more"
        )
    bits_of_rate = -math.log2(error_rate)
    tried = range(max(1, int(0.7 * bits_of_rate)), min(_MAX_K, int(1.1 * bits_of_rate) + 2) + 1)
    # The filter's own share is what collisions leave of the error rate.
    return min(
        (FilterSize(_fewest_blocks(items, error_rate - collisions, k), k) for k in tried),
        key=lambda size: (size.blocks, size.k),
    )


def expected_error(items: int, blocks: int, k: int) -> float:
    """Return the probability that a filter with so many distinct hashes finds one that was not added.

    The mean over the binomial law of the hashes in a block, and over the law of the bits that they set. Collisions of
    hashes are not in it.
    """
    errors = _errors_by_load(k)
    if blocks == 1:
        return float(errors[items]) if items < len(errors) else 1.0
    mean = items / blocks
    if mean >= len(errors):
        return 1.0
    spread = 12 * math.sqrt(mean) + 30
    first, last = max(0, int(mean - spread)), min(items, int(mean + spread))
    loads = np.arange(first, last + 1)
    # log P(first), then the ratios of neighbours: exact where log-gamma of a large number is not.
    ratios = np.log(items - loads[:-1]) - np.log(loads[:-1] + 1) - math.log(blocks - 1)
    logs = np.concatenate([[0.0], np.cumsum(ratios)])
    weights = np.exp(logs - logs.max())
    found = np.where(loads < len(errors), errors[np.minimum(loads, len(errors) - 1)], 1.0)
    return float(math.fsum(weights * found) / math.fsum(weights))


def _fewest_blocks(items: int, error_rate: float, k: int) -> int:
    low, high = 0, 1
    while expected_error(items, high, k) > error_rate:
        low, high = high, 2 * high
        if low > MOST_BLOCKS:
            raise ValueError(f"a filter has at most {MOST_BLOCKS:,} blocks, too few for {items:,} n-grams")
    while high - low > 1:
        middle = (low + high) // 2
        if expected_error(items, middle, k) > error_rate:
            low = middle
        else:
            high = middle
    return high


def _errors_by_load(k: int) -> npt.NDArray[np.float64]:
    """Return for 0, 1, ... hashes in a block the probability that it finds another."""
    return _found_after_throws()[::k, k - 1]


@functools.cache
def _found_after_throws() -> npt.NDArray[np.float64]:
    """Return by bits thrown at a block, and k - 1: the mean over the bits that are then set of (set / 4096)**k."""
    shares = np.arange(BLOCK_BITS + 1) / BLOCK_BITS
    powers = shares[:, None] ** np.arange(1, _MAX_K + 1)
    found = np.zeros((_MAX_THROWN + 1, _MAX_K))
    law = np.zeros(BLOCK_BITS + 1)
    law[0] = 1.0
    _fill_found_after_throws(shares, powers, law, found)
    return found


@kernel
def _fill_found_after_throws(shares, powers, law, found):  # type: ignore[no-untyped-def]
    """Follow the law of the number of bits set, throw by throw; what is below 1e-30 is left out."""
    low, high = 0, 0
    for thrown in range(len(found)):
        for bits_set in range(low, high + 1):
            for k in range(found.shape[1]):
                found[thrown, k] += law[bits_set] * powers[bits_set, k]
        high = min(high + 1, BLOCK_BITS)
        for bits_set in range(high, low, -1):
            law[bits_set] = law[bits_set] * shares[bits_set] + law[bits_set - 1] * (1 - shares[bits_set - 1])
        law[low] *= shares[low]
        while law[low] < 1e-30:
            law[low] = 0.0
            low += 1
        while law[high] < 1e-30:
            law[high] = 0.0
            high -= 1
