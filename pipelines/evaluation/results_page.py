"""The results of all tasks in an output folder, as `results.json` and as the page `evaluation.html`."""

from __future__ import annotations

import heapq
import itertools
import operator
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pipelines import storage
from pipelines.engine.manifest import has_manifest, read_manifest
from pipelines.errors import InputError
from pipelines.evaluation.compare import compare_folders
from pipelines.evaluation.task_run import EXAMPLES, RESULTS, STAGE
from pipelines.records import shards
from pipelines.reports.evaluation import Comparison, figures_by_step, figures_over_draws, render_evaluation_page

PAGE = "evaluation.html"
_STEP = re.compile(r"step-(\d+)")
# Truncated examples of a task that the page lists, and its most confident answers: as many as in the paper's table 5.
_LISTED, _CONFIDENT = 100, 30


def read_results(folder: str) -> dict[str, dict[str, Any]]:
    """Return the results of the finished tasks in an output folder, by label; raise InputError if there are none.

    Of a folder with the results of checkpoints alone, those of the last one.
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
    names = storage.list_folder(folder) if storage.is_folder(folder) else []
    steps = {int(match[1]): storage.join(folder, name) for name in names if (match := _STEP.fullmatch(name))}
    return {step: path for step, path in sorted(steps.items()) if _finished_tasks(path)}


def _finished_tasks(folder: str) -> dict[str, dict[str, Any]]:
    names = storage.list_folder(folder) if storage.is_folder(folder) else []
    paths = {name: storage.join(folder, name) for name in names}
    return {
        name: storage.read_json(storage.join(path, RESULTS))
        for name, path in paths.items()
        # A folder of another kind may have a file of this name, too.
        if storage.exists(storage.join(path, RESULTS)) and _is_task(path)
    }


def _is_task(folder: str) -> bool:
    return has_manifest(folder) and read_manifest(folder).identity.stage == STAGE.name


def write_page(folder: str, compared: Sequence[str] = ()) -> list[Comparison]:
    """Write the results of all tasks in an output folder and their page, and return how they compare to other folders.

    Raises InputError for a folder without results.
    """
    results, main = read_results(folder), main_folder(folder)
    steps = {step: list(read_results(path).values()) for step, path in step_folders(folder).items()}
    comparisons = [compare_folders(main, results, main_folder(other), read_results(other)) for other in compared]
    truncated = {
        name: _truncated_examples(storage.join(main, name)) if result["truncated_examples"] else []
        for name, result in results.items()
    }
    confident = {name: _confident_answers(storage.join(main, name), result) for name, result in results.items()}
    page = render_evaluation_page(results, truncated, confident, comparisons, steps)
    differences = [
        {"folder": one.folder, "model": one.title, "differences": one.differences, "notes": one.notes}
        for one in comparisons
    ]
    series = [
        {
            "task": task,
            "metric": metric,
            "step": step,
            **{name: figure[name] for name in ("value", "error", "low", "high")},
        }
        for (task, metric), figures in figures_by_step(steps).items()
        for step, figure in figures
    ]
    draws = figures_over_draws(results.values())
    content = {"tasks": results, "compared": differences, "steps": series, "draws": draws}
    storage.write_json(storage.join(folder, RESULTS), content)
    storage.write_bytes(storage.join(folder, PAGE), page.encode())
    return comparisons


def _truncated_examples(folder: str) -> list[tuple[str, int]]:
    rows = shards.read_rows(storage.join(folder, EXAMPLES), ["place", "cut"])
    return list(itertools.islice(((row["place"], row["cut"]) for row in rows if row["cut"]), _LISTED))


def _confident_answers(folder: str, result: Mapping[str, Any]) -> list[dict[str, Any]]:
    if not any(figure["kind"] == "confident_share" for figure in result["metrics"]):
        return []
    names = ["place", "gold", "output", "exact_match", "confidence"]
    rows = shards.read_rows(storage.join(folder, EXAMPLES), names)
    return heapq.nlargest(_CONFIDENT, rows, key=operator.itemgetter("confidence"))
