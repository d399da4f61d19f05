"""Checkpoints: what a killed training goes on from, bit for bit.

    checkpoints/step-0000250/model.safetensors      the weights
    checkpoints/step-0000250/optimizer.safetensors  Adam's two moments of each weight
    checkpoints/step-0000250/metrics.jsonl          all metrics up to that step
    checkpoints/step-0000250/state.json             the step, and the checksums of the three; written last

A folder without `state.json` is one whose writer was killed. No random state is saved: it follows from the step.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from pipelines.core import shards, storage
from pipelines.core.errors import InputError
from pipelines.core.manifest import FileEntry, check_file
from pipelines.model.io.tensor_files import gather_tensors, open_tensors, write_tensors
from pipelines.model.network.gpt2 import GPT2
from pipelines.model.training.optimizer import load_optimizer, optimizer_tensors

FOLDER = "checkpoints"
MODEL_FILE = "model.safetensors"
METRICS_FILE = "metrics.jsonl"
_OPTIMIZER_FILE = "optimizer.safetensors"
_STATE_FILE = "state.json"
_NAME = re.compile(r"step-(\d+)")

Row = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Keep:
    """Which checkpoints stay: the latest ones, and those of some steps, from which a spike can be replayed."""

    latest: int
    steps: frozenset[int] = frozenset()


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose every file was written; `damage` says what is wrong with an unreadable state."""

    path: str
    step: int
    files: tuple[FileEntry, ...]
    damage: str | None = None

    @property
    def model_path(self) -> str:
        """The file of the weights."""
        return storage.join(self.path, MODEL_FILE)

    def problem(self) -> str | None:
        """Return what is wrong with a file, or None if all are as they were written."""
        return self.damage or next(filter(None, (check_file(self.path, file) for file in self.files)), None)


def find_checkpoints(output: str) -> list[Checkpoint]:
    """Return the checkpoints of a training folder that were written to their end, the latest last.

    One whose state has become unreadable is among them: it was written, and `problem` tells that it is damaged.
    """
    names = storage.list_folder(storage.join(output, FOLDER))
    found = [
        _read_checkpoint(storage.join(output, FOLDER, name), int(match[1]))
        for name in names
        if (match := _NAME.fullmatch(name)) and storage.exists(storage.join(output, FOLDER, name, _STATE_FILE))
    ]
    return sorted(found, key=lambda checkpoint: checkpoint.step)


def latest_checkpoint(output: str, note: Callable[[str], None]) -> Checkpoint | None:
    """Return the latest checkpoint that is intact, and remove what is not; call it under the folder's lock."""
    checkpoints = find_checkpoints(output)
    while checkpoints and (problem := checkpoints[-1].problem()):
        note(f"{problem}; training goes on from the checkpoint before it")
        _remove(checkpoints.pop().path)
    known = {storage.basename(checkpoint.path) for checkpoint in checkpoints}
    for name in storage.list_folder(storage.join(output, FOLDER)):
        if name not in known:
            storage.remove(storage.join(output, FOLDER, name))
    return checkpoints[-1] if checkpoints else None


def save_checkpoint(
    output: str, step: int, model: GPT2, optimizer: torch.optim.AdamW, rows: Sequence[Row], keep: Keep
) -> None:
    """Write the checkpoint of a step, then remove those that need not be kept.

    Where the model lies in parts in several processes, the others call `give_parts` meanwhile.
    """
    path = storage.join(output, FOLDER, f"step-{step:07d}")
    files = (
        write_tensors(path, MODEL_FILE, model.state_dict()),
        write_tensors(path, _OPTIMIZER_FILE, optimizer_tensors(model, optimizer)),
        shards.write_file(path, METRICS_FILE, json_lines(rows)),
    )
    state = {"step": step, "files": [dataclasses.asdict(file) for file in files]}
    storage.write_json(storage.join(path, _STATE_FILE), state)
    for old in find_checkpoints(output)[: -keep.latest]:
        if old.step not in keep.steps:
            _remove(old.path)


def give_parts(model: GPT2, optimizer: torch.optim.AdamW) -> None:
    """Take part in the writing of a checkpoint by another process."""
    gather_tensors(model.state_dict())
    gather_tensors(optimizer_tensors(model, optimizer))


def load_moments(checkpoint: Checkpoint, model: GPT2, optimizer: torch.optim.AdamW) -> None:
    """Load the moments that belong to a checkpoint's weights."""
    with open_tensors(storage.join(checkpoint.path, _OPTIMIZER_FILE)) as (_, read):
        load_optimizer(model, optimizer, read, checkpoint.step)


def read_metrics(checkpoint: Checkpoint) -> list[Row]:
    """Return the metrics up to the checkpoint's step."""
    return read_json_lines(storage.join(checkpoint.path, METRICS_FILE))


def load_weights(model: GPT2, tensors: Mapping[str, Tensor], path: str) -> None:
    """Load weights into a model; raise InputError where they are another model's."""
    own = model.state_dict()
    if strange := sorted(own.keys() ^ tensors.keys()):
        raise InputError(f"{path}: holds the weights of another kind of model ({strange[0]} is in only one of the two)")
    for name, weight in own.items():
        if weight.shape != tensors[name].shape:
            raise InputError(
                f"{path}: {name} has the shape {list(tensors[name].shape)}, but config.json asks for "
                f"{list(weight.shape)}: the weights are of another size or vocabulary"
            )
    model.load_state_dict(dict(tensors))


def pack_tensors(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> bytes:
    """Return tensors as the bytes of a safetensors file."""
    return bytes(safetensors.torch.save(dict(tensors), dict(metadata) if metadata else None))


def read_tensors(path: str) -> dict[str, Tensor]:
    """Read a safetensors file; raise InputError where it is none."""
    try:
        return dict(safetensors.torch.load(storage.read_bytes(path)))
    except safetensors.SafetensorError as error:
        raise InputError(f"{path}: is not a safetensors file ({error})") from error


def json_lines(rows: Sequence[Row]) -> bytes:
    """Return rows as JSONL."""
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def read_json_lines(path: str) -> list[Row]:
    """Read rows from JSONL."""
    return [json.loads(line) for line in storage.read_bytes(path).splitlines()]


def _read_checkpoint(path: str, step: int) -> Checkpoint:
    state_path = storage.join(path, _STATE_FILE)
    try:
        state = storage.read_json(state_path)
        files = tuple(FileEntry(**file) for file in state["files"])
        damage = None if state["step"] == step else f"{state_path}: is damaged (it names another step)"
        return Checkpoint(path, step, files, damage)
    except InputError as error:
        return Checkpoint(path, step, (), f"{error}; the checkpoint is damaged")
    except (KeyError, TypeError) as error:
        return Checkpoint(path, step, (), f"{state_path}: is damaged ({error!r})")


def _remove(path: str) -> None:
    # The state first: a checkpoint that is being removed must not look whole after a kill.
    storage.remove(storage.join(path, _STATE_FILE))
    storage.remove(path)
