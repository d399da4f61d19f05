"""MinHash signatures estimate the similarity of sets, and bands are chosen by the S-curve."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from pipelines.algorithms.minhash.signing import candidate_probability, choose_bands, sign


def words_with(similarity: float, size: int, rng: random.Random) -> tuple[str, str]:
    """Return two texts of distinct words whose sets of words have about this Jaccard similarity."""
    shared = round(2 * size * similarity / (1 + similarity))
    names = [f"w{rng.getrandbits(60):x}" for _ in range(2 * size)]
    return " ".join(names[:size]), " ".join(names[:shared] + names[size : 2 * size - shared])


@pytest.mark.parametrize("similarity", [0.1, 0.5, 0.8, 0.95])
def test_the_estimate_is_close_to_the_true_similarity(similarity):
    rng = random.Random(7)
    pairs = [words_with(similarity, 300, rng) for _ in range(40)]
    left, right = (sign(pa.array(side), 1, 256, 1).values for side in zip(*pairs, strict=True))
    true = [
        len(set(one.split()) & set(other.split())) / len(set(one.split()) | set(other.split())) for one, other in pairs
    ]
    errors = np.mean(left == right, axis=1) - true
    deviation = (similarity * (1 - similarity) / 256) ** 0.5
    assert abs(np.mean(errors)) < 4 * deviation / 40**0.5
    assert np.std(errors) < 1.6 * deviation


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
