"""A blocked Bloom filter of 64-bit hashes, as in the paper's overlap audit (section 4).

The bits are a uint8 array of shape (blocks, 512), in memory or mapped from a file. A hash sets all its k bits in one
block of 4,096 bits, which is 8 adjacent cache lines; in a classic filter they are in k lines anywhere. That costs 8%
more bits at a false-positive rate of 1e-8 (blocks of 512 bits: 64%). The bits do not depend on the order of the hashes,
on repeated hashes; the bitwise OR of filters with equal blocks, k and seed is the filter of all their hashes.

A hash is mixed with the seed; the high bits of the result select the block, and further mixed values have five 12-bit
positions each. So the k bits of a hash that was not added are independent of each other and of the block, and its
false-positive rate is fill**k of its block. `sizing` chooses the number of blocks; `records.ngram_filter` is the file.
"""

from __future__ import annotations

import dataclasses
import fractions
import math
import mmap
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from pipelines.algorithms.kernels.byte_scan import prefetch
from pipelines.algorithms.kernels.compilation import as_read_only, helper, kernel
from pipelines.algorithms.kernels.splitmix import STEP, mix

Bits: TypeAlias = npt.NDArray[np.uint8]
Hashes: TypeAlias = npt.NDArray[np.uint64]

BLOCK_BITS = 4096
BLOCK_BYTES = BLOCK_BITS // 8
MOST_BLOCKS = (1 << 32) - 1

_POSITION_BITS = np.uint64(12)
_POSITION = np.uint64(BLOCK_BITS - 1)
_BYTE = np.uint64(3)
_BIT = np.uint64(7)
_POSITIONS_PER_WORD = 5  # of 12 bits each in 64
_LINE_BYTES = 64
_BATCH = 32  # hashes whose cache lines are prefetched together
_BLOCKS_PER_STEP = 1 << 12

_mixed = helper(mix)


class _Batch(NamedTuple):
    """Hashes that are tested together: mixed hash, first byte of its block, next positions, and which remain."""

    words: Hashes
    starts: Hashes
    starts_left: Hashes
    positions: Hashes
    left: npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True, slots=True)
class Measurement:
    """Measurements of a filter's bits.

    `fill` is the fraction of bits that are set, `items` an estimate of the distinct hashes added. `error_bound` bounds
    the false-positive rate of n-grams: the exact mean of fill**k over the blocks, plus items / 2**64 for collisions of
    64-bit hashes.
    """

    fill: float
    items: int
    error_bound: float


def empty_bits(blocks: int) -> Bits:
    """Return the bits of an empty filter: zeros, shape (blocks, 512), in huge pages if the system has them.

    With 4 KB pages, a large filter spends as much time on page-table misses as on memory. The array is aligned to a
    page, so a block is exactly 8 cache lines.
    """
    if not 1 <= blocks <= MOST_BLOCKS:
        raise ValueError(f"a filter has 1 to {MOST_BLOCKS:,} blocks, not {blocks:,}")
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory = mmap.mmap(-1, blocks * BLOCK_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(mmap.MADV_HUGEPAGE)
    else:
        memory = mmap.mmap(-1, blocks * BLOCK_BYTES)
    return np.frombuffer(memory, np.uint8).reshape(blocks, BLOCK_BYTES)


def add_range(bits: Bits, hashes: Hashes, k: int, seed: int, first_block: int, blocks: int) -> None:
    """Add the uint64 hashes whose block is in a part of a filter with `blocks` blocks, in place; ignore the others.

    `bits` are the blocks from `first_block` on. Concatenated parts with the same hashes added are the whole filter, so
    a filter can be larger than memory. Raises ValueError for other arrays. Only one thread may add to the same bits.
    """
    _check(bits, hashes, k)
    if first_block < 0 or first_block + len(bits) > blocks or blocks > MOST_BLOCKS:
        raise ValueError(f"{len(bits):,} blocks from number {first_block:,} on are not a part of {blocks:,}")
    words, starts = np.empty(_BATCH, np.uint64), np.empty(_BATCH, np.uint64)
    limits = np.uint64(first_block), np.uint64(blocks)
    _add(bits.view(np.ndarray).reshape(-1), as_read_only(hashes), k, np.uint64(seed), *limits, words, starts)


def contains(bits: Bits, hashes: Hashes, k: int, seed: int = 0) -> npt.NDArray[np.bool_]:
    """Return for each hash, uint64, whether it may have been added; raise ValueError for other arrays.

    True for every hash added with this k and seed; false-positive rate: see `Measurement.error_bound`.
    """
    _check(bits, hashes, k)
    results = np.zeros(len(hashes), np.bool_)
    batch = _Batch._make(np.empty(_BATCH, kind) for kind in (*[np.uint64] * 4, np.int64))
    _contains(as_read_only(bits).reshape(-1), as_read_only(hashes), k, np.uint64(seed), batch, results)
    return results


def blocks_by_bits_set(bits: Bits) -> npt.NDArray[np.int64]:
    """Return how many blocks have 0, 1, ... 4,096 bits set; histograms of parts of a filter can be added."""
    _check(bits, np.empty(0, np.uint64), 1)
    histogram = np.zeros(BLOCK_BITS + 1, np.int64)
    words = as_read_only(bits).reshape(-1).view(np.uint64).reshape(len(bits), -1)
    for first in range(0, len(bits), _BLOCKS_PER_STEP):
        set_bits = np.bitwise_count(words[first : first + _BLOCKS_PER_STEP]).sum(axis=1, dtype=np.int64)
        histogram += np.bincount(set_bits, minlength=BLOCK_BITS + 1)
    return histogram


def measurement_of(histogram: npt.NDArray[np.int64], k: int) -> Measurement:
    """Return the measurements of a whole filter from its `blocks_by_bits_set`."""
    counts: list[int] = histogram.tolist()
    blocks = sum(counts)
    bits_set = sum(bits * frequency for bits, frequency in enumerate(counts))
    items = _estimated_items(bits_set, blocks, k)
    # In integers, so that the result does not depend on the machine's rounding.
    false_positives = sum(frequency * bits**k for bits, frequency in enumerate(counts) if frequency)
    bound = fractions.Fraction(false_positives, blocks * BLOCK_BITS**k) + fractions.Fraction(items, 1 << 64)
    return Measurement(bits_set / (blocks * BLOCK_BITS), items, float(min(bound, fractions.Fraction(1))))


def _estimated_items(bits_set: int, blocks: int, k: int) -> int:
    """Return the number of hashes whose expected number of set bits is `bits_set`."""
    bits = blocks * BLOCK_BITS
    bits_clear = max(bits - bits_set, 0.5)
    set_per_hash = -math.expm1(k * math.log1p(-1 / BLOCK_BITS)) / blocks
    return round(math.log(bits_clear / bits) / math.log1p(-set_per_hash))


def _check(bits: Bits, hashes: Hashes, k: int) -> None:
    if bits.dtype != np.uint8 or bits.ndim != 2 or bits.shape[1] != BLOCK_BYTES or not bits.flags.c_contiguous:
        raise ValueError(f"bits must be of uint8 and shape (blocks, {BLOCK_BYTES}), not {bits.dtype} of {bits.shape}")
    if not 1 <= len(bits) <= MOST_BLOCKS:
        raise ValueError(f"a filter has 1 to {MOST_BLOCKS:,} blocks, not {len(bits):,}")
    if hashes.dtype != np.uint64 or hashes.ndim != 1:
        raise ValueError(f"hashes must be a flat array of uint64, not {hashes.dtype} of shape {hashes.shape}")
    if k < 1:
        raise ValueError(f"k must be at least 1, not {k}")


@helper
def _block(word, blocks):  # type: ignore[no-untyped-def]
    """Return the block of a mixed hash: the high 64 bits of its product with the number of blocks, below 2**32."""
    low = (word & np.uint64(0xFFFFFFFF)) * blocks
    return ((word >> np.uint64(32)) * blocks + (low >> np.uint64(32))) >> np.uint64(32)


@helper
def _fetch_blocks(flat, starts, count):  # type: ignore[no-untyped-def]
    """Load blocks into the cache: prefetch all lines, then read each, which takes half the time of either alone.

    The sum that is returned only keeps the compiler from removing the reads.
    """
    for number in range(count):
        for line in range(0, BLOCK_BYTES, _LINE_BYTES):
            prefetch(flat, np.int64(starts[number]) + line)
    total = np.uint8(0)
    for number in range(count):
        for line in range(0, BLOCK_BYTES, _LINE_BYTES):
            total += flat[starts[number] + np.uint64(line)]
    return total


@kernel
def _add(flat, hashes, k, seed, first_block, blocks, words, starts):  # type: ignore[no-untyped-def]
    """Add hashes to the blocks from `first_block` on; `words` and `starts` have room for a batch."""
    part_blocks = np.uint64(len(flat) // BLOCK_BYTES)
    salt, total, pending = _mixed(seed), np.uint8(0), 0
    for number in range(len(hashes)):
        word = _mixed(hashes[number] ^ salt)
        # For blocks before the first one the difference wraps around and exceeds the number of blocks.
        block = _block(word, blocks) - first_block
        words[pending], starts[pending] = word, block * np.uint64(BLOCK_BYTES)
        pending += int(block < part_blocks)
        if pending == _BATCH or number == len(hashes) - 1:
            total += _fetch_blocks(flat, starts, pending)
            for at in range(pending):
                _set(flat, starts[at], words[at], k)
            pending = 0
    return total


@helper
def _set(flat, start, word, k):  # type: ignore[no-untyped-def]
    """Set the k bits of a mixed hash in the block that starts at a byte."""
    positions = np.uint64(0)
    for number in range(k):
        if number % _POSITIONS_PER_WORD == 0:
            word += STEP
            positions = _mixed(word)
        position = positions & _POSITION
        flat[start + (position >> _BYTE)] |= np.uint8(1) << np.uint8(position & _BIT)
        positions >>= _POSITION_BITS


@kernel
def _contains(flat, hashes, k, seed, batch, results):  # type: ignore[no-untyped-def]
    """Test two bits, then three, then all; three quarters of the hashes that were not added fail the first test."""
    blocks = np.uint64(len(flat) // BLOCK_BYTES)
    salt, total, kept = _mixed(seed), np.uint8(0), 0
    first_bits = min(2, k)
    for first in range(0, len(hashes), _BATCH):
        size = min(_BATCH, len(hashes) - first)
        for at in range(size):
            word = _mixed(hashes[first + at] ^ salt)
            batch.words[at], batch.starts[at] = word, _block(word, blocks) * np.uint64(BLOCK_BYTES)
            batch.positions[at] = _mixed(word + STEP)
            batch.left[at] = at
        # If most of the last batch passed, fetch whole blocks at once: one wait instead of three.
        if 2 * kept > size:
            total += _fetch_blocks(flat, batch.starts, size)
        kept = _still_set(flat, batch, size, first_bits)
        kept = _still_set(flat, batch, kept, min(3, k - first_bits))
        for number in range(kept):
            batch.starts_left[number] = batch.starts[batch.left[number]]
        total += _fetch_blocks(flat, batch.starts_left, kept)
        for number in range(kept):
            at = batch.left[number]
            results[first + at] = _all_set(flat, batch.starts[at], batch.words[at], k)
    return total


@helper
def _still_set(flat, batch, count, bits):  # type: ignore[no-untyped-def]
    """Move the hashes of `left` whose next few bits are set to its front, without a branch; return how many."""
    for number in range(count):
        at = batch.left[number]
        rest = batch.positions[at]
        for _ in range(bits):
            prefetch(flat, np.int64(batch.starts[at] + ((rest & _POSITION) >> _BYTE)))
            rest >>= _POSITION_BITS
    kept = 0
    for number in range(count):
        at = batch.left[number]
        rest, all_set = batch.positions[at], np.uint8(1)
        for _ in range(bits):
            position = rest & _POSITION
            all_set &= flat[batch.starts[at] + (position >> _BYTE)] >> np.uint8(position & _BIT)
            rest >>= _POSITION_BITS
        batch.positions[at] = rest
        batch.left[kept] = at
        kept += int(all_set)
    return kept


@helper
def _all_set(flat, start, word, k):  # type: ignore[no-untyped-def]
    """Return whether the k bits of a mixed hash are all set; stop at the first that is not."""
    for first in range(0, k, _POSITIONS_PER_WORD):
        word += STEP
        positions = _mixed(word)
        for _ in range(min(_POSITIONS_PER_WORD, k - first)):
            position = positions & _POSITION
            if not (flat[start + (position >> _BYTE)] >> np.uint8(position & _BIT)) & 1:
                return False
            positions >>= _POSITION_BITS
    return True
