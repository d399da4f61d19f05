"""Trains a GPT-2 on the token shards of a corpus."""

from __future__ import annotations

from pipelines.core.errors import InputError
from pipelines.core.run import RunOptions, Stage, StageRun, Summary, stage_run
from pipelines.model.config import PretrainConfig
from pipelines.model.data import TokenFolder, open_tokens, token_fingerprint
from pipelines.model.recipe import Recipe, make_recipe, parameter_count
from pipelines.model.requirements import require_torch

STAGE = Stage(
    "pretrain",
    1,
    ("model.safetensors", "config.json", "tokenizer.json", "metrics.jsonl", "timing.jsonl", "checkpoints/"),
)


def pretrain(config: PretrainConfig, *, tokens: str, output: str, options: RunOptions) -> Summary:
    """Train a model, or go on from the latest checkpoint in `output`; records are blocks of training.

    `tokens` is the folder of tokenize. Raises UsageError for a recipe that does not hold together or a device that is
    not there, InputError where the tokens do not fill one batch, WebtextError where the loss is no longer a number.
    Paper, section 2.3.
    """
    require_torch()
    from pipelines.model.device import pick_device

    recipe = make_recipe(config)
    pick_device(config.device)
    # The recipe, not the config, is what the result is: however it was spelled, and with the values of the preset.
    with stage_run(STAGE, recipe, {"tokens": token_fingerprint(tokens)}, output, options) as run:
        if not run.finished:
            _train(config, recipe, open_tokens(tokens), run)
        return run.finish()


def _train(config: PretrainConfig, recipe: Recipe, tokens: TokenFolder, run: StageRun) -> None:
    # torch is only loaded here: this module is also imported where nothing is trained.
    from pipelines.model.checkpoint import latest_checkpoint
    from pipelines.model.device import pick_device
    from pipelines.model.trainer import TrainingJob, train

    _check_size(recipe, tokens)
    _introduce(recipe, tokens, run)
    job = TrainingJob(
        recipe,
        tokens,
        run.output,
        pick_device(config.device),
        config.threads,
        config.checkpoint_every,
        config.keep_checkpoints,
        run.note,
    )
    checkpoint = latest_checkpoint(run.output, run.note)
    left = recipe.steps - (checkpoint.step if checkpoint else 0)
    run.once("train", lambda: train(job, checkpoint), total=left * recipe.batch_tokens, unit="tokens")


def _check_size(recipe: Recipe, tokens: TokenFolder) -> None:
    blocks = tokens.train.blocks(recipe.context)
    if blocks < recipe.batch_size:
        raise InputError(
            f"{tokens.path}: the train split has {tokens.train.tokens:,} tokens, {blocks:,} blocks of "
            f"{recipe.context}, fewer than one batch of {recipe.batch_size}; "
            "take more text, or a smaller --set batch_size=..., --set context=... or --preset"
        )


def _introduce(recipe: Recipe, tokens: TokenFolder, run: StageRun) -> None:
    epochs = recipe.steps * recipe.batch_size / tokens.train.blocks(recipe.context)
    run.note(
        f"{parameter_count(recipe, tokens.vocab_size):,} parameters; {recipe.steps:,} steps of "
        f"{recipe.batch_tokens:,} tokens pass {epochs:.2f} times over the train split of "
        f"{tokens.train.tokens:,} tokens"
    )
    if tokens.held_out.tokens < 2:
        run.note(f"{tokens.path}: has no held-out tokens, so there will be no held-out loss")
    elif not tokens.held_out.blocks(recipe.context):
        run.note(
            f"{tokens.path}: its held-out split has only {tokens.held_out.tokens:,} tokens, less than one block of "
            f"{recipe.context}; the held-out loss is taken over that shorter block"
        )
