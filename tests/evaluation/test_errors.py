"""Errors and intervals against values by hand, independent formulas, and the coverage of simulated intervals."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest

from pipelines.evaluation import metrics
from pipelines.evaluation.metrics import (
    Estimate,
    Metric,
    bootstrap_error,
    mean_error,
    perplexity,
    ratio_error,
    summarize,
    wilson,
)


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [(8, 10, 0.490157, 0.943319), (50, 100, 0.403830, 0.596170), (0, 10, 0.0, 0.277540), (10, 10, 0.722460, 1.0)],
)
def test_wilson_is_the_interval_by_hand(successes: int, n: int, low: float, high: float) -> None:
    assert wilson(successes, n) == pytest.approx((low, high), abs=5e-7)


def test_wilson_limits() -> None:
    assert wilson(0, 7)[0] == 0.0
    assert wilson(7, 7)[1] == 1.0


def test_the_error_of_a_mean_is_the_usual_one() -> None:
    values = np.random.default_rng(1).normal(5, 2, 50)
    mean, error = mean_error(values)
    assert mean == pytest.approx(values.mean())
    assert error == pytest.approx(values.std(ddof=1) / math.sqrt(50))
    assert mean_error([True, False, True, True]).value == 0.75


def test_clusters_of_one_change_nothing() -> None:
    generator = np.random.default_rng(2)
    values, units = generator.normal(size=40), generator.integers(1, 9, 40)
    labels = [f"document {number}" for number in range(40)]
    assert mean_error(values, labels) == pytest.approx(mean_error(values), rel=1e-12)
    assert ratio_error(values, units, labels) == pytest.approx(ratio_error(values, units), rel=1e-12)


def test_repeated_examples_add_nothing_to_what_their_clusters_show() -> None:
    values = np.random.default_rng(3).normal(size=30)
    repeated, labels = np.repeat(values, 4), np.repeat(np.arange(30), 4).tolist()
    assert mean_error(repeated, labels) == pytest.approx(mean_error(values), rel=1e-12)
    by_example = mean_error(repeated).error
    assert by_example is not None
    assert mean_error(values).error == pytest.approx(2 * by_example, rel=0.02)


def test_clustered_error_of_unequal_clusters_by_hand() -> None:
    # Mean 2; residuals by cluster: -1 + 0 = -1, 1 = 1, and 2 - 2 = 0; 3 / 2 * 2 = 3; the root over five examples.
    estimate = mean_error([1, 2, 3, 4, 0], ["a", "a", "b", "c", "c"])
    assert estimate == pytest.approx((2.0, math.sqrt(3) / 5))


def test_one_cluster_and_values_that_are_not_finite_have_no_error() -> None:
    assert mean_error([3.0]) == Estimate(3.0, None)
    assert mean_error([1.0, 2.0, 6.0], ["book"] * 3) == Estimate(3.0, None)
    assert bootstrap_error(np.array([[1.0], [2.0], [6.0]]), ["book"] * 3, np.mean) == Estimate(3.0, None)
    assert ratio_error([math.inf, 1.0], [2, 2]) == Estimate(math.inf, None)
    assert bootstrap_error(np.array([[math.inf], [1.0]]), range(2), np.mean) == Estimate(math.inf, None)
    assert mean_error([-1.0]).p_value is None
    assert perplexity(Estimate(0.0, None)) == (1.0, None, None, None)


def test_a_ratio_is_that_of_the_totals_and_scales_with_its_units() -> None:
    generator = np.random.default_rng(4)
    units = generator.integers(50, 400, 300)
    nats = units * generator.normal(3.2, 0.3, 300)
    ratio, error = ratio_error(nats, units)
    assert ratio == pytest.approx(nats.sum() / units.sum(), rel=1e-12)
    assert error is not None
    bits = ratio_error(nats / math.log(2), units)
    assert bits == pytest.approx((ratio / math.log(2), error / math.log(2)), rel=1e-12)
    # The same ratio in all documents leaves no doubt, whatever their lengths.
    assert ratio_error(3 * units, units) == pytest.approx((3.0, 0.0), abs=1e-12)


def test_the_delta_method_agrees_with_the_bootstrap() -> None:
    generator = np.random.default_rng(5)
    units = generator.integers(50, 400, 300)
    rows = np.stack([units * generator.normal(3.2, 0.3, 300), units], axis=1)
    labels = (np.arange(300) // 3).tolist()
    analytic = ratio_error(rows[:, 0], rows[:, 1], labels)
    resampled = bootstrap_error(rows, labels, lambda sample: float(sample[:, 0].sum() / sample[:, 1].sum()))
    assert resampled.value == pytest.approx(analytic.value, rel=1e-12)
    assert resampled.error == pytest.approx(analytic.error, rel=0.15)


def test_perplexity_of_a_logarithm() -> None:
    value, error, low, high = perplexity(Estimate(math.log(30.0), 0.02))
    assert (value, error) == pytest.approx((30.0, 0.6))
    assert (low, high) == pytest.approx((30 * math.exp(-0.0392), 30 * math.exp(0.0392)))
    assert perplexity(Estimate(1000.0, 0.5)) == (math.inf, None, None, None)


@pytest.mark.parametrize("size", [1, 5])
def test_intervals_cover_the_truth_in_95_percent_of_samples(size: int) -> None:
    """Clusters share half of their variance; 1,000 samples leave a standard error of 0.7 points."""
    generator = np.random.default_rng(6 + size)
    labels = (np.arange(60 * size) // size).tolist()
    covered = {"clustered": 0, "by example": 0}
    for _ in range(1000):
        values = generator.normal(size=(60, size)) + generator.normal(size=(60, 1)) + 1.0
        for name, clusters in (("clustered", labels), ("by example", None)):
            mean, error = mean_error(values.ravel(), clusters)
            assert error is not None
            covered[name] += abs(mean - 1.0) <= 1.96 * error
    assert 925 <= covered["clustered"] <= 970
    assert size == 1 or covered["by example"] < 850


def test_ratio_intervals_cover_the_truth_in_95_percent_of_samples() -> None:
    generator = np.random.default_rng(8)
    covered = 0
    for _ in range(1000):
        units = generator.integers(20, 400, 300)
        low, high = perplexity(ratio_error(units * 3.0 + generator.normal(0, 1, 300) * units**0.7, units))[2:]
        assert low is not None
        assert high is not None
        covered += low <= math.exp(3.0) <= high
    assert 925 <= covered <= 970


def test_the_bootstrap_is_near_the_analytic_error_of_a_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "_DRAWS", 2000)
    generator = np.random.default_rng(9)
    values, labels = generator.exponential(size=500), generator.integers(0, 120, 500).tolist()
    for clusters in (range(500), labels):
        analytic, resampled = mean_error(values, clusters), bootstrap_error(values[:, None], clusters, np.mean)
        assert resampled.value == pytest.approx(analytic.value, rel=1e-12)
        assert resampled.error == pytest.approx(analytic.error, rel=0.08)
        assert bootstrap_error(values[:, None], clusters, np.mean) == resampled


def test_draws_without_a_value_do_not_count() -> None:
    def share_of_first(sample: metrics.Floats) -> float:
        return math.nan if sample.max() == 0 else float(sample.mean())

    value, error = bootstrap_error(np.array([[1.0], [0.0]]), range(2), share_of_first)
    assert value == 0.5
    assert error == pytest.approx(np.std([0.5, 0.5, 1.0]), rel=0.2)  # two in three draws with a value are of both rows


def test_paired_differences() -> None:
    generator = np.random.default_rng(11)
    difficulty = generator.normal(0, 3, 200)
    a, b = difficulty + generator.normal(0.1, 0.5, 200), difficulty + generator.normal(0, 0.5, 200)
    difference, error = mean_error(a - b)
    assert difference == pytest.approx(a.mean() - b.mean())
    assert error == pytest.approx((a - b).std(ddof=1) / math.sqrt(200))
    assert error is not None
    # The examples' difficulty cancels.
    unpaired = math.hypot(mean_error(a).error or 0, mean_error(b).error or 0)
    assert error < unpaired / 4
    assert mean_error(a - b).p_value == pytest.approx(math.erfc(abs(difference) / error / math.sqrt(2)))


def test_the_p_value_of_1_96_errors_is_5_percent() -> None:
    # Two differences at a distance of 1 from their mean have the error 1.
    difference = mean_error([1.96 + 1, 1.96 - 1])
    assert difference == pytest.approx((1.96, 1.0))
    assert difference.p_value == pytest.approx(0.05, abs=1e-4)
    assert Estimate(0.0, 0.0).p_value == 1.0
    assert Estimate(1.0, 0.0).p_value == 0.0


def test_p_values_are_uniform_where_models_do_not_differ() -> None:
    generator = np.random.default_rng(12)
    samples = generator.normal(size=(1000, 2, 100))
    p_values = np.array([mean_error(a - b).p_value for a, b in samples])
    assert 0.03 <= (p_values < 0.05).mean() <= 0.08
    assert p_values.mean() == pytest.approx(0.5, abs=0.03)


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="same shape"):
        ratio_error([1, 2], [1, 2, 3])
    with pytest.raises(ValueError, match="shape"):
        mean_error([1, 2, 3], ["a", "b"])
    for denominators in ([0, 0], []):
        with pytest.raises(ValueError, match="sum to 0"):
            ratio_error(denominators, denominators)


def test_long_names_of_clusters_take_no_more_memory_than_they_have() -> None:
    # The articles of RACE; an array of texts has room for the longest one in every row.
    clusters = ["long " * 2_000, *(f"article {number // 4}" for number in range(2_000))]
    tracemalloc.start()
    summarize((Metric("accuracy", "share", "accuracy"),), {"accuracy": np.ones(len(clusters))}, clusters)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 << 20
