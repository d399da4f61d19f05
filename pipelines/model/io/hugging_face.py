"""GPT-2 as Hugging Face's transformers write it: names, orientation of the weights, config and tokenizer files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from pipelines.core.errors import InputError
from pipelines.model.network.gpt2 import LAYER_NORM_EPSILON, Architecture

_PREFIX = "transformer."
# Their Conv1D keeps these matrices as [in, out], the other way round than torch's Linear.
_TRANSPOSED = ("c_attn.weight", "c_proj.weight", "c_fc.weight")
# The tied output, and the causal masks of older files.
_LEFT_OUT = ("lm_head.weight", ".attn.bias", ".attn.masked_bias")

_SIZES = ("n_layer", "n_embd", "n_head", "n_positions", "vocab_size")
# What a config may say where our model knows one thing only; what it does not say is GPT-2's.
_KNOWN = {
    "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
    "layer_norm_epsilon": (LAYER_NORM_EPSILON,),
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "add_cross_attention": (False,),
    "tie_word_embeddings": (True,),
}
# Settings of a BPE under which it gives the ids of GPT-2's.
_PLAIN_BPE = ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback", "ignore_merges")


def to_hugging_face(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return our weights under their names and in their orientation; the tied output has no weight of its own."""
    return {_PREFIX + name: _turned(name, weight) for name, weight in tensors.items()}


def from_hugging_face(tensors: Mapping[str, Tensor], path: str = "the weights") -> dict[str, Tensor]:
    """Return their weights as ours; masks and the tied output are left out.

    Raises InputError for an output that is not the token embedding, whatever the config says.
    """
    output, embedding = tensors.get("lm_head.weight"), tensors.get(_PREFIX + "wte.weight", tensors.get("wte.weight"))
    if output is not None and embedding is not None and not torch.equal(output, embedding):
        raise InputError(
            f"{path}: lm_head.weight is not wte.weight; webtext computes nothing but GPT-2, which ties them"
        )
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


def read_config(config: Mapping[str, Any], path: str) -> tuple[Architecture, int]:
    """Return the sizes and the id of the end of text; raise InputError where the model is not built as GPT-2 is."""
    for name in (*_SIZES, "eos_token_id"):
        value = config.get(name)
        if not isinstance(value, int) or isinstance(value, bool):
            raise InputError(f"{path}: {name} is {json.dumps(value)}, but one whole number is needed here")
    wrong = [name for name in _SIZES if config[name] < 1]
    wrong += [] if wrong or config["n_embd"] % config["n_head"] == 0 else ["n_head"]
    wrong += [] if 0 <= config["eos_token_id"] < config["vocab_size"] else ["eos_token_id"]
    if wrong:
        raise InputError(f"{path}: {wrong[0]} is {config[wrong[0]]}, which no model of these sizes can have")
    inner = 4 * config["n_embd"]
    for name, known in {**_KNOWN, "n_inner": (None, inner)}.items():
        if config.get(name, known[0]) not in known:
            raise InputError(
                f"{path}: {name} is {json.dumps(config[name])}, GPT-2's is {json.dumps(known[0])}; "
                "webtext computes nothing but GPT-2"
            )
    return Architecture(*(config[name] for name in _SIZES)), config["eos_token_id"]


def tokenizer_files(tokenizer_json: bytes, context: int, end_of_text: int) -> dict[str, bytes]:
    """Return `tokenizer.json` and its config, for a tokenizer built as GPT-2's also the files that older loaders read.

    The copy does not cut, pad or add tokens, as nothing did in training. Raises InputError if it is no BPE.
    """
    parsed = json.loads(tokenizer_json)
    model = parsed["model"]
    if "merges" not in model:
        raise InputError("tokenizer.json: is no byte-pair encoding, so it cannot be exported as GPT-2's")
    plain = _as_in_training(parsed)
    like_gpt2 = _is_like_gpt2(plain)
    vocab = model["vocab"] | {token["content"]: token["id"] for token in parsed.get("added_tokens", [])}
    ordered = dict(sorted(vocab.items(), key=lambda item: item[1]))
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    mark = next(text for text, id in ordered.items() if id == end_of_text)
    config = {
        # GPT2Tokenizer builds its own split, whatever tokenizer.json says; the other takes the file as it is.
        "tokenizer_class": "GPT2Tokenizer" if like_gpt2 else "PreTrainedTokenizerFast",
        "model_max_length": context,
        "bos_token": mark,
        "eos_token": mark,
        "unk_token": mark,
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
        "merges.txt": "\n".join(["#version: 0.2", *merges, ""]).encode(),
    }


def to_json(value: Any) -> bytes:
    """Return a value as the bytes of a JSON file."""
    return (json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()


def _as_in_training(settings: dict[str, Any]) -> dict[str, Any]:
    after = settings.get("post_processor")
    kept = after if after and after["type"] == "ByteLevel" else None
    changed = {"truncation": None, "padding": None, "post_processor": kept}
    return settings | {name: value for name, value in changed.items() if settings.get(name) != value}


def _is_like_gpt2(settings: Mapping[str, Any]) -> bool:
    """Tell whether GPT2Tokenizer, which only takes vocabulary and merges from a tokenizer, gives the same ids."""
    split, decoder = settings.get("pre_tokenizer") or {}, settings.get("decoder") or {}
    return (
        not settings.get("normalizer")
        and split.get("type") == decoder.get("type") == "ByteLevel"
        and not split.get("add_prefix_space")
        and split.get("use_regex", True)
        and not any(settings["model"].get(name) for name in _PLAIN_BPE)
        and len(settings.get("added_tokens", [])) <= 1
    )


def _turned(name: str, weight: Tensor) -> Tensor:
    return weight.t().contiguous() if name.endswith(_TRANSPOSED) else weight
