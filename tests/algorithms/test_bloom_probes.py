"""Random words that every normalization reads alike; Poisson limits against published tables and direct sums."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from reference_ngrams import words

from pipelines.algorithms.bloom.probes import random_words, tail_probability, upper_limit
from pipelines.algorithms.ngrams.hashing import text_ngram_hashes
from pipelines.algorithms.ngrams.words import Normalization


def test_words_are_distinct_and_depend_on_batch_and_seed() -> None:
    texts = [random_words(500, seed, batch).tobytes().decode() for seed, batch in [(3, 0), (3, 1), (4, 0)]]
    assert [len(words(text)) for text in texts] == [500] * 3
    assert len({word for text in texts for word in words(text)}) == 1500
    assert random_words(500, 3, 0).tobytes().decode() == texts[0]


def test_hashes_do_not_depend_on_the_normalization() -> None:
    text = random_words(307, 1, 0)
    options = itertools.product(("split", "drop"), ("unicode", "ascii"), ("cross", "stop"))
    normalizations = [Normalization(*values) for values in options]  # type: ignore[arg-type]
    hashed = {text_ngram_hashes(text, np.array([0, len(text)]), 8, way).hashes.tobytes() for way in normalizations}
    assert [len(hashes) for hashes in hashed] == [300 * 8]


# Garwood's exact limits at 95%, one-sided, from published tables.
@pytest.mark.parametrize(("events", "limit"), [(0, 2.996), (1, 4.744), (2, 6.296), (5, 10.513), (10, 16.962)])
def test_limits_equal_published_tables(events: int, limit: float) -> None:
    assert upper_limit(events) == pytest.approx(limit, abs=6e-4)


@pytest.mark.parametrize("events", [0, 3, 40, 10_000, 3_000_000])
def test_the_tail_beyond_a_limit_has_the_confidence(events: int) -> None:
    assert 1 - tail_probability(events + 1, upper_limit(events, 0.99)) == pytest.approx(0.01, rel=1e-3)


@pytest.mark.parametrize("mean", [0.001, 0.5, 7.3, 60.0])
def test_tail_probabilities_equal_direct_sums(mean: float) -> None:
    terms = [math.exp(-mean) * mean**count / math.factorial(count) for count in range(150)]
    for events in (0, 1, 2, 5, 20, 60, 90):
        assert tail_probability(events, mean) == pytest.approx(sum(terms[events:]), rel=1e-9, abs=1e-15)


def test_tail_probabilities_of_extreme_means() -> None:
    assert tail_probability(0, 0.0) == 1.0
    assert tail_probability(1, 0.0) == 0.0
    assert tail_probability(10**6, 1.0) == 0.0
