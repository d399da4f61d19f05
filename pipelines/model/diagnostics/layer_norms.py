"""Norms of weights and gradients per layer: where in the model a spike originates."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from pipelines.model.device import accumulator_dtype

# "sum" or "max" of a tensor over all processes.
Reduce = Callable[[Tensor, str], Tensor]

# What torch.compile, DDP and checkpoint wrappers add to parameter names.
_WRAPPERS = re.compile(r"(?:^|(?<=\.))(?:_orig_mod|module|_checkpoint_wrapped_module|_fsdp_wrapped_module)\.")
_GROUP = re.compile(r"(h\.\d+\.)(attn|mlp|ln)|(\w+)")


@torch.no_grad()
def layer_norms(model: nn.Module, reduce: Reduce | None = None) -> list[dict[str, Any]]:
    """Return the norms of each part of a model, from the embeddings to the final norm.

    Each entry has `name` (`wte`, `wpe`, `h.0.ln`, `h.0.attn`, `h.0.mlp`, ..., `ln_f`; the two norms of a layer are one
    part), `weight_norm`, `gradient_norm`, `largest_gradient` (absolute) and `not_finite` (number of gradient values
    that are not finite). A missing gradient counts as 0.

    If the parameters are sharded (FSDP), `reduce` combines the processes, and all of them must call this. Call it
    before clipping, which spreads one NaN over all gradients.
    """
    groups: dict[str, list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        group = _GROUP.match(_WRAPPERS.sub("", name))
        assert group is not None, name
        groups.setdefault(group[0], []).append(parameter)
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
            "largest_gradient": maximum,
            "not_finite": int(not_finite),
        }
        for name, (weights, gradients, not_finite), maximum in zip(groups, sums.tolist(), largest.tolist(), strict=True)
    ]


def _measure(parameters: list[nn.Parameter]) -> tuple[Tensor, Tensor]:
    """Return (squared weights, squared gradients, gradients that are not finite) summed, and the largest gradient."""
    device = parameters[0].device
    sums = torch.zeros(3, dtype=accumulator_dtype(device), device=device)
    largest = torch.zeros((), dtype=accumulator_dtype(device), device=device)
    for parameter in parameters:
        weights = _local_shard(parameter)
        sums[0] += _squared_norm(weights)
        # A process may hold no row at all of a small parameter.
        if parameter.grad is None or not weights.numel():
            continue
        gradient = _local_shard(parameter.grad)
        sums[1] += _squared_norm(gradient)
        sums[2] += gradient.numel() - torch.isfinite(gradient).sum()
        # NaN counts as infinite: processes may order it below or above all numbers.
        maximum = torch.linalg.vector_norm(gradient, math.inf).to(largest.dtype)
        largest = torch.maximum(largest, torch.where(maximum.isnan(), math.inf, maximum))
    return sums, largest


def _squared_norm(values: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(values, dtype=accumulator_dtype(values.device))
    return norm**2


def _local_shard(values: Tensor) -> Tensor:
    """Return this process's shard of a tensor, or all of one that is not sharded."""
    local: Tensor = values.to_local() if hasattr(values, "to_local") else values
    return local.detach()
