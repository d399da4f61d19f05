"""A finished training is extended to more steps, from its last checkpoint."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
from small_training import SMALL, train_small
from training_run import BATCH_TOKENS, FILES, StopsAtStep, contents, metrics

from pipelines.engine.run import RunOptions
from pipelines.errors import ChangedRunError, InputError
from pipelines.model.training.checkpoint import find_checkpoints
from pipelines.model.training.recipe import learning_rate, make_recipe
from pipelines.stages.pretrain import stage
from pipelines.stages.pretrain.config import PretrainConfig
from pipelines.stages.pretrain.training import replay


@pytest.fixture(scope="module")
def extended(tokens: str, trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small model of 6 steps, extended to 9."""
    folder = tmp_path_factory.mktemp("extended") / "pretrain"
    shutil.copytree(trained, folder)
    train_small(tokens, folder, "steps=9")
    return folder


def _result(folder: Path) -> dict[str, str]:
    return {name: digest for name, digest in contents(folder).items() if name in FILES}


def test_the_loss_continues_and_no_step_is_repeated(tokens: str, trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained, tmp_path / "out")
    progress = StopsAtStep()
    summary = train_small(tokens, tmp_path / "out", "steps=9", options=RunOptions(progress=progress))
    assert progress.trained == 3 * BATCH_TOKENS
    assert summary.records_out == 9 * 4
    rows = metrics(tmp_path / "out")
    assert rows[:7] == metrics(trained)
    assert [row["step"] for row in rows] == list(range(10))
    # The first loss after the extension is near the last one before it, far from that of random weights.
    assert abs(rows[7]["loss"] - rows[6]["loss"]) < abs(rows[7]["loss"] - rows[1]["loss"])
    timing = [json.loads(line)["step"] for line in (tmp_path / "out" / "timing.jsonl").read_text().splitlines()]
    assert timing == list(range(1, 10))
    assert [note for note in progress.notes if "extending" in note] == [
        "extending the training of 6 steps to 9: from here the learning rate is that of a schedule of 9 steps "
        f"({rows[6]['learning_rate']:.3g} in step 6, {rows[7]['learning_rate']:.3g} in the next)"
    ]
    assert "resuming from the checkpoint of step 6" in progress.notes


def test_the_learning_rate_of_a_step_is_that_of_its_schedule(extended: Path) -> None:
    recipe = make_recipe("tiny", ["steps=9", "warmup_steps=2", "learning_rate=0.01"])
    whole = [learning_rate(step, recipe) for step in range(9)]
    first = [
        learning_rate(step, make_recipe("tiny", ["steps=6", "warmup_steps=2", "learning_rate=0.01"]))
        for step in range(6)
    ]
    assert [row["learning_rate"] for row in metrics(extended)[1:]] == first + whole[6:]


def test_an_interrupted_extension_resumes_to_the_same_bytes(
    tokens: str, trained: Path, extended: Path, tmp_path: Path
) -> None:
    shutil.copytree(trained, tmp_path / "out")
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            train_small(tokens, tmp_path / "out", "steps=9", options=RunOptions(progress=StopsAtStep(1)))
        # Until then the finished training stays as it is.
        assert _result(tmp_path / "out") == _result(trained)
    with pytest.raises(ChangedRunError, match=r"unfinished replacement.*steps was 6, is now 9.*delete this folder"):
        train_small(tokens, tmp_path / "out", "steps=12")
    train_small(tokens, tmp_path / "out", "steps=9")
    assert _result(tmp_path / "out") == _result(extended)
    assert (tmp_path / "out" / "manifest.json").read_bytes() == (extended / "manifest.json").read_bytes()
    assert not (tmp_path / "out" / "_next").exists()


def test_an_extended_training_is_complete_and_can_be_extended_again(
    tokens: str, extended: Path, tmp_path: Path
) -> None:
    shutil.copytree(extended, tmp_path / "out")
    progress = StopsAtStep()
    train_small(tokens, tmp_path / "out", "steps=9", options=RunOptions(progress=progress))
    assert progress.trained == 0
    assert "pretrain: already complete; checksums verified" in progress.notes
    train_small(tokens, tmp_path / "out", "steps=12")
    recipe = json.loads((tmp_path / "out" / "config.json").read_text())["recipe"]
    assert (recipe["steps"], recipe["extended_from"]) == (12, [6, 9])
    assert metrics(tmp_path / "out")[:10] == metrics(extended)
    # Recipe and tokens determine the bytes: without checkpoints all steps are repeated with the same result.
    again = tmp_path / "again"
    shutil.copytree(tmp_path / "out", again)
    shutil.rmtree(again / "checkpoints")
    (again / "model.safetensors").unlink()
    progress = StopsAtStep()
    train_small(tokens, again, "steps=12", options=RunOptions(progress=progress))
    assert progress.trained == 12 * BATCH_TOKENS
    assert _result(again) == _result(tmp_path / "out")


def test_an_extension_differs_from_one_long_run(tokens: str, extended: Path, tmp_path: Path) -> None:
    train_small(tokens, tmp_path / "out", "steps=9")
    long = metrics(tmp_path / "out")
    # The warm-up has the same rates in both schedules; the data order is the same.
    assert [row["loss"] for row in long[1:4]] == [row["loss"] for row in metrics(extended)[1:4]]
    assert _result(tmp_path / "out")["model.safetensors"] != _result(extended)["model.safetensors"]
    assert "extended_from" not in json.loads((tmp_path / "out" / "config.json").read_text())["recipe"]


def test_overwrite_trains_all_steps(tokens: str, trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained, tmp_path / "out")
    progress = StopsAtStep()
    train_small(tokens, tmp_path / "out", "steps=9", options=RunOptions(overwrite=True, progress=progress))
    assert progress.trained == 9 * BATCH_TOKENS


@pytest.mark.parametrize("change", ["steps=5", "seed"])
def test_what_is_no_extension_is_refused(tokens: str, trained: Path, tmp_path: Path, change: str) -> None:
    shutil.copytree(trained, tmp_path / "out")
    with pytest.raises(ChangedRunError, match="contains a different result"):
        train_small(tokens, tmp_path / "out", "steps=9" if change == "seed" else change, seed=int(change == "seed"))


@pytest.mark.parametrize("is_finished", [False, True])
def test_a_training_of_another_version_is_neither_resumed_nor_extended(
    tokens: str, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_finished: bool
) -> None:
    out = tmp_path / "out"
    if is_finished:
        shutil.copytree(trained, out)
    else:
        with pytest.raises(KeyboardInterrupt):
            train_small(tokens, out, options=RunOptions(progress=StopsAtStep(3)))
    monkeypatch.setattr(stage, "STAGE", dataclasses.replace(stage.STAGE, version=stage.STAGE.version + 1))
    before = contents(out)
    with pytest.raises(ChangedRunError, match=r"it was built by version \d+ of the stage, this is version"):
        train_small(tokens, out, *(["steps=9"] if is_finished else []))
    assert contents(out) == before


def test_without_its_last_checkpoint_a_training_is_not_extended(tokens: str, trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained, tmp_path / "out")
    weights = find_checkpoints(str(tmp_path / "out"))[-1].model_path
    Path(weights).write_bytes(b"damaged")
    with pytest.raises(InputError, match=r"the training of 6 steps cannot be extended: .*model.safetensors"):
        train_small(tokens, tmp_path / "out", "steps=9")
    shutil.rmtree(tmp_path / "out" / "checkpoints")
    with pytest.raises(
        InputError, match=r"its last checkpoint was removed; use --init-from .*or --overwrite to repeat"
    ):
        train_small(tokens, tmp_path / "out", "steps=9")
    assert _result(tmp_path / "out") == _result(trained)


@pytest.mark.parametrize("step", [5, 8])
def test_any_step_of_an_extended_training_is_replayed(tokens: str, extended: Path, step: int) -> None:
    config = PretrainConfig(preset="tiny", set=(*SMALL, "steps=9"), device="cpu", threads=1)
    report = replay(config, tokens=tokens, output=str(extended), step=step, note=lambda _: None)
    assert json.loads(report)["spike"]["value"] == metrics(extended)[step]["loss"]
