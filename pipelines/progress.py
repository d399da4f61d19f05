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
_shown: Progress | None = None


class Progress:
    """Shows progress to the user: a bar on a terminal, plain lines elsewhere; this base class shows nothing."""

    is_paused = False

    def start(self, label: str, total: int | None, unit: str) -> None:
        """Start a piece of work of `total` units (None if unknown)."""

    def advance(self, units: int) -> None:
        """Add `units` of finished work."""

    def note(self, message: str) -> None:
        """Show one line that the user should read."""

    def pause(self) -> None:
        """Leave the time until the next finished unit out of the rate, and so out of the time left."""
        self.is_paused = True

    def finish(self, complete: bool) -> None:
        """End the current piece of work; not `complete` if it failed or was interrupted."""


Silent = Progress  # by the name that says what it is for


class OfTask(Progress):
    """Reports what a stage does inside a task as progress of the task, up to `total` units."""

    def __init__(self, total: int) -> None:
        self._left, self._report = total, _sink

    def advance(self, units: int) -> None:
        """See `Progress.advance`."""
        units = min(units, self._left)
        self._left -= units
        if self._report is not None:
            self._report(units)

    def complete(self) -> None:
        """Report the units that are left: those of an earlier run of the task."""
        self.advance(self._left)


@contextlib.contextmanager
def show_progress(progress: Progress, label: str, total: int | None, unit: str) -> Iterator[None]:
    """Show a piece of work from its start to its end, and the notes of its tasks."""
    global _shown
    progress.start(label, total, unit)
    previous, _shown = _shown, progress
    complete = False
    try:
        yield
        complete = True
    finally:
        _shown = previous
        progress.finish(complete)


def advance(units: int = 1) -> None:
    """Report `units` of finished work from inside a task."""
    if _sink is not None:
        _sink(units)


def note(message: str) -> None:
    """Show the user one line from inside a task that runs in the parent."""
    if _shown is not None:
        _shown.note(message)


_terminal: Progress | None = None
_is_compilation_noted = False


def set_terminal(terminal: Progress) -> None:
    """Set what notes a compilation while no progress is shown, such as during an estimate."""
    global _terminal
    _terminal = terminal


def note_compilation() -> None:
    """Tell the user, once, that numba is compiling kernels, since progress stops meanwhile.

    The time it takes says nothing about the work that remains. Without progress or a terminal, such as of a library
    call, the next compilation is noted instead.
    """
    global _is_compilation_noted
    if (shown := _shown or _terminal) is None:
        return
    shown.pause()
    if not _is_compilation_noted:
        _is_compilation_noted = True
        shown.note("compiling (first run only)")


compile_events.set_listener(note_compilation)


def set_sink(sink: Callable[[int], None] | None) -> Callable[[int], None] | None:
    """Set where `advance` reports to in this process, and return where it did before (called by the executor)."""
    global _sink
    previous, _sink = _sink, sink
    return previous
