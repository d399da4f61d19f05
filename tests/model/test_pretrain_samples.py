"""Samples during training, and the checkpoint with the lowest held-out loss."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from small_training import train_small
from tokenizers import Tokenizer
from training_run import FILES, StopsAtStep, contents, metrics

from pipelines.engine.run import RunOptions
from pipelines.errors import DamagedShardError, InputError, UsageError
from pipelines.model.inference.options import SamplingOptions
from pipelines.model.inference.sampling import sample_tokens
from pipelines.model.io.model_folder import open_model
from pipelines.model.training.checkpoint import best_checkpoint, find_checkpoints
from webtext_cli.main import main

# Diverges from the fourth step on: the best checkpoint is not the last.
_DIVERGING = ("steps=12", "learning_rate=0.02", "final_learning_rate=3.0", "eval_every=3", "dropout=0")


def _samples(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]


def _best(folder: Path) -> dict[str, Any]:
    best: dict[str, Any] = json.loads((folder / "best.json").read_text())
    return best


def test_samples_are_written_and_change_nothing_else(tokens: str, trained: Path, tmp_path: Path) -> None:
    progress = StopsAtStep()
    train_small(tokens, tmp_path / "out", sample_every=4, options=RunOptions(progress=progress))
    samples = _samples(tmp_path / "out")
    assert [sample["step"] for sample in samples] == [4, 6]
    assert next(note for note in progress.notes if "sample: " in note).startswith("step 4: sample: ")
    assert progress.trained == 6 * 64
    kept = contents(tmp_path / "out")
    assert {name: kept[name] for name in FILES} == {name: contents(trained)[name] for name in FILES}
    model = open_model(str(tmp_path / "out"))
    [ids] = sample_tokens(
        model.model, [model.end_of_text], SamplingOptions(max_tokens=100), [0], end_of_text=model.end_of_text
    )
    tokenizer: Tokenizer = model.tokenizer()
    assert samples[-1]["text"] == tokenizer.decode(ids, skip_special_tokens=True)


def test_a_resumed_run_and_an_extension_continue_the_samples(tokens: str, tmp_path: Path) -> None:
    train_small(tokens, tmp_path / "whole", sample_every=1)
    with pytest.raises(KeyboardInterrupt):
        train_small(tokens, tmp_path / "out", sample_every=1, options=RunOptions(progress=StopsAtStep(4)))
    train_small(tokens, tmp_path / "out", sample_every=1)
    assert _samples(tmp_path / "out") == _samples(tmp_path / "whole")
    train_small(tokens, tmp_path / "out", "steps=8", sample_every=1)
    assert [sample["step"] for sample in _samples(tmp_path / "out")] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert _samples(tmp_path / "out")[:6] == _samples(tmp_path / "whole")


def test_samples_need_the_whole_model(tokens: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.model.training.job.TrainingJob.is_sharded", True)
    with pytest.raises(UsageError, match=r"--sample-every: no process has the whole model"):
        train_small(tokens, tmp_path / "out", sample_every=1)


def test_the_best_checkpoint_is_kept(tokens: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    train_small(tokens, out, *_DIVERGING, keep_best=True, keep_checkpoints=1)
    rows = {row["step"]: row["held_out_loss"] for row in metrics(out) if "held_out_loss" in row and row["step"]}
    best = min(list(rows)[:-1], key=rows.__getitem__)
    assert best < 12
    assert _best(out) == {"step": best, "held_out_loss": rows[best], "held_out_tokens": 32}
    assert [checkpoint.step for checkpoint in find_checkpoints(str(out))] == [best, 12]
    # The result is that of a run without the option, whose latest checkpoint alone is kept.
    train_small(tokens, tmp_path / "without", *_DIVERGING, keep_checkpoints=1)
    without, kept = contents(tmp_path / "without"), contents(out)
    assert {name: kept[name] for name in without} == without

    opened = open_model(str(out), best=True)
    assert (opened.step, opened.figures["held_out_loss"]) == (best, rows[best])
    assert open_model(str(out)).step is None
    commands = [["generate", "--max-tokens", "5", "--device", "cpu"], ["export", "--output", str(tmp_path / "export")]]
    for command in commands:
        assert main([*command, "--model", str(out), "--best"]) == 0
    assert f"exporting the checkpoint of step {best}" in capsys.readouterr().err
    card = (tmp_path / "export" / "README.md").read_text()
    assert f"These are the weights of the checkpoint of step {best}." in card
    exported = open_model(str(tmp_path / "export")).model.state_dict()
    assert all((weight == exported[name]).all() for name, weight in opened.model.state_dict().items())


def test_the_last_step_is_compared_on_the_blocks_of_the_others(tokens: str, tmp_path: Path) -> None:
    train_small(tokens, tmp_path / "out", "learning_rate=0.001", "dropout=0", keep_best=True)
    best, last = _best(tmp_path / "out"), metrics(tmp_path / "out")[-1]
    assert best["step"] == 6
    assert best["held_out_tokens"] == 32 < last["held_out_tokens"]
    assert best["held_out_loss"] != last["held_out_loss"]


def test_an_interrupted_run_and_an_extension_keep_the_best_checkpoint(tokens: str, tmp_path: Path) -> None:
    train_small(tokens, tmp_path / "whole", *_DIVERGING, keep_best=True)
    for step in (4, 3):
        with pytest.raises(KeyboardInterrupt):
            train_small(
                tokens, tmp_path / "out", *_DIVERGING, keep_best=True, options=RunOptions(progress=StopsAtStep(step))
            )
    train_small(tokens, tmp_path / "out", *_DIVERGING, keep_best=True)
    assert _best(tmp_path / "out") == _best(tmp_path / "whole")
    train_small(tokens, tmp_path / "out", *_DIVERGING, "steps=14", keep_best=True, keep_checkpoints=1)
    assert _best(tmp_path / "out") == _best(tmp_path / "whole")
    assert (kept := best_checkpoint(str(tmp_path / "out"))) is not None
    assert kept.problem() is None
    assert open_model(str(tmp_path / "out"), best=True).step == kept.step


def test_a_folder_without_an_intact_best_checkpoint_is_refused(tokens: str, trained: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has no best checkpoint; train with `webtext pretrain --keep-best`"):
        open_model(str(trained), best=True)
    out = tmp_path / "out"
    shutil.copytree(trained, out)
    (out / "best.json").write_text('{"step": 6, "held_out_loss": 5.0, "held_out_tokens": 32}')
    assert open_model(str(out), best=True).step == 6
    Path(find_checkpoints(str(out))[-1].model_path).write_bytes(b"damaged")
    with pytest.raises(DamagedShardError, match="omit --best to use the last weights"):
        open_model(str(out), best=True)
    (out / "best.json").write_text('{"step": "six"}')
    with pytest.raises(InputError, match="has no best checkpoint"):
        open_model(str(out), best=True)
