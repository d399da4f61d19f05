"""Metrics of examples, and the figures of a task with their standard errors and intervals.

A prediction is one string; `golds` are the accepted answers, at least one. BLEU is computed by sacrebleu, of the extra
`evaluate`; ROUGE is in `rouge.py`.

The examples of a cluster are not independent: questions about one document, or the two sentences of a Winograd schema,
tend to be right or wrong together. With `clusters`, a label per example, every cluster counts as one
independent draw. Errors are sampling errors: how much the value would change with another test set of the same kind.
"""

from __future__ import annotations

import functools
import math
import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.extras import require_extra

Floats = npt.NDArray[np.float64]
Figure = dict[str, Any]
# Labels of one type, one per example.
Clusters = Sequence[Any] | npt.NDArray[Any]

# Standard errors on either side of a 95% interval.
Z95 = 1.96
# Draws of a bootstrap, whose standard error then has a relative error of 5%.
_DRAWS = 200
# Shares of the most confident answers at which the curve of their accuracy has a point; the first one is the figure.
_COVERAGE = (0.01, 0.02, *(percent / 100 for percent in range(5, 101, 5)))

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")

_BLEU_COUNTS = 10


class Metric(NamedTuple):
    """A figure of a task: the mean of a column of the rows, or a ratio of the sums of two.

    `kind` is share (of true values, cluster_share: of clusters of several examples), mean, perplexity (exp of the
    ratio), nats (the ratio) or bits; the last three have a column of nats and one of `units`. Computed from all
    examples together: bleu; matthews, f1, best_matthews and roc_area, of a column of labels and one of predictions or
    scores; pearson and spearman, of two columns of numbers; calibration_error (with `bins` bins) and confident_share,
    of right answers and the confidence in them.
    """

    name: str
    kind: str
    column: str
    units: str = ""
    unit: str = ""
    bins: int = 0

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the rows from which it is computed."""
        if self.kind == "bleu":
            return tuple(f"{self.column}_{number}" for number in range(_BLEU_COUNTS))
        return (self.column, self.units) if self.units else (self.column,)


def normalize_answer(text: str) -> str:
    """Return an answer in lower case without ASCII punctuation, articles and extra white space (SQuAD's rules)."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def squad_scores(prediction: str, golds: Sequence[str]) -> tuple[bool, float]:
    """Return whether a normalized answer equals a normalized gold answer, and the largest F1 of their words, 0 to 1.

    The gold answer "" stands for no answer: two answers without any word have F1 1 (SQuAD 2.0; SQuAD 1.1 gives 0).
    """
    matches, f1_scores = _answer_scores(prediction, golds)
    return max(matches) > 0, max(f1_scores)


def coqa_scores(prediction: str, golds: Sequence[str]) -> tuple[float, float]:
    """Return CoQA's official exact match and F1 of one turn, 0 to 1 (coqa-baselines, evaluate-v1.0.py).

    With several gold answers, each is left out once, as it is for the human score, where it is the prediction; the
    result is the mean of the largest scores over the others.
    """
    matches, f1_scores = _answer_scores(prediction, golds)
    return _leave_one_out(matches), _leave_one_out(f1_scores)


def _answer_scores(prediction: str, golds: Sequence[str]) -> tuple[list[float], list[float]]:
    """Return the exact matches and the F1 scores of a prediction with each gold answer."""
    answer = normalize_answer(prediction)
    words = Counter(answer.split())
    matches, f1_scores = [], []
    for gold in map(normalize_answer, golds):
        gold_words = Counter(gold.split())
        total = words.total() + gold_words.total()
        matches.append(float(answer == gold))
        f1_scores.append(2 * (words & gold_words).total() / total if total else 1.0)
    return matches, f1_scores


def _leave_one_out(scores: list[float]) -> float:
    """Return the mean over all scores of the largest of the others: the second largest once, else the largest."""
    if len(scores) == 1:
        return scores[0]
    second, best = sorted(scores)[-2:]
    return ((len(scores) - 1) * best + second) / len(scores)


def matthews_correlation(hits: Any, predicted: Any, positives: Any, examples: float) -> Any:
    """Return Matthews' correlation of two binary labels, -1 to 1; 0 if one of them has a single value.

    Counts, or arrays of them: the examples for which both labels are true (`hits`), the prediction, the true one, all.
    """
    product = 1.0 * predicted * positives * (examples - positives) * (examples - predicted)
    return (examples * hits - positives * predicted) / np.sqrt(np.maximum(product, 1))


def correlation(a: Floats, b: Floats, *, by_rank: bool) -> float:
    """Return Pearson's correlation, or `by_rank` Spearman's, -1 to 1; 0 if all values of one are the same."""
    if by_rank:
        a, b = _ranks(a), _ranks(b)
    a, b = a - a.mean(), b - b.mean()
    product = math.sqrt(float(a @ a) * float(b @ b))
    return float(a @ b) / product if product else 0.0


def _ranks(values: Floats) -> Floats:
    """Return the rank of each value; equal values share the mean of theirs."""
    ordered = np.sort(values)
    ranks: Floats = (np.searchsorted(ordered, values, "left") + np.searchsorted(ordered, values, "right")) / 2
    return ranks


def best_threshold(golds: npt.ArrayLike, scores: npt.ArrayLike) -> tuple[float, float]:
    """Return the threshold from which on a score means a positive label, so that Matthews' correlation is largest.

    Return also that correlation.
    """
    order = np.argsort(-np.asarray(scores, np.float64), kind="stable")
    positive, values = np.asarray(golds, bool)[order], np.asarray(scores, np.float64)[order]
    correlations = matthews_correlation(np.cumsum(positive), np.arange(1, len(values) + 1), positive.sum(), len(values))
    # Equal scores are on one side of any threshold.
    correlations = np.where(np.append(np.diff(values) != 0, True), correlations, -np.inf)
    best = int(correlations.argmax())
    return float(values[best]), float(correlations[best])


def roc_area(golds: npt.ArrayLike, scores: npt.ArrayLike) -> float:
    """Return the probability that a positive scores above a negative, ties at half; nan if a class has no example."""
    positive, values = np.asarray(golds, bool), np.asarray(scores, np.float64)
    above, below = values[positive], np.sort(values[~positive])
    if not len(above) or not len(below):
        return math.nan
    ranks = np.searchsorted(below, above, "left") + np.searchsorted(below, above, "right")
    return float(ranks.mean() / (2 * len(below)))


class Bleu:
    """BLEU of a corpus by sacrebleu, from sums of counts per example, so that examples can be resampled.

    It tokenizes as mteval-v13a and smooths orders without a match. Scores are 0 to 100.
    """

    def __init__(self) -> None:
        require_extra("evaluate", "BLEU", "sacrebleu")
        from sacrebleu.metrics.bleu import BLEU  # deferred: few tasks need it

        self._metric = BLEU()

    def statistics(self, prediction: str, golds: Sequence[str]) -> list[int]:
        """Return ten counts: length, length of the closest gold, matches and n-grams of orders 1 to 4."""
        score = self._metric.corpus_score([prediction], [[gold] for gold in golds])
        return [score.sys_len, score.ref_len, *score.counts, *score.totals]

    def score(self, sums: npt.ArrayLike) -> float:
        """Return the score of summed counts."""
        size, gold_size, *counts = np.asarray(sums).astype(np.int64).tolist()
        smoothing = self._metric.smooth_method
        return self._metric.compute_bleu(counts[:4], counts[4:], size, gold_size, smooth_method=smoothing).score

    def signature(self, golds: int) -> str:
        """Return sacrebleu's signature of its settings and version, for examples with this number of gold answers."""
        self._metric.num_refs = golds
        return str(self._metric.get_signature())


class Estimate(NamedTuple):
    """A value and its standard error, which is None where the data cannot show one: one cluster, or no finite value."""

    value: float
    error: float | None

    @property
    def interval(self) -> tuple[float | None, float | None]:
        """The 95% interval."""
        margin = None if self.error is None else Z95 * self.error
        return (None, None) if margin is None else (self.value - margin, self.value + margin)

    @property
    def p_value(self) -> float | None:
        """The two-sided p-value of no difference from 0, by a normal approximation."""
        if not self.error:
            return None if self.error is None else float(self.value == 0)
        return math.erfc(abs(self.value) / self.error / math.sqrt(2))


def summarize(metrics: Sequence[Metric], columns: Mapping[str, Floats], clusters: Sequence[str]) -> list[Figure]:
    """Return the figures of examples, given by column, as in `results.json`; an empty list without examples.

    The error and the 95% interval are None if there are too few clusters, the value if it is not finite. `points` are
    those of a curve, for metrics that have one.
    """
    if not clusters:
        return []
    numbers, count = _number_clusters(clusters)
    return [
        _figure(metric, np.stack([columns[name] for name in metric.columns], axis=1), numbers)
        for metric in metrics
        if metric.kind != "cluster_share" or count < len(clusters)
    ]


def metric_value(metric: Metric, columns: Mapping[str, Floats]) -> float:
    """Return the value of a share or of a metric of all examples together, without its error."""
    rows = np.stack([columns[name] for name in metric.columns], axis=1)
    return float(rows.mean()) if metric.kind == "share" else _of_all(metric, rows)


def _figure(metric: Metric, rows: Floats, clusters: npt.NDArray[Any]) -> Figure:
    kind, values, examples = metric.kind, rows[:, 0], len(rows)
    points: list[dict[str, Any]] = []
    if kind == "perplexity":
        value, error, low, high = perplexity(ratio_error(values, rows[:, 1], clusters))
    elif kind in ("nats", "bits"):
        estimate = ratio_error(values / (math.log(2) if kind == "bits" else 1.0), rows[:, 1], clusters)
        (value, error), (low, high) = estimate, estimate.interval
    elif kind == "confident_share":
        order = np.argsort(-rows[:, 1], kind="stable")
        parts = [order[: max(1, round(share * len(order)))] for share in _COVERAGE]
        points = [_point(share, rows[part], clusters[part]) for share, part in zip(_COVERAGE, parts, strict=True)]
        value, error = mean_error(values[parts[0]], clusters[parts[0]])
        low, high, examples = points[0]["low"], points[0]["high"], len(parts[0])
    elif kind in ("share", "cluster_share"):
        if kind == "cluster_share":
            values = cluster_minima(values, clusters)
            clusters, examples = np.arange(len(values)), len(values)
        value, error = mean_error(values, clusters)
        low, high = _share_interval(values, clusters)
    else:
        of_all = functools.partial(_of_all, metric)
        estimate = mean_error(values, clusters) if kind == "mean" else bootstrap_error(rows, clusters, of_all)
        (value, error), (low, high) = estimate, estimate.interval
        if kind == "calibration_error":
            points = [_point(rows[part, 1].mean(), rows[part], clusters[part]) for part in _bins(rows, metric.bins)]
            low = low and max(0.0, low)
    return {
        "name": metric.name,
        "value": value if math.isfinite(value) else None,
        "error": error,
        "low": low,
        "high": high,
        "examples": examples,
        "unit": metric.unit,
        "kind": kind,
        "columns": metric.columns,
        "points": points,
    }


def _of_all(metric: Metric, rows: Floats) -> float:
    """Return a metric of the rows of all examples together."""
    labels, values = rows[:, 0] > 0, rows[:, -1]
    if metric.kind == "bleu":
        return Bleu().score(rows.sum(axis=0))
    if metric.kind == "roc_area":
        return roc_area(labels, values)
    if metric.kind == "best_matthews":
        return best_threshold(labels, values)[1]
    if metric.kind in ("pearson", "spearman"):
        return correlation(rows[:, 0], values, by_rank=metric.kind == "spearman")
    if metric.kind in ("matthews", "f1"):
        predicted = values > 0
        counts = (labels & predicted).sum(), predicted.sum(), labels.sum()
        if metric.kind == "f1":
            return float(2 * counts[0] / max(1, counts[1] + counts[2]))
        return float(matthews_correlation(*counts, len(rows)))
    # The calibration error: the mean distance of confidence and share of right answers in bins of equal size.
    gaps = rows[:, 0] - values
    return float(sum(abs(gaps[part].sum()) for part in _bins(rows, metric.bins)) / len(rows))


def _bins(rows: Floats, count: int) -> list[npt.NDArray[np.intp]]:
    """Return the indices of the rows in bins by confidence, whose sizes differ by at most one."""
    return np.array_split(np.argsort(rows[:, 1], kind="stable"), min(count, len(rows)))


def _point(x: float, rows: Floats, clusters: npt.NDArray[Any]) -> dict[str, Any]:
    """Return a point of a curve: the share of right answers, with its 95% interval.

    `x` is the mean confidence of a bin (calibration_error), or the share of the most confident answers.
    """
    right = rows[:, 0]
    low, high = _share_interval(right, clusters)
    return {"x": float(x), "value": float(right.mean()), "low": low, "high": high, "examples": len(rows)}


def _share_interval(values: Floats, clusters: npt.NDArray[Any]) -> tuple[float, float]:
    # At worst, the examples of a cluster count as one.
    independent = len(np.unique(clusters))
    return wilson(float(values.mean()) * independent, independent)


def wilson(successes: float, n: int) -> tuple[float, float]:
    """Return the score interval of a proportion (Wilson 1927), which is valid near 0 and 1 and for small n.

    The examples have to be independent; for clustered ones, use the error of `mean_error`.
    """
    share = successes / n
    center = share + Z95 * Z95 / (2 * n)
    half = Z95 * math.sqrt(share * (1 - share) / n + Z95 * Z95 / (4 * n * n))
    scale = 1 + Z95 * Z95 / n
    # With rounding, an exact limit of 0 or 1 would be off by 1e-17.
    low = 0.0 if successes == 0 else (center - half) / scale
    high = 1.0 if successes == n else (center + half) / scale
    return low, high


def mean_error(values: npt.ArrayLike, clusters: Clusters | None = None) -> Estimate:
    """Return the mean of one value per example and its standard error, by example or by cluster.

    Clusters of different sizes are weighted by their examples.
    """
    return ratio_error(values, np.ones(np.shape(values)), clusters)


def ratio_error(numerators: npt.ArrayLike, denominators: npt.ArrayLike, clusters: Clusters | None = None) -> Estimate:
    """Return total numerator / total denominator and its standard error by the delta method.

    With nats and words per document, the ratio is the logarithm of the perplexity per word. The residuals are summed
    within clusters, and the sum of their squares has the factor G / (G - 1) for G clusters (Cochran, Sampling
    Techniques, 1977, chapter 6). Raises ValueError for lengths that differ, and if the denominators sum to 0.
    """
    rows = np.stack([np.asarray(numerators, np.float64), np.asarray(denominators, np.float64)], axis=1)
    totals = rows.sum(axis=0)
    if totals[1] == 0:
        raise ValueError("the denominators sum to 0")
    ratio = float(totals[0] / totals[1])
    if clusters is not None:
        numbers, count = _number_clusters(clusters)
        examples, rows = rows, np.zeros((count, 2))
        np.add.at(rows, numbers, examples)
    if len(rows) < 2 or not math.isfinite(ratio):
        return Estimate(ratio, None)
    residuals = rows[:, 0] - ratio * rows[:, 1]
    variance = len(rows) / (len(rows) - 1) * float(residuals @ residuals)
    return Estimate(ratio, math.sqrt(variance) / abs(float(totals[1])))


def perplexity(log_perplexity: Estimate) -> tuple[float, float | None, float | None, float | None]:
    """Return exp of a ratio in nats, its standard error by the delta method, and the interval exp(ratio ± 1.96 errors).

    A perplexity beyond the range of a float is infinite, and then has no error.
    """
    with np.errstate(over="ignore"):
        value, error = float(np.exp(log_perplexity.value)), log_perplexity.error
        if error is None or not math.isfinite(value):
            return value, None, None, None
        low, high = np.exp(log_perplexity.value + np.array([-Z95, Z95]) * error).tolist()
    return value, value * error, low, high


def bootstrap_error(rows: Floats, clusters: Clusters, statistic: Callable[[Floats], float]) -> Estimate:
    """Return a metric of all examples together, and its standard deviation over resampled clusters.

    `statistic` takes rows of examples. Draws without a finite value, such as those of a single class, do not count.
    """
    numbers, count = _number_clusters(clusters)
    members = np.split(np.argsort(numbers, kind="stable"), np.cumsum(np.bincount(numbers))[:-1])
    generator, value = np.random.default_rng([0, len(rows)]), statistic(rows)
    if count < 2 or not math.isfinite(value):
        return Estimate(value, None)
    draws = [
        statistic(rows[np.concatenate([members[number] for number in generator.integers(count, size=count)])])
        for _ in range(_DRAWS)
    ]
    return Estimate(value, float(np.nanstd(draws, ddof=1)))


def cluster_minima(values: Floats, clusters: Clusters) -> Floats:
    """Return the smallest value of each cluster of several examples, in the order of their first ones."""
    numbers, count = _number_clusters(clusters)
    minima = np.full(count, np.inf)
    np.minimum.at(minima, numbers, values)
    return minima[np.bincount(numbers) > 1]


def _number_clusters(clusters: Clusters) -> tuple[npt.NDArray[np.int32], int]:
    """Return the cluster number of each example, by first appearance, and the number of clusters."""
    encoded = pa.array(clusters).dictionary_encode()
    return encoded.indices.to_numpy(), len(encoded.dictionary)
