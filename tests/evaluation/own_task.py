"""Tasks of a user, for the tests of the kinds of tasks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from pipelines.engine.run import RunOptions
from pipelines.evaluation.config import EvaluateConfig
from pipelines.evaluation.definitions import parse_tasks
from pipelines.evaluation.stage import evaluate


def own_task(folder: Path, kind: str, records: list[dict[str, Any]] | str, **options: Any) -> str:
    """Write a user's task and its data, and return the path of the task."""
    data = folder / ("data.txt" if isinstance(records, str) else "data.jsonl")
    data.write_text(records if isinstance(records, str) else "".join(json.dumps(row) + "\n" for row in records))
    values = {"kind": kind, "data": data.name, **options}
    (folder / "own.toml").write_text(
        "[task]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())
    )
    return str(folder / "own.toml")


def run_task(
    task: str, model: str, output: Path, variant: str = "paper", **more: Any
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the results of a task, and its examples; `more` as for `parse_tasks`."""
    [result] = evaluate(
        EvaluateConfig(),
        tasks=parse_tasks([task], variant, **more),
        model=model,
        output=str(output),
        options=RunOptions(),
    )
    [folder] = output.iterdir()
    return result, pq.read_table(folder / "examples-00000.parquet").to_pylist()


def value_of(result: dict[str, Any], name: str) -> float:
    """Return the value of a metric."""
    [figure] = [figure for figure in result["metrics"] if figure["name"] == name]
    value: float = figure["value"]
    return value
