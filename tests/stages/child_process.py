"""Child processes that tests kill, forked from one that has imported the stages, which saves most of their time."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from typing import Any

_PRELOADED = ["pipelines.stages.fetch.stage", "pipelines.stages.scrape.stage"]


def start_process(target: Callable[..., None], *arguments: Any) -> BaseProcess:
    """Call a module-level function in a new process."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    process = context.Process(target=target, args=arguments)
    process.start()
    return process
