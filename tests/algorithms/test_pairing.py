"""Pairs of a bucket, similarities of sets, and which documents are kept, each against a plain computation."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.algorithms.minhash import pairing
from pipelines.algorithms.minhash.pairing import (
    BLOCKED,
    DROPPED,
    EARLIER,
    KEPT,
    LEADER,
    NEW,
    UNDECIDED,
    agreement_limits,
    decide_in_order,
    decide_round,
    estimated_jaccard,
    jaccard_of_pairs,
    near_pairs,
)

_HASHES = st.integers(0, 40) | st.integers(0, (1 << 64) - 1)


def sketches_like(random: np.random.Generator, base: np.ndarray, members: int, share: float) -> np.ndarray:
    """Return sketches of which each place is that of the base with a probability."""
    other = random.integers(0, 256, (members, len(base)), dtype=np.uint8)
    return np.where(random.random((members, len(base))) < share, base, other)


def pairs_of(
    starts: list[int], sketches: np.ndarray, roles: np.ndarray, threshold: float
) -> tuple[list[tuple[int, int]], np.ndarray, int]:
    leads = np.zeros(len(sketches), bool)
    parts = list(near_pairs(np.array(starts), sketches, roles.astype(np.uint8), threshold, leads))
    pairs = [(int(left), int(right)) for pairs, _ in parts for left, right in pairs.T]
    return pairs, leads, sum(limited for _, limited in parts)


def test_the_pairs_of_small_groups_that_may_be_near_are_returned_once_according_to_their_roles():
    random = np.random.default_rng(1)
    base = random.integers(0, 256, 128, dtype=np.uint8)
    sketches = np.concatenate([sketches_like(random, base, 30, share) for share in (0.95, 0.6, 0.1)])
    starts = [0, 2, 40, 41, 90]
    roles = np.concatenate([np.sort(random.integers(0, 3, end - first)) for first, end in itertools.pairwise(starts)])
    limit, _ = agreement_limits(128, 0.8)
    expected = [
        (left, right)
        for first, last in itertools.pairwise(starts)
        for left, right in itertools.combinations(range(first, last), 2)
        if np.count_nonzero(sketches[left] == sketches[right]) >= limit and roles[right] == NEW
    ]
    pairs, leads, limited = pairs_of(starts, sketches, roles, 0.8)
    assert sorted(pairs) == sorted(expected)
    assert len(expected) > 100
    assert leads.tolist() == (roles == NEW).tolist()
    assert limited == 0


def test_in_a_large_group_new_members_follow_new_or_earlier_ones_that_they_are_surely_near():
    random = np.random.default_rng(2)
    bases = random.integers(0, 256, (3, 128), dtype=np.uint8)
    families = np.concatenate([sketches_like(random, base, 400, 0.99) for base in bases])
    # One document of the first family is of an earlier corpus, one of the second led in an earlier round.
    order = np.concatenate(([0, 400], 1 + random.permutation(398), 401 + random.permutation(799)))
    roles = np.array([EARLIER, LEADER, *[NEW] * (len(order) - 2)])
    pairs, leads, _ = pairs_of([0, len(order)], families[order], roles, 0.8)
    family = np.repeat(np.arange(3), 400)[order]
    # None of the first family leads, one of the second does, although it is near the leader, and one of the third.
    assert [int(np.count_nonzero(leads[family == number])) for number in range(3)] == [0, 1, 1]
    assert {(0, member) for member in np.flatnonzero(family == 0).tolist() if member} <= set(pairs)
    assert len(pairs) < 2 * len(order)


def test_more_pairs_than_the_buffer_holds_are_returned_and_members_compared_in_part_are_counted(monkeypatch):
    random = np.random.default_rng(3)
    sketches = sketches_like(random, random.integers(0, 256, 128, dtype=np.uint8), 300, 0.9)
    roles = np.full(300, NEW)
    whole = sorted(pairs_of([0, 60, 300], sketches, roles, 0.8)[0])
    monkeypatch.setattr(pairing, "_BUFFERED_PAIRS", 400)
    assert sorted(pairs_of([0, 60, 300], sketches, roles, 0.8)[0]) == whole
    monkeypatch.setattr(pairing, "MAX_LEADERS", 5)
    monkeypatch.setattr(pairing, "ALL_PAIRS", 1000)
    pairs, leads, limited = pairs_of([0, 300], sketches, roles, 0.8)
    assert limited == 295
    assert leads.all()
    assert {left for left, _ in pairs} <= set(range(5))


def test_limits_and_estimates():
    low, high = agreement_limits(128, 0.8)
    assert 75 < low < 0.8 * 128 < high < 125
    assert agreement_limits(1024, 0.1)[0] > 40
    random = np.random.default_rng(4)
    for similarity in (0.0, 0.3, 0.8, 1.0):
        agreements = random.binomial(128, similarity + (1 - similarity) / 256, 20_000)
        assert np.mean(estimated_jaccard(agreements, 128)) == pytest.approx(similarity, abs=0.01)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.sets(st.integers(0, 40) | st.integers(0, (1 << 64) - 1), max_size=30), min_size=1, max_size=8),
    st.data(),
)
def test_the_similarity_of_sets_is_the_jaccard_similarity(sets, data):
    numbers = st.integers(0, len(sets) - 1)
    pairs = data.draw(st.lists(st.tuples(numbers, numbers), max_size=10))
    hashes = np.array([value for one in sets for value in sorted(one)], np.uint64)
    starts = np.cumsum([0, *map(len, sets)])
    expected = [len(sets[a] & sets[b]) / len(sets[a] | sets[b]) if sets[a] | sets[b] else 0 for a, b in pairs]
    assert jaccard_of_pairs(hashes, starts, np.array(pairs, np.int64).reshape(-1, 2).T).tolist() == expected


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 12).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.tuples(*[st.integers(0, n - 1)] * 2)))))
def test_a_document_is_dropped_exactly_if_a_better_one_near_it_is_kept(case):
    documents, pairs = case
    edges = [(better, worse) for better, worse in pairs if better < worse]
    expected = np.zeros(documents, np.uint8)
    for document in range(documents):
        near = [better for better, worse in edges if worse == document]
        expected[document] = DROPPED if any(expected[better] == KEPT for better in near) else KEPT
    better, worse = np.array(edges, np.int64).reshape(-1, 2).T.copy()
    rounds = np.zeros(documents, np.uint8)
    rounds[worse] = UNDECIDED
    for _ in range(documents):
        decide_round(better, worse, rounds)
        rounds[rounds == UNDECIDED] = KEPT
        rounds[rounds == BLOCKED] = UNDECIDED
    assert rounds.tolist() == expected.tolist()
    at_once = np.zeros(documents, np.uint8)
    at_once[worse] = UNDECIDED
    order = np.argsort(worse, kind="stable")
    decide_in_order(better[order], worse[order], at_once)
    assert at_once.tolist() == expected.tolist()
