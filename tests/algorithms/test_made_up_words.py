"""Words that no corpus holds: as many n-grams as asked for, all different, the same by every normalization."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from pipelines.algorithms.ngrams.hashing import text_ngram_hashes
from pipelines.algorithms.ngrams.random_ngrams import made_up_text
from pipelines.algorithms.ngrams.words import Normalization, words


@pytest.mark.parametrize("n", [1, 2, 8])
def test_ngrams_are_as_many_as_asked_for_and_all_different(n: int) -> None:
    texts = [made_up_text(first, 500, n, seed=3) for first in range(0, 2000, 500)]
    found = [words(text.tobytes().decode()) for text in texts]
    assert [len(each) for each in found] == [500 + n - 1] * 4
    assert len({word for each in found for word in each}) == 2000 + n - 1
    ngrams = [tuple(each[start : start + n]) for each in found for start in range(500)]
    assert len(set(ngrams)) == 2000
    whole = words(made_up_text(0, 2000, n, seed=3).tobytes().decode())
    assert ngrams == [tuple(whole[start : start + n]) for start in range(2000)]
    assert {len(word) for each in found for word in each} == {24 if n == 1 else 12}


def test_every_normalization_makes_the_same_hashes() -> None:
    text = made_up_text(0, 300, 8, seed=1)
    starts = np.array([0, len(text)])
    ways = itertools.product(("split", "drop"), ("unicode", "ascii"), ("cross", "stop"))
    hashed = {text_ngram_hashes(text, starts, 8, Normalization(*way)).hashes.tobytes() for way in ways}  # type: ignore[arg-type]
    assert len(hashed) == 1
    assert len(next(iter(hashed))) == 300 * 8


def test_letters_are_used_alike_and_seeds_differ() -> None:
    text = made_up_text(0, 40_000, 8, seed=1)
    counts = np.bincount(text, minlength=256)
    used = counts[counts > 0]
    assert len(used) == 33
    assert sorted(used)[-1] == 40_007
    assert np.abs(np.sort(used)[:-1] / 15_003 - 1).max() < 0.05
    assert made_up_text(0, 100, 8, seed=1).tobytes() != made_up_text(0, 100, 8, seed=2).tobytes()
    assert made_up_text(0, 100, 8, seed=1).tobytes() == text[: 107 * 13].tobytes()
