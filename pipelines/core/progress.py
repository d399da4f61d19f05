"""How long work reports how far it is.

A stage calls `advance` where it handles a record. In a worker process the call adds to a counter
that the parent polls; a stage therefore never knows who is watching. `note` says what a user should know while a task
waits; it is for tasks that run in the parent, and goes nowhere in a worker.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Protocol

_sink: Callable[[int], None] | None = None
_note_sink: Callable[[str], None] | None = None


class Progress(Protocol):
    """What shows progress to a person: a bar on a terminal, plain lines elsewhere."""

    def start(self, label: str, total: int | None, unit: str) -> None:
        """Begin a piece of work of `total` units (None if unknown)."""

    def advance(self, units: int) -> None:
        """Add `units` of finished work."""

    def note(self, message: str) -> None:
        """Show one line that the user should read."""

    def finish(self, complete: bool) -> None:
        """End the piece of work that was started last; not `complete` where it failed or was interrupted."""


class Silent:
    """A `Progress` that shows nothing."""

    def start(self, label: str, total: int | None, unit: str) -> None:
        """Ignore."""

    def advance(self, units: int) -> None:
        """Ignore."""

    def note(self, message: str) -> None:
        """Ignore."""

    def finish(self, complete: bool) -> None:
        """Ignore."""


@contextlib.contextmanager
def show_progress(progress: Progress, label: str, total: int | None, unit: str) -> Iterator[None]:
    """Show a piece of work from its start to its end, and what its tasks note meanwhile."""
    global _note_sink
    progress.start(label, total, unit)
    before, _note_sink = _note_sink, progress.note
    complete = False
    try:
        yield
        complete = True
    finally:
        _note_sink = before
        progress.finish(complete)


def advance(units: int = 1) -> None:
    """Report `units` of finished work from inside a task."""
    if _sink is not None:
        _sink(units)


def note(message: str) -> None:
    """Show the user one line from inside a task that runs in the parent."""
    if _note_sink is not None:
        _note_sink(message)


def set_sink(sink: Callable[[int], None] | None) -> None:
    """Choose where `advance` reports to in this process (the executor calls this)."""
    global _sink
    _sink = sink
