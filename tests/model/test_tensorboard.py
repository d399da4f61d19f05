"""TensorBoard events: with the real package if installed, else with a fake writer."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pipelines.errors import WebtextError
from pipelines.model.training.log import TensorBoardLog

needs_tensorboard = pytest.mark.skipif(
    find_spec("tensorboard") is None, reason="tensorboard is not installed (pip install '.[tensorboard]')"
)


class Writer:
    """Takes the calls of torch's SummaryWriter."""

    made: list[Writer] = []  # noqa: RUF012 - a test empties it

    def __init__(self, folder: str, purge_step: int) -> None:
        self.folder, self.purge_step, self.closed = folder, purge_step, False
        self.scalars: list[tuple[str, float, int]] = []
        Writer.made.append(self)

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        self.scalars.append((tag, value, step))

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def writers(monkeypatch: pytest.MonkeyPatch) -> list[Writer]:
    module: Any = ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = Writer
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    monkeypatch.setattr("pipelines.extras.find_spec", lambda name: object())
    monkeypatch.setattr(Writer, "made", [])
    return Writer.made


def test_a_row_becomes_scalars_once_each(writers: list[Writer], tmp_path: Path) -> None:
    log = TensorBoardLog(str(tmp_path / "events"), 0)
    log.log({"step": 0, "held_out_loss": 10.8, "held_out_tokens": 512})
    log.log({"step": 1, "loss": 9.5, "learning_rate": 1e-3, "gradient_norm": 2.0})
    log.log({"step": 1, "loss": 9.5, "learning_rate": 1e-3, "gradient_norm": 2.0, "held_out_loss": 9.4})
    log.log({"step": 2, "loss": 9.0, "tokens_per_second": 1000, "utilisation": None})
    log.close()
    (writer,) = writers
    assert (writer.folder, writer.purge_step, writer.closed) == (str(tmp_path / "events"), 0, True)
    assert writer.scalars == [
        ("loss/held_out", 10.8, 0),
        ("loss/train", 9.5, 1),
        ("training/learning_rate", 1e-3, 1),
        ("training/gradient_norm", 2.0, 1),
        ("loss/held_out", 9.4, 1),
        ("loss/train", 9.0, 2),
        ("speed/tokens_per_second", 1000, 2),
    ]


def test_after_a_resume_repeated_steps_are_hidden(writers: list[Writer], tmp_path: Path) -> None:
    log = TensorBoardLog(str(tmp_path), 250)
    log.log({"step": 250, "loss": 3.0})
    log.close()
    assert writers[0].purge_step == 250


def test_a_missing_package_error_names_the_install_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("pipelines.extras.find_spec", lambda name: None)
    with pytest.raises(WebtextError, match=r"run: pip install 'webtext-kit\[tensorboard\]'"):
        TensorBoardLog(str(tmp_path), 0)


def test_events_are_only_written_to_a_local_disk(writers: list[Writer]) -> None:
    with pytest.raises(WebtextError, match=r"memory://events: .* need a local folder"):
        TensorBoardLog("memory://events", 0)
    assert not writers


@needs_tensorboard
def test_a_resumed_run_has_no_point_twice(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for first, last in ((0, 5), (3, 6)):  # killed after step 5, resumed from the checkpoint of step 3
        log = TensorBoardLog(str(tmp_path), first)
        for step in range(first, last + 1):
            log.log({"step": step, "loss": 10.0 - step})
        log.close()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    points = [(event.step, event.value) for event in events.Scalars("loss/train")]
    assert points == [(step, 10.0 - step) for step in range(7)]
