"""GPT-2 and GPT-Neo in the format of Hugging Face transformers: names of weights, config and tokenizer files."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from pipelines.errors import InputError
from pipelines.model.io.gpt_neo import attention_kinds, attention_window, from_gpt_neo
from pipelines.model.network.gpt2 import LAYER_NORM_EPSILON, Architecture
from pipelines.tokenizers.formats import splits_as_gpt2

_PREFIX = "transformer."
# Conv1D of transformers stores these matrices as [in, out], torch's Linear as [out, in].
_TRANSPOSED = ("c_attn.weight", "c_proj.weight", "c_fc.weight")
# The tied output, and the causal masks in older files.
_REDUNDANT = ("lm_head.weight", ".attn.bias", ".attn.masked_bias", ".attention.bias", ".attention.masked_bias")

# By type of model: layers, width, heads, context and vocabulary, in the order of `Architecture`; and other names.
_SIZES = {
    "gpt2": ("n_layer", "n_embd", "n_head", "n_positions", "vocab_size"),
    "gpt_neo": ("num_layers", "hidden_size", "num_heads", "max_position_embeddings", "vocab_size"),
}
_DROPOUTS = {
    "gpt2": ("embd_pdrop", "attn_pdrop", "resid_pdrop"),
    "gpt_neo": ("embed_dropout", "attention_dropout", "resid_dropout"),
}
_INNER = {"gpt2": "n_inner", "gpt_neo": "intermediate_size"}
MODEL_TYPES = tuple(_SIZES)
# Supported values of settings that vary between models; a missing setting means GPT-2's value, the first.
_SUPPORTED = {
    "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
    "layer_norm_epsilon": (LAYER_NORM_EPSILON,),
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "add_cross_attention": (False,),
    "tie_word_embeddings": (True,),
}
# BPE settings that GPT-2's tokenizer does not have.
_BPE_SETTINGS = ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback", "ignore_merges")


def to_hugging_face(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return weights with the names and orientation of transformers; the tied output has no weight of its own."""
    return {_PREFIX + name: _transpose(name, weight) for name, weight in tensors.items()}


def from_hugging_face(tensors: Mapping[str, Tensor], path: str, heads: int = 1) -> dict[str, Tensor]:
    """Return weights of transformers with our names and orientation; see `canonical_weights`.

    `heads` is needed for those of GPT-Neo only.
    """
    named = canonical_weights(tensors, path)
    if any(".attn.attention." in name for name in named):
        return from_gpt_neo(named, heads, path)
    return {name: _transpose(name, weight) for name, weight in named.items()}


def canonical_weights(tensors: Mapping[str, Tensor], path: str) -> dict[str, Tensor]:
    """Return weights without the prefix `transformer.`, causal masks, and the tied output.

    Raises InputError if the output is not the token embedding, whatever the config says.
    """
    output, embedding = tensors.get("lm_head.weight"), tensors.get(_PREFIX + "wte.weight", tensors.get("wte.weight"))
    if output is not None and embedding is not None and not torch.equal(output, embedding):
        raise InputError(
            f"{path}: lm_head.weight differs from wte.weight; webtext supports GPT-2 only, which ties them"
        )
    return {name.removeprefix(_PREFIX): weight for name, weight in tensors.items() if not name.endswith(_REDUNDANT)}


def _transpose(name: str, weight: Tensor) -> Tensor:
    return weight.t().contiguous() if name.endswith(_TRANSPOSED) else weight


def model_config(architecture: Architecture, end_of_text: int) -> dict[str, Any]:
    """Return the `config.json` of a GPT2LMHeadModel, or with alternating attention of a GPTNeoForCausalLM."""
    layers, context, window = architecture.layers, architecture.context, architecture.attention_window
    kind = "gpt_neo" if window else "gpt2"
    # GPT-Neo's `attention_types`, which it expands to the layers, are pairs of kinds and how often they repeat.
    types = [[["global", "local"], layers // 2], [["global"], layers % 2]]
    banded = {"attention_layers": attention_kinds(layers), "attention_types": types, "window_size": window}
    return {
        "architectures": ["GPTNeoForCausalLM" if window else "GPT2LMHeadModel"],
        "model_type": kind,
        **dict(zip(_SIZES[kind], dataclasses.astuple(architecture), strict=False)),
        **(banded if window else {"n_ctx": context}),
        "activation_function": "gelu_new",
        "layer_norm_epsilon": LAYER_NORM_EPSILON,
        "initializer_range": 0.02,
        **dict.fromkeys(_DROPOUTS[kind], architecture.dropout),
        "tie_word_embeddings": True,
        "bos_token_id": end_of_text,
        "eos_token_id": end_of_text,
        "dtype": "float32",
    }


def read_config(config: Mapping[str, Any], path: str) -> tuple[Architecture, int]:
    """Return the architecture and the end-of-text id; raise InputError if the model differs from GPT-2."""
    kind = config.get("model_type", "gpt2")
    sizes = _SIZES[kind]
    for name in (*sizes, "eos_token_id"):
        value = config.get(name)
        if not isinstance(value, int) or isinstance(value, bool):
            raise InputError(f"{path}: {name} is {json.dumps(value)}, expected an integer")
    _, width, heads, *_ = sizes
    invalid = [name for name in sizes if config[name] < 1]
    invalid += [] if invalid or config[width] % config[heads] == 0 else [heads]
    invalid += [] if 0 <= config["eos_token_id"] < config["vocab_size"] else ["eos_token_id"]
    if invalid:
        raise InputError(f"{path}: {invalid[0]} is {config[invalid[0]]}, which is impossible with the other sizes")
    for name, supported in {**_SUPPORTED, _INNER[kind]: (None, 4 * config[width])}.items():
        if config.get(name, supported[0]) not in supported:
            raise InputError(
                f"{path}: {name} is {json.dumps(config[name])}, GPT-2 has {json.dumps(supported[0])}; "
                "webtext supports GPT-2 only"
            )
    window = attention_window(config, config["num_layers"], path) if kind == "gpt_neo" else 0
    architecture = Architecture(*(config[name] for name in sizes))
    return dataclasses.replace(architecture, attention_window=window), config["eos_token_id"]


def tokenizer_files(tokenizer_json: bytes, context: int, end_of_text: int) -> dict[str, bytes]:
    """Return `tokenizer.json` and its config, and for a GPT-2 tokenizer `vocab.json` and `merges.txt`.

    Truncation, padding and added tokens are removed from the copy: training used none. Raises InputError if the
    tokenizer is not a BPE.
    """
    parsed = json.loads(tokenizer_json)
    model = parsed["model"]
    if "merges" not in model:
        raise InputError("tokenizer.json: not a byte-pair encoding, so it cannot be exported for GPT-2")
    processor = parsed.get("post_processor")
    byte_level = processor if processor and processor["type"] == "ByteLevel" else None
    changes = {"truncation": None, "padding": None, "post_processor": byte_level}
    plain = parsed | {name: value for name, value in changes.items() if parsed.get(name) != value}
    # Whether GPT2Tokenizer, which takes only vocabulary and merges from a tokenizer, gives the same ids.
    like_gpt2 = (
        splits_as_gpt2(plain)
        and (plain.get("decoder") or {}).get("type") == "ByteLevel"
        and not any(model.get(name) for name in _BPE_SETTINGS)
        and len(plain.get("added_tokens", [])) <= 1
    )
    vocab = model["vocab"] | {token["content"]: token["id"] for token in parsed.get("added_tokens", [])}
    ordered = dict(sorted(vocab.items(), key=lambda item: item[1]))
    end_token = next(text for text, id in ordered.items() if id == end_of_text)
    config = {
        # GPT2Tokenizer ignores the pre-tokenizer of tokenizer.json; PreTrainedTokenizerFast uses the file as it is.
        "tokenizer_class": "GPT2Tokenizer" if like_gpt2 else "PreTrainedTokenizerFast",
        "model_max_length": context,
        "bos_token": end_token,
        "eos_token": end_token,
        "unk_token": end_token,
        **({"add_prefix_space": False} if like_gpt2 else {}),
    }
    files = {
        "tokenizer.json": tokenizer_json if plain == parsed else to_json(plain),
        "tokenizer_config.json": to_json(config),
    }
    if not like_gpt2:
        return files
    return files | {
        "vocab.json": json.dumps(ordered, ensure_ascii=False).encode(),
        "merges.txt": "\n".join(["#version: 0.2", *merge_lines(model), ""]).encode(),
    }


def merge_lines(model: Mapping[str, Any]) -> list[str]:
    """Return the merges of a BPE model as lines; newer files of the tokenizers library store them as pairs."""
    return [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]


def to_json(value: Any) -> bytes:
    """Encode a value as a JSON file."""
    return (json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()
