"""Random n-grams: as many as requested, all different, and equal under every normalization."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from pipelines.algorithms.ngrams.hashing import text_ngram_hashes
from pipelines.algorithms.ngrams.random_ngrams import random_ngram_text
from pipelines.algorithms.ngrams.words import Normalization, words


@pytest.mark.parametrize("n", [1, 2, 8])
def test_ngrams_are_distinct_and_as_many_as_requested(n: int) -> None:
    encoded = [random_ngram_text(first, 500, n, seed=3) for first in range(0, 2000, 500)]
    texts_words = [words(text.tobytes().decode()) for text in encoded]
    assert [len(text) for text in texts_words] == [500 + n - 1] * 4
    assert len({word for text in texts_words for word in text}) == 2000 + n - 1
    ngrams = [tuple(text[start : start + n]) for text in texts_words for start in range(500)]
    assert len(set(ngrams)) == 2000
    whole = words(random_ngram_text(0, 2000, n, seed=3).tobytes().decode())
    assert ngrams == [tuple(whole[start : start + n]) for start in range(2000)]
    assert {len(word) for text in texts_words for word in text} == {24 if n == 1 else 12}


def test_hashes_do_not_depend_on_the_normalization() -> None:
    text = random_ngram_text(0, 300, 8, seed=1)
    starts = np.array([0, len(text)])
    options = itertools.product(("split", "drop"), ("unicode", "ascii"), ("cross", "stop"))
    hashed = {text_ngram_hashes(text, starts, 8, Normalization(*values)).hashes.tobytes() for values in options}  # type: ignore[arg-type]
    assert len(hashed) == 1
    assert len(next(iter(hashed))) == 300 * 8


def test_letters_are_uniform_and_depend_on_the_seed() -> None:
    text = random_ngram_text(0, 40_000, 8, seed=1)
    counts = np.bincount(text, minlength=256)
    used = counts[counts > 0]
    assert len(used) == 33
    assert sorted(used)[-1] == 40_007
    assert np.abs(np.sort(used)[:-1] / 15_003 - 1).max() < 0.05
    assert random_ngram_text(0, 100, 8, seed=1).tobytes() != random_ngram_text(0, 100, 8, seed=2).tobytes()
    assert random_ngram_text(0, 100, 8, seed=1).tobytes() == text[: 107 * 13].tobytes()
