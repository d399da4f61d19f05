"""Pairs of documents: those of a bucket that may be near-duplicates, their true similarity, and which of them stay."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from pipelines.algorithms.kernels.compilation import as_read_only, kernel
from pipelines.algorithms.minhash.shingles import agreeing, jaccard_of

Numbers = npt.NDArray[np.int64]

# A document is compared with at most this many others of a group.
MAX_LEADERS = 4096
# A pair is dropped when its sketches agree in so much fewer places than expected at the threshold (in standard
# deviations: once in millions).
_MISSED = 5.0
_BUFFERED_PAIRS = 1 << 16
# The state of a scan: the group and member to continue with, the number of leaders, and of members with too many.
_GROUP, _MEMBER, _LEADERS, _LIMITED = range(4)

# What a member of a group is compared with: others but not its like; all; those before it, and none with it.
LEADS, LEADS_AND_FOLLOWS, FOLLOWS = range(3)

# What becomes of a document. It is dropped early if a document of an earlier wave is kept instead.
KEPT, DROPPED_EARLY, DROPPED, UNDECIDED, BLOCKED = range(5)


def min_agreement(num_perm: int, threshold: float) -> int:
    """Return in how many bytes the sketches of a pair at the threshold agree at least.

    Bytes of different MinHash values are equal with probability 1/256.
    """
    probability = threshold + (1 - threshold) / 256
    mean, deviation = num_perm * probability, math.sqrt(num_perm * probability * (1 - probability))
    return max(0, math.floor(mean - _MISSED * deviation))


def estimated_jaccard(agreement: npt.NDArray[Any], num_perm: int) -> npt.NDArray[np.float64]:
    """Return the similarity that equal bytes of two sketches suggest."""
    return np.asarray(np.clip((agreement / num_perm - 1 / 256) / (1 - 1 / 256), 0, 1))


def near_pairs(
    starts: Numbers, sketches: npt.NDArray[np.uint8], roles: npt.NDArray[np.uint8], threshold: float
) -> Iterator[tuple[Numbers, int]]:
    """Yield the pairs of members of a group that may be near, shape (2, pairs), and how many were compared in part.

    `starts` are the first members of groups, and last the number of members; the members of a group stand best first.
    Sketches have a multiple of 8 bytes.
    """
    state, leaders = np.zeros(4, np.int64), np.empty(MAX_LEADERS, np.int64)
    pairs = np.empty((2, max(_BUFFERED_PAIRS, MAX_LEADERS)), np.int64)
    arrays = [as_read_only(array) for array in (starts, sketches, roles)]
    while state[_GROUP] < len(starts) - 1:
        state[_LIMITED] = 0
        size = _find_near(*arrays, min_agreement(sketches.shape[1], threshold), state, leaders, pairs)
        yield pairs[:, :size].copy(), int(state[_LIMITED])


@kernel
def _find_near(starts: Any, sketches: Any, roles: Any, limit: Any, state: Any, leaders: Any, pairs: Any) -> Any:
    """Write pairs until the buffer might be full or the groups end; return how many."""
    size = 0
    while state[_GROUP] < len(starts) - 1:
        first, end = starts[state[_GROUP]], starts[state[_GROUP] + 1]
        if state[_MEMBER] <= first:
            state[_MEMBER], state[_LEADERS] = first, 0
        while state[_MEMBER] < end:
            member, count = state[_MEMBER], state[_LEADERS]
            if size + count > pairs.shape[1]:
                return size
            for number in range(count if roles[member] != LEADS else 0):
                leader = leaders[number]
                pairs[0, size], pairs[1, size] = leader, member
                size += agreeing(sketches[leader], sketches[member]) >= limit
            if roles[member] != FOLLOWS:
                if count < len(leaders):
                    leaders[count] = member
                    state[_LEADERS] += 1
                else:
                    state[_LIMITED] += 1
            state[_MEMBER] += 1
        state[_GROUP] += 1
    return size


def jaccard_of_pairs(hashes: npt.NDArray[np.uint64], starts: Numbers, pairs: Numbers) -> npt.NDArray[np.float64]:
    """Return the Jaccard similarity of pairs of sets, shape (2, pairs); 0 if both are empty.

    The sets are slices of `hashes`, sorted and without repeats; `starts` has one more entry than there are sets.
    """
    similarities = np.zeros(pairs.shape[1], np.float64)
    _compare_sets(*(as_read_only(array) for array in (hashes, starts, pairs)), similarities)
    return similarities


@kernel
def _compare_sets(hashes: Any, starts: Any, pairs: Any, similarities: Any) -> None:
    for number in range(pairs.shape[1]):
        left, right = pairs[0, number], pairs[1, number]
        similarities[number] = jaccard_of(
            hashes[starts[left] : starts[left + 1]], hashes[starts[right] : starts[right + 1]]
        )


def decide_round(
    better: Numbers, worse: Numbers, is_early: npt.NDArray[np.bool_], outcomes: npt.NDArray[np.uint8]
) -> None:
    """Apply near pairs to the outcomes of documents, in place; `is_early`: the better one is of an earlier wave.

    A document is dropped if a better one near it is kept, and blocked while a better one near it is undecided.
    """
    _decide(*(as_read_only(array) for array in (better, worse, is_early)), outcomes)


@kernel
def _decide(better: Any, worse: Any, is_early: Any, outcomes: Any) -> None:
    for number in range(len(better)):
        outcome, document = outcomes[better[number]], worse[number]
        if outcome == KEPT and outcomes[document] != KEPT:
            outcomes[document] = DROPPED_EARLY if is_early[number] else min(outcomes[document], DROPPED)
        elif outcome >= UNDECIDED and outcomes[document] == UNDECIDED:
            outcomes[document] = BLOCKED


def decide_in_order(better: Numbers, worse: Numbers, outcomes: npt.NDArray[np.uint8]) -> None:
    """Decide documents that are still undecided, in place, by near pairs in the order of the rank of their worse one.

    So every better document near it is decided before it: all pairs of an undecided document must be given.
    """
    _decide_all(as_read_only(better), as_read_only(worse), outcomes)


@kernel
def _decide_all(better: Any, worse: Any, outcomes: Any) -> None:
    number = 0
    while number < len(better):
        document, outcome = worse[number], KEPT
        while number < len(better) and worse[number] == document:
            if outcomes[better[number]] == KEPT:
                outcome = DROPPED
            number += 1
        outcomes[document] = outcome
