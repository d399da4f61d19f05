"""Runs stages in processes that are killed at their n-th rename, or after a time.

python killed_run.py CORPUS    reads lines of `STAGE OUTPUT MOMENT ...`, runs the stage once per moment, and answers
                               each line with the number of runs that were killed

A moment is `N:before` or `N:after`: the run kills itself then. Or it is `SECONDS:base` or `SECONDS:changed`: a run with
this config replaces what the folder contains, and is killed with all its processes after that time, or `+SECONDS`
after the new result has its manifest and is being moved.

The runs are forks of this process, which has imported what the stages import, also what they import only when they run:
torch alone takes seconds. Nothing starts a thread before the forks. The processes that a run starts are forks, too.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from contract_cases import CASES, run_stage

from pipelines.engine.executor import make_executor
from pipelines.engine.run import RunOptions
from pipelines.pipeline import BY_NAME
from pipelines.storage import files

# What a stage imports when it runs.
_LAZY_IMPORTS = {
    "extract": ["pipelines.algorithms.blocks.model", "pipelines.algorithms.blocks.rendering"],
    "filter": ["numba", "pipelines.algorithms.web.urls", "phonenumbers"],
    "dedup": ["numba"],
    "train-bpe": ["gigatoken", "numba"],
    "tokenize": ["gigatoken"],
    "pretrain": ["pipelines.stages.pretrain.training", "torch._dynamo"],
    "overlap-index": ["numba"],
    "overlap-report": ["numba"],
    "search": ["numba", "tantivy"],
}
_FORKS: Any = multiprocessing.get_context("fork")


def main() -> None:
    """Answer the lines of the standard input."""
    corpus = Path(sys.argv[1])
    multiprocessing.get_context = lambda _method=None: _FORKS
    for line in sys.stdin:
        stage, output, *moments = line.split()
        BY_NAME[stage].load()
        for module in _LAZY_IMPORTS.get(stage, []):
            importlib.import_module(module)
        if "numba" in sys.modules:  # what numba does before it loads its first kernel, for 0.4 s
            registry = importlib.import_module("numba.core.registry")
            registry.cpu_target.typing_context.refresh()
            registry.cpu_target.target_context.refresh()
        if stage == "filter":
            importlib.import_module("pipelines.stages.filter.languages")._load_model()
        print(sum(_is_killed(corpus, stage, Path(output), moment) for moment in moments), flush=True)


def _is_killed(corpus: Path, stage: str, output: Path, moment: str) -> bool:
    """Run the stage in a fork and return whether it killed itself; it may also have finished before that."""
    number, kind = moment.split(":")
    is_overwrite = kind in ("base", "changed")
    process = os.fork()
    if not process:
        if is_overwrite:
            os.setsid()
            executor = make_executor(int(os.environ.get("WEBTEXT_TEST_WORKERS", "1")))
            options = RunOptions(executor, overwrite=True, discard_pages=True)
            run_stage(corpus, stage, output, options, **(CASES[stage].changed if kind == "changed" else {}))
        else:
            _kill_at(int(number), kind)
            run_stage(corpus, stage, output, RunOptions())
        os._exit(0)
    if is_overwrite:
        _kill_after(number, process, output)
    _, status = os.waitpid(process, 0)
    exit_code = os.waitstatus_to_exitcode(status)
    if exit_code not in (0, -signal.SIGKILL):
        raise SystemExit(f"{stage} {moment}: exit code {exit_code}")
    return exit_code != 0


def _kill_after(seconds: str, process: int, output: Path) -> None:
    """Kill a process and those that it started after a time, unless it has exited before."""
    is_timed = not seconds.startswith("+")
    end = time.monotonic() + float(seconds)
    while time.monotonic() < end or not is_timed:
        if os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            return
        if not is_timed and (output / "_next" / "manifest.json").exists():
            is_timed, end = True, time.monotonic() + float(seconds)
        time.sleep(0.0002)
    try:
        os.killpg(process, signal.SIGKILL)
    except ProcessLookupError:  # it is not the leader of a session yet
        os.kill(process, signal.SIGKILL)


def _kill_at(count: int, when: str) -> None:
    """Make this process kill itself before or after the `count`-th file gets its name."""
    rename = files._rename
    renames = 0

    def counted(file_system: Any, temporary: str, final: str) -> None:
        nonlocal renames
        renames += 1
        if renames == count and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        rename(file_system, temporary, final)
        if renames == count and when == "after":
            os.kill(os.getpid(), signal.SIGKILL)

    files._rename = counted


if __name__ == "__main__":
    main()
