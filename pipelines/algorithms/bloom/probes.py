"""Random n-grams that no corpus contains, and what their hits prove about the false-positive rate of a filter.

Hits of a fixed probability follow a binomial distribution. The Poisson distribution, which is used here, is wider, so
an upper limit is never too low.
"""

from __future__ import annotations

import binascii
import math

import numpy as np
import numpy.typing as npt

# Terms this many standard deviations from the largest are negligible.
_DEVIATIONS = 12


def random_words(words: int, seed: int, batch: int) -> npt.NDArray[np.uint8]:
    """Return the bytes of a text of random words, of 16 hexadecimal digits each; other batches have other words.

    Every normalization reads each of them as one word. A corpus contains one only if someone guessed all of its bits.
    """
    numbers = np.random.default_rng([seed, batch]).integers(1 << 64, size=words, dtype=np.uint64)
    return np.frombuffer(binascii.hexlify(numbers.data, " ", numbers.itemsize), np.uint8)


def tail_probability(events: int, mean: float) -> float:
    """Return the probability of `events` or more events if `mean` are expected."""
    if events <= 0:
        return 1.0
    if mean <= 0:
        return 0.0
    width = int(_DEVIATIONS * math.sqrt(events)) + 100
    if events <= mean:
        return 1.0 - _sum_of_terms(max(0, events - width), events - 1, mean)
    return _sum_of_terms(events, events + width, mean)


def upper_limit(events: int, confidence: float = 0.95) -> float:
    """Return the one-sided upper confidence limit of the mean after `events` events: 3.0 after none, at 95%."""
    low, high = float(events), events + 10 + 10 * math.sqrt(events + 1)
    for _ in range(60):
        middle = (low + high) / 2
        if tail_probability(events + 1, middle) < confidence:
            low = middle
        else:
            high = middle
    return high


def _sum_of_terms(first: int, last: int, mean: float) -> float:
    """Return the probability of `first` to `last` events."""
    terms = (math.exp(count * math.log(mean) - mean - math.lgamma(count + 1)) for count in range(first, last + 1))
    return min(1.0, math.fsum(terms))
