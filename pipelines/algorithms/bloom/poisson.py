"""What so many events in so many trials prove of an event that is rare, by Poisson's law.

The law of trials with a fixed chance is the binomial one, which is narrower: a limit from Poisson's is never too low.
"""

from __future__ import annotations

import math

# Terms of a sum that are this far from the largest, in standard deviations, no longer count.
_DEVIATIONS = 12


def chance_of_at_least(found: int, mean: float) -> float:
    """Return the probability of `found` or more events where `mean` are expected."""
    if found <= 0:
        return 1.0
    if mean <= 0:
        return 0.0
    if found <= mean:
        return 1.0 - _sum_of_terms(max(0, found - _width(found)), found - 1, mean)
    return _sum_of_terms(found, found + _width(found), mean)


def upper_limit(found: int, confidence: float = 0.95) -> float:
    """Return the mean of which `found` events or fewer are seen with the probability 1 - confidence: 3.0 for none."""
    low, high = float(found), found + 10 + 10 * math.sqrt(found + 1)
    for _ in range(60):
        middle = (low + high) / 2
        if chance_of_at_least(found + 1, middle) < confidence:
            low = middle
        else:
            high = middle
    return high


def _width(found: int) -> int:
    return int(_DEVIATIONS * math.sqrt(found)) + 100


def _sum_of_terms(first: int, last: int, mean: float) -> float:
    """Return the probability of `first` to `last` events."""
    log = math.log(mean)
    return min(
        1.0, math.fsum(math.exp(count * log - mean - math.lgamma(count + 1)) for count in range(first, last + 1))
    )
