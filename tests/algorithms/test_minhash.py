from __future__ import annotations

import itertools
import random
from itertools import pairwise

import numpy as np
import pytest
from datasketch import MinHash
from datasketch.hashfunc import sha1_hash32
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.algorithms.kernels.union_find import DisjointSets
from pipelines.algorithms.minhash.signatures import (
    band_keys,
    candidate_probability,
    choose_bands,
    jaccard,
    normalized_text,
    shingle_hashes,
    shingles_of,
    signature_of,
    text_hash,
    words_of,
)

TEXTS = st.lists(st.sampled_from("the river rises in hills above town and runs".split()), max_size=30).map(" ".join)


def words_with(similarity: float, size: int, rng: random.Random) -> tuple[str, str]:
    """Return two texts of distinct words whose sets of words have about this Jaccard similarity."""
    shared = round(2 * size * similarity / (1 + similarity))
    names = [f"w{rng.getrandbits(60):x}" for _ in range(2 * size)]
    return " ".join(names[:size]), " ".join(names[:shared] + names[size : 2 * size - shared])


@given(TEXTS, st.integers(1, 7))
def test_shingles_are_the_runs_of_words(text, ngram):
    words = text.split()
    runs = {" ".join(run) for run in zip(*(words[start:] for start in range(ngram)), strict=False)}
    assert set(shingles_of(text, ngram)) == (runs or ({text} if words else set()))


def test_words_are_compared_in_lower_case_and_one_unicode_form():
    assert words_of("Café, CAFE\u0301! déjà-vu 42") == ["café", "café", "déjà", "vu", "42"]
    assert words_of("... !?") == []


def test_equal_texts_differ_only_in_white_space_and_unicode_form():
    assert normalized_text(" cafe\u0301 \n\t au  lait\u00a0") == "café au lait"
    assert text_hash("cafe\u0301\nau lait") == text_hash("café au  lait ")
    assert text_hash("Café au lait") != text_hash("café au lait")
    assert len(text_hash("")) == 16


@given(TEXTS, st.integers(1, 6))
def test_shingle_hashes_are_sorted_distinct_and_match_datasketch(text, ngram):
    hashes = shingle_hashes(text, ngram)
    assert all(left < right for left, right in pairwise(hashes.tolist()))
    wanted = {sha1_hash32(shingle.encode()) for shingle in shingles_of(text, ngram)}
    assert {value & 0xFFFFFFFF for value in hashes.tolist()} == wanted


@given(st.sets(st.integers(0, 40)), st.sets(st.integers(0, 40)))
def test_jaccard_matches_python_sets(left, right):
    arrays = [np.array(sorted(each), dtype=np.uint64) for each in (left, right)]
    wanted = len(left & right) / len(left | right) if left and right else 0.0
    assert jaccard(*arrays) == wanted


@settings(deadline=None, max_examples=30)
@given(TEXTS.filter(bool), st.sampled_from([16, 128]), st.integers(0, 5))
def test_signatures_match_datasketch(text, num_perm, seed):
    theirs = MinHash(num_perm, seed)
    theirs.update_batch([shingle.encode() for shingle in shingles_of(text, 3)])
    ours = signature_of(shingle_hashes(text, 3), num_perm, seed)
    assert ours.dtype == np.uint32
    assert (ours == theirs.hashvalues).all()


def test_signatures_do_not_depend_on_the_batch_size():
    text = " ".join(f"w{number}" for number in range(20_000))
    theirs = MinHash(32, 1)
    theirs.update_batch([word.encode() for word in text.split()])
    assert (signature_of(shingle_hashes(text, 1), 32, 1) == theirs.hashvalues).all()


@pytest.mark.parametrize("similarity", [0.1, 0.5, 0.8, 0.95])
def test_the_estimate_is_close_to_the_true_similarity(similarity):
    rng = random.Random(7)
    errors = []
    for _ in range(40):
        left, right = (shingle_hashes(text, 1) for text in words_with(similarity, 300, rng))
        estimate = np.mean(signature_of(left, 256, 1) == signature_of(right, 256, 1))
        errors.append(estimate - jaccard(left, right))
    deviation = (similarity * (1 - similarity) / 256) ** 0.5
    assert abs(np.mean(errors)) < 4 * deviation / 40**0.5
    assert np.std(errors) < 1.6 * deviation


def test_candidates_are_as_frequent_as_the_curve_says():
    rng = random.Random(3)
    bands, rows = choose_bands(128, 0.8)
    for similarity in (0.5, 0.6, 0.7, 0.8, 0.9):
        found = 0
        for _ in range(200):
            left, right = (shingle_hashes(text, 1) for text in words_with(similarity, 100, rng))
            keys = band_keys(np.stack([signature_of(each, 128, 1) for each in (left, right)]), bands, rows)
            found += bool((keys[0] == keys[1]).any())
        expected = candidate_probability(similarity, bands, rows)
        assert abs(found / 200 - expected) < 4 * (expected * (1 - expected) / 200) ** 0.5 + 0.01


@pytest.mark.parametrize(
    ("num_perm", "threshold", "bands", "rows"),
    [(128, 0.8, 21, 6), (128, 0.5, 42, 3), (128, 0.9, 12, 10), (128, 1.0, 1, 128), (256, 0.8, 32, 8), (16, 0.1, 16, 1)],
)
def test_chosen_bands(num_perm, threshold, bands, rows):
    assert choose_bands(num_perm, threshold) == (bands, rows)
    assert bands * rows <= num_perm


def test_the_curve():
    assert candidate_probability(1.0, 21, 6) == 1.0
    assert candidate_probability(0.0, 21, 6) == 0.0
    assert candidate_probability(0.8, 14, 8) == pytest.approx(0.924, abs=0.001)  # as published for datatrove


def test_band_keys_are_equal_for_equal_bands_only():
    rng = np.random.default_rng(1)
    signatures = rng.integers(0, 3, (500, 8), dtype=np.uint32)
    keys = band_keys(signatures, 3, 2)
    assert keys.shape == (500, 3)
    for band in range(3):
        of_values: dict[tuple[int, ...], int] = {}
        for values, key in zip(signatures[:, 2 * band : 2 * band + 2].tolist(), keys[:, band].tolist(), strict=True):
            assert of_values.setdefault(tuple(values), key) == key
        assert len(set(of_values.values())) == len(of_values) == 9


@settings(deadline=None)
@given(st.integers(1, 40), st.data())
def test_sets_are_the_connected_components(nodes, data):
    node = st.integers(0, nodes - 1)
    edges = data.draw(st.lists(st.tuples(node, node), max_size=60))
    sets = DisjointSets(nodes)
    for left, right in edges:
        sets.union(left, right)
    wanted = list(range(nodes))
    for _ in range(nodes):
        for one, other in edges:
            wanted[one] = wanted[other] = min(wanted[one], wanted[other])
    assert sets.labels().tolist() == wanted == [sets.find(number) for number in range(nodes)]


@pytest.mark.parametrize("order", ["up", "down", "shuffled"])
def test_a_long_chain_is_one_set(order):
    numbers = np.arange(100_000, dtype=np.int64)
    if order == "down":
        numbers = numbers[::-1].copy()
    if order == "shuffled":
        np.random.default_rng(2).shuffle(numbers)
    sets = DisjointSets(len(numbers))
    for left, right in itertools.pairwise(numbers.tolist()):
        sets.union(left, right)
    assert not sets.labels().any()
