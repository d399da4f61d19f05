"""A Bloom filter of 64-bit hashes in blocks of 4,096 bits: the paper's means of the overlap audit (section 4).

The bits are a uint8 array of shape (blocks, 512), in memory or mapped from a file. A hash has all its k bits in one
block, which is 8 neighbouring cache lines, where a classic filter touches k lines anywhere; that costs 8% more bits at
an error of 1e-8 (blocks of 512 bits cost 64%). The bits are the same for any order of the hashes, any repeats, and any
parts that are joined by OR.

A hash is mixed with the seed; its block is the mixture times the number of blocks, divided by 2**64; its bits are 12
bits each of further mixtures, 5 of one. So the k bits of a hash that was not added are independent of each other and of
the block, and it is found with the probability fill**k of its block. `bloom_size` says how many blocks are needed,
`bloom_file` how they stand in a file.
"""

from __future__ import annotations

import dataclasses
import fractions
import math
import mmap
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from pipelines.algorithms.kernels.compilation import kernel
from pipelines.algorithms.kernels.splitmix import STEP, mixed

Bits: TypeAlias = npt.NDArray[np.uint8]
Hashes: TypeAlias = npt.NDArray[np.uint64]

BLOCK_BITS = 4096
BLOCK_BYTES = BLOCK_BITS // 8
MOST_BLOCKS = (1 << 32) - 1

# Typed as it is used: in a kernel, without the context of its typing.
_intrinsic: Any = intrinsic

_POSITION_BITS = np.uint64(12)
_POSITION = np.uint64(BLOCK_BITS - 1)
_BYTE = np.uint64(3)
_BIT = np.uint64(7)
_IN_A_WORD = 5  # positions of 12 bits in a mixture of 64
_LINE_BYTES = 64
_BATCH = 32  # hashes whose lines are on their way from memory at a time


@dataclasses.dataclass(frozen=True, slots=True)
class Measurement:
    """What the bits of a filter say of it.

    `fill` is the share of bits that are set, `items` about how many distinct hashes were added. `error_bound` is the
    probability that an n-gram that was not added is found: the mean over the blocks of fill**k, which is no estimate
    but follows from the bits, and items / 2**64 for an n-gram whose 64-bit hash is that of another.
    """

    fill: float
    items: int
    error_bound: float


def empty_bits(blocks: int) -> Bits:
    """Return the bits of a filter without hashes: zeros, shape (blocks, 512), in huge pages where the system has them.

    With pages of 4 KB a large filter waits for the page table as long as for memory. The first byte begins a page, so
    no block touches more than 8 lines.
    """
    if not 1 <= blocks <= MOST_BLOCKS:
        raise ValueError(f"a filter has 1 to {MOST_BLOCKS:,} blocks, not {blocks:,}")
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory = mmap.mmap(-1, blocks * BLOCK_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(mmap.MADV_HUGEPAGE)
    else:
        memory = mmap.mmap(-1, blocks * BLOCK_BYTES)
    return np.frombuffer(memory, np.uint8).reshape(blocks, BLOCK_BYTES)


def add(bits: Bits, hashes: Hashes, k: int, seed: int = 0) -> None:
    """Add hashes, uint64, in place; raise ValueError for other arrays. Only one thread may add to the same bits."""
    _check(bits, hashes, k)
    _add(bits, hashes, k, np.uint64(seed), np.uint64(0), np.uint64(len(bits)))


def add_range(bits: Bits, hashes: Hashes, k: int, seed: int, first_block: int, blocks: int) -> None:
    """Add the hashes whose block lies in a piece of a filter of so many blocks, in place; leave the others out.

    `bits` are the blocks from `first_block` on. Pieces to each of which the same hashes were added are the filter when
    they stand one behind the other: so one is made that is larger than the memory.
    """
    _check(bits, hashes, k)
    if first_block < 0 or first_block + len(bits) > blocks or blocks > MOST_BLOCKS:
        raise ValueError(f"{len(bits):,} blocks from number {first_block:,} on are no piece of {blocks:,}")
    _add(bits, hashes, k, np.uint64(seed), np.uint64(first_block), np.uint64(blocks))


def contains(bits: Bits, hashes: Hashes, k: int, seed: int = 0) -> npt.NDArray[np.bool_]:
    """Tell of each hash, uint64, whether it may have been added; raise ValueError for other arrays.

    True for each that was added with this k and seed, and for others with the probability `Measurement.error_bound`.
    """
    _check(bits, hashes, k)
    found = np.zeros(len(hashes), np.bool_)
    _contains(bits, hashes, k, np.uint64(seed), found)
    return found


def merge(into: Bits, other: Bits) -> None:
    """Set the bits that are set in another filter of the same blocks, k and seed, in place.

    Pieces of both, cut at the same blocks, may be merged one after the other.
    """
    if into.dtype != np.uint8 or other.dtype != np.uint8 or into.shape != other.shape:
        raise ValueError(f"filters of {into.shape} and {other.shape} bytes cannot be merged: give both the same size")
    np.bitwise_or(into, other, out=into)


def measure(bits: Bits, k: int) -> Measurement:
    """Return fill, items and error bound of a filter, in one pass over its bits."""
    return measurement_of(blocks_by_bits_set(bits), k)


def blocks_by_bits_set(bits: Bits) -> npt.NDArray[np.int64]:
    """Return how many blocks have 0, 1, ... 4,096 bits set; the pieces of a filter add up."""
    _check(bits, np.empty(0, np.uint64), 1)
    histogram: npt.NDArray[np.int64] = _blocks_by_bits_set(bits)
    return histogram


def measurement_of(histogram: npt.NDArray[np.int64], k: int) -> Measurement:
    """Return what the numbers of `blocks_by_bits_set` say of a whole filter."""
    counts: list[int] = histogram.tolist()
    blocks = sum(counts)
    bits_set = sum(count * blocks_so for count, blocks_so in enumerate(counts))
    items = _estimated_items(bits_set, blocks, k)
    # In whole numbers, so that no machine rounds it another way.
    found = sum(blocks_so * count**k for count, blocks_so in enumerate(counts) if blocks_so)
    bound = fractions.Fraction(found, blocks * BLOCK_BITS**k) + fractions.Fraction(items, 1 << 64)
    return Measurement(bits_set / (blocks * BLOCK_BITS), items, float(min(bound, fractions.Fraction(1))))


def _estimated_items(bits_set: int, blocks: int, k: int) -> int:
    """Return the number of hashes of which one expects so many bits: a hash leaves a bit unset by one chance."""
    bits = blocks * BLOCK_BITS
    unset = max(bits - bits_set, 0.5)
    set_by_a_hash = -math.expm1(k * math.log1p(-1 / BLOCK_BITS)) / blocks
    return round(math.log(unset / bits) / math.log1p(-set_by_a_hash))


def _check(bits: Bits, hashes: Hashes, k: int) -> None:
    if bits.dtype != np.uint8 or bits.ndim != 2 or bits.shape[1] != BLOCK_BYTES or not bits.flags.c_contiguous:
        raise ValueError(f"bits must be of uint8 and shape (blocks, {BLOCK_BYTES}), not {bits.dtype} of {bits.shape}")
    if not 1 <= len(bits) <= MOST_BLOCKS:
        raise ValueError(f"a filter has 1 to {MOST_BLOCKS:,} blocks, not {len(bits):,}")
    if hashes.dtype != np.uint64 or hashes.ndim != 1:
        raise ValueError(f"hashes must be a flat array of uint64, not {hashes.dtype} of shape {hashes.shape}")
    if k < 1:
        raise ValueError(f"a hash sets 1 bit or more, not {k}")


@_intrinsic
def _prefetch(_typing_context, array, offset):  # type: ignore[no-untyped-def]
    """Ask for the cache line of a byte of an array, without waiting for it."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        address = builder.bitcast(builder.gep(data, [arguments[1]]), ir.IntType(8).as_pointer())
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [address.type, number, number, number])
        function = builder.module.globals.get("llvm.prefetch") or ir.Function(builder.module, kind, "llvm.prefetch")
        # For reading, to be kept in all caches, of data rather than code.
        builder.call(function, [address, number(0), number(3), number(1)])
        return context.get_dummy_value()

    return types.void(array, offset), generate


@kernel
def _block(word, blocks):  # type: ignore[no-untyped-def]
    """Return the high 64 bits of a mixture times a number of blocks below 2**32: the block."""
    low = (word & np.uint64(0xFFFFFFFF)) * blocks
    return ((word >> np.uint64(32)) * blocks + (low >> np.uint64(32))) >> np.uint64(32)


@kernel
def _start_batch(hashes, blocks, salt, words, starts):  # type: ignore[no-untyped-def]
    """Find for each hash its mixture, and the byte that its block starts at."""
    for at in range(len(hashes)):
        words[at] = mixed(hashes[at] ^ salt)
        starts[at] = _block(words[at], blocks) * np.uint64(BLOCK_BYTES)


@kernel
def _fetch_blocks(flat, starts):  # type: ignore[no-untyped-def]
    """Bring blocks into the cache: ask for all lines, then wait for each, which takes half the time of either alone.

    The sum that is returned only keeps the compiler from leaving the reads out.
    """
    for start in starts:
        for line in range(0, BLOCK_BYTES, _LINE_BYTES):
            _prefetch(flat, start + np.uint64(line))
    total = np.uint8(0)
    for start in starts:
        for line in range(0, BLOCK_BYTES, _LINE_BYTES):
            total += flat[start + np.uint64(line)]
    return total


@kernel
def _add(bits, hashes, k, seed, first_block, blocks):  # type: ignore[no-untyped-def]
    flat = bits.reshape(-1)
    here = np.uint64(len(bits))
    words, starts = np.empty(_BATCH, np.uint64), np.empty(_BATCH, np.uint64)
    salt, total, waiting = mixed(seed), np.uint8(0), 0
    for hashed in hashes:
        word = mixed(hashed ^ salt)
        # Below the first block the difference wraps, and is more than any block.
        block = _block(word, blocks) - first_block
        words[waiting], starts[waiting] = word, block * np.uint64(BLOCK_BYTES)
        waiting += int(block < here)
        if waiting == _BATCH:
            total += _set_all(flat, starts, words, k)
            waiting = 0
    return total + _set_all(flat, starts[:waiting], words, k)


@kernel
def _set_all(flat, starts, words, k):  # type: ignore[no-untyped-def]
    total = _fetch_blocks(flat, starts)
    for at in range(len(starts)):
        _set(flat, starts[at], words[at], k)
    return total


@kernel
def _set(flat, start, word, k):  # type: ignore[no-untyped-def]
    """Set the k bits of a mixture in the block that starts at a byte."""
    for first in range(0, k, _IN_A_WORD):
        word += STEP
        positions = mixed(word)
        for _ in range(min(_IN_A_WORD, k - first)):
            position = positions & _POSITION
            flat[start + (position >> _BYTE)] |= np.uint8(1) << np.uint8(position & _BIT)
            positions >>= _POSITION_BITS


@kernel
def _contains(bits, hashes, k, seed, found):  # type: ignore[no-untyped-def]
    """Look at two bits, then at three, then at all; three quarters of the hashes that were not added fail the first."""
    flat = bits.reshape(-1)
    blocks = np.uint64(len(bits))
    words, starts = np.empty(_BATCH, np.uint64), np.empty(_BATCH, np.uint64)
    positions, left, starts_left = np.empty(_BATCH, np.uint64), np.empty(_BATCH, np.int64), np.empty(_BATCH, np.uint64)
    salt, total, kept = mixed(seed), np.uint8(0), 0
    for first in range(0, len(hashes), _BATCH):
        batch = min(_BATCH, len(hashes) - first)
        _start_batch(hashes[first : first + batch], blocks, salt, words, starts)
        # Where most of the last batch was found, the whole blocks will be needed: one wait rather than three.
        if 2 * kept > batch:
            total += _fetch_blocks(flat, starts[:batch])
        for at in range(batch):
            positions[at] = mixed(words[at] + STEP)
            left[at] = at
        kept = _still_set(flat, starts, positions, left[:batch], min(2, k))
        kept = _still_set(flat, starts, positions, left[:kept], min(3, k - min(2, k)))
        for number in range(kept):
            starts_left[number] = starts[left[number]]
        total += _fetch_blocks(flat, starts_left[:kept])
        for at in left[:kept]:
            found[first + at] = _all_set(flat, starts[at], words[at], k)
    return total


@kernel
def _still_set(flat, starts, positions, left, looked):  # type: ignore[no-untyped-def]
    """Keep the hashes of `left` whose next few bits are set, at its front; return how many. No branch is guessed at."""
    for at in left:
        rest = positions[at]
        for _ in range(looked):
            _prefetch(flat, starts[at] + ((rest & _POSITION) >> _BYTE))
            rest >>= _POSITION_BITS
    kept = 0
    for at in left:
        rest, all_set = positions[at], np.uint8(1)
        for _ in range(looked):
            position = rest & _POSITION
            all_set &= flat[starts[at] + (position >> _BYTE)] >> np.uint8(position & _BIT)
            rest >>= _POSITION_BITS
        positions[at] = rest
        left[kept] = at
        kept += int(all_set)
    return kept


@kernel
def _all_set(flat, start, word, k):  # type: ignore[no-untyped-def]
    """Tell whether the k bits of a mixture are set; stop at the first that is not."""
    for first in range(0, k, _IN_A_WORD):
        word += STEP
        positions = mixed(word)
        for _ in range(min(_IN_A_WORD, k - first)):
            position = positions & _POSITION
            if not (flat[start + (position >> _BYTE)] >> np.uint8(position & _BIT)) & 1:
                return False
            positions >>= _POSITION_BITS
    return True


@kernel
def _blocks_by_bits_set(bits):  # type: ignore[no-untyped-def]
    """Return how many blocks have 0, 1, ... 4,096 bits set."""
    histogram = np.zeros(BLOCK_BITS + 1, np.int64)
    words = bits.reshape(-1).view(np.uint64)
    in_a_block = BLOCK_BYTES // 8
    for block in range(len(bits)):
        bits_set = np.uint64(0)
        for at in range(block * in_a_block, (block + 1) * in_a_block):
            bits_set += _bits_set(words[at])
        histogram[bits_set] += 1
    return histogram


@kernel
def _bits_set(word):  # type: ignore[no-untyped-def]
    """Return the number of ones in 64 bits: in pairs, fours, eights, and the sum of the eights."""
    word -= (word >> np.uint64(1)) & np.uint64(0x5555555555555555)
    word = (word & np.uint64(0x3333333333333333)) + ((word >> np.uint64(2)) & np.uint64(0x3333333333333333))
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return (word * np.uint64(0x0101010101010101)) >> np.uint64(56)
