"""Metrics of answers, translations and summaries, one example at a time where the metric allows it.

A prediction is one string; `golds` are the accepted answers, at least one. BLEU and ROUGE are those of sacrebleu and
rouge-score (`pip install '.[evaluate]'`); call `require_metric_libraries` before work whose results need them.
"""

from __future__ import annotations

import functools
import math
import re
import string
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pipelines.extras import require_extra

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")

ROUGE_TYPES = ("rouge1", "rouge2", "rougeLsum")


def require_metric_libraries() -> None:
    """Check that sacrebleu and rouge-score are installed; raise WebtextError with the command that installs them."""
    require_extra("evaluate", "this metric", "sacrebleu", "rouge_score")


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
    _check_golds(golds)
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


def matthews_correlation(counts: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Return Matthews' correlation of two binary labels, -1 to 1; 0 if one of them has a single value.

    `counts` are [..., 4]: hits, correct rejections, false alarms and misses. By formula, since scikit-learn would be
    one more dependency.
    """
    hits, rejections, alarms, misses = np.moveaxis(np.asarray(counts, np.float64), -1, 0)
    product = (hits + alarms) * (hits + misses) * (rejections + alarms) * (rejections + misses)
    return np.where(
        product > 0, (hits * rejections - alarms * misses) / np.sqrt(np.where(product > 0, product, 1)), 0.0
    )


def best_threshold(golds: npt.ArrayLike, scores: npt.ArrayLike) -> tuple[float, float]:
    """Return the threshold from which on a score means a positive label, so that Matthews' correlation is largest.

    Return also that correlation.
    """
    order = np.argsort(-np.asarray(scores, np.float64), kind="stable")
    positive, values = np.asarray(golds, bool)[order], np.asarray(scores, np.float64)[order]
    hits, alarms = np.cumsum(positive), np.cumsum(~positive)
    counts = np.stack([hits, (~positive).sum() - alarms, alarms, positive.sum() - hits], axis=-1)
    # Equal scores are on one side of any threshold.
    correlations = np.where(np.append(np.diff(values) != 0, True), matthews_correlation(counts), -np.inf)
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


BLEU_COUNTS = 10


class Bleu:
    """BLEU of a corpus by sacrebleu, from sums of counts per example, so that examples can be resampled.

    It tokenizes as mteval-v13a and smooths orders without a match. Scores are 0 to 100.
    """

    def __init__(self) -> None:
        require_metric_libraries()
        from sacrebleu.metrics.bleu import BLEU  # deferred: few tasks need it

        self._metric = BLEU()

    def statistics(self, prediction: str, golds: Sequence[str]) -> list[int]:
        """Return ten counts: length, length of the closest gold, matches and n-grams of orders 1 to 4."""
        _check_golds(golds)
        score = self._metric.corpus_score([prediction], [[gold] for gold in golds])
        return [score.sys_len, score.ref_len, *score.counts, *score.totals]

    def score(self, sums: npt.ArrayLike) -> float:
        """Return the score of summed counts."""
        size, gold_size, *counts = np.asarray(sums).astype(np.int64).tolist()
        smoothing = self._metric.smooth_method
        return self._metric.compute_bleu(counts[:4], counts[4:], size, gold_size, smooth_method=smoothing).score

    def signature(self, golds: int) -> str:
        """Return sacrebleu's signature of its settings and version, for examples with so many gold answers."""
        self._metric.num_refs = golds
        return str(self._metric.get_signature())


def rouge_scores(prediction: str, golds: Sequence[str]) -> dict[str, float]:
    """Return the largest F1 of ROUGE-1, ROUGE-2 and ROUGE-Lsum over the gold summaries, 0 to 1, with Porter stemming.

    ROUGE-Lsum is computed by summary, as in ROUGE-1.5.5 and the papers on CNN/DailyMail: put one sentence per line. Of
    summaries in one line it is ROUGE-L, which is usually lower.
    """
    _check_golds(golds)
    scores = _rouge_scorer().score_multi(golds, prediction)
    return {name: float(scores[name].fmeasure) for name in ROUGE_TYPES}


@functools.cache
def _rouge_scorer() -> Any:
    require_metric_libraries()
    from rouge_score.rouge_scorer import RougeScorer  # deferred: importing nltk takes about a second

    return RougeScorer(list(ROUGE_TYPES), use_stemmer=True)


def _check_golds(golds: Sequence[str]) -> None:
    # A string is a sequence of strings, too: every character would be an answer.
    if isinstance(golds, str) or not golds:
        raise ValueError(f"expected a sequence of at least one gold answer, not {golds!r}")
