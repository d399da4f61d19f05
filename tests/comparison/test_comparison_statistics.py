"""The statistics of `webtext compare` are calibrated: checked by simulation, and against closed forms."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from pipelines.comparison.statistics import (
    Measure,
    Scores,
    compare_runs,
    holm,
    seeds_needed,
    summarize_pairs,
    t_quantile,
    t_tails,
)
from pipelines.errors import WebtextError

Floats = npt.NDArray[np.float64]


def scores_of(
    runs: Mapping[str, npt.ArrayLike], name: str = "text: bits per byte", *, decides: bool = True, higher: bool = False
) -> Scores:
    """One example: its score is the value of the run."""
    measure = Measure(name, "text", "bits_per_byte", "bits per byte", higher, decides)
    return Scores(measure, {key: np.asarray(values, float)[:, None] for key, values in runs.items()}, np.ones(1))


def simulated(
    runs: int, deviations: Sequence[float], repetitions: int, difference: float = 0.0
) -> list[dict[str, Any]]:
    source = np.random.default_rng([runs, repetitions])
    return compare_runs(
        [
            scores_of(
                {"a": source.normal(difference, deviations[0], runs), "b": source.normal(0, deviations[1], runs)},
                decides=False,
            )
            for _ in range(repetitions)
        ]
    )


@pytest.mark.parametrize("t", [0.0, 1e-6, 0.3, 1.0, 2.8, 2.9, 4.3, 12.7, 1e4])
def test_tails_equal_the_closed_forms(t: float) -> None:
    assert t_tails(t, 1) == pytest.approx(1 - 2 / math.pi * math.atan(t), rel=1e-9)
    # 1 - t / sqrt(2 + t^2), without cancellation.
    root = math.sqrt(2 + t * t)
    assert t_tails(-t, 2) == pytest.approx(2 / (root * (root + t)), rel=1e-9)


@pytest.mark.parametrize("df", [1.3, 2.7, 4.0, 57.3, 400.0])
@pytest.mark.parametrize("t", [0.4, 2.5, 3.5])
def test_tails_equal_the_integral_of_the_density(df: float, t: float) -> None:
    xs = np.linspace(0, t, 20_001)
    density = (1 + xs**2 / df) ** (-(df + 1) / 2)
    scale = math.exp(math.lgamma((df + 1) / 2) - math.lgamma(df / 2)) / math.sqrt(df * math.pi)
    inside = 2 * scale * float(np.trapezoid(density, xs))
    assert t_tails(t, df) == pytest.approx(1 - inside, abs=1e-8)
    assert t_quantile(t_tails(t, df), df) == pytest.approx(t, rel=1e-9)


def test_quantiles_of_the_table() -> None:
    assert [round(t_quantile(0.05, df), 3) for df in (1, 2, 4, 10, 120)] == [12.706, 4.303, 2.776, 2.228, 1.98]


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


@pytest.mark.parametrize(("runs", "deviations"), [(3, (1, 1)), (3, (1, 3)), (5, (1, 1)), (5, (0.2, 2))])
def test_intervals_contain_the_true_difference_in_95_percent(runs: int, deviations: tuple[float, float]) -> None:
    # Welch's interval is a little too wide for three runs of equal variances: 96.7%.
    rows = simulated(runs, deviations, 500, difference=1.5)
    coverage = sum(row["low"] <= 1.5 <= row["high"] for row in rows) / len(rows)
    assert 0.93 <= coverage <= 0.985


def test_p_values_of_equal_corpora_are_uniform() -> None:
    p_values = np.sort([row["p"] for row in simulated(5, (1, 1), 500)])
    steps = np.arange(1, 501) / 500
    distance = max(np.abs(p_values - steps).max(), np.abs(p_values - steps + 1 / 500).max())
    assert distance < 1.63 / math.sqrt(500)  # Kolmogorov-Smirnov at 1%


def test_equal_corpora_get_a_false_verdict_in_at_most_5_percent() -> None:
    source, verdicts = np.random.default_rng(0), []
    for _ in range(100):
        runs = [{"a": source.normal(0, 1, 4), "b": source.normal(0, 1, 4)} for _ in range(6)]
        scores = [scores_of(values, str(number)) for number, values in enumerate(runs)]
        verdicts += [pair["verdict"] for pair in summarize_pairs(compare_runs(scores))]
    assert len(verdicts) == 100
    assert 100 - verdicts.count("not distinguishable") <= 11  # 99% of a binomial of 100 and 0.05


@pytest.mark.parametrize(("difference", "level"), [(1.0, 0.05), (0.6, 0.05), (1.5, 0.05 / 6)])
def test_the_seeds_needed_have_a_power_of_80_percent(difference: float, level: float) -> None:
    needed = seeds_needed(difference, 1.0, level)
    assert needed is not None
    source = np.random.default_rng(needed)

    def power(runs: int) -> float:
        a, b = source.normal(difference, 1, (20_000, runs)), source.normal(0, 1, (20_000, runs))
        errors = np.sqrt((a.var(axis=1, ddof=1) + b.var(axis=1, ddof=1)) / runs)
        return float((np.abs(a.mean(axis=1) - b.mean(axis=1)) / errors > t_quantile(level, 2 * runs - 2)).mean())

    assert 0.79 <= power(needed) <= 0.87
    assert power(needed - 2) < 0.8


def test_more_than_100_seeds_are_no_proposal() -> None:
    assert seeds_needed(0.01, 1.0, 0.05) is None
    assert seeds_needed(0.0, 1.0, 0.05) is None
    assert [seeds_needed(1e6, 1.0, 0.05, runs) for runs in (1, 3, 100)] == [2, 4, None]


def test_the_difficulty_of_the_examples_cancels() -> None:
    source = np.random.default_rng(1)
    size_bytes = source.integers(100, 5000, 200).astype(float)
    difficulty = source.uniform(0.5, 3.0, 200)
    quality = {"good": 0.0, "bad": 0.02}
    bits = {
        name: (difficulty + worse + source.normal(0, 0.005, (3, 1)) + source.normal(0, 0.01, (3, 200))) * size_bytes
        for name, worse in quality.items()
    }
    scores = Scores(scores_of({}).measure, bits, size_bytes)
    assert scores.values("bad") == pytest.approx((bits["bad"].sum(axis=1) / size_bytes.sum()).tolist())
    [row] = compare_runs([scores])
    assert row["difference"] == pytest.approx(-0.02, abs=0.015)
    assert row["low"] < row["difference"] < row["high"]
    assert row["example_error"] < 0.01 * difficulty.std()
    # Documents of one site count as one.
    [clustered] = compare_runs([Scores(scores.measure, bits, size_bytes, ["one", "two"] * 100)])
    assert clustered["example_error"] != row["example_error"]
    [alone] = compare_runs([Scores(scores.measure, bits, size_bytes, ["one"] * 200)])
    assert alone["example_error"] is None


CLEAR = {"a": [1.0, 1.01, 1.02], "b": [2.0, 2.01, 2.02], "c": [2.0, 2.015, 2.02]}


def test_pairs_are_compared_in_order_and_adjusted_together() -> None:
    rows = compare_runs([scores_of(CLEAR, "loss"), scores_of(CLEAR, "own", decides=False)])
    assert [(row["a"], row["b"], row["measure"]) for row in rows] == [
        (a, b, measure) for a, b in (("a", "b"), ("a", "c"), ("b", "c")) for measure in ("loss", "own")
    ]
    deciding = [row for row in rows if row["measure"] == "loss"]
    assert [row["p_adjusted"] for row in deciding] == holm([row["p"] for row in deciding])
    assert [row["better"] for row in deciding] == ["a", "a", None]
    assert deciding[2]["seeds_needed"] == seeds_needed(-0.005 / 3, (1e-4 + 1.0833333e-4) / 2, 0.05 / 3, 3)
    for row in rows:
        if row["measure"] == "own":
            assert row["low"] <= row["difference"] <= row["high"]
            assert (row["p_adjusted"], row["better"], row["seeds_needed"]) == (None, None, None)


def test_the_direction_is_that_of_the_measure() -> None:
    [low] = compare_runs([scores_of({"a": CLEAR["a"], "b": CLEAR["b"]})])
    [high] = compare_runs([scores_of({"a": CLEAR["a"], "b": CLEAR["b"]}, higher=True)])
    assert (low["better"], high["better"]) == ("a", "b")


def test_a_single_run_has_no_interval() -> None:
    rows = compare_runs([scores_of({"a": [1.0], "b": [2.0]})])
    assert rows[0]["difference"] == -1
    assert {rows[0][name] for name in ("low", "high", "p", "p_adjusted", "better", "seeds_needed")} == {None}
    [pair] = summarize_pairs(rows)
    assert pair["verdict"] == "undecided"
    assert "use more seeds" in pair["text"]


def test_runs_without_any_variation_are_no_evidence() -> None:
    rows = compare_runs([scores_of({"a": [0.25, 0.25, 0.25], "b": [0.5, 0.5, 0.5]})])
    assert (rows[0]["p"], rows[0]["low"], rows[0]["better"]) == (1.0, None, None)
    assert summarize_pairs(rows)[0]["verdict"] == "not distinguishable"


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_value_that_is_not_finite_is_named(value: float) -> None:
    with pytest.raises(WebtextError, match=r"^loss: the value of run 1 of b is (nan|inf); its training diverged"):
        compare_runs([scores_of({"a": [1.0, 2.0], "b": [1.0, value]}, "loss")])


_REAL = "if the difference by {} is real, about {} seeds would show it"


@pytest.mark.parametrize(
    ("betters", "verdict", "text"),
    [
        ("aaaab", "mixed", "5 measures: a is better on 4; b is better on 1."),
        ("aa", "a", "2 measures: a is better on 2."),
        (
            "a-b-",
            "mixed",
            "4 measures: a is better on 1; b is better on 1; "
            "not distinguishable on 2 (if the difference by m1 is real, about 7 seeds would show it).",
        ),
        ("b-", "b", f"2 measures: b is better on 1; not distinguishable on 1 ({_REAL.format('m1', 7)})."),
        ("-", "not distinguishable", f"1 measure: not distinguishable on 1 ({_REAL.format('m0', 6)})."),
    ],
)
def test_verdicts(betters: str, verdict: str, text: str) -> None:
    rows = [
        {
            "a": "a", "b": "b", "measure": f"m{number}", "difference": 1.0, "p": 0.01, "p_adjusted": 0.02, "low": 0.5,
            "high": 1.5, "example_error": 0.1, "better": None if better == "-" else better,
            "seeds_needed": number + 6 if better == "-" else None,
        }
        for number, better in enumerate(betters)
    ]  # fmt: skip
    assert summarize_pairs(rows) == [{"a": "a", "b": "b", "verdict": verdict, "text": f"a and b, {text}"}]
    rows[0] |= {"example_error": 0.6, "seeds_needed": None}
    [pair] = summarize_pairs(rows)
    assert ("1 of the differences may not hold for other examples" in pair["text"]) == (betters[0] != "-")
    assert ("more than 100 seeds" in pair["text"]) == (betters == "-")


def test_without_a_deciding_measure_nothing_is_decided() -> None:
    [pair] = summarize_pairs(compare_runs([scores_of({"a": CLEAR["a"], "b": CLEAR["b"]}, decides=False)]))
    assert pair == {
        "a": "a",
        "b": "b",
        "verdict": "undecided",
        "text": "a and b: undecided, because no measure decides.",
    }
