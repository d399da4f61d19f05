"""The norms of weights and gradients, layer by layer: where in the model a spike comes from."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from pipelines.model.device import sum_type

# "sum" or "max" of a tensor over all processes.
Reduce = Callable[[Tensor, str], Tensor]

# What torch.compile, DDP and checkpoint wrappers put into the names of parameters.
_WRAPPERS = re.compile(r"(?:^|(?<=\.))(?:_orig_mod|module|_checkpoint_wrapped_module|_fsdp_wrapped_module)\.")
_GROUP = re.compile(r"(h\.\d+\.)(attn|mlp|ln)|(\w+)")


@torch.no_grad()
def layer_norms(model: nn.Module, reduce: Reduce | None = None) -> list[dict[str, Any]]:
    """Return what the weights and gradients of each part of a model look like, from the embeddings to the final norm.

    Each entry has `name` (`wte`, `wpe`, `h.0.ln`, `h.0.attn`, `h.0.mlp`, ..., `ln_f`; the two norms of a layer are one
    part), `weight_norm`, `gradient_norm`, `largest_gradient` (by absolute value) and `not_finite` (how many values of
    the gradient are no numbers). A norm that is no number is NaN or infinite. A missing gradient counts as 0.

    Where each process holds only a part of every parameter (FSDP), `reduce` adds up over the processes, and all of them
    have to call this. Call it before the gradients are clipped: clipping spreads one NaN over all of them.
    """
    groups: dict[str, list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        groups.setdefault(_group(name), []).append(parameter)
    measured = [_measure(parameters) for parameters in groups.values()]
    sums = torch.stack([sums for sums, _ in measured])
    largest = torch.stack([largest for _, largest in measured])
    if reduce is not None:
        sums, largest = reduce(sums, "sum"), reduce(largest, "max")
    return [
        {
            "name": name,
            "weight_norm": math.sqrt(weights),
            "gradient_norm": math.sqrt(gradients),
            "largest_gradient": most,
            "not_finite": int(not_finite),
        }
        for name, (weights, gradients, not_finite), most in zip(groups, sums.tolist(), largest.tolist(), strict=True)
    ]


def _group(name: str) -> str:
    matched = _GROUP.match(_WRAPPERS.sub("", name))
    assert matched is not None, name
    return matched[0]


def _measure(parameters: list[nn.Parameter]) -> tuple[Tensor, Tensor]:
    """Return the sums (squared weights, squared gradients, gradients that are no numbers), and the largest gradient."""
    device = parameters[0].device
    sums = torch.zeros(3, dtype=sum_type(device), device=device)
    largest = torch.zeros((), dtype=sum_type(device), device=device)
    for parameter in parameters:
        weights = _own_part(parameter)
        sums[0] += _squared_norm(weights)
        # A process may hold no row at all of a small parameter.
        if parameter.grad is None or not weights.numel():
            continue
        gradient = _own_part(parameter.grad)
        sums[1] += _squared_norm(gradient)
        sums[2] += gradient.numel() - torch.isfinite(gradient).sum()
        # NaN counts as infinite, since processes may order it below or above all numbers.
        most = torch.linalg.vector_norm(gradient, math.inf).to(largest.dtype)
        largest = torch.maximum(largest, torch.where(most.isnan(), math.inf, most))
    return sums, largest


def _squared_norm(values: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(values, dtype=sum_type(values.device))
    return norm**2


def _own_part(values: Tensor) -> Tensor:
    """Return what this process holds of a tensor that may be spread over several."""
    part: Tensor = values.to_local() if hasattr(values, "to_local") else values
    return part.detach()
