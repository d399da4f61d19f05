"""Limits from Poisson's law against known values and plain sums."""

from __future__ import annotations

import math

import pytest

from pipelines.algorithms.bloom.poisson import chance_of_at_least, upper_limit


# Garwood's exact limits at 95%, one-sided, as tables print them.
@pytest.mark.parametrize(("found", "limit"), [(0, 2.996), (1, 4.744), (2, 6.296), (5, 10.513), (10, 16.962)])
def test_limits_are_those_of_the_tables(found: int, limit: float) -> None:
    assert upper_limit(found) == pytest.approx(limit, abs=6e-4)


@pytest.mark.parametrize("found", [0, 3, 40, 10_000, 3_000_000])
def test_a_limit_is_where_so_few_are_rare(found: int) -> None:
    assert 1 - chance_of_at_least(found + 1, upper_limit(found, 0.99)) == pytest.approx(0.01, rel=1e-3)


@pytest.mark.parametrize("mean", [0.001, 0.5, 7.3, 60.0])
def test_chances_are_plain_sums(mean: float) -> None:
    terms = [math.exp(-mean) * mean**count / math.factorial(count) for count in range(150)]
    for found in (0, 1, 2, 5, 20, 60, 90):
        assert chance_of_at_least(found, mean) == pytest.approx(sum(terms[found:]), rel=1e-9, abs=1e-15)


def test_nothing_expected_and_nothing_found() -> None:
    assert chance_of_at_least(0, 0.0) == 1.0
    assert chance_of_at_least(1, 0.0) == 0.0
    assert chance_of_at_least(10**6, 1.0) == 0.0
