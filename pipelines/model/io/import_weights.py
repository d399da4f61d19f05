"""Weights that others trained, to continue from: of transformers, of nanoGPT, or of webtext.

Nothing in a file is executed: pickles are read by torch's restricted reader, which knows tensors and plain values only.
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

from pipelines.core import inputs, storage
from pipelines.core.errors import InputError
from pipelines.core.manifest import has_manifest
from pipelines.model.io.hugging_face import from_hugging_face, read_config
from pipelines.model.io.model_folder import CONFIG_FILE, TOKENIZER_FILE, open_model
from pipelines.model.network.gpt2 import GPT2, Architecture
from pipelines.model.training.checkpoint import MODEL_FILE, read_tensors
from pipelines.model.training.recipe import PRESETS, read_preset

_NANOGPT_FILE = "ckpt.pt"
_PICKLE_FILE = "pytorch_model.bin"
_NANOGPT_SIZES = ("n_layer", "n_embd", "n_head", "block_size", "vocab_size")
_COMPILED = "_orig_mod."
# torch's zip format; what is older cannot be mapped into memory.
_ZIP = b"PK\x03\x04"
# Vocabularies are padded to a multiple of 64, 128 or 1,024; what is more than that is another vocabulary.
_MOST_PADDING = 1023


@dataclasses.dataclass(frozen=True)
class ImportedModel:
    """Weights under our names, in float32, with what is known of their origin.

    `source` is "hugging-face", "nanogpt" or "webtext"; `tokenizer_json` is None where the origin names no tokenizer;
    `sha256` is that of the file of weights, of several the hash of their hashes; `notes` say what is not as it was.
    """

    path: str
    architecture: Architecture
    tensors: dict[str, Tensor]
    source: str
    tokenizer_json: bytes | None
    sha256: str
    notes: tuple[str, ...] = ()


def import_weights(path: str, vocab_size: int | None = None) -> ImportedModel:
    """Read the weights of a folder of transformers, of nanoGPT's `ckpt.pt`, or of a folder of pretrain or export.

    `vocab_size` is that of the tokens to train on: rows of the embedding after it are padding and are cut, unless they
    are too many for that. Raises InputError for whatever is no GPT-2, DamagedShardError for a file of ours that is not
    as it was written.
    """
    if not storage.exists(path):
        raise InputError(f"{path}: no such file or folder; name a model's folder, or nanoGPT's {_NANOGPT_FILE}")
    if path.endswith(".safetensors"):
        raise InputError(f"{path}: is a file of weights alone; name its folder, which has a {CONFIG_FILE} too")
    imported = _import_folder(path) if storage.is_folder(path) else _import_nanogpt(path)
    _check_weights(imported)
    return imported if vocab_size is None else _without_padding(imported, vocab_size)


def check_fits(imported: ImportedModel, architecture: Architecture, tokenizer_json: bytes) -> None:
    """Raise InputError where the weights are not of the sizes of a recipe, or not of the tokens' tokenizer."""
    theirs, ours = imported.architecture, architecture
    if different := [
        size for size in ("layers", "width", "heads", "context") if _size(theirs, size) != _size(ours, size)
    ]:
        has = ", ".join(f"{size} {_size(theirs, size):,}" for size in different)
        asked = ", ".join(f"{size} {_size(ours, size):,}" for size in different)
        raise InputError(
            f"{imported.path}: the weights have {has}, the recipe has {asked}; "
            f"use {_fitting_options(theirs, different)}"
        )
    if theirs.vocab_size != ours.vocab_size:
        raise InputError(
            f"{imported.path}: the weights know {theirs.vocab_size:,} tokens, the tokenizer of the corpus has "
            f"{ours.vocab_size:,}; run `webtext tokenize` with the tokenizer of these weights"
        )
    if imported.tokenizer_json is not None and (found := _other_token(imported.tokenizer_json, tokenizer_json)):
        raise InputError(
            f"{imported.path}: its tokenizer is not that of the corpus ({found}); "
            "run `webtext tokenize` with the tokenizer of these weights"
        )


def _import_folder(path: str) -> ImportedModel:
    config_path = storage.join(path, CONFIG_FILE)
    if storage.exists(config_path):
        described = storage.read_json(config_path)
        if not isinstance(described, dict):
            raise InputError(f"{config_path}: describes no model")
        kind = described.get("model_type")
        return _import_hugging_face(path, described) if kind == "gpt2" else _import_own(path, kind)
    if storage.exists(nanogpt := storage.join(path, _NANOGPT_FILE)):
        return _import_nanogpt(nanogpt)
    raise InputError(
        f"{path}: holds no model (neither {CONFIG_FILE} nor {_NANOGPT_FILE}); name the folder of a GPT-2 that "
        "transformers wrote, of `webtext pretrain` or `webtext export`, or nanoGPT's checkpoint"
    )


def _import_own(path: str, kind: str | None) -> ImportedModel:
    if kind is not None:
        raise InputError(f"{path}: holds a model of the type {kind!r}, but only gpt2 can be continued from")
    trained = open_model(path)
    tensors = dict(trained.model.state_dict())
    digest = storage.sha256_of(trained.weights_path)
    notes = (f"{path}: unfinished; its weights are those of step {trained.step:,}",) if trained.step is not None else ()
    return ImportedModel(path, trained.model.architecture, tensors, "webtext", trained.tokenizer_json, digest, notes)


def _import_hugging_face(path: str, described: dict[str, Any]) -> ImportedModel:
    if has_manifest(path):
        for written in inputs.open_stage(path, ("export",)).files(""):
            written.verify()
    architecture, _ = read_config(described, storage.join(path, CONFIG_FILE))
    files = _weight_files(path)
    theirs: dict[str, Tensor] = {}
    for file in files:
        theirs |= _own_copies(_unpickled(file), file) if file.endswith(".bin") else read_tensors(file)
    _check_tied(theirs, path)
    tensors = {name: weight.float() for name, weight in from_hugging_face(theirs).items()}
    return ImportedModel(path, architecture, tensors, "hugging-face", _tokenizer_of(path), _digest(files))


def _weight_files(path: str) -> list[str]:
    """Return the files of the weights of a folder: one, or those that an index names; safetensors before pickles."""
    for name in (MODEL_FILE, _PICKLE_FILE):
        if storage.exists(file := storage.join(path, name)):
            return [file]
        if storage.exists(index := f"{file}.index.json"):
            return [storage.join(path, part) for part in _parts(index)]
    raise InputError(f"{path}: has a {CONFIG_FILE}, but neither {MODEL_FILE} nor {_PICKLE_FILE}; copy the whole model")


def _parts(index: str) -> list[str]:
    named = storage.read_json(index)
    files = named.get("weight_map") if isinstance(named, dict) else None
    if not isinstance(files, dict) or not all(isinstance(file, str) and "/" not in file for file in files.values()):
        raise InputError(f"{index}: does not name the files of the weights (weight_map)")
    return sorted(set(files.values()))


def _import_nanogpt(path: str) -> ImportedModel:
    saved = _unpickled(path)
    if not isinstance(saved.get("model"), dict) or not isinstance(saved.get("model_args"), dict):
        raise InputError(f"{path}: is no checkpoint of nanoGPT (it has no `model` and `model_args`)")
    architecture = _nanogpt_architecture(saved["model_args"], path)
    named = {name.removeprefix(_COMPILED): weight for name, weight in _own_copies(saved["model"], path).items()}
    _check_tied(named, path)
    # The output shares the embedding; the other is the causal mask of older versions.
    tensors = {
        name.removeprefix("transformer."): weight
        for name, weight in named.items()
        if name != "lm_head.weight" and not name.endswith(".attn.bias")
    }
    notes = [
        f"{path}: nanoGPT computes GELU exactly, GPT-2 by the tanh formula, which is off by less than 0.0005 a value",
        f"{path}: names no tokenizer; its ids are taken for those of the corpus",
    ]
    if without := _add_zero_biases(tensors, architecture):
        notes.append(f"{path}: has no biases; {without} are added as zeros, which changes nothing, and are trained")
    return ImportedModel(path, architecture, tensors, "nanogpt", None, _digest([path]), tuple(notes))


def _nanogpt_architecture(arguments: Mapping[str, Any], path: str) -> Architecture:
    for name in _NANOGPT_SIZES:
        if not isinstance(arguments.get(name), int):
            raise InputError(f"{path}: model_args has no {name}, so this is no checkpoint of nanoGPT")
    if strange := sorted(arguments.keys() - {*_NANOGPT_SIZES, "bias", "dropout"}):
        raise InputError(f"{path}: model_args has {strange[0]}, which is not nanoGPT's: webtext knows GPT-2 only")
    return Architecture(*(arguments[name] for name in _NANOGPT_SIZES))


def _add_zero_biases(tensors: dict[str, Tensor], architecture: Architecture) -> int:
    """Add the biases that nanoGPT's `bias=False` leaves out; return how many."""
    if any(name.endswith(".bias") for name in tensors):
        return 0
    biases = {name: torch.zeros(size) for name, size in _shapes(architecture).items() if name.endswith(".bias")}
    tensors.update(biases)
    return len(biases)


def _unpickled(path: str) -> dict[str, Any]:
    """Read a file of torch.save, nothing of which is executed; raise InputError where it has more than plain values."""
    with storage.open_read(path) as stream:
        mapped = stream.read(len(_ZIP)) == _ZIP
    with storage.local_copy(path) as local:
        try:
            saved = torch.load(local, map_location="cpu", weights_only=True, mmap=mapped)
        except pickle.UnpicklingError as error:
            raise InputError(
                f"{path}: is no file of torch.save, or holds more than weights and plain values, which webtext does "
                f"not execute ({_first_sentence(error)}); save its weights again, best as {MODEL_FILE}"
            ) from error
        except (RuntimeError, OSError, EOFError, ValueError, LookupError) as error:
            raise InputError(f"{path}: is no file of torch.save, or damaged ({_first_sentence(error)})") from error
    if not isinstance(saved, dict):
        raise InputError(f"{path}: holds a {type(saved).__name__}, a model's weights by name were expected")
    return saved


def _own_copies(named: Mapping[str, Any], path: str) -> dict[str, Tensor]:
    """Return tensors as float32 in memory of their own, since a mapped file may be written anew meanwhile."""
    for name, weight in named.items():
        if not isinstance(name, str) or not isinstance(weight, Tensor):
            raise InputError(f"{path}: {name!r} is a {type(weight).__name__}, but only weights were expected there")
    return {name: weight.detach().to(torch.float32, copy=True) for name, weight in named.items()}


def _check_tied(tensors: Mapping[str, Tensor], path: str) -> None:
    """Raise InputError where the output has weights of its own, unlike GPT-2's."""
    output = tensors.get("lm_head.weight")
    shared = tensors.get("transformer.wte.weight", tensors.get("wte.weight"))
    if output is not None and shared is not None and not torch.equal(output, shared):
        raise InputError(f"{path}: its output has weights of its own, GPT-2's shares the token embedding")


def _check_weights(imported: ImportedModel) -> None:
    """Raise InputError where the weights are not, by name and shape, those of the sizes that go with them."""
    shapes = _shapes(imported.architecture)
    if strange := sorted(shapes.keys() ^ imported.tensors.keys()):
        lacks = "lacks" if strange[0] in shapes else "has"
        raise InputError(f"{imported.path}: {lacks} the weight {strange[0]}, so this is no GPT-2 of the sizes it names")
    for name, weight in imported.tensors.items():
        if weight.shape != shapes[name]:
            raise InputError(
                f"{imported.path}: {name} has the shape {list(weight.shape)}, but the sizes beside it ask for "
                f"{list(shapes[name])}"
            )
        if not torch.isfinite(weight).all():
            raise InputError(f"{imported.path}: {name} holds values that are no numbers; take an earlier checkpoint")


def _without_padding(imported: ImportedModel, vocab_size: int) -> ImportedModel:
    more = imported.architecture.vocab_size - vocab_size
    if not 0 < more <= _MOST_PADDING:
        return imported
    embedding = imported.tensors["wte.weight"][:vocab_size].clone()
    return dataclasses.replace(
        imported,
        architecture=dataclasses.replace(imported.architecture, vocab_size=vocab_size),
        tensors=imported.tensors | {"wte.weight": embedding},
        notes=(*imported.notes, f"{imported.path}: the last {more} rows of its embedding are padding, and are cut"),
    )


def _shapes(architecture: Architecture) -> dict[str, torch.Size]:
    with torch.device("meta"):
        return {name: weight.shape for name, weight in GPT2(architecture).state_dict().items()}


def _tokenizer_of(path: str) -> bytes | None:
    """Return the tokenizer of a folder of transformers; older ones have only its vocabulary and merges."""
    file, vocab, merges = (storage.join(path, name) for name in (TOKENIZER_FILE, "vocab.json", "merges.txt"))
    if storage.exists(file):
        parsed = storage.read_json(file)
        if not isinstance(parsed, dict) or not isinstance(parsed.get("model"), dict):
            raise InputError(f"{file}: is no tokenizer; copy it again from where the weights are from")
        return storage.read_bytes(file)
    if not storage.exists(vocab) or not storage.exists(merges):
        return None
    lines = storage.read_bytes(merges).decode().splitlines()
    pairs = [line for line in lines if line and not line.startswith("#version")]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    model = {"type": "BPE", "vocab": storage.read_json(vocab), "merges": pairs}
    return json.dumps({"model": model, "pre_tokenizer": byte_level, "decoder": byte_level}).encode()


def _other_token(theirs: bytes, ours: bytes) -> str | None:
    """Return how two tokenizers differ, or None where each id stands for the same text.

    Files of one tokenizer may differ in layout, so vocabulary and merges are compared, and of what is no byte-pair
    encoding the whole model.
    """
    left, right = json.loads(theirs), json.loads(ours)
    if "merges" not in left["model"] or "merges" not in right["model"]:
        return None if left["model"] == right["model"] else "they are of different kinds"
    left_texts, right_texts = _texts(left), _texts(right)
    for id in sorted(left_texts.keys() | right_texts.keys()):
        if left_texts.get(id) != right_texts.get(id):
            return f"token {id} is {left_texts.get(id)!r} there and {right_texts.get(id)!r} here"
    return None if _merges(left) == _merges(right) else "they have the same vocabulary, but other merges"


def _texts(tokenizer: dict[str, Any]) -> dict[int, str]:
    added = {token["id"]: token["content"] for token in tokenizer.get("added_tokens", [])}
    return {id: text for text, id in tokenizer["model"]["vocab"].items()} | added


def _merges(tokenizer: dict[str, Any]) -> list[str]:
    return [merge if isinstance(merge, str) else " ".join(merge) for merge in tokenizer["model"]["merges"]]


def _fitting_options(architecture: Architecture, different: list[str]) -> str:
    """Return the options of a recipe for weights of these sizes."""
    sizes = ("layers", "width", "heads", "context")
    for preset in PRESETS:
        values = read_preset(preset)
        if all(values[size].value == _size(architecture, size) for size in sizes):
            return f"--preset {preset}"
    return " ".join(f"--set {size}={_size(architecture, size)}" for size in different)


def _size(architecture: Architecture, name: str) -> int:
    return int(getattr(architecture, name))


def _digest(files: list[str]) -> str:
    digests = [storage.sha256_of(file) for file in files]
    return digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()


def _first_sentence(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0].partition(". ")[0] or type(error).__name__
