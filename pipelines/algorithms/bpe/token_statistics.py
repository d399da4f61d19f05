"""What the counts of tokens say of a vocabulary, and an independent proof of its merges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pipelines.algorithms.bpe.merges import Merges
from pipelines.algorithms.kernels.compilation import kernel

_FREE = np.uint64(0xFFFFFFFFFFFFFFFF)
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_ONE = np.uint64(1)
_TURN = np.uint64(29)
_SPREAD = np.uint64(0xFF51AFD7ED558CCD)
_FIRST_ROOM = 1 << 12
_NO_RANK = np.int32(2**31 - 1)

Integers = npt.NDArray[np.int64]


def token_frequencies(
    ids: npt.NDArray[np.uint32], starts: npt.NDArray[np.int64], counts: Integers, size: int
) -> Integers:
    """Return how often each of `size` tokens occurs in texts of which text i, `ids[starts[i]:starts[i + 1]]`, occurs
    `counts[i]` times. Exact in 64 bits. Raises IndexError for an id that is not below `size`.
    """
    frequencies = np.zeros(size, np.int64)
    np.add.at(frequencies, ids, np.repeat(counts, np.diff(starts)))
    return frequencies


def renyi_efficiency(frequencies: Integers, size: int, alpha: float = 2.5) -> float:
    """Return the Rényi entropy of the tokens' shares, divided by that of `size` equally frequent ones: 0 to 1.

    An alpha of 1 gives Shannon's. 2.5 followed translation quality best (Zouhar et al. 2023, "Tokenization and the
    noiseless channel"). 0 where nothing was counted.
    """
    seen = frequencies[frequencies > 0]
    if not len(seen) or size < 2:
        return 0.0
    shares = seen / seen.sum()
    if alpha == 1:
        entropy = float(-(shares * np.log(shares)).sum())
    else:
        entropy = float(np.log((shares**alpha).sum())) / (1 - alpha)
    return abs(entropy) / float(np.log(size))


def rarer_than(frequencies: Integers, below: int) -> npt.NDArray[np.intp]:
    """Return the ids of the entries that occur fewer than `below` times, the rarest first, of equal ones the lowest."""
    rare = np.flatnonzero(frequencies < below)
    return rare[np.argsort(frequencies[rare], kind="stable")]


def by_powers_of_ten(frequencies: Integers) -> list[int]:
    """Return how many entries occur 0 times, 1 to 9 times, 10 to 99 times, and so on to the most frequent one."""
    largest = int(frequencies.max(initial=0))
    edges = [1]
    while edges[-1] <= largest:
        edges.append(edges[-1] * 10)
    decades = np.searchsorted(np.array(edges, np.int64), frequencies, side="right")
    return [int(count) for count in np.bincount(decades, minlength=len(edges))]


def spread_positions(size: int, most: int) -> list[int]:
    """Return positions from 1 to `size` at about equal ratios: the first, the last, and at most `most` of them."""
    if size < 1:
        return []
    return sorted({int(position) for position in np.geomspace(1, size, max(2, most)).round()})


def steps_to_check(merges: int, most: int) -> list[int]:
    """Return the steps to check of so many merges: the first, the last, and between them half at equal distances and
    half at equal ratios, for the early merges are those that count; at most `most` of them, and the same each time.
    """
    if merges < 1 or most < 1:
        return []
    even = [round(merges * (number + 1) / (most // 2)) - 1 for number in range(most // 2)]
    ratios = [position - 1 for position in spread_positions(merges, most - most // 2)] if most > 1 else [0]
    return sorted({0, *(max(0, step) for step in even), *ratios})


class CheckedMerge(NamedTuple):
    """A merge as recorded (`left`, `right`, `times`) and as found; -1 and 0 where no pair was left to be found.

    `tokens` is what the words take with the merges before it alone.
    """

    step: int
    left: int
    right: int
    times: int
    found_left: int
    found_right: int
    found_times: int
    tokens: int

    @property
    def is_right(self) -> bool:
        """Whether the recorded merge was the most frequent pair, with the recorded count."""
        return (self.left, self.right, self.times) == (self.found_left, self.found_right, self.found_times)


def verify_merges(
    symbols: npt.NDArray[Any],
    starts: Integers,
    counts: Integers,
    merges: Merges,
    steps: Sequence[int],
    *,
    first_id: int = 256,
) -> list[CheckedMerge]:
    """Check that merge i was the most frequent pair at its step, ties to the lowest left, then right id.

    The words are given as `learn_merges` takes them; `starts` and `counts` are used up, since copies of all words would
    take much memory. Nothing of the trainer's is used: for each step the words are
    encoded anew with the merges before it, lowest first, and all their pairs are counted. Steps in any order.
    """
    narrow = first_id + len(merges.left) <= np.iinfo(np.uint16).max + 1
    ids, bounds, weights = symbols.astype(np.uint16 if narrow else np.int32), starts, counts
    alone, done = 0, 0
    checked = []
    for step in sorted(set(steps)):
        ids, bounds, weights, single = _encoded(ids, bounds, weights, merges.left, merges.right, done, step, first_id)
        alone += int(single)
        done = step
        key, count = _most_frequent(ids, bounds, weights)
        found = (int(key) >> 32, int(key) & 0xFFFFFFFF) if count > 0 else (-1, -1)
        recorded = (int(merges.left[step]), int(merges.right[step]), int(merges.counts[step]))
        tokens = alone + int((weights * np.diff(bounds)).sum())
        checked.append(CheckedMerge(step, *recorded, *found, int(count), tokens))
    return checked


@kernel
def _encoded(ids, starts, counts, left, right, first, end, first_id):  # type: ignore[no-untyped-def]
    """Encode words, in place, with the merges from `first` to before `end`, lowest first.

    Returns the words that still have a pair, and how often the others, of one symbol each, occur.
    """
    keys, ranks = _ranks(left, right, first, end)
    longest = 0
    for word in range(len(starts) - 1):
        longest = max(longest, starts[word + 1] - starts[word])
    pair_ranks = np.empty(longest, np.int32)
    alone, to, words = 0, 0, 0
    for word in range(len(starts) - 1):
        start, size = starts[word], starts[word + 1] - starts[word]
        lowest = _NO_RANK
        for at in range(size - 1):
            pair_ranks[at] = _rank(keys, ranks, ids[start + at], ids[start + at + 1])
            lowest = min(lowest, pair_ranks[at])
        while lowest != _NO_RANK:
            size, lowest = _merged_once(ids, start, size, pair_ranks, lowest, keys, ranks, first_id)
        if size == 1:
            alone += counts[word]
        elif size > 1:
            for at in range(size):
                ids[to + at] = ids[start + at]
            # Words only become shorter and fewer, so what is written never passes what is still to be read.
            starts[words] = to
            counts[words] = counts[word]
            to += size
            words += 1
    bounds = np.empty(words + 1, np.int64)
    bounds[:words] = starts[:words]
    bounds[words] = to
    return ids[:to], bounds, counts[:words], alone


@kernel
def _merged_once(ids, start, size, pair_ranks, rank, keys, ranks, first_id):  # type: ignore[no-untyped-def]
    """Make one merge in a word, from left to right; return its new size and the next lowest rank in it."""
    to = 0
    at = 0
    was_merged = False
    while at < size:
        is_pair = at + 1 < size and pair_ranks[at] == rank
        new = first_id + rank if is_pair else ids[start + at]
        ids[start + to] = new
        if to > 0 and (was_merged or is_pair):
            pair_ranks[to - 1] = _rank(keys, ranks, ids[start + to - 1], new)
        pair_ranks[to] = pair_ranks[at]  # of a new symbol it is not, but that is looked up beside the next
        was_merged = is_pair
        at += 2 if is_pair else 1
        to += 1
    lowest = _NO_RANK
    for place in range(to - 1):
        lowest = min(lowest, pair_ranks[place])
    return to, lowest


@kernel
def _ranks(left, right, first, end):  # type: ignore[no-untyped-def]
    """Return a table of the merges from `first` to before `end`: their pairs, and their places among the merges."""
    room = 4
    while room < 4 * (end - first):
        room *= 2
    keys, ranks = np.full(room, _FREE, np.uint64), np.full(room, _NO_RANK, np.int32)
    for number in range(first, end):
        key = (np.uint64(left[number]) << _HALF) | np.uint64(right[number])
        slot = _place(keys, key)
        if keys[slot] == _FREE:
            keys[slot] = key
            ranks[slot] = number
    return keys, ranks


@kernel
def _rank(keys, ranks, left, right):  # type: ignore[no-untyped-def]
    return ranks[_place(keys, (np.uint64(left) << _HALF) | np.uint64(right))]


@kernel
def _most_frequent(ids, starts, counts):  # type: ignore[no-untyped-def]
    """Count all pairs of the words; return the key of the most frequent, of equal ones the lowest, and its count."""
    keys, sums = np.full(_FIRST_ROOM, _FREE, np.uint64), np.zeros(_FIRST_ROOM, np.int64)
    used = 0
    for word in range(len(starts) - 1):
        for at in range(starts[word], starts[word + 1] - 1):
            key = (np.uint64(ids[at]) << _HALF) | np.uint64(ids[at + 1])
            slot = _place(keys, key)
            if keys[slot] == _FREE:
                if 2 * used >= len(keys):
                    keys, sums = _with_more_room(keys, sums)
                    slot = _place(keys, key)
                keys[slot] = key
                used += 1
            sums[slot] += counts[word]
    best, most = _FREE, np.int64(0)
    for slot in range(len(keys)):
        if keys[slot] != _FREE and (sums[slot] > most or (sums[slot] == most and keys[slot] < best)):
            best, most = keys[slot], sums[slot]
    return best, most


@kernel
def _place(keys, key):  # type: ignore[no-untyped-def]
    """Return where a key is in a table, or the free place where it belongs."""
    mask = np.uint64(len(keys) - 1)
    mixed = key * _SPREAD
    slot = (mixed ^ (mixed >> _TURN)) & mask
    while keys[slot] != key and keys[slot] != _FREE:
        slot = (slot + _ONE) & mask
    return slot


@kernel
def _with_more_room(keys, sums):  # type: ignore[no-untyped-def]
    larger, larger_sums = np.full(4 * len(keys), _FREE, np.uint64), np.zeros(4 * len(keys), np.int64)
    for old in range(len(keys)):
        if keys[old] != _FREE:
            slot = _place(larger, keys[old])
            larger[slot] = keys[old]
            larger_sums[slot] = sums[old]
    return larger, larger_sums
