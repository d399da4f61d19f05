"""Imports weights to continue training from: of transformers, nanoGPT or webtext.

No code in a file is executed: pickles are read with torch's restricted reader (`weights_only`).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import pickle
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from pipelines import storage
from pipelines.engine.manifest import has_manifest
from pipelines.errors import InputError
from pipelines.model.io.export_classifier import CLASSIFIER, open_classifier
from pipelines.model.io.hugging_face import MODEL_TYPES, canonical_weights, from_hugging_face, merge_lines, read_config
from pipelines.model.io.model_folder import CONFIG_FILE, TOKENIZER_FILE, open_model
from pipelines.model.io.tensor_files import check_weights, read_tensors
from pipelines.model.network.classifier import HEAD, SPECIAL_TOKENS
from pipelines.model.network.gpt2 import Architecture, empty_weights
from pipelines.model.training.checkpoint import MODEL_FILE
from pipelines.model.training.recipe import PRESETS, read_preset
from pipelines.records import inputs
from pipelines.tokenizers.formats import read_tokenizer

_NANOGPT_FILE = "ckpt.pt"
_PICKLE_FILE = "pytorch_model.bin"
_NANOGPT_SIZES = ("n_layer", "n_embd", "n_head", "block_size", "vocab_size")
_COMPILED = "_orig_mod."
# torch's zip format; the older format cannot be memory-mapped.
_ZIP = b"PK\x03\x04"
# Vocabularies are padded to a multiple of 64, 128 or 1,024; more rows than that are a different vocabulary.
_MAX_PADDING = 1023


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImportedModel:
    """Weights in float32 with our names, and their origin.

    `source` is "hugging-face", "nanogpt", "webtext" or "finetune"; the last `special_tokens` entries of the vocabulary
    are those of a fine-tuning; `tokenizer_json` is None if the origin has no tokenizer;
    `sha256` is that of the weights file, or the hash of the hashes of several; `notes` list what was changed.
    """

    path: str
    architecture: Architecture
    tensors: dict[str, Tensor]
    source: str
    tokenizer_json: bytes | None
    sha256: str
    special_tokens: int = 0
    notes: tuple[str, ...] = ()


def import_weights(path: str, vocab_size: int | None = None) -> ImportedModel:
    """Read a folder of transformers, pretrain or export, or nanoGPT's `ckpt.pt`.

    `vocab_size` is that of the training tokens: embedding rows beyond it are cut off if they can be padding. Raises
    InputError for anything but GPT-2, DamagedShardError for a file of webtext with a wrong checksum.
    """
    if not storage.exists(path):
        raise InputError(f"{path}: no such file or folder; name a model's folder, or nanoGPT's {_NANOGPT_FILE}")
    if path.endswith(".safetensors"):
        raise InputError(f"{path}: a weights file without its config; name its folder, which has a {CONFIG_FILE} too")
    imported = _import_folder(path) if storage.is_folder(path) else _import_nanogpt(path)
    check_weights(imported.tensors, empty_weights(imported.architecture, path), path)
    for name, weight in imported.tensors.items():
        if not torch.isfinite(weight).all():
            raise InputError(f"{path}: {name} has values that are not finite; use an earlier checkpoint")
    return imported if vocab_size is None else _without_padding(imported, vocab_size)


def check_compatible(imported: ImportedModel, architecture: Architecture, tokenizer_json: bytes) -> None:
    """Raise InputError if the weights do not match the recipe's architecture or the tokenizer of the tokens."""
    path = imported.path
    names = ("layers", "width", "heads", "context", "attention_window")
    sizes = {name: getattr(imported.architecture, name) for name in names}
    if different := [name for name, size in sizes.items() if size != getattr(architecture, name)]:
        weights = ", ".join(f"{name} {sizes[name]:,}" for name in different)
        recipe = ", ".join(f"{name} {getattr(architecture, name):,}" for name in different)
        raise InputError(
            f"{path}: the weights have {weights}, the recipe has {recipe}; use {_matching_options(sizes, different)}"
        )
    advice = "re-run `webtext tokenize` with the tokenizer of these weights"
    if imported.architecture.vocab_size != architecture.vocab_size:
        raise InputError(
            f"{path}: the weights have {imported.architecture.vocab_size:,} vocabulary entries, the tokenizer of the "
            f"corpus has {architecture.vocab_size:,}; {advice}"
        )
    if imported.tokenizer_json is not None:
        difference = _tokenizer_difference(imported.tokenizer_json, tokenizer_json)
        if difference is not None:
            raise InputError(f"{path}: its tokenizer is not the tokenizer of the corpus ({difference}); {advice}")


def _matching_options(sizes: Mapping[str, int], different: list[str]) -> str:
    """Return the options of a recipe with these sizes."""
    for preset in PRESETS:
        values = read_preset(preset)
        if all(values[name].value == size for name, size in sizes.items()):
            return f"--preset {preset}"
    if "attention_window" in different:
        different = [*different, "attention"]
    kind = "alternating" if sizes["attention_window"] else "full"
    return " ".join(f"--set {name}={sizes.get(name, kind)}" for name in different)


def _import_folder(path: str) -> ImportedModel:
    config_path = storage.join(path, CONFIG_FILE)
    if storage.exists(config_path):
        config = storage.read_json(config_path)
        if not isinstance(config, dict):
            raise InputError(f"{config_path}: not a model config")
        kind = config.get("model_type")
        if kind in MODEL_TYPES:
            return _import_hugging_face(path, config)
        if kind is not None:
            raise InputError(f"{path}: has a model of type {kind!r}; only {' and '.join(MODEL_TYPES)} are supported")
        return _import_classifier(path) if config.get("format") == CLASSIFIER else _import_webtext(path)
    if storage.exists(nanogpt := storage.join(path, _NANOGPT_FILE)):
        return _import_nanogpt(nanogpt)
    raise InputError(
        f"{path}: has no model (neither {CONFIG_FILE} nor {_NANOGPT_FILE}); name a GPT-2 folder of transformers, "
        "`webtext pretrain` or `webtext export`, or nanoGPT's checkpoint"
    )


def _import_webtext(path: str) -> ImportedModel:
    trained = open_model(path)
    notes = (f"{path}: unfinished; using the weights of step {trained.step:,}",) if trained.step is not None else ()
    return ImportedModel(
        path=path,
        architecture=trained.model.architecture,
        tensors=dict(trained.model.state_dict()),
        source="webtext",
        tokenizer_json=trained.tokenizer_json,
        sha256=storage.sha256_of(trained.weights_path),
        notes=notes,
    )


def _import_classifier(path: str) -> ImportedModel:
    folder, _, architecture = open_classifier(path)
    weights = folder.file(MODEL_FILE).path
    return ImportedModel(
        path=path,
        architecture=architecture,
        tensors={name: weight for name, weight in read_tensors(weights).items() if name != HEAD},
        source="finetune",
        tokenizer_json=storage.read_bytes(folder.file(TOKENIZER_FILE).path),
        sha256=storage.sha256_of(weights),
        special_tokens=SPECIAL_TOKENS,
    )


def _import_hugging_face(path: str, config: dict[str, Any]) -> ImportedModel:
    if has_manifest(path):
        for file in inputs.open_stage(path, ("export",)).files(""):
            file.verify()
    architecture, _ = read_config(config, storage.join(path, CONFIG_FILE))
    files = _weight_files(path)
    tokenizer_json, notes = _read_tokenizer(path)
    digests = [storage.sha256_of(file) for file in files]
    tensors: dict[str, Tensor] = {}
    for name in files:
        tensors |= _copy_to_float32(_unpickle(name) if name.endswith(".bin") else read_tensors(name), name)
    return ImportedModel(
        path=path,
        architecture=architecture,
        tensors=from_hugging_face(tensors, path, architecture.heads),
        source="hugging-face",
        tokenizer_json=tokenizer_json,
        sha256=digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest(),
        notes=notes,
    )


def _weight_files(path: str) -> list[str]:
    """Return the weight files of a folder: one, or those that an index lists; safetensors before pickles."""
    for name in (MODEL_FILE, _PICKLE_FILE):
        if storage.exists(file := storage.join(path, name)):
            return [file]
        if storage.exists(index := f"{file}.index.json"):
            content = storage.read_json(index)
            files = content.get("weight_map") if isinstance(content, dict) else None
            if not isinstance(files, dict) or not all(isinstance(f, str) and "/" not in f for f in files.values()):
                raise InputError(f"{index}: does not list the weight files (weight_map)")
            return [storage.join(path, part) for part in sorted(set(files.values()))]
    raise InputError(f"{path}: has a {CONFIG_FILE}, but neither {MODEL_FILE} nor {_PICKLE_FILE}; copy the whole model")


def _import_nanogpt(path: str) -> ImportedModel:
    saved = _unpickle(path)
    if not isinstance(saved.get("model"), dict) or not isinstance(saved.get("model_args"), dict):
        raise InputError(f"{path}: not a nanoGPT checkpoint (it has no `model` and `model_args`)")
    architecture = _nanogpt_architecture(saved["model_args"], path)
    named = {name.removeprefix(_COMPILED): weight for name, weight in _copy_to_float32(saved["model"], path).items()}
    tensors = canonical_weights(named, path)
    notes = [
        f"{path}: nanoGPT computes GELU exactly, GPT-2 with the tanh formula; values differ by less than 0.0005",
        f"{path}: has no tokenizer; its token ids are assumed to be those of the corpus",
    ]
    if not any(name.endswith(".bias") for name in tensors):  # nanoGPT's bias=False
        expected = empty_weights(architecture, path)
        biases = {name: torch.zeros(weight.shape) for name, weight in expected.items() if name.endswith(".bias")}
        tensors |= biases
        notes.append(f"{path}: has no biases; added {len(biases)} zero biases, which are trained")
    return ImportedModel(
        path=path,
        architecture=architecture,
        tensors=tensors,
        source="nanogpt",
        tokenizer_json=None,
        sha256=storage.sha256_of(path),
        notes=tuple(notes),
    )


def _nanogpt_architecture(arguments: Mapping[str, Any], path: str) -> Architecture:
    for name in _NANOGPT_SIZES:
        if not isinstance(arguments.get(name), int):
            raise InputError(f"{path}: not a nanoGPT checkpoint (model_args has no {name})")
    if unknown := sorted(arguments.keys() - {*_NANOGPT_SIZES, "bias", "dropout"}):
        raise InputError(
            f"{path}: model_args has {unknown[0]}, which nanoGPT does not have; webtext supports GPT-2 only"
        )
    return Architecture(*(arguments[name] for name in _NANOGPT_SIZES))


def _unpickle(path: str) -> dict[str, Any]:
    """Read a torch.save file without executing anything; raise InputError if it has more than plain values."""
    with storage.open_read(path) as stream:
        mapped = stream.read(len(_ZIP)) == _ZIP
    try:
        saved = torch.load(storage.mapped_path(path), map_location="cpu", weights_only=True, mmap=mapped)
    except pickle.UnpicklingError as error:
        reason = str(error).strip().partition("\n")[0].partition(". ")[0]
        raise InputError(
            f"{path}: not a torch.save file, or one with more than weights and plain values, which webtext does "
            f"not execute ({reason}); save its weights again, preferably as {MODEL_FILE}"
        ) from error
    except (RuntimeError, OSError, EOFError, ValueError, LookupError) as error:
        raise InputError(f"{path}: not a torch.save file, or damaged; name a model's folder or ckpt.pt") from error
    if not isinstance(saved, dict):
        raise InputError(f"{path}: contains a {type(saved).__name__}, expected a model's weights by name")
    return saved


def _copy_to_float32(named: Mapping[str, Any], path: str) -> dict[str, Tensor]:
    """Return float32 copies: a memory-mapped file may be overwritten while the weights are in use."""
    for name, weight in named.items():
        if not isinstance(name, str) or not isinstance(weight, Tensor):
            raise InputError(f"{path}: {name!r} is a {type(weight).__name__}, expected weights only")
    return {name: weight.detach().to(torch.float32, copy=True) for name, weight in named.items()}


def _without_padding(imported: ImportedModel, vocab_size: int) -> ImportedModel:
    padding = imported.architecture.vocab_size - vocab_size
    if not 0 < padding <= _MAX_PADDING:
        return imported
    embedding = imported.tensors["wte.weight"][:vocab_size].clone()
    return dataclasses.replace(
        imported,
        architecture=dataclasses.replace(imported.architecture, vocab_size=vocab_size),
        tensors=imported.tensors | {"wte.weight": embedding},
        notes=(*imported.notes, f"{imported.path}: dropped the last {padding} rows of its embedding as padding"),
    )


def _read_tokenizer(path: str) -> tuple[bytes | None, tuple[str, ...]]:
    """Return the tokenizer of a folder of transformers, and notes; older folders have only vocabulary and merges."""
    vocabulary, merges = (storage.join(path, name) for name in ("vocab.json", "merges.txt"))
    if storage.exists(file := storage.join(path, TOKENIZER_FILE)):
        return read_tokenizer(file), ()
    if not storage.exists(vocabulary) or not storage.exists(merges):
        return None, ()
    try:
        return read_tokenizer(vocabulary), ()
    except InputError as error:  # added tokens, for example
        return None, (f"{error}; the token ids of the weights are assumed to be those of the corpus",)


def _tokenizer_difference(imported: bytes, corpus: bytes) -> str | None:
    """Return how two tokenizers differ, or None if they give the same ids.

    Files of one tokenizer may differ in layout, so vocabulary and merges are compared; for other models than BPE the
    whole model.
    """
    left, right = json.loads(imported), json.loads(corpus)
    if "merges" not in left["model"] or "merges" not in right["model"]:
        return None if left["model"] == right["model"] else "different kinds of tokenizer"
    left_texts, right_texts = _texts_by_id(left), _texts_by_id(right)
    for id in sorted(left_texts.keys() | right_texts.keys()):
        if left_texts.get(id) != right_texts.get(id):
            return f"token {id} is {left_texts.get(id)!r} there, {right_texts.get(id)!r} in the corpus"
    same_merges = merge_lines(left["model"]) == merge_lines(right["model"])
    return None if same_merges else "same vocabulary, but different merges"


def _texts_by_id(tokenizer: dict[str, Any]) -> dict[int, str]:
    added = {token["id"]: token["content"] for token in tokenizer.get("added_tokens", [])}
    return {id: text for text, id in tokenizer["model"]["vocab"].items()} | added
