"""`webtext evaluate --checkpoints`: the same tasks on every checkpoint of a training."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from small_model import write_model

from pipelines.evaluation import stage
from pipelines.format import format_count
from webtext_cli.main import main


def _add_checkpoint(model: Path, step: int, kind: str) -> None:
    """Add a checkpoint with the weights of another model."""
    weights = Path(write_model(model.parent / f"weights-{step}", kind)) / "model.safetensors"
    folder = model / "checkpoints" / f"step-{step:07d}"
    folder.mkdir(parents=True)
    shutil.copy(weights, folder)
    (folder / "state.json").write_text(json.dumps({"step": step, "files": []}))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with an unfinished training of two checkpoints, and their results."""
    folder = tmp_path_factory.mktemp("checkpoints")
    texts = [f"passage {number} ends with word{number % 4}" for number in range(8)]
    (folder / "lambada.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    write_model(folder / "model")
    (folder / "model" / "model.safetensors").unlink()
    _add_checkpoint(folder / "model", 1000, "uniform")
    _add_checkpoint(folder / "model", 200, "random")
    assert main(_command(folder)) == 0
    return folder


def _command(folder: Path, *more: str, output: str = "out") -> list[str]:
    task = f"lambada={folder / 'lambada.jsonl'}"
    arguments = ["evaluate", "--checkpoints", "--task", task, "--device", "cpu", "--output", str(folder / output)]
    return [*arguments, "--model", str(folder / "model"), *more]


def _results(folder: Path) -> Any:
    return json.loads((folder / "results.json").read_text())


def test_every_checkpoint_has_its_results(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # A checkpoint has the results of its own weights.
    capsys.readouterr()
    for step in (200, 1000):
        own = _results(folder / "out" / f"step-{step}" / "lambada")
        assert own["model"]["step"] == step
        for row, figure in zip(_rows(folder, step), own["metrics"], strict=True):
            assert row["value"] == figure["value"]
    assert _rows(folder, 1000)[0]["value"] == pytest.approx(257)
    assert _rows(folder, 200)[0]["value"] != pytest.approx(257)
    # Without results of its own the folder has those of the last checkpoint.
    assert _results(folder / "out")["tasks"]["lambada"]["model"]["step"] == 1000
    page = (folder / "out" / "evaluation.html").read_text()
    charts = page[page.index("By training steps") :]
    assert len(re.findall('<circle class="primary"', charts[: charts.index("<section")])) == 2 * 2


def _rows(folder: Path, step: int) -> list[dict[str, Any]]:
    return [row for row in _results(folder / "out")["steps"] if row["step"] == step]


def test_results_are_resumed_scored_again_and_compared(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(_command(folder)) == 0
    shown = capsys.readouterr()
    assert shown.err.count("already complete") == 2
    lines = [" ".join(line.split()) for line in shown.out.splitlines()]
    for row in _results(folder / "out")["steps"]:
        assert any(
            line.startswith(f"{row['task']}: {row['metric']} {format_count(row['step'])} {row['value']:.4g}")
            for line in lines
        )
    assert main(_command(folder, "--rescore", "--json", "-q")) == 0
    again = json.loads(capsys.readouterr().out)
    assert [again[step][0]["metrics"][0]["value"] for step in ("200", "1000")] == [
        _rows(folder, step)[0]["value"] for step in (200, 1000)
    ]
    # The last checkpoint is compared.
    assert main(_command(folder, "--compare", str(folder / "out"))) == 0
    [compared] = _results(folder / "out")["compared"]
    assert {row["difference"] for row in compared["differences"]} == {0}
    assert main(_command(folder, "--rescore", output="none")) == 1
    assert "has no results of checkpoints; omit --rescore" in capsys.readouterr().err


def test_a_held_out_loss_that_comes_later_does_not_change_the_model(folder: Path, tmp_path: Path) -> None:
    # `pretrain` writes a checkpoint first, and then computes its held-out loss.
    shutil.copytree(folder / "model", tmp_path / "model")
    arguments = ["--model", str(tmp_path / "model"), "--output", str(tmp_path / "out")]
    assert main([*_command(folder), *arguments]) == 0
    row = {"step": 1000, "held_out_loss": 3.5}
    (tmp_path / "model" / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    assert main([*_command(folder), *arguments]) == 0


def test_steps_of_another_training_are_not_mixed(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("model", "out"):
        shutil.copytree(folder / name, tmp_path / name)
    shutil.rmtree(tmp_path / "model" / "checkpoints" / "step-0000200")
    command = [*_command(folder, "-q"), "--model", str(tmp_path / "model"), "--output", str(tmp_path / "out")]
    assert main(command) == 0  # pretrain deletes checkpoints
    config = tmp_path / "model" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"recipe": {"seed": 1}}))
    assert main([*command, "--overwrite"]) == 1
    stale = tmp_path / "out" / "step-200"
    assert f"{stale / 'lambada'}: has results of another training" in capsys.readouterr().err
    shutil.rmtree(stale)
    assert main([*command, "--overwrite"]) == 0
    assert {row["step"] for row in _results(tmp_path / "out")["steps"]} == {1000}


def test_the_processes_connect_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []

    @contextlib.contextmanager
    def connect(*_: object) -> Iterator[None]:
        events.append("in")
        yield
        events.append("out")

    monkeypatch.setattr(stage, "process_group", connect)
    assert main(_command(folder)) == 0
    # The calls within, one per checkpoint, use the connection of the outer one.
    assert events == ["in", *["in", "out"] * 2, "out"]


def test_what_is_not_there_is_named(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in (write_model(tmp_path / "model"), str(tmp_path / "none")):
        assert main([*_command(folder, output="new"), "--model", path]) == 1
        assert f"{path}: has no checkpoints; name the folder of `webtext pretrain`" in capsys.readouterr().err
    assert not (folder / "new").exists()
    shutil.copytree(folder / "model", tmp_path / "damaged")
    damaged = tmp_path / "damaged" / "checkpoints" / "step-0001000"
    (damaged / "state.json").write_text("{")
    assert main([*_command(folder, output="damaged"), "--model", str(tmp_path / "damaged")]) == 1
    assert f"delete {damaged} to leave it out" in capsys.readouterr().err
