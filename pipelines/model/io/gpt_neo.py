"""Models with alternating attention as GPT-Neo of transformers, which has the same network with two differences.

Its scores are not divided by the square root of the head dimension, and query, key and value have no biases. The
division goes into the weights of the query. A bias of the key adds the same to all scores of a query, so it has no
effect; one of the value adds the same to every output, so it goes into the bias of the output. For that of the query,
the norm before attention gets the bias g, its gain: its output is g (x + 1), where x, normalized, has the sum 0. So
1/g times the output is the width for every token, and a multiple of 1/g in the weights acts as a bias.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from pipelines.errors import InputError
from pipelines.model.network.gpt2 import Architecture

_ATTENTION = "attn.attention."


def to_gpt_neo(tensors: Mapping[str, Tensor], heads: int, path: str) -> dict[str, Tensor]:
    """Return weights with the names of GPT-Neo that compute the same logits, up to rounding and without dropout.

    Raises InputError for a norm with a gain of 0, whose bias cannot act as that of the query.
    """
    converted = {name: weight for name, weight in tensors.items() if ".attn." not in name}
    for prefix in (name.removesuffix("attn.c_attn.weight") for name in tensors if name.endswith("attn.c_attn.weight")):
        names = ("ln_1.weight", "ln_1.bias", "attn.c_attn.weight", "attn.c_attn.bias", "attn.c_proj.weight")
        gain, shift, weight, bias, projection = (tensors[prefix + name].double() for name in names)
        if not gain.all():
            raise InputError(f"{path}: {prefix}ln_1.weight has a gain of 0, which GPT-Neo's format cannot express")
        query, key, value = weight.chunk(3)
        query_bias, _, value_bias = (bias + weight @ (shift - gain)).chunk(3)
        query = (query + torch.outer(query_bias, 1 / gain) / len(gain)) * (len(gain) / heads) ** -0.5
        output_bias = tensors[prefix + "attn.c_proj.bias"].double() + projection @ value_bias
        matrices = {"q_proj": query, "k_proj": key, "v_proj": value, "out_proj": projection}
        layer = {f"{_ATTENTION}{name}.weight": matrix for name, matrix in matrices.items()}
        layer |= {f"{_ATTENTION}out_proj.bias": output_bias, "ln_1.bias": gain}
        converted |= {prefix + name: tensor.float().contiguous() for name, tensor in layer.items()}
    return {f"transformer.{name}": weight for name, weight in converted.items()}


def from_gpt_neo(tensors: Mapping[str, Tensor], heads: int, path: str) -> dict[str, Tensor]:
    """Return weights of GPT-Neo with our names and zero biases; raise InputError if a layer lacks a matrix."""
    converted = {name.replace(f"{_ATTENTION}out_proj", "attn.c_proj"): weight for name, weight in tensors.items()}
    for prefix in {name.partition(_ATTENTION)[0] for name in tensors if _ATTENTION in name}:
        parts = [converted.pop(f"{prefix}{_ATTENTION}{name}_proj.weight", None) for name in "qkv"]
        query, key, value = parts
        if query is None or key is None or value is None or not query.shape == key.shape == value.shape:
            raise InputError(f"{path}: {prefix}attn has no q_proj, k_proj and v_proj of one size; copy the whole model")
        converted[prefix + "attn.c_attn.weight"] = torch.cat((query * (len(query) / heads) ** 0.5, key, value))
        converted[prefix + "attn.c_attn.bias"] = torch.zeros(3 * len(query))
    return converted


def gpt_neo_config(architecture: Architecture) -> dict[str, Any]:
    """Return what the `config.json` of a GPTNeoForCausalLM has instead of that of a GPT-2."""
    pairs, rest = divmod(architecture.layers, 2)
    return {
        "architectures": ["GPTNeoForCausalLM"],
        "model_type": "gpt_neo",
        "num_layers": architecture.layers,
        "hidden_size": architecture.width,
        "num_heads": architecture.heads,
        "max_position_embeddings": architecture.context,
        "vocab_size": architecture.vocab_size,
        "attention_types": [[["global", "local"], pairs], [["global"], rest]],
        "window_size": architecture.attention_window,
        "embed_dropout": architecture.dropout,
        "attention_dropout": architecture.dropout,
        "resid_dropout": architecture.dropout,
    }


def attention_window(config: Mapping[str, Any], layers: int, path: str) -> int:
    """Return the window of a config of GPT-Neo, 0 if all layers are global.

    Raises InputError unless every second layer is local.
    """
    types, window = config.get("attention_types"), config.get("window_size")
    try:
        kinds = [kind for names, count in types or () for _ in range(count) for kind in names]
    except (TypeError, ValueError):
        kinds = []
    if kinds == ["global"] * layers:
        return 0
    if kinds != list(itertools.islice(itertools.cycle(("global", "local")), layers)) or not isinstance(window, int):
        raise InputError(
            f"{path}: attention_types is {json.dumps(types)} and window_size {json.dumps(window)}; webtext supports "
            "global layers only, or global and local ones in turn"
        )
    return window
