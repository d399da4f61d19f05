"""A folder that holds a model: what pretrain wrote, finished or not, or what export made of it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any

from tokenizers import Tokenizer

from pipelines.core import inputs, shards, storage
from pipelines.core.errors import DamagedShardError, InputError
from pipelines.core.manifest import FileEntry, has_manifest, read_manifest
from pipelines.model.io.hugging_face import from_hugging_face, read_config
from pipelines.model.network.gpt2 import GPT2, Architecture, empty_model
from pipelines.model.training.checkpoint import (
    METRICS_FILE,
    MODEL_FILE,
    find_checkpoints,
    load_weights,
    read_json_lines,
    read_tensors,
)
from pipelines.model.training.data import TokenFolder
from pipelines.model.training.recipe import Recipe

CONFIG_FILE = "config.json"
TOKENIZER_FILE = "tokenizer.json"
_FORMAT = "webtext-gpt2"


@dataclasses.dataclass(frozen=True)
class TrainedModel:
    """A model ready to run on the CPU, with its tokenizer.

    `step` is that of the checkpoint, None where the training is finished; `described` is the folder's `config.json`;
    `figures` are those of the finished training, of an unfinished one its latest held-out loss.
    """

    path: str
    weights_path: str
    model: GPT2
    tokenizer_json: bytes
    end_of_text: int
    step: int | None
    described: dict[str, Any]
    figures: dict[str, float]

    @property
    def exported(self) -> bool:
        """Whether the folder is one of `webtext export`, or of transformers."""
        return _is_exported(self.described)

    def fingerprint(self) -> str:
        """Return a hash of weights, tokenizer, description and figures."""
        parts = [storage.sha256_of(self.weights_path), hashlib.sha256(self.tokenizer_json).hexdigest()]
        about = [*parts, self.described, self.step, self.figures]
        return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()

    def tokenizer(self) -> Tokenizer:
        """Return the tokenizer, without truncation or padding that its file asks for.

        Raises InputError where it has ids that the model does not know.
        """
        try:
            tokenizer = Tokenizer.from_str(self.tokenizer_json.decode())
        except Exception as error:  # tokenizers raises nothing narrower
            path = storage.join(self.path, TOKENIZER_FILE)
            raise InputError(f"{path}: is not a tokenizer of the tokenizers library ({error})") from error
        tokenizer.no_truncation()
        tokenizer.no_padding()
        entries, known = tokenizer.get_vocab_size(), self.model.architecture.vocab_size
        if entries > known:
            raise InputError(
                f"{storage.join(self.path, TOKENIZER_FILE)}: has {entries} entries, the model {known}: "
                "the tokenizer is another model's"
            )
        return tokenizer


def write_description(
    output: str,
    architecture: Architecture,
    tokens: TokenFolder,
    recipe: Recipe,
    initial_weights: dict[str, str] | None = None,
) -> tuple[FileEntry, FileEntry]:
    """Write `config.json` and `tokenizer.json`, which any checkpoint needs to be read.

    `initial_weights` tells what training went on from (`source`, `sha256`); the model card of an export names it.
    """
    described = {
        "format": _FORMAT,
        "architecture": dataclasses.asdict(architecture),
        "end_of_text": tokens.end_of_text,
        "tokenizer_sha256": hashlib.sha256(tokens.tokenizer).hexdigest(),
        "tokens_fingerprint": tokens.fingerprint,
        "recipe": dataclasses.asdict(recipe),
        **({"initial_weights": initial_weights} if initial_weights else {}),
    }
    text = json.dumps(described, indent=1, sort_keys=True) + "\n"
    return (
        shards.write_file(output, CONFIG_FILE, text.encode()),
        shards.write_file(output, TOKENIZER_FILE, tokens.tokenizer),
    )


def open_model(path: str) -> TrainedModel:
    """Load the model of a folder: a finished training, the latest checkpoint of an unfinished one, or an export.

    Raises InputError where there is none, or where weights, tokenizer and config do not belong together, and
    DamagedShardError for a file that is not as the manifest says.
    """
    config = storage.join(path, CONFIG_FILE)
    if not storage.exists(config):
        raise InputError(f"{path}: holds no model (no {CONFIG_FILE}); run `webtext pretrain` first, or name one")
    if has_manifest(path):
        folder = inputs.open_stage(path, ("pretrain", "export"))
        for name in (CONFIG_FILE, TOKENIZER_FILE, MODEL_FILE):
            folder.file(name).verify()
    described = storage.read_json(config)
    exported = isinstance(described, dict) and _is_exported(described)
    if not isinstance(described, dict) or not (exported or described.get("format") == _FORMAT):
        raise InputError(f"{config}: describes no model that webtext knows")
    weights_path, step = (storage.join(path, MODEL_FILE), None) if exported else _weights(path)
    architecture, end_of_text = read_config(described, config) if exported else _own_description(described, config)
    tensors = read_tensors(weights_path)
    model = empty_model(architecture)
    load_weights(model, from_hugging_face(tensors, weights_path) if exported else tensors, weights_path)
    figures: dict[str, float] = {}
    if not exported:
        figures = dict(read_manifest(path).counts) if has_manifest(path) else _latest_figures(path, step)
    return TrainedModel(
        path, weights_path, model.eval(), _tokenizer_bytes(path, described), end_of_text, step, described, figures
    )


def _is_exported(described: dict[str, Any]) -> bool:
    return described.get("model_type") == "gpt2"


def _own_description(described: dict[str, Any], path: str) -> tuple[Architecture, int]:
    try:
        return Architecture(**described["architecture"]), described["end_of_text"]
    except (KeyError, TypeError) as error:
        raise InputError(f"{path}: does not describe a model ({error}); run `webtext pretrain` again") from error


def _latest_figures(path: str, step: int | None) -> dict[str, float]:
    """Return the latest held-out loss of a training without a manifest, up to a step, where its metrics lie beside."""
    metrics = storage.join(path, METRICS_FILE)
    rows = read_json_lines(metrics) if storage.exists(metrics) else []
    known = [row for row in rows if "held_out_loss" in row and (step is None or row["step"] <= step)]
    return {name: value for name, value in known[-1].items() if name.startswith(("held_out", "step"))} if known else {}


def _tokenizer_bytes(path: str, described: dict[str, Any]) -> bytes:
    tokenizer_path = storage.join(path, TOKENIZER_FILE)
    tokenizer = storage.read_bytes(tokenizer_path)
    digest = hashlib.sha256(tokenizer).hexdigest()
    if digest != described.get("tokenizer_sha256", digest):
        raise InputError(
            f"{tokenizer_path}: is not the tokenizer that the model was trained with; "
            "copy it again from the folder of tokenize"
        )
    return tokenizer


def _weights(path: str) -> tuple[str, int | None]:
    """Return the file of the weights to use, and the step of a checkpoint; raise where that is not as written."""
    final = storage.join(path, MODEL_FILE)
    if has_manifest(path):
        return final, None
    if checkpoints := find_checkpoints(path):
        if problem := checkpoints[-1].problem():
            raise DamagedShardError(f"{problem}; run `webtext pretrain` again, it goes on from the checkpoint before")
        return checkpoints[-1].model_path, checkpoints[-1].step
    if storage.exists(final):
        return final, None
    raise InputError(f"{path}: its training has not reached its first checkpoint; run `webtext pretrain` again")
