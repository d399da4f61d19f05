"""How long work reports how far it is.

A stage calls `advance` where it handles a record. In a worker process the call adds to a counter
that the parent polls; a stage therefore never knows who is watching.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

_sink: Callable[[int], None] | None = None


class Progress(Protocol):
    """What shows progress to a person: a bar on a terminal, plain lines elsewhere."""

    def start(self, label: str, total: int | None, unit: str) -> None:
        """Begin a piece of work of `total` units (None if unknown)."""

    def advance(self, units: int) -> None:
        """Add `units` of finished work."""

    def note(self, message: str) -> None:
        """Show one line that the user should read."""

    def finish(self) -> None:
        """End the piece of work that was started last."""


class Silent:
    """A `Progress` that shows nothing."""

    def start(self, label: str, total: int | None, unit: str) -> None:
        """Ignore."""

    def advance(self, units: int) -> None:
        """Ignore."""

    def note(self, message: str) -> None:
        """Ignore."""

    def finish(self) -> None:
        """Ignore."""


def advance(units: int = 1) -> None:
    """Report `units` of finished work from inside a task."""
    if _sink is not None:
        _sink(units)


def set_sink(sink: Callable[[int], None] | None) -> None:
    """Choose where `advance` reports to in this process (the executor calls this)."""
    global _sink
    _sink = sink
