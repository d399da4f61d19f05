"""AdamW, and the learning-rate schedule."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pipelines.model.io.tensor_files import ReadTensor, shard_like
from pipelines.model.network.gpt2 import GPT2
from pipelines.model.training.recipe import Recipe

_ADAM_EPSILON = 1e-8
_MOMENTS = ("exp_avg", "exp_avg_sq")
# Devices with torch's fused AdamW: one kernel instead of several passes over the weights.
_FUSED_ON = ("cpu", "cuda")


def make_optimizer(model: GPT2, recipe: Recipe) -> torch.optim.AdamW:
    """Return AdamW with weight decay on matrices only, as in GPT-1: biases and gains do not decay."""
    parameters = list(model.parameters())
    groups = [
        {"params": [weight for weight in parameters if weight.dim() >= 2], "weight_decay": recipe.weight_decay},
        {"params": [weight for weight in parameters if weight.dim() < 2], "weight_decay": 0.0},
    ]
    betas = (recipe.beta1, recipe.beta2)
    fused = parameters[0].device.type in _FUSED_ON
    return torch.optim.AdamW(groups, lr=recipe.learning_rate, betas=betas, eps=_ADAM_EPSILON, fused=fused)


def learning_rate(step: int, recipe: Recipe) -> float:
    """Return the learning rate of a step, counted from 0: linear warm-up, then cosine decay to the final rate.

    In an extended training each step has the rate of the schedule under which it was trained.
    """
    if step < recipe.warmup_steps:
        return recipe.learning_rate * (step + 1) / recipe.warmup_steps
    end = next(end for end in recipe.ends if step < end or end == recipe.steps)
    progress = (step - recipe.warmup_steps) / (end - recipe.warmup_steps)
    height = 0.5 * (1 + math.cos(math.pi * progress))
    return recipe.final_learning_rate + height * (recipe.learning_rate - recipe.final_learning_rate)


def optimizer_tensors(model: GPT2, optimizer: torch.optim.AdamW) -> dict[str, Tensor]:
    """Return Adam's moments by moment and weight: `exp_avg.wte.weight`, `exp_avg_sq.wte.weight`, ..."""
    return {
        f"{moment}.{name}": optimizer.state[weight][moment]
        for name, weight in model.named_parameters()
        for moment in _MOMENTS
    }


def load_optimizer(model: GPT2, optimizer: torch.optim.AdamW, read: ReadTensor, step: int) -> None:
    """Restore an optimizer's state after `step` steps; `read` returns a moment by its name."""
    for name, weight in model.named_parameters():
        moments = {moment: shard_like(read(f"{moment}.{name}"), weight.detach()) for moment in _MOMENTS}
        # Fused updates count the steps on the device of the weights.
        optimizer.state[weight] = {"step": torch.tensor(float(step), device=weight.device), **moments}
