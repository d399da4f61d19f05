"""The figures of a task, with their standard errors, and what they were computed from."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from pipelines.evaluation.task import Metric
from pipelines.evaluation.uncertainty import Z95, mean_error, perplexity, ratio_error, wilson


@dataclasses.dataclass(frozen=True)
class Figure:
    """A metric of a task: its value, standard error and 95% interval, None where there are too few clusters.

    `unit` is that of a perplexity or of bits.
    """

    name: str
    value: float
    error: float | None
    low: float | None
    high: float | None
    examples: int
    unit: str = ""


def summarize(
    metrics: Sequence[Metric], columns: Mapping[str, npt.NDArray[np.float64]], clusters: Sequence[str]
) -> list[Figure]:
    """Return the figures of examples, given by column."""
    examples = len(clusters)
    _, ids = np.unique(np.array(clusters, np.str_), return_inverse=True)
    return [_figure(metric, columns, ids, examples) for metric in metrics if examples]


def _figure(
    metric: Metric, columns: Mapping[str, npt.NDArray[np.float64]], clusters: npt.NDArray[np.intp], examples: int
) -> Figure:
    values = columns[metric.column]
    if metric.kind in ("perplexity", "bits"):
        scale = 1.0 if metric.kind == "perplexity" else math.log(2)
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
    low, high = _interval(value, error)
    if metric.kind != "mean" and len(np.unique(clusters)) == len(values):
        low, high = wilson(int(values.sum()), len(values))
    return Figure(metric.name, value, error, low, high, len(values))


def _interval(value: float, error: float | None) -> tuple[float | None, float | None]:
    return (None, None) if error is None else (value - Z95 * error, value + Z95 * error)
