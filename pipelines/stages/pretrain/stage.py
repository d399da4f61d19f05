"""Trains a GPT-2 on the token shards of a corpus. This module does not load torch; `training` does."""

from __future__ import annotations

from pipelines.engine.run import RunOptions, Stage, Summary
from pipelines.model import require_torch
from pipelines.model.diagnostics.batch_documents import BatchBlock, describe_blocks
from pipelines.model.training.data import BlockOrder, open_tokens
from pipelines.model.training.recipe import Recipe
from pipelines.stages.pretrain.config import PretrainConfig

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
    config: PretrainConfig, *, tokens: str, output: str, options: RunOptions, init_from: str | None = None
) -> Summary:
    """Train a model, or resume from the latest checkpoint in `output`; records are blocks trained on.

    `tokens` is the folder of tokenize, `init_from` a model to start from instead of random weights. Of the processes
    that torchrun starts, rank 0 calls this, the others `training.run_worker_rank`. Raises UsageError for contradictory
    options or a missing device, InputError if the tokens do not fill one batch or the weights do not fit, WebtextError
    if memory is insufficient or the loss is not finite. Paper, section 2.3.
    """
    require_torch()
    from pipelines.stages.pretrain.training import run_rank_zero

    return run_rank_zero(STAGE, config, tokens=tokens, output=output, options=options, init_from=init_from)


def show_batch(recipe: Recipe, *, tokens: str, step: int) -> list[BatchBlock]:
    """Return the documents in the batch of a step, counted from 1; needs no torch and no trained model.

    Raises UsageError for a step beyond the recipe's.
    """
    recipe.check_step(step)
    folder = open_tokens(tokens, verify=False)
    folder.check_batch_filled(recipe)
    order = BlockOrder(folder.train.blocks(recipe.context), recipe.batch_size, recipe.seed)
    return describe_blocks(folder, order.batch(step - 1), recipe.context)
