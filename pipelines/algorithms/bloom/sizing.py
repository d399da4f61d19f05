"""Sizing of a blocked Bloom filter by its exact expected false-positive rate, not by the usual formula.

The hashes per block are binomially distributed, and a block with more of them has more false positives; the number of
bits that they set varies too. Both are computed, not bounded: at an error of 1e-8 a filter of 4,096-bit
blocks takes 41.4 bits per hash; the usual formula (for one large block) gives 38.3.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import math

import numpy as np
import numpy.typing as npt

from pipelines.algorithms.bloom.blocked import BLOCK_BITS, BLOCK_BYTES, MOST_BLOCKS
from pipelines.algorithms.kernels.compilation import kernel

# Bit insertions into one block; beyond, it counts as full. At the best k there are about 0.7 * BLOCK_BITS.
_MAX_INSERTIONS = 3 * BLOCK_BITS
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
    """Return the fewest blocks whose expected error with `items` distinct hashes is at most the error rate.

    Ties select the smallest k. Raises ValueError for an error rate that is not between 0 and 1, or that 64-bit hashes
    cannot reach: an absent n-gram has the hash of one of the items with probability items / 2**64.
    """
    if not 0 < error_rate < 1:
        raise ValueError(f"an error rate must be between 0 and 1, not {error_rate:g}")
    collisions = items / 2.0**64
    if collisions > error_rate / 2:
        raise ValueError(
            f"an error rate of {error_rate:g} is not reachable for {items:,} n-grams: hash collisions alone give "
            f"{collisions:.1e}; allow {2.1 * collisions:.1e} or more"
        )
    bits_of_rate = -math.log2(error_rate)
    candidates = range(max(1, int(0.7 * bits_of_rate)), min(_MAX_K, int(1.1 * bits_of_rate) + 2) + 1)
    # Collisions of hashes use up a part of the error rate.
    return min(
        (FilterSize(_fewest_blocks(items, error_rate - collisions, k), k) for k in candidates),
        key=lambda size: (size.blocks, size.k),
    )


def expected_error(items: int, blocks: int, k: int) -> float:
    """Return the false-positive rate of a filter with `items` distinct hashes.

    The mean over the binomial distribution of the hashes per block and the distribution of the bits that they set.
    Collisions of hashes are not included.
    """
    errors = _error_after_insertions()[::k, k - 1]  # of a block with 0, 1, ... hashes
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
    block_errors = np.where(loads < len(errors), errors[np.minimum(loads, len(errors) - 1)], 1.0)
    return float(math.fsum(weights * block_errors) / math.fsum(weights))


def _fewest_blocks(items: int, error_rate: float, k: int) -> int:
    low, high = 0, 1
    while expected_error(items, high, k) > error_rate:
        low, high = high, 2 * high
        if low > MOST_BLOCKS:
            raise ValueError(f"a filter has at most {MOST_BLOCKS:,} blocks, too few for {items:,} n-grams")
    between = range(low + 1, high)  # the error falls from one to the next
    return low + 1 + bisect.bisect_left(between, -error_rate, key=lambda blocks: -expected_error(items, blocks, k))


@functools.cache
def _error_after_insertions() -> npt.NDArray[np.float64]:
    """Return the mean of (bits set / 4096)**k by the number of bit insertions into a block, and k - 1."""
    shares = np.arange(BLOCK_BITS + 1) / BLOCK_BITS
    powers = shares[:, None] ** np.arange(1, _MAX_K + 1)
    errors = np.zeros((_MAX_INSERTIONS + 1, _MAX_K))
    distribution = np.zeros(BLOCK_BITS + 1)
    distribution[0] = 1.0
    _fill_error_after_insertions(shares, powers, distribution, errors)
    return errors


@kernel
def _fill_error_after_insertions(shares, powers, distribution, errors):  # type: ignore[no-untyped-def]
    """Update the distribution of the number of bits set, insertion by insertion; drops probabilities below 1e-30."""
    low, high = 0, 0
    for insertions in range(len(errors)):
        for bits_set in range(low, high + 1):
            for k in range(errors.shape[1]):
                errors[insertions, k] += distribution[bits_set] * powers[bits_set, k]
        high = min(high + 1, BLOCK_BITS)
        for bits_set in range(high, low, -1):
            distribution[bits_set] = distribution[bits_set] * shares[bits_set] + distribution[bits_set - 1] * (
                1 - shares[bits_set - 1]
            )
        distribution[low] *= shares[low]
        while distribution[low] < 1e-30:
            distribution[low] = 0.0
            low += 1
        while distribution[high] < 1e-30:
            distribution[high] = 0.0
            high -= 1
