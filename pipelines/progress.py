"""Progress of long-running work.

A stage calls `advance` for each record it handles. In a worker process the call adds to a counter that the parent
polls, so a stage does not know how progress is shown. `note` tells the user what a task is waiting for; it is for tasks
that run in the parent, and has no effect in a worker.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from pipelines.algorithms.kernels import compile_events

_sink: Callable[[int], None] | None = None
_note_sink: Callable[[str], None] | None = None


class Progress:
    """Shows progress to the user: a bar on a terminal, plain lines elsewhere; this base class shows nothing."""

    def start(self, label: str, total: int | None, unit: str) -> None:
        """Start a piece of work of `total` units (None if unknown)."""

    def advance(self, units: int) -> None:
        """Add `units` of finished work."""

    def note(self, message: str) -> None:
        """Show one line that the user should read."""

    def finish(self, complete: bool) -> None:
        """End the current piece of work; not `complete` if it failed or was interrupted."""


Silent = Progress  # by the name that says what it is for


@contextlib.contextmanager
def show_progress(progress: Progress, label: str, total: int | None, unit: str) -> Iterator[None]:
    """Show a piece of work from its start to its end, and the notes of its tasks."""
    global _note_sink
    progress.start(label, total, unit)
    previous, _note_sink = _note_sink, progress.note
    complete = False
    try:
        yield
        complete = True
    finally:
        _note_sink = previous
        progress.finish(complete)


def advance(units: int = 1) -> None:
    """Report `units` of finished work from inside a task."""
    if _sink is not None:
        _sink(units)


def note(message: str) -> None:
    """Show the user one line from inside a task that runs in the parent."""
    if _note_sink is not None:
        _note_sink(message)


_compilation_noted_to: Callable[[str], None] | None = None


def note_compilation() -> None:
    """Tell the user, once per command, that numba is compiling kernels, since progress stops meanwhile.

    Has no effect while no progress is shown, such as during an estimate: the next compilation is noted instead.
    """
    global _compilation_noted_to
    if _note_sink != _compilation_noted_to and _note_sink is not None:
        _compilation_noted_to = _note_sink
        note("compiling (first run only)")


compile_events.set_listener(note_compilation)


def set_sink(sink: Callable[[int], None] | None) -> None:
    """Set where `advance` reports to in this process (called by the executor)."""
    global _sink
    _sink = sink
