"""Child processes that tests kill, forked from one that has imported the stages, which saves most of their time."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from typing import Any

_PRELOADED = ["pipelines.stages.fetch.stage", "pipelines.stages.scrape.stage"]


def start_process(target: Callable[..., None], *arguments: Any) -> BaseProcess:
    """Call a module-level function in a new process."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    process = context.Process(target=_call, args=(target, arguments))
    process.start()
    return process


def _call(target: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    # The server that forks may have been started by a test whose requests went through a proxy.
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        del os.environ[name]
    target(*arguments)
