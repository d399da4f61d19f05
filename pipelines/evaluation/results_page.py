"""The results of all tasks in an output folder, as `results.json` and `evaluation.html`, and their comparison."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from pipelines import storage
from pipelines.engine.manifest import has_manifest, read_manifest
from pipelines.engine.stage import Stage
from pipelines.errors import InputError
from pipelines.evaluation.metrics import Estimate, cluster_minima, mean_error, ratio_error
from pipelines.records import shards
from pipelines.records.tally import LowestHashes
from pipelines.reports.evaluation import (
    figures_by_step,
    figures_over_draws,
    metric_title,
    model_title,
    render_evaluation_page,
    result_label,
)

RESULTS = "results.json"
TOKENIZER = "tokenizer.json"
EXAMPLES = shards.shard_name("examples", 0)
STAGE = Stage("evaluate", 6, (RESULTS, TOKENIZER))
PAGE = "evaluation.html"
_STEP = re.compile(r"step-(\d+)")
_STEP_FIGURES = ("value", "error", "low", "high")
# How many truncated examples and most confident answers of a task the page lists; 30 as in the paper's table 5.
_LISTED, _CONFIDENT = 100, 30
# Nats per unit of the difference.
_NATS_PER_UNIT = {"perplexity": 1.0, "nats": 1.0, "bits": math.log(2)}
Results = Mapping[str, Mapping[str, Any]]


def read_results(folder: str) -> dict[str, dict[str, Any]]:
    """Return the results of the finished tasks in an output folder, by label; raise InputError if there are none.

    If a folder only has results of checkpoints, they are those of the last one.
    """
    results = _finished_tasks(main_folder(folder))
    if not results:
        raise InputError(f"{folder}: has no results of `webtext evaluate`")
    return results


def main_folder(folder: str) -> str:
    """Return an output folder, or that of the last checkpoint in it if it has no results of its own."""
    steps = step_folders(folder)
    return steps[max(steps)] if steps and not _finished_tasks(folder) else folder


def step_folders(folder: str) -> dict[int, str]:
    """Return the folders with the results of checkpoints in an output folder, by step."""
    paths = {int(match[1]): path for name, path in _subfolders(folder) if (match := _STEP.fullmatch(name))}
    return {step: path for step, path in sorted(paths.items()) if _finished_tasks(path)}


def _finished_tasks(folder: str) -> dict[str, dict[str, Any]]:
    return {
        name: storage.read_json(storage.join(path, RESULTS))
        for name, path in _subfolders(folder)
        # A folder of another kind may have a file of this name, too.
        if storage.exists(storage.join(path, RESULTS))
        and has_manifest(path)
        and read_manifest(path).identity.stage == STAGE.name
    }


def _subfolders(folder: str) -> list[tuple[str, str]]:
    names = storage.list_folder(folder) if storage.is_folder(folder) else []
    return [(name, storage.join(folder, name)) for name in names]


def write_page(folder: str, compared: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Write the results of all tasks in an output folder and their page, and return how they compare to other folders.

    Raises InputError for a folder without results.
    """
    results, main = read_results(folder), main_folder(folder)
    steps = {step: list(read_results(path).values()) for step, path in step_folders(folder).items()}
    comparisons = [compare_folders(main, results, main_folder(other), read_results(other)) for other in compared]
    truncated, confident = {}, {}
    for name, result in results.items():
        path = storage.join(main, name, EXAMPLES)
        if result["truncated_examples"]:
            cuts = ((row["place"], row["cut"]) for row in shards.read_rows(path, ["place", "cut"]) if row["cut"])
            truncated[name] = list(itertools.islice(cuts, _LISTED))
        if any(figure["kind"] == "confident_share" for figure in result["metrics"]):
            columns = ["place", "gold", "output", "exact_match", "confidence"]
            rows = ((-row["confidence"], row) for row in shards.read_rows(path, columns))
            confident[name] = list(LowestHashes(_CONFIDENT, rows))
    page = render_evaluation_page(results, truncated, confident, comparisons, steps)
    content = {
        "tasks": results,
        "compared": [{key: value for key, value in other.items() if key != "results"} for other in comparisons],
        "steps": [
            {"task": task, "metric": metric, "step": step} | {name: figure[name] for name in _STEP_FIGURES}
            for (task, metric), figures in figures_by_step(steps).items()
            for step, figure in figures
        ],
        "draws": figures_over_draws(results.values()),
    }
    storage.write_json(storage.join(folder, RESULTS), content)
    storage.write_bytes(storage.join(folder, PAGE), page.encode())
    return comparisons


def compare_folders(folder: str, results: Results, other: str, others: Results) -> dict[str, Any]:
    """Return the paired differences of the metrics of all tasks that two output folders have the same examples of.

    The keys are those of `compared` in `results.json`, and `results`, the compared results of the other folder. A
    difference is positive where the first value is larger; its `unit` is "" if it is that of the values. `notes` say
    which tasks were not compared, and why.
    """
    compared: dict[str, Mapping[str, Any]] = {}
    differences: list[dict[str, Any]] = []
    notes: list[str] = []
    for task, result in results.items():
        if task not in others:
            notes.append(f"{task}: not in {other}")
            continue
        hashes, other_hashes = (sorted(file["sha256"] for file in one["files"]) for one in (result, others[task]))
        if hashes != other_hashes:
            notes.append(f"{task}: not compared, the files differ")
            continue
        figures, other_figures = (
            {(figure["name"], *figure["columns"]): figure for figure in one["metrics"]}
            for one in (result, others[task])
        )
        common = {key: figure for key, figure in figures.items() if key in other_figures}
        columns = ["place", "gold", "cluster", *dict.fromkeys(name for _, *names in common for name in names)]
        paths = (storage.join(one, task, EXAMPLES) for one in (folder, other))
        first, second = (pa.Table.from_pylist(list(shards.read_rows(path, columns))) for path in paths)
        if not first.select(["place", "gold"]).equals(second.select(["place", "gold"])):
            notes.append(f"{task}: not compared, the examples differ")
            continue
        compared[task] = others[task]
        for key, figure in common.items():
            paired = paired_figure(figure, first, second)
            differences.append(
                {
                    "task": result_label(result),
                    "metric": metric_title(figure),
                    "value": figure["value"],
                    "other": other_figures[key]["value"],
                    "difference": paired and paired.value,
                    "error": paired and paired.error,
                    "p_value": paired and paired.p_value,
                    "unit": f"nats per {figure['unit']}" if figure["kind"] == "perplexity" else "",
                }
            )
    notes.extend(f"{task}: only in {other}" for task in others if task not in results)
    model = "; ".join(dict.fromkeys(model_title(result["model"]) for result in others.values()))
    return {"folder": other, "model": model, "differences": differences, "notes": notes, "results": compared}


def paired_figure(figure: Mapping[str, Any], first: pa.Table, second: pa.Table) -> Estimate | None:
    """Return the mean difference of a metric between two models over the same examples.

    For nats, it is that of the ratios total / units: of the logarithms of perplexities. None where the units differ, as
    tokens do, and for metrics of all examples together.
    """
    kind, clusters = figure["kind"], first.column("cluster").to_pylist()
    a, b = (
        [table.column(name).to_numpy().astype(np.float64) for name in figure["columns"]] for table in (first, second)
    )
    if kind in _NATS_PER_UNIT:
        nats, units = _NATS_PER_UNIT[kind], a[1]
        return ratio_error(a[0] / nats - b[0] / nats, units, clusters) if np.array_equal(units, b[1]) else None
    if kind == "cluster_share":
        return mean_error(cluster_minima(a[0], clusters) - cluster_minima(b[0], clusters))
    return mean_error(a[0] - b[0], clusters) if kind in ("share", "mean") else None
