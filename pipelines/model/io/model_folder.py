"""Folders with a model: of pretrain, finished or not, or of export."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any

import msgspec
from tokenizers import Tokenizer

from pipelines import storage
from pipelines.engine.manifest import has_manifest, read_manifest
from pipelines.errors import DamagedShardError, InputError, translate_format_errors
from pipelines.model.io.hugging_face import MODEL_TYPES, from_hugging_face, read_config
from pipelines.model.io.tensor_files import check_weights, load_weights, read_tensors
from pipelines.model.network.gpt2 import GPT2, Architecture, empty_model, empty_weights
from pipelines.model.training.checkpoint import (
    METRICS_FILE,
    MODEL_FILE,
    Checkpoint,
    best_checkpoint,
    find_checkpoints,
    read_json_lines,
)
from pipelines.records import inputs
from pipelines.tokenizers.formats import load_tokenizer

CONFIG_FILE = "config.json"
TOKENIZER_FILE = "tokenizer.json"
FORMAT = "webtext-gpt2"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainedModel:
    """A model on the CPU, with its tokenizer.

    `step` is that of the checkpoint, None for a finished training; `config` is the folder's `config.json`; `figures`
    are those of the finished training, or the latest held-out loss of an unfinished one.
    """

    path: str
    weights_path: str
    model: GPT2
    tokenizer_json: bytes
    end_of_text: int
    step: int | None
    config: dict[str, Any]
    figures: dict[str, float]

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        return sum(weight.numel() for weight in self.model.parameters())

    def fingerprint(self) -> str:
        """Return a hash of weights, tokenizer, config and figures."""
        parts = [storage.sha256_of(self.weights_path), hashlib.sha256(self.tokenizer_json).hexdigest()]
        content = [*parts, self.config, self.step, self.figures]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def tokenizer(self) -> Tokenizer:
        """Return the tokenizer, without truncation and padding.

        Raises InputError if it has ids that the model does not have.
        """
        path = storage.join(self.path, TOKENIZER_FILE)
        tokenizer = load_tokenizer(self.tokenizer_json, path)
        entries, vocab_size = tokenizer.get_vocab_size(), self.model.architecture.vocab_size
        if entries > vocab_size:
            raise InputError(f"{path}: has {entries} entries, the model {vocab_size}; use the model's own tokenizer")
        return tokenizer


def open_model(path: str, *, best: bool = False, checkpoint: Checkpoint | None = None) -> TrainedModel:
    """Load the model of a folder: a finished training, the latest checkpoint of an unfinished one, or an export.

    `best` selects the checkpoint with the lowest held-out loss, which `pretrain --keep-best` keeps; `checkpoint`
    selects another one. Raises InputError if the folder has no model, or if weights, tokenizer and config do not match,
    and DamagedShardError for a file with a wrong checksum.
    """
    config_path = storage.join(path, CONFIG_FILE)
    if not storage.exists(config_path):
        raise InputError(
            f"{path}: has no model (no {CONFIG_FILE}); run `webtext pretrain` first, or name another --model"
        )
    if has_manifest(path):
        folder = inputs.open_stage(path, ("pretrain", "export"))
        for name in (CONFIG_FILE, TOKENIZER_FILE, MODEL_FILE):
            folder.file(name).verify()
    config = storage.read_json(config_path)
    if not isinstance(config, dict) or not (is_exported(config) or config.get("format") == FORMAT):
        raise InputError(f"{config_path}: not the config of a GPT-2 of webtext or transformers")
    figures: dict[str, float] = {}
    if is_exported(config) and not best:
        weights_path, step = storage.join(path, MODEL_FILE), None
        architecture, end_of_text = read_config(config, config_path)
        tensors = from_hugging_face(read_tensors(weights_path), weights_path, architecture.heads)
    else:
        weights_path, step = _choose_weights(path, best, checkpoint)
        architecture, end_of_text = _read_own_config(config, config_path)
        tensors = read_tensors(weights_path)
        is_final = has_manifest(path) and step is None
        figures = dict(read_manifest(path).counts) if is_final else _latest_figures(path, step)
    check_weights(tensors, empty_weights(architecture, config_path), weights_path)
    model = empty_model(architecture)
    load_weights(model, tensors, weights_path)
    return TrainedModel(
        path=path,
        weights_path=weights_path,
        model=model.eval(),
        tokenizer_json=_read_tokenizer(path, config),
        end_of_text=end_of_text,
        step=step,
        config=config,
        figures=figures,
    )


def is_exported(config: dict[str, Any]) -> bool:
    """Return whether a folder with this `config.json` is in the format of transformers."""
    return config.get("model_type") in MODEL_TYPES


def _read_own_config(config: dict[str, Any], path: str) -> tuple[Architecture, int]:
    try:
        return msgspec.convert(config["architecture"], Architecture), msgspec.convert(config["end_of_text"], int)
    except (KeyError, ValueError) as error:
        raise InputError(f"{path}: not a complete model config ({error}); re-run `webtext pretrain`") from error


def _choose_weights(path: str, best: bool, checkpoint: Checkpoint | None) -> tuple[str, int | None]:
    """Return the weights file of a training, and its step if it is a checkpoint; raise DamagedShardError if damaged."""
    final, advice = storage.join(path, MODEL_FILE), f"delete {checkpoint.path} to leave it out" if checkpoint else ""
    if best:
        checkpoint, advice = best_checkpoint(path), "omit --best to use the last weights"
        if checkpoint is None:
            raise InputError(
                f"{path}: has no best checkpoint; train with `webtext pretrain --keep-best`, or omit --best"
            )
    elif checkpoint is None:
        checkpoints = [] if has_manifest(path) else find_checkpoints(path)
        if not checkpoints and storage.exists(final):
            return final, None
        if not checkpoints:
            raise InputError(f"{path}: has no checkpoint yet; re-run `webtext pretrain` to continue the training")
        checkpoint, advice = checkpoints[-1], "re-run `webtext pretrain` to resume from the previous checkpoint"
    if problem := checkpoint.problem():
        raise DamagedShardError(f"{problem}; {advice}")
    return checkpoint.model_path, checkpoint.step


def _latest_figures(path: str, step: int | None) -> dict[str, float]:
    """Return the latest held-out loss in the metrics of a training without a manifest, up to a step."""
    metrics = storage.join(path, METRICS_FILE)
    rows = read_json_lines(metrics) if storage.exists(metrics) else []
    with translate_format_errors(metrics, "the metrics of a training; re-run `webtext pretrain`"):
        evaluated = [row for row in rows if "held_out_loss" in row and (step is None or row["step"] <= step)]
        latest = evaluated[-1] if evaluated else {}
        figures = {name: value for name, value in latest.items() if name.startswith(("held_out", "step"))}
        return dict(msgspec.convert(figures, dict[str, int | float]))


def _read_tokenizer(path: str, config: dict[str, Any]) -> bytes:
    tokenizer_path = storage.join(path, TOKENIZER_FILE)
    tokenizer = storage.read_bytes(tokenizer_path)
    digest = hashlib.sha256(tokenizer).hexdigest()
    if digest != config.get("tokenizer_sha256", digest):
        raise InputError(
            f"{tokenizer_path}: not the tokenizer that the model was trained with; copy it again from tokenize"
        )
    return tokenizer
