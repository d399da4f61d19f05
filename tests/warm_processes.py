"""Processes that are forked from one that has imported what they need, for tests that start many.

A process that imports the parsers of extract, or numba, takes a second of a core. The forks differ from the processes
of a user only in that: as those do, they get everything over a pipe.
"""

from __future__ import annotations

import multiprocessing
import os
import types
from collections.abc import Callable
from typing import Any


class _Context:
    """What the executor and extract use of a multiprocessing context."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["tests.warm_imports"])
        self.Pipe, self.RawValue = self._context.Pipe, self._context.RawValue

    def Process(self, target: Callable[..., None], args: tuple[Any, ...], daemon: bool) -> Any:  # noqa: N802
        return self._context.Process(target=_run, args=(dict(os.environ), target, args), daemon=daemon)


def _run(environment: dict[str, str], target: Callable[..., None], args: tuple[Any, ...]) -> None:
    """Call a function with the environment of the parent, not of the process that this one is forked from."""
    os.environ.clear()
    os.environ.update(environment)
    target(*args)


_CONTEXT = _Context()


def start_process(target: Callable[..., None], *arguments: Any) -> Any:
    """Call a module-level function in a new process, which the test may kill."""
    process = _CONTEXT.Process(target, arguments, daemon=False)
    process.start()
    return process


def multiprocessing_with_forks() -> types.SimpleNamespace:
    """Return what replaces the module `multiprocessing` where processes are started."""
    names = {name: getattr(multiprocessing, name) for name in ("connection", "parent_process")}
    return types.SimpleNamespace(get_context=lambda _: _CONTEXT, **names)
