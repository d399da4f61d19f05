"""Trains a GPT-2 on the token shards of a corpus. This module does not load torch; `training` does."""

from __future__ import annotations

from collections.abc import Sequence

from pipelines.engine.journal import OutputFolder
from pipelines.engine.run import RunOptions, Stage, Summary
from pipelines.model import require_torch
from pipelines.model.diagnostics.batch_documents import BatchBlock, describe_batch
from pipelines.model.training.data import open_mixture
from pipelines.model.training.mixture import parse_sources
from pipelines.model.training.recipe import Recipe
from pipelines.stages.pretrain.config import PretrainConfig
from pipelines.stages.pretrain.sources import plan_recipe

STAGE = Stage(
    "pretrain",
    3,
    (
        *("model.safetensors", "config.json", "tokenizer.json", "metrics.jsonl"),
        *("timing.jsonl", "training.html", "samples.jsonl", "best.json", "checkpoints/", "spikes/", "tensorboard/"),
    ),
    is_expensive=True,
)


def pretrain(
    config: PretrainConfig,
    *,
    tokens: str | Sequence[str],
    output: str,
    options: RunOptions,
    init_from: str | None = None,
) -> Summary:
    """Train a model, or resume from the latest checkpoint in `output`; records are blocks trained on.

    `tokens` is the folder of tokenize, or the sources of a mixture as `NAME=DIR:WEIGHT` or `NAME=DIR:2epochs`;
    `init_from` is a model to start from instead of random weights. Of the processes that torchrun starts, rank 0 calls
    this, the others `training.run_worker_rank`. Raises UsageError for contradictory options or a missing device,
    InputError if the tokens do not fill one batch or the weights do not fit, WebtextError if memory is insufficient or
    the loss is not finite. Paper, section 2.3.
    """
    require_torch()
    from pipelines.stages.pretrain.training import run_rank_zero

    sources = parse_sources(tokens)
    return run_rank_zero(STAGE, config, sources=sources, output=output, options=options, init_from=init_from)


def show_batch(recipe: Recipe, *, tokens: str | Sequence[str], step: int, output: str = "") -> list[BatchBlock]:
    """Return the documents in the batch of a step, counted from 1; needs no torch and no trained model.

    A training in `output` fixes the shares of a mixture up to its end. Raises UsageError for a step it does not have.
    """
    recipe.check_step(step)
    sources = parse_sources(tokens)
    recorded = OutputFolder(output).recorded_identity(recipe) if output else None
    recipe = plan_recipe(recipe, sources, recorded.config if recorded and recorded.stage == STAGE.name else {})
    mixture = open_mixture(sources, verify=False)
    return describe_batch(mixture, mixture.order(recipe).batch(step - 1), recipe.context)
