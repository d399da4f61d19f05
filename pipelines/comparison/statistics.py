"""Which of two corpora is better, from the scores of models that were trained on each with several seeds.

All runs are scored on the same examples, whose difficulty cancels in the difference of two corpora. What is left is the
noise of training, so the interval is one over runs: Welch's, for independent seeds (docs/decisions/0023).
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pipelines.errors import WebtextError
from pipelines.evaluation.metrics import Z95, Floats, ratio_error
from pipelines.format import plural

Row = dict[str, Any]

# The probability of a false verdict anywhere in the comparison, at most.
_LEVEL = 0.05
_POWER = 0.8
_MAX_SEEDS = 100
# Double-exponential quadrature from 0 to infinity (Takahasi and Mori 1974).
_GRID = np.linspace(-4.5, 4.5, 601)
_NODES = np.exp(np.pi / 2 * np.sinh(_GRID))
_WEIGHTS = _NODES * np.cosh(_GRID) * np.pi / 2 * (_GRID[1] - _GRID[0])


@dataclasses.dataclass(frozen=True)
class Measure:
    """A figure of a run; one that does not decide favors a corpus, as the held-out documents of that corpus do."""

    name: str
    set: str
    metric: str
    unit: str
    higher_is_better: bool
    decides: bool


@dataclasses.dataclass(frozen=True)
class Scores:
    """The scores of all runs on the same examples.

    `numerators` are [seeds, examples] by corpus, `denominators` [examples]: ones for a mean. `clusters` are labels of
    the examples: see `evaluation.metrics`.
    """

    measure: Measure
    numerators: Mapping[str, Floats]
    denominators: Floats
    clusters: Sequence[str] | None = None

    def values(self, corpus: str) -> Floats:
        """Return the value of each run: the sum of its numerators over that of the denominators.

        Raises WebtextError for a value that is not finite.
        """
        values: Floats = self.numerators[corpus].sum(axis=1) / self.denominators.sum()
        for run in np.flatnonzero(~np.isfinite(values)):
            raise WebtextError(
                f"{self.measure.name}: the value of run {run} of {corpus} is {values[run]}; its training diverged"
            )
        return values


def compare_runs(scores: Sequence[Scores]) -> list[Row]:
    """Compare all pairs of corpora by all measures; return the entries of `comparisons` of `compare.json`.

    The p-values of the measures that decide are adjusted together, those of all pairs. Raises WebtextError for a value
    that is not finite.
    """
    pairs = list(itertools.combinations(scores[0].numerators, 2)) if scores else []
    level = _LEVEL / max(1, len(pairs) * sum(one.measure.decides for one in scores))
    compared = [(one.measure, _compare(one, a, b, level)) for a, b in pairs for one in scores]
    deciding = [(measure, row) for measure, row in compared if measure.decides and row["p"] is not None]
    adjusted = holm([row["p"] for _, row in deciding])
    for (measure, row), p in zip(deciding, adjusted, strict=True):
        row["p_adjusted"] = p
        if p < _LEVEL:
            row["better"] = row["a"] if (row["difference"] > 0) == measure.higher_is_better else row["b"]
            row["seeds_needed"] = None
    return [row for _, row in compared]


def _compare(scores: Scores, a: str, b: str, level: float) -> Row:
    """Return the comparison of two corpora by a measure; `p` is not adjusted, `level` is for the seeds needed."""
    samples = scores.values(a), scores.values(b)
    difference = float(samples[0].mean() - samples[1].mean())
    by_example = scores.numerators[a].mean(axis=0) - scores.numerators[b].mean(axis=0)
    row = {"a": a, "b": b, "measure": scores.measure.name, "difference": difference, "low": None, "high": None}
    row |= {"p": None, "p_adjusted": None, "better": None, "seeds_needed": None}
    row["example_error"] = ratio_error(by_example, scores.denominators, scores.clusters).error
    runs = [len(values) for values in samples]
    if min(runs) < 2:
        return row
    variances = [float(values.var(ddof=1)) for values in samples]
    parts = [variance / count for variance, count in zip(variances, runs, strict=True)]
    error = math.sqrt(sum(parts))
    if error <= 1e-12 * max(abs(values).max() for values in samples):
        # Runs that do not vary say nothing about other seeds.
        return row | {"p": 1.0}
    df = error**4 / sum(part * part / (count - 1) for part, count in zip(parts, runs, strict=True))
    half = t_quantile(_LEVEL, df) * error
    row |= {"low": difference - half, "high": difference + half, "p": t_tails(difference / error, df)}
    if scores.measure.decides:
        row["seeds_needed"] = seeds_needed(difference, sum(variances) / 2, level, max(runs))
    return row


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted for their number, in the same order (Holm 1979)."""
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    steps = ((len(order) - rank) * p_values[index] for rank, index in enumerate(order))
    adjusted = dict(zip(order, itertools.accumulate(steps, max), strict=True))
    return [min(1.0, adjusted[index]) for index in range(len(order))]


def seeds_needed(difference: float, variance: float, level: float, runs: int = 1) -> int | None:
    """Return the runs per corpus that find a true difference of this size with a probability of 80%; None above 100.

    `variance` is that of a run, `level` that of the two-sided test; more than `runs`, which did not find it.
    """
    for seeds in range(runs + 1, _MAX_SEEDS + 1):
        quantiles = t_quantile(level, 2 * seeds - 2) + t_quantile(2 * (1 - _POWER), 2 * seeds - 2)
        if abs(difference) >= quantiles * math.sqrt(2 * variance / seeds):
            return seeds
    return None


def t_tails(t: float, df: float) -> float:
    """Return the probability that Student's t is at least this far from 0: the integral of its density."""
    scale = 2 * math.exp(math.lgamma((df + 1) / 2) - math.lgamma(df / 2)) / math.sqrt(df * math.pi)
    return min(1.0, scale * float(_WEIGHTS @ (1 + (abs(t) + _NODES) ** 2 / df) ** (-(df + 1) / 2)))


@functools.cache
def t_quantile(tails: float, df: float) -> float:
    """Return the distance from 0 that Student's t reaches with this probability, by bisection."""
    low, high = 0.0, 1.0
    while t_tails(high, df) > tails:
        low, high = high, 2 * high
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if t_tails(middle, df) > tails else (low, middle)
    return high


def summarize_pairs(comparisons: Sequence[Row]) -> list[Row]:
    """Return the verdict and a sentence for each pair: the entries of `summary` of `compare.json`.

    A corpus is better if it is by at least one measure and the other by none; `mixed` if each is by some.
    """
    pairs = itertools.groupby(comparisons, operator.itemgetter("a", "b"))
    return [{"a": a, "b": b, **_summarize(a, b, list(rows))} for (a, b), rows in pairs]


def _summarize(a: str, b: str, rows: Sequence[Row]) -> Row:
    deciding = [row for row in rows if row["p_adjusted"] is not None]
    if not deciding:
        is_single = all(row["p"] is None for row in rows)
        reason = "a single run has no interval; use more seeds" if is_single else "no measure decides"
        return {"verdict": "undecided", "text": f"{a} and {b}: undecided, because {reason}."}
    wins = [name for name in (a, b) if any(row["better"] == name for row in deciding)]
    parts = [f"{name} is better on {sum(row['better'] == name for row in deciding)}" for name in wins]
    ties = [row for row in deciding if row["better"] is None]
    if ties:
        needed, measure = min((row["seeds_needed"] or math.inf, row["measure"]) for row in ties)
        seeds = f"about {needed} seeds" if needed <= _MAX_SEEDS else f"more than {_MAX_SEEDS} seeds"
        parts.append(
            f"not distinguishable on {len(ties)} (if the difference by {measure} is real, {seeds} would show it)"
        )
    # Where the examples are too few, which more seeds do not help.
    errors = [(abs(row["difference"]), row["example_error"]) for row in deciding if row["better"]]
    if few := sum(error is None or difference <= Z95 * error for difference, error in errors):
        parts.append(f"{few} of the differences may not hold for other examples of the same kind")
    verdict = "mixed" if len(wins) == 2 else wins[0] if wins else "not distinguishable"
    return {"verdict": verdict, "text": f"{a} and {b}, {plural(len(deciding), 'measure')}: {'; '.join(parts)}."}
