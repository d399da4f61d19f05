"""Spikes during training: their reports, replays, and the stop at NaN."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from small_training import SMALL, train_small
from training_run import StopsAtStep, contents, metrics

from pipelines.engine.run import RunOptions
from pipelines.errors import ChangedRunError, InputError, UsageError, WebtextError
from pipelines.model.diagnostics import spikes
from pipelines.model.diagnostics.spikes import SpikeDetector
from pipelines.model.training import recipe, trainer
from pipelines.model.training.checkpoint import find_checkpoints
from pipelines.model.training.order import BlockOrder
from pipelines.model.training.recipe import make_recipe
from pipelines.stages.pretrain.config import PretrainConfig
from pipelines.stages.pretrain.stage import show_batch
from pipelines.stages.pretrain.training import replay

# One step, the 14th, has a rate that throws the weights far off, so that the loss of the 15th is a spike.
_STEPS = ("steps=20", "dropout=0", "eval_every=20", "warmup_steps=0", "learning_rate=0.001")


@pytest.fixture
def wild_step(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = recipe.learning_rate
    monkeypatch.setattr(recipe, "learning_rate", lambda step, values: 3.0 if step == 13 else plain(step, values))
    monkeypatch.setattr(trainer, "SpikeDetector", lambda rows: SpikeDetector(rows, window=12))


def _report(output: Path, step: int) -> dict[str, Any]:
    result = json.loads((output / "spikes" / f"step-{step:07d}.json").read_text())
    assert isinstance(result, dict)
    return result


def test_a_spike_is_reported_and_training_continues(tokens: str, tmp_path: Path, wild_step: None) -> None:
    progress = StopsAtStep()
    options = RunOptions(progress=progress)
    train_small(tokens, tmp_path / "out", *_STEPS, checkpoint_every=5, keep_checkpoints=1, options=options)
    rows = metrics(tmp_path / "out")
    assert [row["step"] for row in rows if "spike" in row] == [15]
    assert rows[-1]["step"] == 20
    report = _report(tmp_path / "out", 15)
    assert rows[15]["spike"] == report["spike"] | {"file": "spikes/step-0000015.json"}
    assert report["spike"]["z"] > spikes.THRESHOLD
    blocks = json.loads((tmp_path / "out" / "config.json").read_text())["recipe"]["batch_size"]
    assert len(report["blocks"]) == blocks
    assert any("step 15: the " in note and "spikes/step-0000015.json" in note for note in progress.notes)
    # Beside the latest, the checkpoint before the spike is kept, since the spike is replayed from it.
    assert [checkpoint.step for checkpoint in find_checkpoints(str(tmp_path / "out"))] == [10, 20]
    assert b"spikes/step-0000015.json" in (tmp_path / "out" / "training.html").read_bytes()


def test_a_spike_is_the_same_after_a_resume_and_in_a_replay(tokens: str, tmp_path: Path, wild_step: None) -> None:
    train_small(tokens, tmp_path / "whole", *_STEPS, checkpoint_every=5)
    with pytest.raises(KeyboardInterrupt):
        train_small(tokens, tmp_path / "out", *_STEPS, checkpoint_every=5, options=RunOptions(progress=StopsAtStep(12)))
    train_small(tokens, tmp_path / "out", *_STEPS, checkpoint_every=5)
    whole, out = contents(tmp_path / "whole"), contents(tmp_path / "out")
    assert {name for name in whole if whole[name] != out[name]} == {"spikes/step-0000015.json"}
    saved, other = _report(tmp_path / "whole", 15), _report(tmp_path / "out", 15)
    assert saved.pop("replay").replace("/whole", "/out") == other.pop("replay")  # the only difference
    assert saved == other
    config = PretrainConfig(preset="tiny", set=(*SMALL, *_STEPS), device="cpu", threads=1)
    notes: list[str] = []
    again = json.loads(replay(config, tokens=tokens, output=str(tmp_path / "out"), step=15, note=notes.append))
    again.pop("replay")
    assert again == saved
    assert "resuming from the checkpoint of step 10" in notes
    assert contents(tmp_path / "out") == out


def test_any_step_can_be_replayed(tokens: str, trained: Path) -> None:
    config = PretrainConfig(preset="tiny", set=SMALL, device="cpu", threads=1)
    for step in (1, 6):
        report = json.loads(replay(config, tokens=tokens, output=str(trained), step=step, note=[].append))
        assert report["spike"]["value"] == metrics(trained)[step]["loss"]
        assert report["spike"]["z"] is None
        assert f"--replay {step}" in report["replay"]


def test_a_replay_with_another_recipe_or_step_is_refused(tokens: str, trained: Path) -> None:
    def ask(step: int, *more: str) -> None:
        config = PretrainConfig(preset="tiny", set=(*SMALL, *more), device="cpu", threads=1)
        replay(config, tokens=tokens, output=str(trained), step=step, note=[].append)

    with pytest.raises(UsageError, match="step 7: the recipe has steps 1 to 6"):
        ask(7)
    with pytest.raises(ChangedRunError, match=r"trained with different options \(dropout was 0.1, is now 0.2\)"):
        ask(3, "dropout=0.2")


def test_a_replay_names_the_file_that_a_copied_folder_lacks(tokens: str, trained: Path, tmp_path: Path) -> None:
    copied = shutil.copytree(trained, tmp_path / "copied")
    (copied / "manifest.json").unlink()
    config = PretrainConfig(preset="tiny", set=SMALL, device="cpu", threads=1)
    with pytest.raises(InputError, match=r"copied: no training to replay .manifest.json is missing"):
        replay(config, tokens=tokens, output=str(copied), step=3, note=[].append)


def test_a_nan_loss_stops_with_a_report(tokens: str, tmp_path: Path) -> None:
    with pytest.raises(WebtextError, match=r"step 2: the loss is nan; .*/step-0000002\.json contains the batch"):
        train_small(tokens, tmp_path / "out", "learning_rate=1e30", "warmup_steps=0", "dropout=0")
    report = _report(tmp_path / "out", 2)
    assert (report["spike"]["value"], report["spike"]["z"]) == ("nan", None)
    assert "--replay 2" in report["replay"]


def test_the_batch_shown_is_the_one_trained_on(tokens: str) -> None:
    recipe = make_recipe("tiny", SMALL)
    shown = show_batch(recipe, tokens=tokens, step=3)
    from pipelines.model.training.data import open_tokens

    split = open_tokens(tokens).train
    assert [block.number for block in shown] == BlockOrder(split.blocks(16), 0).numbers(8, 12)
    with pytest.raises(UsageError, match="step 7: the recipe has steps 1 to 6"):
        show_batch(recipe, tokens=tokens, step=7)
