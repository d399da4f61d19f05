"""Statistics of token counts, and an independent check of merges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pipelines.algorithms.bpe.merges import Merges
from pipelines.algorithms.bpe.pair_table import HALF, LOW, count_pairs, key_of, words_of
from pipelines.algorithms.kernels.compilation import helper, kernel
from pipelines.algorithms.kernels.hash_table import slot_of, table_of

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
    noiseless channel"). 0 without any tokens.
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
    """Return the ids of the entries that occur fewer than `below` times, the rarest first, then by id."""
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
    """A merge as recorded (`left`, `right`, `times`) and as recomputed; -1 and 0 if no pair was left.

    `tokens` is the number of tokens of the words with only the merges before it.
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

    The words are as for `learn_merges`. For each step, the words are encoded with the merges before it, lowest rank
    first, and all their pairs are counted, independently of the trainer. Steps may be in any order.
    """
    words = words_of(symbols, starts, counts, first_id + len(merges.left))
    pair_ranks = np.empty(int(words.lengths.max(initial=0)), np.int32)
    keys = (merges.left.astype(np.uint64) << HALF) | merges.right.astype(np.uint64)
    alone, done = 0, 0
    checked = []
    for step in sorted(set(steps)):
        ranks = table_of(keys[done:step], max(1, step - done))
        kept, size, single = _encode(words, ranks, first_id + done, pair_ranks)
        words = words.first(kept, size)
        alone += int(single)
        done = step
        pairs = count_pairs(words)
        count = int(pairs.counts.max(initial=0))
        key = int(pairs.keys[pairs.counts == count].min()) if count > 0 else 0
        most_frequent = (key >> 32, key & int(LOW)) if count > 0 else (-1, -1)
        recorded = (int(merges.left[step]), int(merges.right[step]), int(merges.counts[step]))
        tokens = alone + int((words.counts * words.lengths).sum())
        checked.append(CheckedMerge(step, *recorded, *most_frequent, count, tokens))
    return checked


@kernel
def _encode(words, ranks, first_id, pair_ranks):  # type: ignore[no-untyped-def]
    """Encode words, in place, with the merges of a table, lowest first.

    Moves the words that still have a pair together; returns their number, their symbols, and how often the others, of
    one symbol each, occur.
    """
    ids, starts = words.ids, words.starts
    alone, to, kept = 0, 0, 0
    for word in range(len(starts)):
        start, size = starts[word], int(words.lengths[word])
        lowest = _NO_RANK
        for at in range(size - 1):
            pair_ranks[at] = _rank(ranks, ids[start + at], ids[start + at + 1])
            lowest = min(lowest, pair_ranks[at])
        while lowest != _NO_RANK:
            size, lowest = _merge_once(ids, start, size, pair_ranks, lowest, ranks, first_id)
        if size == 1:
            alone += words.counts[word]
        elif size > 1:
            for at in range(size):
                ids[to + at] = ids[start + at]
            # Words only become shorter and fewer, so nothing is overwritten that is still to be read.
            starts[kept] = to
            words.lengths[kept] = size
            words.counts[kept] = words.counts[word]
            to += size
            kept += 1
    return kept, to, alone


@helper
def _merge_once(ids, start, size, pair_ranks, rank, ranks, first_id):  # type: ignore[no-untyped-def]
    """Apply one merge to a word, from left to right; return its new size and the next lowest rank in it."""
    to = 0
    at = 0
    was_merged = False
    while at < size:
        is_pair = at + 1 < size and pair_ranks[at] == rank
        new = np.int64(first_id + rank if is_pair else ids[start + at])
        ids[start + to] = new
        if to > 0 and (was_merged or is_pair):
            pair_ranks[to - 1] = _rank(ranks, ids[start + to - 1], new)
        pair_ranks[to] = pair_ranks[at]  # wrong for a new symbol, but replaced with the next one
        was_merged = is_pair
        at += 2 if is_pair else 1
        to += 1
    lowest = np.int32(_NO_RANK)
    for place in range(to - 1):
        lowest = min(lowest, pair_ranks[place])
    return to, lowest


@helper
def _rank(ranks, left, right):  # type: ignore[no-untyped-def]
    key = key_of(left, right)
    slot = slot_of(ranks.keys, key)
    return ranks.numbers[slot] if ranks.keys[slot] == key else _NO_RANK
