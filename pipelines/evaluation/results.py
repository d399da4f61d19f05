"""The figures of a task, with their standard errors, and what they were computed from."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from pipelines.evaluation.metrics import Bleu, best_threshold, matthews_correlation, roc_area
from pipelines.evaluation.task import Metric
from pipelines.evaluation.uncertainty import (
    Z95,
    Clusters,
    Estimate,
    bootstrap_error,
    mean_error,
    perplexity,
    ratio_error,
    wilson,
)

_DRAWS = 200


@dataclasses.dataclass(frozen=True)
class Figure:
    """A metric of a task: its value, standard error and 95% interval, None where there are too few clusters.

    `unit` is that of a perplexity or of bits, `kind` and `columns` are those of the metric.
    """

    name: str
    value: float
    error: float | None
    low: float | None
    high: float | None
    examples: int
    unit: str = ""
    kind: str = ""
    columns: tuple[str, ...] = ()


def summarize(
    metrics: Sequence[Metric], columns: Mapping[str, npt.NDArray[np.float64]], clusters: Sequence[str]
) -> list[Figure]:
    """Return the figures of examples, given by column."""
    examples = len(clusters)
    _, ids = np.unique(np.array(clusters, np.str_), return_inverse=True)
    return [
        dataclasses.replace(_figure(metric, columns, ids, examples), kind=metric.kind, columns=metric.columns)
        for metric in metrics
        if examples
    ]


def _figure(
    metric: Metric, columns: Mapping[str, npt.NDArray[np.float64]], clusters: npt.NDArray[np.intp], examples: int
) -> Figure:
    if metric.kind in _OF_ALL:
        rows = np.stack([columns[name] for name in metric.columns], axis=1)
        value, error = _OF_ALL[metric.kind](rows, clusters.tolist())
        return Figure(metric.name, value, error, *_interval(value, error), examples)
    values = columns[metric.column]
    if metric.kind in ("perplexity", "nats", "bits"):
        scale = math.log(2) if metric.kind == "bits" else 1.0
        ratio = ratio_error(values / scale, columns[metric.units], clusters.tolist())
        if metric.kind == "perplexity":
            value, error, low, high = perplexity(ratio)
        else:
            (value, error), (low, high) = ratio, _interval(*ratio)
        return Figure(metric.name, value, error, low, high, examples, metric.unit)
    if metric.kind == "cluster_share":
        values = np.array([values[clusters == cluster].all() for cluster in np.unique(clusters)], np.float64)
        clusters = np.arange(len(values))
    value, error = mean_error(values, clusters.tolist())
    if metric.kind == "mean":
        low, high = _interval(value, error)
    else:
        # Of examples that depend on each other there are as many as clusters, at worst.
        independent = len(np.unique(clusters))
        low, high = wilson(value * independent, independent)
    return Figure(metric.name, value, error, low, high, len(values))


def _bleu(rows: npt.NDArray[np.float64], clusters: Clusters) -> Estimate:
    return bootstrap_error(rows, clusters, statistic=Bleu().scores)


def _matthews(rows: npt.NDArray[np.float64], clusters: Clusters) -> Estimate:
    """Return the correlation of labels and predictions, from the four counts of agreement."""
    gold, predicted = rows.T > 0
    counts = np.stack([gold & predicted, ~gold & ~predicted, ~gold & predicted, gold & ~predicted], axis=1)
    return bootstrap_error(counts, clusters, statistic=matthews_correlation)


def _resampled(
    statistic: Callable[[npt.NDArray[np.float64]], float], rows: npt.NDArray[np.float64], clusters: Clusters
) -> Estimate:
    """Return a figure that is not one of sums, and its standard deviation over resampled clusters."""
    _, ids = np.unique(np.array(clusters), return_inverse=True)
    members = np.split(np.argsort(ids, kind="stable"), np.cumsum(np.bincount(ids))[:-1])
    generator, count = np.random.default_rng([0, len(rows)]), len(members)
    draws = [
        statistic(rows[np.concatenate([members[one] for one in generator.integers(count, size=count)])])
        for _ in range(_DRAWS)
    ]
    return Estimate(statistic(rows), float(np.nanstd(draws, ddof=1)) if count > 1 else None)


def _roc_area(rows: npt.NDArray[np.float64]) -> float:
    area = roc_area(rows[:, 0] > 0, rows[:, 1])
    return math.nan if area is None else area


def _best_matthews(rows: npt.NDArray[np.float64]) -> float:
    return best_threshold(rows[:, 0] > 0, rows[:, 1])[1]


# Figures of all examples together: a function of their columns.
_OF_ALL: Mapping[str, Callable[[npt.NDArray[np.float64], Clusters], Estimate]] = {
    "bleu": _bleu,
    "matthews": _matthews,
    "best_matthews": functools.partial(_resampled, _best_matthews),
    "roc_area": functools.partial(_resampled, _roc_area),
}


def _interval(value: float, error: float | None) -> tuple[float | None, float | None]:
    return (None, None) if error is None else (value - Z95 * error, value + Z95 * error)
