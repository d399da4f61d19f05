"""GPT-2 as Hugging Face's transformers write it: names, orientation of the weights, config and tokenizer files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from pipelines.core.errors import InputError
from pipelines.model.gpt2 import LAYER_NORM_EPSILON, Architecture

_PREFIX = "transformer."
# Their Conv1D keeps these matrices as [in, out], the other way round than torch's Linear.
_TRANSPOSED = ("c_attn.weight", "c_proj.weight", "c_fc.weight")
# The tied output, and the causal masks of older files.
_LEFT_OUT = ("lm_head.weight", ".attn.bias", ".attn.masked_bias")


def to_hugging_face(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return our weights under their names and in their orientation; the tied output has no weight of its own."""
    return {_PREFIX + name: _turned(name, weight) for name, weight in tensors.items()}


def from_hugging_face(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return their weights as ours; masks and the tied output are left out."""
    named = {name.removeprefix(_PREFIX): weight for name, weight in tensors.items() if not name.endswith(_LEFT_OUT)}
    return {name: _turned(name, weight) for name, weight in named.items()}


def model_config(architecture: Architecture, end_of_text: int) -> dict[str, Any]:
    """Return the `config.json` of a GPT2LMHeadModel."""
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "n_layer": architecture.layers,
        "n_embd": architecture.width,
        "n_head": architecture.heads,
        "n_positions": architecture.context,
        "n_ctx": architecture.context,
        "vocab_size": architecture.vocab_size,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": LAYER_NORM_EPSILON,
        "initializer_range": 0.02,
        "embd_pdrop": architecture.dropout,
        "attn_pdrop": architecture.dropout,
        "resid_pdrop": architecture.dropout,
        "tie_word_embeddings": True,
        "bos_token_id": end_of_text,
        "eos_token_id": end_of_text,
        "dtype": "float32",
    }


def tokenizer_files(tokenizer_json: bytes, context: int, end_of_text: int) -> dict[str, bytes]:
    """Return `tokenizer.json` and the files that older loaders read beside it; raise InputError if it is no BPE."""
    parsed = json.loads(tokenizer_json)
    model = parsed["model"]
    if "merges" not in model:
        raise InputError("tokenizer.json: is no byte-pair encoding, so it cannot be exported as GPT-2's")
    vocab = model["vocab"] | {token["content"]: token["id"] for token in parsed.get("added_tokens", [])}
    ordered = dict(sorted(vocab.items(), key=lambda item: item[1]))
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    mark = next(text for text, id in ordered.items() if id == end_of_text)
    config = {
        "tokenizer_class": "GPT2Tokenizer",
        "model_max_length": context,
        "add_prefix_space": False,
        "bos_token": mark,
        "eos_token": mark,
        "unk_token": mark,
    }
    return {
        "tokenizer.json": tokenizer_json,
        "tokenizer_config.json": to_json(config),
        "vocab.json": json.dumps(ordered, ensure_ascii=False).encode(),
        "merges.txt": "\n".join(["#version: 0.2", *merges, ""]).encode(),
    }


def to_json(value: Any) -> bytes:
    """Return a value as the bytes of a JSON file."""
    return (json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()


def _turned(name: str, weight: Tensor) -> Tensor:
    return weight.t().contiguous() if name.endswith(_TRANSPOSED) else weight
