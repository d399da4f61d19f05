"""The 3-gram model that pretraining is measured against: its probabilities, against dictionaries."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from benchmark_scripts import load_script
from hypothesis import given
from hypothesis import strategies as st

kneser_ney = load_script("kneser_ney")
Row = tuple[int, ...]


class Plain:
    """Interpolated, modified Kneser-Ney as Chen and Goodman write it, from dictionaries of n-grams."""

    def __init__(self, tokens: Sequence[int], vocab_size: int) -> None:
        self.vocab_size = vocab_size
        thirds = Counter(zip(tokens, tokens[1:], tokens[2:], strict=False))
        pairs = set(itertools.pairwise(tokens))
        self.counts: dict[int, Counter[Row]] = {
            3: thirds,
            2: Counter(third[1:] for third in thirds),
            1: Counter(pair[1:] for pair in pairs),
        }

    def drawn(self, length: int, count: int) -> float:
        number = Counter(self.counts[length].values())
        one, two, three, four = (max(1, number[item]) for item in (1, 2, 3, 4))
        share = one / (one + 2 * two)
        if count == 1:
            return min(1.0, max(0.1, 1 - 2 * share * two / one))
        if count == 2:
            return min(2.0, max(0.1, 2 - 3 * share * three / two))
        return min(3.0, max(0.1, 3 - 4 * share * four / three))

    def probability(self, row: Row) -> float:
        """Of the last token after those before it."""
        if not row:
            return 1 / self.vocab_size
        followed = {item: count for item, count in self.counts[len(row)].items() if item[:-1] == row[:-1]}
        if not followed:
            return self.probability(row[1:])
        count = followed.get(row, 0)
        kept = count - self.drawn(len(row), count) if count else 0.0
        left_over = sum(self.drawn(len(row), item) for item in followed.values())
        # Without a context the shorter n-gram is the empty one: every token alike.
        shorter = self.probability(row[1:]) if len(row) > 1 else 1 / self.vocab_size
        return (kept + left_over * shorter) / sum(followed.values())


@given(st.lists(st.integers(0, 5), min_size=3, max_size=60))
def test_probabilities_are_those_of_dictionaries(tokens: list[int]) -> None:
    model, plain = kneser_ney.KneserNey.train(np.array(tokens), 6), Plain(tokens, 6)
    rows = [(first, second, third) for first in range(6) for second in range(6) for third in range(6)]
    expected = [plain.probability(row) for row in rows]
    assert model.probabilities(np.array(rows)) == pytest.approx(expected)
    pairs = [row[1:] for row in rows[:36]]
    assert model.probabilities(np.array(pairs)) == pytest.approx([plain.probability(pair) for pair in pairs])


@given(st.lists(st.integers(0, 8), min_size=3, max_size=200), st.integers(0, 8), st.integers(0, 8))
def test_probabilities_after_any_two_tokens_sum_to_one(tokens: list[int], first: int, second: int) -> None:
    model = kneser_ney.KneserNey.train(np.array(tokens), 9)
    third = model.probabilities(np.array([(first, second, token) for token in range(9)]))
    assert third.min() > 0
    assert third.sum() == pytest.approx(1)
    assert model.probabilities(np.array([(second, token) for token in range(9)])).sum() == pytest.approx(1)


def test_the_loss_is_the_mean_over_all_tokens_but_the_first() -> None:
    source = np.random.default_rng(0)
    train, held_out = source.integers(0, 7, 500), source.integers(0, 7, 90)
    plain = Plain(train.tolist(), 7)
    rows = [tuple(held_out[max(0, end - 3) : end].tolist()) for end in range(2, 91)]
    expected = -sum(math.log(plain.probability(row)) for row in rows) / 89
    model = kneser_ney.KneserNey.train(train, 7)
    assert model.loss(held_out) == pytest.approx(expected)
    assert model.loss(held_out, batch_size=7) == pytest.approx(expected)


def test_repeated_text_is_predicted() -> None:
    model = kneser_ney.KneserNey.train(np.tile([1, 2, 3, 4], 300), 50)
    assert model.loss(np.tile([1, 2, 3, 4], 20)) < 0.05


def test_a_vocabulary_too_large_for_64_bit_keys_is_refused() -> None:
    with pytest.raises(ValueError, match="3000000"):
        kneser_ney.KneserNey.train(np.arange(5), 3_000_000)
