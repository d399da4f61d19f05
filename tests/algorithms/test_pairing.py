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
    DROPPED_EARLY,
    FOLLOWS,
    KEPT,
    LEADS,
    LEADS_AND_FOLLOWS,
    UNDECIDED,
    decide_in_order,
    decide_round,
    estimated_jaccard,
    jaccard_of_pairs,
    min_agreement,
    near_pairs,
)


def sketches_like(random: np.random.Generator, base: np.ndarray, members: int, share: float) -> np.ndarray:
    """Return sketches of which each place is that of the base with a probability."""
    other = random.integers(0, 256, (members, len(base)), dtype=np.uint8)
    return np.where(random.random((members, len(base))) < share, base, other)


def pairs_of(starts: list[int], sketches: np.ndarray, roles: np.ndarray, threshold: float) -> list[tuple[int, int]]:
    parts = near_pairs(np.array(starts), sketches, roles.astype(np.uint8), threshold)
    return [(int(left), int(right)) for pairs, _ in parts for left, right in pairs.T]


def may_be_compared(left: int, right: int) -> bool:
    return left != FOLLOWS and right != LEADS


def test_the_pairs_of_groups_that_may_be_near_are_returned_once_according_to_their_roles():
    random = np.random.default_rng(1)
    base = random.integers(0, 256, 128, dtype=np.uint8)
    sketches = np.concatenate([sketches_like(random, base, 30, share) for share in (0.95, 0.6, 0.1)])
    starts = [0, 2, 40, 41, 90]
    roles = random.integers(0, 3, 90)
    limit = min_agreement(128, 0.8)
    expected = [
        (left, right)
        for first, last in itertools.pairwise(starts)
        for left, right in itertools.combinations(range(first, last), 2)
        if np.count_nonzero(sketches[left] == sketches[right]) >= limit and may_be_compared(roles[left], roles[right])
    ]
    assert sorted(pairs_of(starts, sketches, roles, 0.8)) == sorted(expected)
    assert len(expected) > 100


def test_more_pairs_than_the_buffer_holds_are_returned_and_members_compared_in_part_are_counted(monkeypatch):
    random = np.random.default_rng(3)
    sketches = sketches_like(random, random.integers(0, 256, 128, dtype=np.uint8), 300, 0.9)
    roles = np.full(300, LEADS_AND_FOLLOWS)
    whole = sorted(pairs_of([0, 60, 300], sketches, roles, 0.8))
    monkeypatch.setattr(pairing, "_BUFFERED_PAIRS", 400)
    assert sorted(pairs_of([0, 60, 300], sketches, roles, 0.8)) == whole
    monkeypatch.setattr(pairing, "MAX_LEADERS", 5)
    parts = list(near_pairs(np.array([0, 300]), sketches, roles.astype(np.uint8), 0.8))
    assert sum(limited for _, limited in parts) == 295
    assert {int(left) for pairs, _ in parts for left in pairs[0]} <= set(range(5))


def test_limits_and_estimates():
    assert 75 < min_agreement(128, 0.8) < 85
    random = np.random.default_rng(4)
    for similarity in (0.0, 0.3, 0.8, 1.0):
        agreements = random.binomial(128, similarity + (1 - similarity) / 256, 20_000)
        assert np.mean(estimated_jaccard(agreements, 128)) == pytest.approx(similarity, abs=0.01)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sets(st.integers(0, 40), max_size=30), min_size=1, max_size=8), st.data())
def test_the_similarity_of_sets_is_the_jaccard_similarity(sets, data):
    numbers = st.integers(0, len(sets) - 1)
    pairs = data.draw(st.lists(st.tuples(numbers, numbers), max_size=10))
    hashes = np.array([value for one in sets for value in sorted(one)], np.uint64)
    starts = np.cumsum([0, *map(len, sets)])
    expected = [len(sets[a] & sets[b]) / len(sets[a] | sets[b]) if sets[a] | sets[b] else 0 for a, b in pairs]
    assert jaccard_of_pairs(hashes, starts, np.array(pairs, np.int64).reshape(-1, 2).T).tolist() == expected


_cases = st.integers(1, 12).flatmap(
    lambda documents: st.tuples(
        st.lists(st.integers(0, 3), min_size=documents, max_size=documents).map(sorted),
        st.sets(st.tuples(*[st.integers(0, documents - 1)] * 2)),
    )
)


@settings(max_examples=200, deadline=None)
@given(_cases, st.integers(0, 3))
def test_a_document_is_dropped_exactly_if_a_better_one_near_it_is_kept(case, wave):
    waves, pairs = case
    edges = [(better, worse) for better, worse in pairs if better < worse]
    expected = np.zeros(len(waves), np.uint8)
    for document in range(len(waves)):
        kept = [better for better, worse in edges if worse == document and expected[better] == KEPT]
        early = any(waves[better] < wave for better in kept)
        expected[document] = DROPPED_EARLY if early else DROPPED if kept else KEPT
    better, worse = np.array(edges, np.int64).reshape(-1, 2).T.copy()
    is_early = np.array([waves[document] < wave for document in better.tolist()], bool)
    start = np.zeros(len(waves), np.uint8)
    start[worse] = UNDECIDED
    in_order, rounds = start.copy(), start.copy()
    order = np.argsort(worse, kind="stable")
    decide_in_order(better[order], worse[order], in_order)
    decide_round(better, worse, is_early, in_order)
    assert in_order.tolist() == expected.tolist()
    for _ in range(len(waves) + 1):
        decide_round(better, worse, is_early, rounds)
        rounds[rounds == UNDECIDED] = KEPT
        rounds[rounds == BLOCKED] = UNDECIDED
    assert rounds.tolist() == expected.tolist()
