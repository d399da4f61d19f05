"""Fetches a list of URLs in a child process, with small segments, so that tests can kill it."""

from __future__ import annotations

import multiprocessing
from multiprocessing.process import BaseProcess
from pathlib import Path

from fetch_run import run_fetch

from pipelines.stages.fetch import segments


def start_fetch(folder: Path, flush_outcomes: int) -> BaseProcess:
    """Start the fetch; the processes of all calls are forked from one that has imported the stage."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["pipelines.stages.fetch.stage"])
    process = context.Process(target=_fetch, args=(folder, flush_outcomes))
    process.start()
    return process


def _fetch(folder: Path, flush_outcomes: int) -> None:
    segments.FLUSH_OUTCOMES = flush_outcomes
    run_fetch(folder, per_host_delay=0.01)
