"""A GPT as nanoGPT names and computes it, and its checkpoint, written from its description."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own custom
from torch import Tensor

SIZES = {"n_layer": 2, "n_head": 2, "n_embd": 16, "block_size": 12, "vocab_size": 300}


def nanogpt_weights(bias: bool = True, seed: int = 0, **sizes: int) -> dict[str, Tensor]:
    """Random weights, larger than any training begins with, so that every part of the model matters."""
    size = SIZES | sizes
    width, generator = size["n_embd"], torch.Generator().manual_seed(seed)
    shapes: dict[str, tuple[int, ...]] = {
        "wte.weight": (size["vocab_size"], width),
        "wpe.weight": (size["block_size"], width),
    }
    for layer in range(size["n_layer"]):
        matrices = {"attn.c_attn": 3, "attn.c_proj": 1, "mlp.c_fc": 4}
        for name, times in matrices.items():
            shapes[f"h.{layer}.{name}.weight"] = (times * width, width)
        shapes[f"h.{layer}.mlp.c_proj.weight"] = (width, 4 * width)
        shapes |= {f"h.{layer}.{norm}.weight": (width,) for norm in ("ln_1", "ln_2")}
    shapes["ln_f.weight"] = (width,)
    if bias:
        biased = [name for name in shapes if name not in ("wte.weight", "wpe.weight")]
        shapes |= {name.replace(".weight", ".bias"): shapes[name][:1] for name in biased}
    weights = {f"transformer.{name}": 0.3 * torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    return weights | {"lm_head.weight": weights["transformer.wte.weight"]}


def nanogpt_logits(weights: dict[str, Tensor], tokens: Tensor, gelu: str = "none") -> Tensor:
    """The logits of every position; nanoGPT's GELU is the exact one (`none`), GPT-2's is `tanh`."""

    def linear(name: str, x: Tensor) -> Tensor:
        return F.linear(x, weights[f"transformer.{name}.weight"], weights.get(f"transformer.{name}.bias"))

    def norm(name: str, x: Tensor) -> Tensor:
        gain, bias = weights[f"transformer.{name}.weight"], weights.get(f"transformer.{name}.bias")
        return F.layer_norm(x, gain.shape, gain, bias, 1e-5)

    positions = torch.arange(tokens.shape[1])
    x = weights["transformer.wte.weight"][tokens] + weights["transformer.wpe.weight"][positions]
    later = torch.ones(len(positions), len(positions)).triu(1).bool()
    for layer in range(SIZES["n_layer"]):
        query, key, value = (
            part.view(*tokens.shape, SIZES["n_head"], -1).transpose(1, 2)
            for part in linear(f"h.{layer}.attn.c_attn", norm(f"h.{layer}.ln_1", x)).chunk(3, dim=-1)
        )
        scores = (query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])).masked_fill(later, -math.inf)
        mixed = (scores.softmax(-1) @ value).transpose(1, 2).reshape(x.shape)
        x = x + linear(f"h.{layer}.attn.c_proj", mixed)
        inner = F.gelu(linear(f"h.{layer}.mlp.c_fc", norm(f"h.{layer}.ln_2", x)), approximate=gelu)
        x = x + linear(f"h.{layer}.mlp.c_proj", inner)
    return F.linear(norm("ln_f", x), weights["lm_head.weight"])


def save_nanogpt(path: Path, weights: dict[str, Tensor], bias: bool = True, **changed: Any) -> str:
    """Write a `ckpt.pt` as nanoGPT does, an optimizer with it."""
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(3, 2))])
    checkpoint = {
        "model": weights,
        "optimizer": optimizer.state_dict(),
        "model_args": SIZES | {"bias": bias, "dropout": 0.0},
        "iter_num": 2000,
        "best_val_loss": torch.tensor(3.25),
        "config": {"out_dir": "out", "compile": True, "learning_rate": 6e-4},
    }
    torch.save(checkpoint | changed, path)
    return str(path)
