"""Schedules with a constant rate: several budgets from one run, each with the bytes of a run of its own."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from small_training import SMALL, train_small
from training_run import BATCH_TOKENS, FILES, StopsAtStep, contents, metrics

from pipelines.engine.run import RunOptions
from pipelines.errors import ChangedRunError, InputError
from pipelines.model.training.checkpoint import find_checkpoints
from pipelines.stages.pretrain.config import PretrainConfig
from pipelines.stages.pretrain.training import replay

SHORT = ("schedule=wsd", "steps=8", "decay_steps=3")
LONG = ("schedule=wsd", "steps=12", "decay_steps=4")


@pytest.fixture(scope="module")
def short(tokens: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training of 8 steps, whose decay begins after step 5."""
    folder = tmp_path_factory.mktemp("short") / "pretrain"
    train_small(tokens, folder, *SHORT, keep_checkpoints=1, sample_every=2, keep_best=True)
    return folder


@pytest.fixture(scope="module")
def long(tokens: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training of 12 steps from scratch."""
    folder = tmp_path_factory.mktemp("long") / "pretrain"
    train_small(tokens, folder, *LONG, sample_every=2, keep_best=True)
    return folder


def result(folder: Path) -> dict[str, str]:
    return {name: digest for name, digest in contents(folder).items() if name in (*FILES, "samples.jsonl")}


def steps(folder: Path) -> list[int]:
    return [checkpoint.step for checkpoint in find_checkpoints(str(folder))]


def test_the_checkpoint_before_the_decay_is_kept(short: Path, long: Path) -> None:
    # Next to the best (steps 6 and 9) and the latest.
    assert steps(short) == [5, 6, 8]
    assert steps(long) == [8, 9, 10, 12]


def test_an_extended_training_has_the_bytes_of_one_long_run(
    tokens: str, short: Path, long: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    shutil.copytree(short, out)
    (out / "spikes").mkdir()
    for step in (4, 5, 7):
        (out / "spikes" / f"step-{step:07d}.json").write_text("{}")
    progress = StopsAtStep()
    options = RunOptions(progress=progress)
    train_small(tokens, out, *LONG, sample_every=2, keep_best=True, options=options)
    assert progress.trained == 7 * BATCH_TOKENS
    assert "extending the training of 8 steps to 12 from step 5, before its decay" in progress.notes
    assert result(out) == result(long)
    assert (out / "manifest.json").read_bytes() == (long / "manifest.json").read_bytes()
    assert steps(out) == steps(long)
    assert (out / "best.json").read_bytes() == (long / "best.json").read_bytes()
    # What belongs to the steps of the abandoned decay is not carried over.
    assert sorted(path.name for path in (out / "spikes").iterdir()) == ["step-0000004.json", "step-0000005.json"]
    timing = [json.loads(line)["step"] for line in (out / "timing.jsonl").read_text().splitlines()]
    assert timing == list(range(1, 13))
    assert "extended_from" not in json.loads((out / "config.json").read_text())["recipe"]


def test_the_learning_rate_does_not_jump(short: Path, long: Path) -> None:
    rates = [[row["learning_rate"] for row in metrics(folder)[1:]] for folder in (short, long)]
    assert rates[0][1:5] == [0.01] * 4
    assert rates[1][1:8] == [0.01] * 7
    assert rates[0][-1] == rates[1][-1] == 0.0
    assert [row["loss"] for row in metrics(short)[1:6]] == [row["loss"] for row in metrics(long)[1:6]]


def test_an_interrupted_extension_resumes_to_the_same_bytes(
    tokens: str, short: Path, long: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    shutil.copytree(short, out)
    for _ in range(2):
        options = RunOptions(progress=StopsAtStep(2))
        with pytest.raises(KeyboardInterrupt):
            train_small(tokens, out, *LONG, sample_every=2, keep_best=True, options=options)
        assert result(out) == result(short)
    with pytest.raises(ChangedRunError, match=r"unfinished replacement.*steps was 8, is now 12"):
        train_small(tokens, out, *LONG, "steps=13")
    train_small(tokens, out, *LONG, sample_every=2, keep_best=True)
    assert result(out) == result(long)
    progress = StopsAtStep()
    train_small(tokens, out, *LONG, options=RunOptions(progress=progress))
    assert progress.trained == 0


def test_another_decay_from_the_same_step_is_a_budget_too(tokens: str, short: Path, tmp_path: Path) -> None:
    shutil.copytree(short, tmp_path / "out")
    progress = StopsAtStep()
    shorter = ("schedule=wsd", "steps=7", "decay_steps=1")
    train_small(tokens, tmp_path / "out", *shorter, options=RunOptions(progress=progress))
    assert progress.trained == 2 * BATCH_TOKENS
    train_small(tokens, tmp_path / "scratch", *shorter)
    names = ("model.safetensors", "metrics.jsonl", "config.json")
    assert [contents(tmp_path / "out")[name] for name in names] == [
        contents(tmp_path / "scratch")[name] for name in names
    ]


@pytest.mark.parametrize("change", [("steps=12", "decay_steps=8"), ("schedule=cosine",), ("final_learning_rate=1e-3",)])
def test_what_had_other_rates_before_the_decay_is_refused(
    tokens: str, short: Path, tmp_path: Path, change: tuple[str, ...]
) -> None:
    shutil.copytree(short, tmp_path / "out")
    with pytest.raises(ChangedRunError, match="contains a different result"):
        train_small(tokens, tmp_path / "out", *SHORT, *change)


def test_overwrite_trains_all_steps(tokens: str, short: Path, tmp_path: Path) -> None:
    shutil.copytree(short, tmp_path / "out")
    progress = StopsAtStep()
    train_small(tokens, tmp_path / "out", *LONG, options=RunOptions(overwrite=True, progress=progress))
    assert progress.trained == 12 * BATCH_TOKENS


def test_without_the_checkpoint_before_the_decay_a_training_is_not_extended(
    tokens: str, short: Path, tmp_path: Path
) -> None:
    shutil.copytree(short, tmp_path / "out")
    shutil.rmtree(tmp_path / "out" / "checkpoints" / "step-0000005")
    message = r"the training of 8 steps cannot be extended: its checkpoint of step 5, before the decay, was removed"
    with pytest.raises(InputError, match=message):
        train_small(tokens, tmp_path / "out", *LONG)


def test_a_step_of_the_decay_is_replayed(tokens: str, short: Path) -> None:
    config = PretrainConfig(preset="tiny", set=(*SMALL, *SHORT), device="cpu", threads=1)
    report = replay(config, tokens=tokens, output=str(short), step=7, note=lambda _: None)
    assert json.loads(report)["spike"]["value"] == metrics(short)[7]["loss"]


def test_a_training_recorded_before_these_values_existed_is_complete_and_extended(
    tokens: str, trained: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    shutil.copytree(trained, out)
    manifest = json.loads((out / "manifest.json").read_text())
    for name in ("schedule", "decay_steps", "attention", "attention_window"):
        del manifest["config"][name]
    (out / "manifest.json").write_text(json.dumps(manifest))
    progress = StopsAtStep()
    train_small(tokens, out, options=RunOptions(progress=progress))
    assert "pretrain: already complete; checksums verified" in progress.notes
    train_small(tokens, out, "steps=9", options=RunOptions(progress=progress))
    assert progress.trained == 3 * BATCH_TOKENS
