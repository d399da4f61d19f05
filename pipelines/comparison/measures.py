"""The scores of all models on the same examples, from the results of their evaluations."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pipelines import storage
from pipelines.comparison.examples import ExampleSet, Flags
from pipelines.comparison.jobs import Job
from pipelines.comparison.statistics import Measure, Scores
from pipelines.evaluation.metrics import Floats
from pipelines.evaluation.results_page import EXAMPLES, RESULTS
from pipelines.records import shards

# Kinds of metrics that are a ratio of nats to units.
_RATIOS = ("bits", "nats", "perplexity")
# Of texts, by kind of their set; a task has several.
_TEXT_METRIC = "bits_per_byte"


def read_scores(one: ExampleSet, jobs: Sequence[Job], output: str, is_used: Flags) -> list[Scores]:
    """Return the scores of all models on the used examples of a set, by measure.

    Of a task, these are all metrics that are means or ratios over examples, of a text the bits per byte.
    """
    folders = {job: storage.join(output, job.folder("evaluate"), one.task.label) for job in jobs}
    figures = {row["name"]: row for row in storage.read_json(storage.join(folders[jobs[0]], RESULTS))["metrics"]}
    if one.kind != "task":
        figures = {_TEXT_METRIC: figures[_TEXT_METRIC]}
    if "gold_bits_per_byte" in figures:  # the same log-probability, per byte
        figures.pop("gold_nll", None)
    measured = (figure for figure in figures.values() if figure["kind"] in ("share", "mean", *_RATIOS))
    return [_read_measure(one, figure, folders, is_used) for figure in measured]


def _read_measure(one: ExampleSet, figure: Mapping[str, Any], folders: Mapping[Job, str], is_used: Flags) -> Scores:
    name, kind, is_ratio = figure["name"], figure["kind"], figure["kind"] in _RATIOS
    quantity, scale = ("bits", math.log(2)) if kind == "bits" else ("nats", 1.0)
    units = {"share": "share"} | ({"mean": "probability"} if name.endswith("probability") else {})
    if kind == "perplexity":  # of which the ratio is the logarithm
        name = f"log_{name}"
    rows = {job: _read_columns(folder, figure["columns"], is_used) for job, folder in folders.items()}
    measure = Measure(
        name=f"{one.name}: {name.replace('_', ' ')}",
        set=one.name,
        metric=name,
        unit=f"{quantity} per {figure['unit']}" if is_ratio else units.get(kind, "nats"),
        higher_is_better=not is_ratio and not name.endswith("_nll"),
        decides=one.decides(is_used),
    )
    numerators = {
        corpus: np.stack([columns[0] / scale for job, columns in rows.items() if job.corpus == corpus])
        for corpus in dict.fromkeys(job.corpus for job in folders)
    }
    denominators = next(iter(rows.values()))[1] if is_ratio else np.ones(int(is_used.sum()))
    clusters = [cluster for cluster, used in zip(one.clusters, is_used, strict=True) if used]
    return Scores(measure, numerators, denominators, clusters)


def _read_columns(folder: str, names: Sequence[str], is_used: Flags) -> list[Floats]:
    """Return columns of the used examples."""
    batches = list(shards.read_batches(storage.join(folder, EXAMPLES), list(names)))
    columns = (np.concatenate([batch.column(name).cast("float64").to_numpy() for batch in batches]) for name in names)
    return [column[is_used] for column in columns]
