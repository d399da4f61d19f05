"""Pairs of documents in a bucket: candidates for near-duplicates, their similarity, and which documents are kept."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from pipelines.algorithms.kernels.byte_scan import bit_count, word_at
from pipelines.algorithms.kernels.compilation import as_read_only, helper, kernel

Numbers = npt.NDArray[np.int64]

# In a group of at most this many documents all pairs are compared. In a larger one, a document that is surely near an
# earlier one is compared with at most MAX_LEADERS leaders, and is not a leader itself.
ALL_PAIRS, MAX_LEADERS = 64, 4096
# The probability that a pair at the threshold is not compared because its sketches agree in few places, and that one
# below it counts as surely near.
_MISSED, _WRONGLY_SURE = 1e-6, 1e-2
_BUFFERED_PAIRS = 1 << 16
# The state of a scan: the group and member to continue with, and the numbers of leaders, of members with too many, and
# of new members.
_GROUP, _MEMBER, _LEADERS, _LIMITED, _NEW = range(5)

# The roles of members: documents of earlier corpora, which are not compared with each other; leaders of earlier rounds,
# which have been compared with each other; and documents that are compared with both and with each other.
EARLIER, LEADER, NEW = range(3)

_LOW_BITS, _TOP_BITS = np.uint64(0x7F7F7F7F7F7F7F7F), np.uint64(0x8080808080808080)

# Outcomes of documents.
KEPT, DROPPED, UNDECIDED, BLOCKED = range(4)


@functools.cache
def agreement_limits(places: int, threshold: float) -> tuple[int, int]:
    """Return the minimum number of equal places in sketches of a pair at the threshold, and of a pair surely above it.

    Bytes of different MinHash values are equal with probability 1/256.
    """
    equal = threshold + (1 - threshold) / 256
    shares = [math.comb(places, count) * equal**count * (1 - equal) ** (places - count) for count in range(places + 1)]
    fewer = np.cumsum([0.0, *shares])
    lowest = int(np.searchsorted(fewer, _MISSED, side="right")) - 1
    return max(0, lowest), min(places, int(np.searchsorted(fewer, 1 - _WRONGLY_SURE)))


def estimated_jaccard(agreement: npt.NDArray[Any], num_perm: int) -> npt.NDArray[np.float64]:
    """Return the similarity that equal bytes of two sketches suggest."""
    return np.asarray(np.clip((agreement / num_perm - 1 / 256) / (1 - 1 / 256), 0, 1))


def near_pairs(
    starts: Numbers,
    sketches: npt.NDArray[np.uint8],
    roles: npt.NDArray[np.uint8],
    threshold: float,
    leads: npt.NDArray[np.bool_],
    first_leaders: int = 0,
) -> Iterator[tuple[Numbers, int]]:
    """Yield the pairs of members of a group that may be near, shape (2, pairs), and how many were compared in part.

    `starts` are the first members of groups, and last the number of members. The members of a group are in the order of
    their roles, and then the best first; sketches have a multiple of 8 bytes. `leads` is set for new members that lead:
    all of a group with `leads` have been compared with each other. The first `first_leaders` new members lead in any
    case.
    """
    state, leaders = np.zeros(5, np.int64), np.empty(MAX_LEADERS, np.int64)
    pairs = np.empty((2, max(_BUFFERED_PAIRS, MAX_LEADERS)), np.int64)
    arrays = [as_read_only(array) for array in (starts, sketches, roles)]
    limits = agreement_limits(sketches.shape[1], threshold)
    while state[_GROUP] < len(starts) - 1:
        state[_LIMITED] = 0
        size = _find_near(*arrays, *limits, ALL_PAIRS, first_leaders, state, leaders, pairs, leads)
        yield pairs[:, :size].copy(), int(state[_LIMITED])


@kernel
def _find_near(
    starts: Any, sketches: Any, roles: Any, low: Any, high: Any, small: Any, first_leaders: Any, state: Any,
    leaders: Any, pairs: Any, leads: Any,
) -> Any:  # fmt: skip
    """Write pairs until the buffer might be full or the groups end; return how many."""
    size = 0
    while state[_GROUP] < len(starts) - 1:
        first, end = starts[state[_GROUP]], starts[state[_GROUP] + 1]
        if state[_MEMBER] <= first:
            state[_MEMBER], state[_LEADERS], state[_NEW] = first, 0, 0
        while state[_MEMBER] < end:
            member, count = state[_MEMBER], state[_LEADERS]
            if size + count > pairs.shape[1]:
                return size
            is_new, is_follower = roles[member] == NEW, False
            for number in range(count if is_new else 0):
                leader = leaders[number]
                agreement = agreeing(sketches[leader], sketches[member])
                pairs[0, size], pairs[1, size] = leader, member
                size += agreement >= low
                # Not of leaders of earlier rounds: what followed them and is new was not dropped for them.
                is_follower |= agreement >= high and roles[leader] != LEADER
            state[_NEW] += is_new
            if not is_follower or end - first <= small or state[_NEW] <= first_leaders:
                leads[member] = is_new
                if count < len(leaders):
                    leaders[count] = member
                    state[_LEADERS] += 1
                else:
                    state[_LIMITED] += 1
            state[_MEMBER] += 1
        state[_GROUP] += 1
    return size


@helper
def agreeing(left, right):  # type: ignore[no-untyped-def]
    """Return how many bytes of two equally long uint8 arrays are equal; the length is a multiple of 8."""
    equal = np.int64(0)
    for at in range(0, len(left), 8):
        bits = word_at(left, at) ^ word_at(right, at)
        # The top bit of each byte that is not zero.
        bits = ((bits & _LOW_BITS) + _LOW_BITS) | bits
        equal += bit_count(~bits & _TOP_BITS)
    return equal


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
        at, end = starts[pairs[0, number]], starts[pairs[0, number] + 1]
        other, other_end = starts[pairs[1, number]], starts[pairs[1, number] + 1]
        union = end - at + other_end - other
        shared = np.int64(0)
        while at < end and other < other_end:
            value, other_value = hashes[at], hashes[other]
            shared += value == other_value
            at += value <= other_value
            other += other_value <= value
        similarities[number] = shared / (union - shared) if shared else 0.0


def decide_round(better: Numbers, worse: Numbers, outcomes: npt.NDArray[np.uint8]) -> None:
    """Apply near pairs to the outcomes of documents, in place.

    A document is dropped if a better one near it is kept, and blocked while a better one near it is undecided.
    """
    _decide(as_read_only(better), as_read_only(worse), outcomes)


@kernel
def _decide(better: Any, worse: Any, outcomes: Any) -> None:
    for number in range(len(better)):
        outcome = outcomes[better[number]]
        if outcomes[worse[number]] >= UNDECIDED:
            if outcome == KEPT:
                outcomes[worse[number]] = DROPPED
            elif outcome >= UNDECIDED:
                outcomes[worse[number]] = BLOCKED


def decide_in_order(better: Numbers, worse: Numbers, outcomes: npt.NDArray[np.uint8]) -> None:
    """Decide all undecided documents, in place, by their near pairs in the order of the rank of the worse document."""
    outcomes[outcomes == UNDECIDED] = KEPT
    _drop_in_order(as_read_only(better), as_read_only(worse), outcomes)


@kernel
def _drop_in_order(better: Any, worse: Any, outcomes: Any) -> None:
    for number in range(len(better)):
        if outcomes[better[number]] == KEPT:
            outcomes[worse[number]] = DROPPED
