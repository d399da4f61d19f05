"""Models with alternating attention as GPT-Neo of transformers, the same network but for two differences.

Its scores are not divided by the square root of the head dimension, and query, key and value have no biases. Other
weights take their place; docs/decisions/0010-training.md says how.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from pipelines.errors import InputError

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
        # The norm gets the bias g, its gain. Its output is g (x + 1), where the normalized x adds up to 0, so that 1/g
        # times the output is the width for every token: a multiple of 1/g in the weights acts as a bias.
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
        query, key, value = (converted.pop(f"{prefix}{_ATTENTION}{name}_proj.weight", None) for name in "qkv")
        if query is None or key is None or value is None or not query.shape == key.shape == value.shape:
            raise InputError(f"{path}: {prefix}attn has no q_proj, k_proj and v_proj of one size; copy the whole model")
        converted[prefix + "attn.c_attn.weight"] = torch.cat((query * (len(query) / heads) ** 0.5, key, value))
        converted[prefix + "attn.c_attn.bias"] = torch.zeros(3 * len(query))
    return converted


def attention_window(config: Mapping[str, Any], layers: int, path: str) -> int:
    """Return the window of a config of GPT-Neo, 0 if all layers are global.

    Raises InputError unless every second layer is local.
    """
    kinds, window = config.get("attention_layers"), config.get("window_size")
    if isinstance(kinds, list) and len(kinds) == layers:
        if kinds == ["global"] * layers:
            return 0
        if kinds == attention_kinds(layers) and isinstance(window, int) and window > 0:
            return window
    raise InputError(
        f"{path}: attention_layers is {json.dumps(kinds)} and window_size {json.dumps(window)}; webtext supports "
        "global layers, or global and local ones in turn"
    )


def attention_kinds(layers: int) -> list[str]:
    """Return the kind of each layer, as GPT-Neo calls it, if every second one is banded."""
    return ["local" if layer % 2 else "global" for layer in range(layers)]
