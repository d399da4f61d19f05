"""Measures how fast this machine trains a model."""

from __future__ import annotations

import time

import torch

from pipelines.model.device import device_config, reproducible, select_device
from pipelines.model.network.gpt2 import empty_model, initialize, next_token_loss
from pipelines.model.training.engine import make_optimizer
from pipelines.model.training.job import architecture_of
from pipelines.model.training.recipe import Recipe

_MICRO_BATCHES = 3


def measure_step_s(recipe: Recipe, vocab_size: int, device: str, threads: int) -> float:
    """Return the seconds per training step, by the fastest of three micro-batches; without torch.compile."""
    where = device_config(select_device(device))
    with reproducible(where.device, threads):
        model = empty_model(architecture_of(recipe, vocab_size))
        initialize(model, seed=0)
        model.to(where.device).train()
        optimizer = make_optimizer(model, recipe)
        blocks = torch.zeros((recipe.micro_batch, recipe.context + 1), dtype=torch.int64, device=where.device)
        seconds = []
        for _ in range(_MICRO_BATCHES):
            started = time.perf_counter()
            with where.autocast():
                loss = next_token_loss(model, blocks)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            loss.item()  # waits for a GPU
            seconds.append(time.perf_counter() - started)
    return min(seconds) * recipe.batch_size / recipe.micro_batch
