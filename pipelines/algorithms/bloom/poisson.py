"""Tail probabilities and confidence limits of rare events, by the Poisson distribution.

Trials of a fixed probability follow the narrower binomial distribution, so a Poisson limit is never too low.
"""

from __future__ import annotations

import math

# Terms this many standard deviations from the largest are negligible.
_DEVIATIONS = 12


def tail_probability(events: int, mean: float) -> float:
    """Return the probability of `events` or more events if `mean` are expected."""
    if events <= 0:
        return 1.0
    if mean <= 0:
        return 0.0
    if events <= mean:
        return 1.0 - _sum_of_terms(max(0, events - _width(events)), events - 1, mean)
    return _sum_of_terms(events, events + _width(events), mean)


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


def _width(events: int) -> int:
    return int(_DEVIATIONS * math.sqrt(events)) + 100


def _sum_of_terms(first: int, last: int, mean: float) -> float:
    """Return the probability of `first` to `last` events."""
    log = math.log(mean)
    return min(
        1.0, math.fsum(math.exp(count * log - mean - math.lgamma(count + 1)) for count in range(first, last + 1))
    )
