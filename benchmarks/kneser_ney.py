"""A 3-gram model with interpolated, modified Kneser-Ney smoothing (Chen and Goodman 1998).

The baseline for a neural model: it counts, and uses two tokens of context. N-grams are sorted integers, so 20 million
tokens take seconds and some hundred MB.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_LOSS_BATCH = 1 << 20


@dataclasses.dataclass(frozen=True)
class Level:
    """The n-grams of one length: sorted keys, and the probabilities of n-grams and contexts before interpolation.

    `discounted` is the discounted probability of an n-gram in its context; `backoff` is a context's weight of the
    shorter n-gram.
    """

    keys: Ids
    discounted: Floats
    contexts: Ids
    backoff: Floats


@dataclasses.dataclass(frozen=True)
class KneserNey:
    """The model; `first` are the unigram probabilities, [vocab_size]."""

    vocab_size: int
    first: Floats
    second: Level
    third: Level

    @staticmethod
    def train(tokens: Ids, vocab_size: int) -> KneserNey:
        """Count 3-grams; the count of a shorter n-gram is the number of different tokens that precede it."""
        if vocab_size**3 >= 1 << 63:
            raise ValueError(f"a vocabulary of {vocab_size} entries is too large for 64-bit keys")
        thirds, counts = np.unique(_keys(tokens, 3, vocab_size), return_counts=True)
        pairs = np.unique(_keys(tokens, 2, vocab_size))
        seconds, before_pairs = np.unique(thirds % vocab_size**2, return_counts=True)
        before_ones = np.bincount(pairs % vocab_size, minlength=vocab_size)
        return KneserNey(
            vocab_size,
            _without_context(before_ones),
            _level(seconds, before_pairs, vocab_size),
            _level(thirds, counts, vocab_size),
        )

    def probabilities(self, rows: Ids) -> Floats:
        """Return the probability of each row's last token after the one or two before it; ids [rows, 2 or 3]."""
        lower = self.first[rows[:, -1]]
        lower = _interpolated(self.second, rows[:, -2:], lower, self.vocab_size)
        return lower if rows.shape[1] == 2 else _interpolated(self.third, rows, lower, self.vocab_size)

    def loss(self, tokens: Ids, batch_size: int = _LOSS_BATCH) -> float:
        """Return the mean loss, in nats, of all tokens but the first."""
        nats = -float(np.log(self.probabilities(tokens[np.newaxis, :2])).sum())
        windows = np.lib.stride_tricks.sliding_window_view(tokens, 3)
        for start in range(0, len(windows), batch_size):
            nats -= float(np.log(self.probabilities(windows[start : start + batch_size])).sum())
        return nats / (len(tokens) - 1)


def discounts(counts: Ids) -> Floats:
    """Return the discounts of the counts 0, 1, 2, and 3 or more, from how many n-grams have the counts 1 to 4.

    If there are none with a count, as in small texts, one is assumed.
    """
    one, two, three, four = (max(1, int((counts == number).sum())) for number in (1, 2, 3, 4))
    share = one / (one + 2 * two)
    values = [0.0, 1 - 2 * share * two / one, 2 - 3 * share * three / two, 3 - 4 * share * four / three]
    # At most the count, and more than 0, so that unseen n-grams have a probability.
    return np.clip(values, [0, 0.1, 0.1, 0.1], [0, 1, 2, 3])


def _keys(tokens: Ids, length: int, vocab_size: int) -> Ids:
    """Return each n-gram as an integer, with the last token in the lowest digits."""
    key = tokens[: len(tokens) - length + 1].copy()
    for offset in range(1, length):
        key *= vocab_size
        key += tokens[offset : len(tokens) - length + 1 + offset]
    return key


def _level(keys: Ids, counts: Ids, vocab_size: int) -> Level:
    discount = discounts(counts)[np.minimum(counts, 3)]
    contexts, starts = np.unique(keys // vocab_size, return_index=True)
    totals = np.add.reduceat(counts, starts)
    sizes = np.diff(np.append(starts, len(keys)))
    return Level(
        keys, (counts - discount) / np.repeat(totals, sizes), contexts, np.add.reduceat(discount, starts) / totals
    )


def _without_context(counts: Ids) -> Floats:
    """Return unigram probabilities; the discounted mass is distributed evenly."""
    discount = discounts(counts)[np.minimum(counts, 3)]
    probabilities: Floats = (counts - discount + discount.sum() / len(counts)) / counts.sum()
    return probabilities


def _interpolated(level: Level, rows: Ids, lower: Floats, vocab_size: int) -> Floats:
    context = _row_keys(rows[:, :-1], vocab_size)
    discounted = _lookup(level.keys, level.discounted, context * vocab_size + rows[:, -1], 0.0)
    # An unseen context gives the shorter n-gram all the weight.
    return discounted + _lookup(level.contexts, level.backoff, context, 1.0) * lower


def _row_keys(rows: Ids, vocab_size: int) -> Ids:
    key = rows[:, 0].copy()
    for column in range(1, rows.shape[1]):
        key = key * vocab_size + rows[:, column]
    return key


def _lookup(keys: Ids, values: Floats, queries: Ids, default: float) -> Floats:
    indices = np.minimum(np.searchsorted(keys, queries), len(keys) - 1)
    return np.where(keys[indices] == queries, values[indices], default)
