"""A 3-gram model with interpolated, modified Kneser-Ney smoothing (Chen and Goodman 1998) over a row of tokens.

What a neural model has to beat: it counts, and knows nothing beyond two tokens back. N-grams are kept as sorted
integers, so that 20 million tokens take some seconds and some hundred MB.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_BATCH = 1 << 20


@dataclasses.dataclass(frozen=True)
class Level:
    """The n-grams of one length: sorted keys, and what they and their contexts are worth before interpolation.

    `kept` is the discounted share of an n-gram in its context; `left_over` is what the discounts of a context leave
    to the shorter n-gram.
    """

    keys: Ids
    kept: Floats
    contexts: Ids
    left_over: Floats


@dataclasses.dataclass(frozen=True)
class KneserNey:
    """The model of a row of tokens; `first` are the probabilities without a context, [vocab_size]."""

    vocab_size: int
    first: Floats
    second: Level
    third: Level

    @staticmethod
    def train(tokens: Ids, vocab_size: int) -> KneserNey:
        """Count the 3-grams of a row; shorter ones count how many different tokens stand before them."""
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

    def loss(self, tokens: Ids) -> float:
        """Return the mean loss, in nats, of all tokens of a row but the first."""
        nats = -float(np.log(self.probabilities(tokens[np.newaxis, :2])).sum())
        windows = np.lib.stride_tricks.sliding_window_view(tokens, 3)
        for start in range(0, len(windows), _BATCH):
            nats -= float(np.log(self.probabilities(windows[start : start + _BATCH])).sum())
        return nats / (len(tokens) - 1)


def discounts(counts: Ids) -> Floats:
    """Return what is taken off a count of 0, 1, 2, and 3 or more, from how often each of 1 to 4 occurs.

    A count of counts of 0, as small texts have it, is taken for 1.
    """
    one, two, three, four = (max(1, int((counts == number).sum())) for number in (1, 2, 3, 4))
    share = one / (one + 2 * two)
    taken = [0.0, 1 - 2 * share * two / one, 2 - 3 * share * three / two, 3 - 4 * share * four / three]
    # No more than what is there, and something, so that what was not seen keeps a probability.
    return np.clip(taken, [0, 0.1, 0.1, 0.1], [0, 1, 2, 3])


def _keys(tokens: Ids, length: int, vocab_size: int) -> Ids:
    """Return each n-gram of a row as one number, the last token lowest."""
    key = tokens[: len(tokens) - length + 1].copy()
    for place in range(1, length):
        key *= vocab_size
        key += tokens[place : len(tokens) - length + 1 + place]
    return key


def _level(keys: Ids, counts: Ids, vocab_size: int) -> Level:
    taken = discounts(counts)[np.minimum(counts, 3)]
    contexts, starts = np.unique(keys // vocab_size, return_index=True)
    totals = np.add.reduceat(counts, starts)
    sizes = np.diff(np.append(starts, len(keys)))
    return Level(keys, (counts - taken) / np.repeat(totals, sizes), contexts, np.add.reduceat(taken, starts) / totals)


def _without_context(counts: Ids) -> Floats:
    """Return the probabilities of single tokens; what the discounts leave goes to all alike."""
    taken = discounts(counts)[np.minimum(counts, 3)]
    shares: Floats = (counts - taken + taken.sum() / len(counts)) / counts.sum()
    return shares


def _interpolated(level: Level, rows: Ids, lower: Floats, vocab_size: int) -> Floats:
    context = _row_keys(rows[:, :-1], vocab_size)
    kept = _found(level.keys, level.kept, context * vocab_size + rows[:, -1], 0.0)
    # A context that was never seen leaves everything to the shorter n-gram.
    return kept + _found(level.contexts, level.left_over, context, 1.0) * lower


def _row_keys(rows: Ids, vocab_size: int) -> Ids:
    key = rows[:, 0].copy()
    for place in range(1, rows.shape[1]):
        key = key * vocab_size + rows[:, place]
    return key


def _found(keys: Ids, values: Floats, wanted: Ids, otherwise: float) -> Floats:
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[at] == wanted, values[at], otherwise)
