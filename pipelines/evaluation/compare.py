"""Compares two models by their answers to the same examples."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pipelines import storage
from pipelines.evaluation.task_run import EXAMPLES
from pipelines.evaluation.uncertainty import PairedDifference, paired_difference
from pipelines.records import shards
from pipelines.reports.evaluation import Comparison, metric_title, model_title, result_label

Results = Mapping[str, Mapping[str, Any]]
# What the sum of nats is divided by, for a ratio in the unit of the difference.
_SCALES = {"perplexity": 1.0, "nats": 1.0, "bits": math.log(2)}
_KEYS = ("place", "gold", "cluster")


class _Examples(NamedTuple):
    """The examples of a task: their places and right answers, their clusters, and the columns of the metrics."""

    keys: list[tuple[str, str]]
    clusters: list[str]
    columns: dict[str, npt.NDArray[np.float64]]


def compare_folders(folder: str, results: Results, other: str, others: Results) -> Comparison:
    """Return the paired differences of the metrics of all tasks that two output folders have the same examples of.

    Positive where the value of the first is larger. `notes` say which tasks were not compared, and why.
    """
    title = "; ".join(dict.fromkeys(model_title(result["model"]) for result in others.values()))
    differences, notes, compared = [], [], {}
    for task, result in results.items():
        if task not in others:
            notes.append(f"{task}: not in {other}")
        elif _file_hashes(result) != _file_hashes(others[task]):
            notes.append(f"{task}: not compared, the files differ")
        else:
            names = [name for name in _columns(result) if name in _columns(others[task])]
            first, second = (_read_examples(storage.join(one, task), names) for one in (folder, other))
            if first.keys == second.keys:
                compared[task] = others[task]
                differences += _compare(result, others[task], first, second)
            else:
                notes.append(f"{task}: not compared, the examples differ")
    notes += [f"{task}: only in {other}" for task in others if task not in results]
    return Comparison(other, title, compared, differences, notes)


def _compare(result: Any, other: Any, first: _Examples, second: _Examples) -> list[dict[str, Any]]:
    others = {(figure["name"], *figure["columns"]): figure["value"] for figure in other["metrics"]}
    rows = []
    for figure in result["metrics"]:
        key = (figure["name"], *figure["columns"])
        if key in others:
            paired = _difference(figure, first, second)
            rows.append(
                {
                    "task": result_label(result),
                    "metric": metric_title(figure),
                    "value": figure["value"],
                    "other": others[key],
                    "difference": paired and paired.value,
                    "error": paired and paired.error,
                    "p_value": paired and paired.p_value,
                    "unit": f"nats per {figure['unit']}" if figure["kind"] == "perplexity" else "",
                }
            )
    return rows


def _difference(figure: Any, first: _Examples, second: _Examples) -> PairedDifference | None:
    """Return the difference of a metric; None for units that differ, as tokens do, and for those of all examples."""
    kind, names = figure["kind"], figure["columns"]
    a, b = first.columns[names[0]], second.columns[names[0]]
    if kind in _SCALES:
        units = first.columns[names[1]]
        is_same = np.array_equal(units, second.columns[names[1]])
        return paired_difference(a / _SCALES[kind], b / _SCALES[kind], first.clusters, units) if is_same else None
    if kind == "cluster_share":
        labels = np.array(first.clusters)
        a, b = (np.array([values[labels == label].all() for label in np.unique(labels)]) for values in (a, b))
        return paired_difference(a, b)
    return paired_difference(a, b, first.clusters) if kind in ("share", "mean") else None


def _columns(result: Any) -> dict[str, None]:
    return dict.fromkeys(name for figure in result["metrics"] for name in figure["columns"])


def _read_examples(folder: str, names: Sequence[str]) -> _Examples:
    rows = list(shards.read_rows(storage.join(folder, EXAMPLES), [*_KEYS, *names]))
    columns = {name: np.array([row[name] for row in rows], np.float64) for name in names}
    return _Examples([(row["place"], row["gold"]) for row in rows], [row["cluster"] for row in rows], columns)


def _file_hashes(result: Any) -> list[str]:
    return sorted(facts["sha256"] for facts in result["files"])
