"""Progress: the note that kernels are being compiled."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pipelines import progress
from pipelines.algorithms.kernels import compile_events
from pipelines.engine.executor import LocalExecutor
from pipelines.engine.tasks import Executor, SerialExecutor
from pipelines.progress import Silent, show_progress

_NOTE = "compiling (first run only)"


class _Notes(Silent):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, message: str) -> None:
        self.notes.append(message)


def _compile(_: int) -> None:
    compile_events.report()


def _run(executor: Executor, notes: _Notes, function: Callable[[int], None]) -> None:
    with show_progress(notes, "stage: phase", None, "records"):
        for _ in executor.map(function, range(3), None, notes.advance, str):
            pass


@pytest.mark.parametrize("executor", [SerialExecutor(), LocalExecutor(2)])
def test_compilation_is_noted_once_per_command(executor: Executor) -> None:
    notes = _Notes()
    for _ in range(2):
        _run(executor, notes, _compile)
    assert notes.notes == [_NOTE]


def test_compilation_before_any_progress_does_not_suppress_the_note() -> None:
    notes = _Notes()
    _compile(0)
    progress.note_compilation()
    _run(SerialExecutor(), notes, _compile)
    assert notes.notes == [_NOTE]
