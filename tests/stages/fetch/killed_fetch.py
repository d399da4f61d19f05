"""Fetches a list of URLs in a child process, so that tests can kill it."""

from __future__ import annotations

from multiprocessing.process import BaseProcess
from pathlib import Path

from fetch_run import run_fetch
from warm_processes import start_process


def start_fetch(folder: Path) -> BaseProcess:
    """Start the fetch in a child process."""
    return start_process(_fetch, folder)


def _fetch(folder: Path) -> None:
    run_fetch(folder, per_host_delay=0.01)
