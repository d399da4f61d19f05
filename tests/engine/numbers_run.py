"""A small stage that writes numbers, for the tests of runs."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest

from pipelines.engine.config import option
from pipelines.engine.run import RunOptions, Stage, Summary, TaskResult, stage_run
from pipelines.engine.stage import GROWS_BY_FILES
from pipelines.errors import (
    InputError,
)
from pipelines.progress import Silent
from pipelines.records import shards


@dataclasses.dataclass(frozen=True)
class Config:
    least: int = option(0, "Least number kept.")
    speed: int = option(1, "Speed.", identity=False)


@dataclasses.dataclass(frozen=True)
class Task:
    number: int
    output: str
    least: int = 0
    lose: bool = False
    journal: str | None = None

    @property
    def name(self) -> str:
        return f"numbers-{self.number // 10:05d}"


def write_numbers(task: Task) -> TaskResult:
    """Write those of the numbers n, n+1, ... n+9 that are large enough."""
    kept = [number for number in range(task.number, task.number + 10) if number >= task.least]
    file = shards.write_file(task.output, f"{task.name}.json", json.dumps(kept).encode())
    dropped = {} if task.lose or len(kept) == 10 else {"too_low": 10 - len(kept)}
    return TaskResult(10, len(kept), dropped, {"sum": sum(kept)}, (file,))


class Notes(Silent):
    def __init__(self) -> None:
        self.notes: list[str] = []
        self.totals: list[int | None] = []
        self.ends: list[bool] = []

    def start(self, label: str, total: int | None, unit: str) -> None:
        self.totals.append(total)

    def note(self, message: str) -> None:
        self.notes.append(message)

    def finish(self, complete: bool) -> None:
        self.ends.append(complete)


def run_numbers(
    output: Path,
    config: Any = None,
    *,
    inputs: dict[str, str] | None = None,
    version: int = 1,
    tasks: int = 4,
    stop_after: int | None = None,
    lose: bool = False,
    options: RunOptions | None = None,
    writes: tuple[str, ...] = (),
    total: int | None = None,
    unit: str = "records",
) -> tuple[Summary, list[int]]:
    """Run the stage; return its summary and the numbers of the tasks that were really done."""
    config = config or Config()
    done: list[int] = []

    def work(task: Task) -> TaskResult:
        if stop_after is not None and len(done) >= stop_after:
            raise KeyboardInterrupt
        done.append(task.number)
        return write_numbers(task)

    stage = Stage("numbers", version, writes)
    with stage_run(
        stage, config, inputs=inputs or {"a": "1"}, output=str(output), options=options or RunOptions()
    ) as run:
        if not run.finished:
            listed = [Task(10 * number, run.output, config.least, lose) for number in range(tasks)]
            run.map(work, listed, total=total, unit=unit)
        return run.finish(), done


def process_of(_item: Any) -> TaskResult:
    return TaskResult(1, 1, counts={"process": os.getpid()})


def run_to(output: Path, finished: bool) -> None:
    """Finish a run, or interrupt it after two of its four tasks."""
    with contextlib.nullcontext() if finished else pytest.raises(KeyboardInterrupt):
        run_numbers(output, stop_after=None if finished else 2)


def top_files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


class Killed(BaseException):
    pass


def run_with_folder(
    output: Path, version: int = 1, *, killed: bool = False, overwrite: bool = False, names: tuple[str, ...] = ("x/a",)
) -> dict[str, bytes]:
    """Run a stage that writes `own/x/a.txt` and so on; return all that is in the folder then, hidden files left out."""

    def write() -> TaskResult:
        files = [shards.write_file(run.output, f"own/{name}.txt", name.encode()) for name in names]
        if killed:
            raise KeyboardInterrupt
        return TaskResult(1, 1, files=tuple(files))

    stage, options = Stage("numbers", version, ("own",)), RunOptions(overwrite=overwrite)
    with stage_run(stage, Config(), inputs={"a": "1"}, output=str(output), options=options) as run:
        if not run.finished:
            run.declare_outputs([f"own/{name}.txt" for name in names])
            run.once("write", write)
        run.finish()
    return files_below(output)


def files_below(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".")]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def refuse_input(output: Path, options: RunOptions | None = None, name: str = "documents") -> None:
    """Do the four tasks, or those that remain, and refuse the input of this name."""
    stage, options = Stage("numbers", 1, grows=(GROWS_BY_FILES,) if name == "listings" else ()), options or RunOptions()
    with stage_run(stage, Config(), inputs={name: "1"}, output=str(output), options=options) as run:
        run.map(write_numbers, [Task(10 * number, run.output) for number in range(4)])
        raise InputError("no numbers")
