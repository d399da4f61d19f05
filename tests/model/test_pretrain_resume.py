"""Training resumes to the same bits from any point."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from small_training import train_small
from token_folder import encode, write_token_folder
from tokenizers import Tokenizer
from training_run import BATCH_TOKENS, FILES, StopsAtStep, contents

from pipelines.engine.run import RunOptions
from pipelines.errors import ChangedRunError, DamagedShardError
from pipelines.model.io.model_folder import open_model
from pipelines.model.training.checkpoint import find_checkpoints, latest_checkpoint


@pytest.mark.parametrize("step", [1, 2, 3, 4, 5, 6])
def test_a_run_interrupted_at_any_step_gives_the_same_bytes(
    tokens: str, trained: Path, tmp_path: Path, step: int
) -> None:
    with pytest.raises(KeyboardInterrupt):
        train_small(tokens, tmp_path / "out", options=RunOptions(progress=StopsAtStep(step)))
    assert not (tmp_path / "out" / "manifest.json").exists()
    progress = StopsAtStep()
    train_small(tokens, tmp_path / "out", options=RunOptions(progress=progress))
    assert contents(tmp_path / "out") == contents(trained)
    # Ctrl-C came at the end of a step, before its checkpoint.
    # A checkpoint is written every second step, and before the evaluation of the third.
    resumed_at = {1: 0, 2: 0, 3: 2, 4: 3, 5: 4, 6: 4}[step]
    assert progress.trained == (6 - resumed_at) * BATCH_TOKENS
    assert progress.total is not None
    # Every batch of an evaluation is rounded down.
    assert 0 <= progress.total - progress.advanced < 5
    assert (f"resuming from the checkpoint of step {resumed_at}" in progress.notes) == (resumed_at > 0)


class Signals(StopsAtStep):
    """Sends a signal to this process when a number of steps is done."""

    def __init__(self, steps: int, number: signal.Signals) -> None:
        super().__init__()
        self._left, self._number = steps, number

    def advance(self, units: int) -> None:
        self._left -= units == BATCH_TOKENS
        if self._left == 0:
            os.kill(os.getpid(), self._number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_with_a_checkpoint(tokens: str, trained: Path, tmp_path: Path, number: signal.Signals) -> None:
    handlers = [signal.getsignal(item) for item in (signal.SIGINT, signal.SIGTERM)]
    progress = Signals(3, number)
    with pytest.raises(KeyboardInterrupt):
        train_small(tokens, tmp_path / "out", options=RunOptions(progress=progress))
    assert [signal.getsignal(item) for item in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert progress.notes[-1] == (
        f"{number.name}: stopping after this step, with a checkpoint; send it again to stop immediately"
    )
    assert [checkpoint.step for checkpoint in find_checkpoints(str(tmp_path / "out"))] == [2, 3]
    train_small(tokens, tmp_path / "out")
    assert contents(tmp_path / "out") == contents(trained)


def test_a_run_interrupted_repeatedly_gives_the_same_bytes(tokens: str, trained: Path, tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            train_small(tokens, tmp_path / "out", options=RunOptions(progress=StopsAtStep(3)))
    train_small(tokens, tmp_path / "out")
    assert contents(tmp_path / "out") == contents(trained)


def test_checkpoint_frequency_does_not_change_the_result(tokens: str, trained: Path, tmp_path: Path) -> None:
    train_small(tokens, tmp_path / "out", checkpoint_every=5, keep_checkpoints=1)
    own, reference = contents(tmp_path / "out"), contents(trained)
    assert {name: own[name] for name in (*FILES, "manifest.json")} == {
        name: reference[name] for name in (*FILES, "manifest.json")
    }
    assert {name for name in own if name.endswith("state.json")} == {"checkpoints/step-0000006/state.json"}


@pytest.fixture(scope="module")
def killed(tokens: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Runs that were killed with SIGKILL at these points."""
    points = {
        "in the weights of a checkpoint": ("write", "step-0000004/model.safetensors"),
        "in the state of a checkpoint": ("write", "step-0000002/state.json"),
        "within the removal of a checkpoint": ("remove", "step-0000002/state.json"),
    }
    script = Path(__file__).with_name("killed_training.py")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
    folders = {name: tmp_path_factory.mktemp("killed") / "out" for name in points}
    arguments = [f"{folders[name]}:{kind}:{file}" for name, (kind, file) in points.items()]
    ran = subprocess.run(
        [sys.executable, str(script), tokens, *arguments],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return folders


@pytest.mark.parametrize(
    ("point", "resumed_at"),
    [
        ("in the weights of a checkpoint", 3),
        ("in the state of a checkpoint", 0),
        ("within the removal of a checkpoint", 3),
    ],
)
def test_kill_9_loses_no_complete_checkpoint(
    tokens: str, trained: Path, killed: dict[str, Path], point: str, resumed_at: int
) -> None:
    progress = StopsAtStep()
    train_small(tokens, killed[point], options=RunOptions(progress=progress))
    assert progress.trained == (6 - resumed_at) * BATCH_TOKENS
    own, reference = contents(killed[point]), contents(trained)
    assert {name: own[name] for name in (*FILES, "manifest.json")} == {
        name: reference[name] for name in (*FILES, "manifest.json")
    }
    assert [name for name in own if ".tmp-" in name] == []
    steps = {name.split("/")[1] for name in own if name.startswith("checkpoints/")}
    assert len([name for name in own if name.endswith("state.json")]) == len(steps)


def test_a_damaged_checkpoint_is_reported_and_skipped(tokens: str, trained: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train_small(tokens, tmp_path / "out", options=RunOptions(progress=StopsAtStep(5)))
    file = tmp_path / "out" / "checkpoints" / "step-0000004" / "optimizer.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    progress = StopsAtStep()
    train_small(tokens, tmp_path / "out", options=RunOptions(progress=progress))
    assert any(
        "step-0000004/optimizer.safetensors: is damaged" in note and "resuming from the previous checkpoint" in note
        for note in progress.notes
    )
    assert "resuming from the checkpoint of step 3" in progress.notes
    assert contents(tmp_path / "out") == contents(trained)


@pytest.mark.parametrize("state", [b"{", b"[]", b'{"step": 4}', b'{"step": 3, "files": []}', b""])
def test_a_checkpoint_with_a_damaged_state_is_reported_and_skipped(
    tokens: str, trained: Path, tmp_path: Path, state: bytes
) -> None:
    with pytest.raises(KeyboardInterrupt):
        train_small(tokens, tmp_path / "out", options=RunOptions(progress=StopsAtStep(5)))
    (tmp_path / "out" / "checkpoints" / "step-0000004" / "state.json").write_bytes(state)
    with pytest.raises(DamagedShardError, match=r"step-0000004/state.json: is .*re-run `webtext pretrain`"):
        open_model(str(tmp_path / "out"))
    progress = StopsAtStep()
    train_small(tokens, tmp_path / "out", options=RunOptions(progress=progress))
    assert any(
        "step-0000004/state.json: is" in note and "resuming from the previous checkpoint" in note
        for note in progress.notes
    )
    assert "resuming from the checkpoint of step 3" in progress.notes
    assert contents(tmp_path / "out") == contents(trained)


def test_only_the_latest_checkpoints_are_kept(trained: Path) -> None:
    assert [checkpoint.step for checkpoint in find_checkpoints(str(trained))] == [4, 6]


def test_a_folder_without_checkpoints_has_no_latest(tmp_path: Path) -> None:
    assert latest_checkpoint(str(tmp_path), lambda _: None) is None


def test_another_recipe_in_the_same_folder_is_refused(tokens: str, trained: Path) -> None:
    with pytest.raises(ChangedRunError, match=r"learning_rate was 0.01, is now 0.02\. Use --overwrite"):
        train_small(tokens, trained, "learning_rate=0.02")


def test_tokens_of_another_vocabulary_are_refused_on_resume(
    tokens: str, tmp_path: Path, tokenizer: Tokenizer, documents: list[str]
) -> None:
    with pytest.raises(KeyboardInterrupt):
        train_small(tokens, tmp_path / "out", options=RunOptions(progress=StopsAtStep(3)))
    other = write_token_folder(tmp_path / "tokenize", [encode(tokenizer, documents)], [], tokenizer)
    with pytest.raises(ChangedRunError, match="its input 'tokens' has changed"):
        train_small(other, tmp_path / "out")


def test_damaged_timing_is_reported_and_dropped(tokens: str, trained: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train_small(tokens, tmp_path / "out", options=RunOptions(progress=StopsAtStep(5)))
    (tmp_path / "out" / "timing.jsonl").write_text("garbage\n")
    progress = StopsAtStep()
    train_small(tokens, tmp_path / "out", options=RunOptions(progress=progress))
    assert any("timing.jsonl: is damaged" in note for note in progress.notes)
    assert contents(tmp_path / "out") == contents(trained)
