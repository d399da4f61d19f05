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
        self.pauses = 0

    def note(self, message: str) -> None:
        self.notes.append(message)

    def pause(self) -> None:
        self.pauses += 1


def _compile(_: int) -> None:
    compile_events.report()


def _run(executor: Executor, notes: _Notes, function: Callable[[int], None]) -> None:
    with show_progress(notes, "stage: phase", None, "records"):
        for _ in executor.map(function, range(3), None, notes.advance, str):
            pass


@pytest.fixture(autouse=True)
def _new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_is_compilation_noted", False)


@pytest.mark.parametrize("executor", [SerialExecutor(), LocalExecutor(2)])
def test_compilation_is_noted_once_per_command(executor: Executor) -> None:
    notes = _Notes()
    for _ in range(2):
        _run(executor, notes, _compile)
    assert notes.notes == [_NOTE]
    assert notes.pauses >= 2


def test_compilation_before_any_progress_is_noted_on_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    notes, terminal = _Notes(), _Notes()
    monkeypatch.setattr(progress, "_terminal", None)
    _compile(0)
    progress.set_terminal(terminal)
    _compile(0)
    progress.note_compilation()
    assert terminal.notes == [_NOTE]
    _run(SerialExecutor(), notes, _compile)
    assert notes.notes == []
    assert notes.pauses
