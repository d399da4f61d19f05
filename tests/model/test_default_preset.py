"""The preset of a training that names none: that of the training in the folder, or one for the device."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from small_training import SMALL, train_small
from training_run import StopsAtStep

from pipelines.engine.manifest import read_manifest
from pipelines.engine.run import RunOptions
from pipelines.errors import UsageError
from pipelines.stages.pretrain.config import PretrainConfig
from pipelines.stages.pretrain.preset import choose_recipe
from webtext_cli.main import main


def _preset(output: Path, notes: list[str] | None = None, **config: object) -> str:
    return choose_recipe(PretrainConfig(**config), str(output), (notes or []).append).preset  # type: ignore[arg-type]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA GPU is available")
def test_without_a_gpu_it_is_tiny(tokens: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sets = [part for value in SMALL for part in ("--set", value)]
    assert main(["pretrain", tokens, "-o", str(tmp_path / "out"), *sets, "--threads", "1", "--json"]) == 0
    note = "using preset tiny (no CUDA GPU found; gpt2 would take years); choose another with --preset"
    assert note in capsys.readouterr().err
    assert read_manifest(str(tmp_path / "out")).identity.config["preset"] == "tiny"
    assert main(["pretrain", "--show-preset", "--corpus", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["preset"] == "tiny"
    with pytest.raises(UsageError, match="finds no CUDA GPU"):
        _preset(tmp_path / "new", device="cuda")


@pytest.mark.usefixtures("gpu")
def test_on_a_gpu_it_is_gpt2(tmp_path: Path) -> None:
    notes: list[str] = [""]
    assert _preset(tmp_path, notes) == "gpt2"
    assert notes[1:] == ["using preset gpt2 (the default on a CUDA GPU); choose another with --preset"]
    assert _preset(tmp_path, device="cpu") == "tiny"
    assert _preset(tmp_path, preset="gpt2-xl") == "gpt2-xl"


@pytest.mark.usefixtures("gpu")
def test_a_training_keeps_its_preset_on_another_machine(trained: Path) -> None:
    notes: list[str] = [""]
    assert _preset(trained, notes) == "tiny"
    assert notes[1:] == [f"using preset tiny (that of the training in {trained}); choose another with --preset"]
    assert _preset(trained, preset="gpt2") == "gpt2"


def test_an_interrupted_training_is_resumed_without_naming_its_preset(tokens: str, tmp_path: Path) -> None:
    """As if it had been begun on a GPU."""
    with pytest.raises(KeyboardInterrupt):
        train_small(tokens, tmp_path / "out", preset="gpt2", options=RunOptions(progress=StopsAtStep(3)))
    resumed = train_small(tokens, tmp_path / "out", preset=None)
    assert read_manifest(str(tmp_path / "out")).identity.config["preset"] == "gpt2"
    assert resumed.records_out == 24


def test_without_torch_it_is_tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.stages.pretrain.preset.find_spec", lambda name: None)
    assert _preset(tmp_path) == "tiny"
