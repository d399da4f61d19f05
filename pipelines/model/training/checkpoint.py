"""Checkpoints, from which a killed run resumes bit for bit.

    checkpoints/step-0000250/model.safetensors      the weights
    checkpoints/step-0000250/optimizer.safetensors  Adam's two moments of each weight
    checkpoints/step-0000250/metrics.jsonl          all metrics up to that step
    checkpoints/step-0000250/state.json             the step, and the checksums of the three; written last

A folder without `state.json` is incomplete. No random state is saved: it follows from the step.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import torch
from torch import Tensor

from pipelines import storage
from pipelines.engine.manifest import FileEntry, check_file
from pipelines.errors import InputError, translate_format_errors
from pipelines.model.io.tensor_files import gather_on_rank_zero, open_tensors, shard_like, write_tensors
from pipelines.model.network.gpt2 import GPT2
from pipelines.records import shards

FOLDER = "checkpoints"
MODEL_FILE = "model.safetensors"
METRICS_FILE = "metrics.jsonl"
BEST_FILE = "best.json"
_OPTIMIZER_FILE = "optimizer.safetensors"
_STATE_FILE = "state.json"
_NAME = re.compile(r"step-(\d+)")
_MOMENTS = ("exp_avg", "exp_avg_sq")

Row = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint; `damage` describes an unreadable state file."""

    path: str
    step: int
    files: tuple[FileEntry, ...]
    damage: str | None = None

    @property
    def model_path(self) -> str:
        """The file of the weights."""
        return storage.join(self.path, MODEL_FILE)

    def problem(self) -> str | None:
        """Verify the checksums; return the first problem, or None."""
        return self.damage or next(filter(None, (check_file(self.path, file) for file in self.files)), None)


@dataclasses.dataclass(frozen=True)
class Best:
    """The step that was best on held-out tokens, of those whose checkpoint was kept.

    That is the one with the highest score, if the objective has a score, else the one with the lowest loss (nats per
    token).
    """

    step: int
    held_out_loss: float
    held_out_tokens: int
    held_out_score: float | None = None

    def is_better_than(self, other: Best) -> bool:
        """Return whether this step is better than an earlier one."""
        if self.held_out_score is not None and other.held_out_score is not None:
            return self.held_out_score > other.held_out_score
        return self.held_out_loss < other.held_out_loss


def find_checkpoints(output: str) -> list[Checkpoint]:
    """Return the complete checkpoints of a training folder by step, including those with an unreadable state file."""
    folder = storage.join(output, FOLDER)
    checkpoints = [
        _read_checkpoint(storage.join(folder, name), int(match[1]))
        for name in storage.list_folder(folder)
        if (match := _NAME.fullmatch(name)) and storage.exists(storage.join(folder, name, _STATE_FILE))
    ]
    return sorted(checkpoints, key=lambda checkpoint: checkpoint.step)


def read_best(output: str) -> Best | None:
    """Return what `best.json` says; None without an intact one."""
    path = storage.join(output, BEST_FILE)
    try:
        return msgspec.convert(storage.read_json(path), Best) if storage.exists(path) else None
    except (InputError, ValueError):
        return None


def best_checkpoint(output: str) -> Checkpoint | None:
    """Return the checkpoint with the lowest held-out loss, if one was kept."""
    best = read_best(output)
    return next((checkpoint for checkpoint in find_checkpoints(output) if best and checkpoint.step == best.step), None)


def record_if_best(output: str, step: int, row: Row) -> None:
    """Record in `best.json` that the checkpoint of a step is the best so far, if it is."""
    new = Best(step, row["held_out_loss"], row["held_out_tokens"], row.get("held_out_score"))
    best = read_best(output) if best_checkpoint(output) else None
    if best is None or best.held_out_tokens != new.held_out_tokens or new.is_better_than(best):
        known = {name: value for name, value in dataclasses.asdict(new).items() if value is not None}
        storage.write_json(storage.join(output, BEST_FILE), known)


def latest_checkpoint(output: str, note: Callable[[str], None]) -> Checkpoint | None:
    """Return the latest intact checkpoint and remove damaged and incomplete ones; requires the folder's lock."""
    checkpoints = find_checkpoints(output)
    while checkpoints and (problem := checkpoints[-1].problem()):
        note(f"{problem}; resuming from the previous checkpoint")
        _remove(checkpoints.pop().path)
    complete = {storage.basename(checkpoint.path) for checkpoint in checkpoints}
    for name in storage.list_folder(storage.join(output, FOLDER)):
        if name not in complete:
            storage.remove(storage.join(output, FOLDER, name))
    return checkpoints[-1] if checkpoints else None


def save_checkpoint(
    output: str,
    step: int,
    *,
    model: GPT2,
    optimizer: torch.optim.AdamW,
    rows: Sequence[Row],
    keep_latest: int,
    keep_best: bool = False,
    branch_step: int = 0,
) -> None:
    """Write the checkpoint of a step; remove all but the latest, the best, and those before spike and branch.

    The latest spike is replayed, and the training extended, from those. If the model is sharded, the other processes
    call `send_checkpoint_shards` at the same time.
    """
    path = storage.join(output, FOLDER, f"step-{step:07d}")
    files = (
        write_tensors(path, MODEL_FILE, model.state_dict()),
        write_tensors(path, _OPTIMIZER_FILE, optimizer_tensors(model, optimizer)),
        shards.write_file(path, METRICS_FILE, json_lines(rows)),
    )
    _write_state(path, step, files)
    checkpoints = find_checkpoints(output)
    last_spike = max((row["step"] for row in rows if "spike" in row), default=0)
    kept = [branch_step, *[checkpoint.step for checkpoint in checkpoints if checkpoint.step < last_spike][-1:]]
    if keep_best and (best := read_best(output)):
        kept.append(best.step)
    for old in checkpoints[:-keep_latest]:
        if old.step not in kept:
            _remove(old.path)


def copy_checkpoint(checkpoint: Checkpoint, output: str, metrics: bytes | None = None) -> Checkpoint:
    """Copy a checkpoint into another training folder, with other metrics if they are given."""
    path = storage.join(output, FOLDER, storage.basename(checkpoint.path))
    for file in checkpoint.files:
        storage.link(storage.join(checkpoint.path, file.name), storage.join(path, file.name))
    files = checkpoint.files
    if metrics is not None:
        files = (*(file for file in files if file.name != METRICS_FILE), shards.write_file(path, METRICS_FILE, metrics))
    _write_state(path, checkpoint.step, files)
    return Checkpoint(path, checkpoint.step, files)


def send_checkpoint_shards(model: GPT2, optimizer: torch.optim.AdamW) -> None:
    """Send this process's shards of weights and moments to rank 0, which is in `save_checkpoint`."""
    gather_on_rank_zero(model.state_dict())
    gather_on_rank_zero(optimizer_tensors(model, optimizer))


def optimizer_tensors(model: GPT2, optimizer: torch.optim.AdamW) -> dict[str, Tensor]:
    """Return Adam's moments by moment and weight: `exp_avg.wte.weight`, `exp_avg_sq.wte.weight`, ..."""
    return {
        f"{moment}.{name}": optimizer.state[weight][moment]
        for name, weight in model.named_parameters()
        if weight.requires_grad
        for moment in _MOMENTS
    }


def load_moments(checkpoint: Checkpoint, model: GPT2, optimizer: torch.optim.AdamW) -> None:
    """Restore an optimizer's state from a checkpoint: its step, and Adam's moments."""
    with open_tensors(storage.join(checkpoint.path, _OPTIMIZER_FILE)) as file:
        for name, weight in ((name, weight) for name, weight in model.named_parameters() if weight.requires_grad):
            moments = {moment: shard_like(file.get_tensor(f"{moment}.{name}"), weight.detach()) for moment in _MOMENTS}
            # Fused updates count the steps on the device of the weights.
            optimizer.state[weight] = {"step": torch.tensor(float(checkpoint.step), device=weight.device), **moments}


def json_lines(rows: Sequence[Row]) -> bytes:
    """Encode rows as JSONL."""
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def read_json_lines(path: str) -> list[Row]:
    """Read rows from JSONL; raise InputError if one is not a JSON object."""
    with translate_format_errors(path, "a list of JSON objects; re-run `webtext pretrain`"):
        return msgspec.convert([json.loads(line) for line in storage.read_bytes(path).splitlines()], list[Row])


def _write_state(path: str, step: int, files: Sequence[FileEntry]) -> None:
    state = {"step": step, "files": [dataclasses.asdict(file) for file in files]}
    storage.write_json(storage.join(path, _STATE_FILE), state)


def _read_checkpoint(path: str, step: int) -> Checkpoint:
    state_path = storage.join(path, _STATE_FILE)
    try:
        state = storage.read_json(state_path)
        files = msgspec.convert(state["files"], tuple[FileEntry, ...])
        damage = None if state["step"] == step else f"{state_path}: is damaged (step {state['step']})"
        return Checkpoint(path, step, files, damage)
    except InputError as error:
        return Checkpoint(path, step, (), f"{error}; the checkpoint is damaged")
    except (KeyError, TypeError, ValueError) as error:
        return Checkpoint(path, step, (), f"{state_path}: is damaged ({error!r})")


def _remove(path: str) -> None:
    # The state file first: a partly removed checkpoint must not look complete after a kill.
    storage.remove(storage.join(path, _STATE_FILE))
    storage.remove(path)
