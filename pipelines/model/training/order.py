"""The order in which training reads blocks: a function of the seed and the step, which needs no state."""

from __future__ import annotations

import functools
import hashlib
import itertools
import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pipelines.model.training.mixture import SINGLE, Segment, segments_of

Counts = npt.NDArray[np.int64]


class Block(NamedTuple):
    """A block of the train split of a source."""

    source: str
    number: int


class BlockOrder:
    """The endless sequence of the blocks of a source: each epoch is a new seeded permutation of all blocks.

    It depends on the seed and the source's name and blocks only. Keeps the permutation of one epoch, 4 bytes per block
    up to 4 billion blocks; drawing it temporarily takes about 20 bytes per block.
    """

    def __init__(self, blocks: int, seed: int, source: str = SINGLE) -> None:
        self._blocks, self._seed, self._source = blocks, seed, source
        self._epoch = -1
        self._permutation: npt.NDArray[np.unsignedinteger] = np.empty(0, np.uint32)

    def numbers(self, start: int, stop: int) -> list[int]:
        """Return the block numbers at the places `start` to `stop`, which may extend into later epochs."""
        numbers: list[int] = []
        while start < stop:
            epoch, first = divmod(start, self._blocks)
            if epoch != self._epoch:
                order = random_order(self._blocks, self._seed, epoch, self._source)
                self._permutation = order.astype(np.min_scalar_type(self._blocks))
                self._epoch = epoch
            numbers += self._permutation[first : first + stop - start].tolist()
            start = min(stop, (epoch + 1) * self._blocks)
        return numbers


class BatchOrder:
    """The blocks of every step.

    `blocks` has the number of blocks of each source; those of sources that it lacks are left out of the batches. The
    steps of a segment are divided into periods that have a block of each source. After each, the blocks of a source are
    its share of all, to less than one block: differences of rounded sums, which therefore do not decrease. In between
    they are to less than two blocks and the share of one block per source.
    """

    def __init__(self, blocks: Mapping[str, int], batch_size: int, seed: int, mixture: Sequence[Segment] = ()) -> None:
        self._batch_size, self._seed, segments = batch_size, seed, segments_of(mixture)
        self._orders = {name: BlockOrder(count, seed, name) for name, count in blocks.items()}
        self._names = sorted({name for segment in segments for name in segment["shares"]})
        self._segments: list[tuple[int, int, list[Fraction], Counts]] = []
        for segment in segments:
            # Decimals, not the binary fractions near them: 0.6 of 100 blocks are 60.
            shares = [Fraction(str(segment["shares"].get(name, 0))) for name in self._names]
            bounds = [bound / sum(shares) for bound in itertools.accumulate(shares, initial=Fraction(0))]
            period = math.ceil(sum(shares) / min(filter(None, shares)) / batch_size)
            start = segment["from_step"]
            before = self._locate(start)[0] if start else np.zeros(len(shares), np.int64)
            self._segments.append((start, period, bounds, before))

    def batch(self, step: int) -> list[Block]:
        """Return the blocks of a step, counted from 0."""
        firsts, sources = self._locate(step)
        stops = (firsts + np.bincount(sources, minlength=len(firsts))).tolist()
        spans = {name: span for name, *span in zip(self._names, firsts.tolist(), stops, strict=True)}
        numbers = {name: iter(order.numbers(*spans[name])) for name, order in self._orders.items() if name in spans}
        names = [self._names[source] for source in sources.tolist()]
        return [Block(name, next(numbers[name])) for name in names if name in numbers]

    def _locate(self, step: int) -> tuple[Counts, Counts]:
        """Return how many blocks of each source precede a step, and the source of each of its blocks, by index."""
        start, period, bounds, before = next(segment for segment in reversed(self._segments) if segment[0] <= step)
        number, offset = divmod(step - start, period)
        ends = [count * period * self._batch_size for count in (number, number + 1)]
        read, then_read = (np.diff([math.floor(bound * end) for bound in bounds]) for end in ends)
        sources = _arrange_sources(tuple((then_read - read).tolist()), self._seed, step - offset)
        place = offset * self._batch_size
        partial = np.bincount(sources[:place], minlength=len(before))
        return before + read + partial, sources[place : place + self._batch_size]


@functools.lru_cache(maxsize=2)
def _arrange_sources(counts: tuple[int, ...], seed: int, step: int) -> npt.NDArray[np.int64]:
    """Return the sources of the blocks of a period that begins with a step, in random but even order.

    The blocks of a source are at random points of as many equal parts of the period.
    """
    sources, total = np.repeat(np.arange(len(counts)), counts), sum(counts)
    if max(counts) == total:
        return sources
    parts = np.concatenate([np.arange(count) for count in counts]) + _random_bits(total, seed, step, "") / 2.0**64
    return sources[np.argsort(parts / np.array(counts)[sources], kind="stable")]


def random_order(count: int, seed: int, number: int, name: str = SINGLE) -> npt.NDArray[np.int64]:
    """Return the permutation of a number that belongs to a seed and a name."""
    return np.argsort(_random_bits(count, seed, number, name), kind="stable")


def _random_bits(count: int, seed: int, number: int, name: str) -> npt.NDArray[np.uint64]:
    stream = 0 if name == SINGLE else int.from_bytes(hashlib.sha256(name.encode()).digest()[:8])
    # Sorting raw bits, not Generator.permutation: numpy guarantees the bits of Philox in every version.
    bits: npt.NDArray[np.uint64] = np.random.Philox(key=(seed << 64) | number, counter=stream << 192).random_raw(count)
    return bits
