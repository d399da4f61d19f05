"""Fetches a list of URLs in a child process, with small segments, so that tests can kill it."""

from __future__ import annotations

from multiprocessing.process import BaseProcess
from pathlib import Path

from child_process import start_process
from fetch_run import run_fetch

from pipelines.stages.fetch import segments


def start_fetch(folder: Path, flush_outcomes: int) -> BaseProcess:
    """Start the fetch in a child process."""
    return start_process(_fetch, folder, flush_outcomes)


def _fetch(folder: Path, flush_outcomes: int) -> None:
    segments.FLUSH_OUTCOMES = flush_outcomes
    run_fetch(folder, per_host_delay=0.01)
