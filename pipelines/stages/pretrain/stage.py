"""Trains a GPT-2 on the token shards of a corpus."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pipelines.core import storage
from pipelines.core.errors import ChangedRunError, InputError, UsageError
from pipelines.core.run import RunOptions, Stage, StageRun, Summary, TaskResult, stage_run
from pipelines.model.diagnostics.batch_documents import BatchBlock, batch_numbers, describe_blocks
from pipelines.model.diagnostics.estimate import Forecast, check, forecast, forecast_lines
from pipelines.model.requirements import require_torch
from pipelines.model.training.data import TokenFolder, open_tokens, token_fingerprint
from pipelines.model.training.recipe import Recipe, make_recipe, parameter_count
from pipelines.model.training.worker_ranks import Start, leading, named_connection_errors
from pipelines.stages.pretrain.config import PretrainConfig

if TYPE_CHECKING:
    from pipelines.model.device import Place
    from pipelines.model.io.import_weights import ImportedModel
    from pipelines.model.training.log import Sink
    from pipelines.model.training.parallel import World
    from pipelines.model.training.trainer import TrainingJob

# torch is only loaded within functions: this module is also imported where nothing is trained.

# More passes than this over the same text are hardly meant.
_MANY_EPOCHS = 50
TENSORBOARD_FOLDER = "tensorboard"
STAGE = Stage(
    "pretrain",
    2,
    (
        "model.safetensors",
        "config.json",
        "tokenizer.json",
        "metrics.jsonl",
        "timing.jsonl",
        "training.html",
        "checkpoints/",
        "spikes/",
        f"{TENSORBOARD_FOLDER}/",
    ),
)


def pretrain(
    config: PretrainConfig, *, tokens: str, output: str, options: RunOptions, init_from: str | None = None
) -> Summary:
    """Train a model, or go on from the latest checkpoint in `output`; records are blocks of training.

    `tokens` is the folder of tokenize, `init_from` other weights to begin with. Raises UsageError for a recipe that
    does not hold together or a device that is not there, InputError where the tokens do not fill one batch or the
    weights do not fit, WebtextError where the loss is no longer a number. Paper, section 2.3.

    Among processes that torchrun started, the one of rank 0 does all this; for the others see `assist`.
    """
    require_torch()
    from pipelines.model.diagnostics.tensorboard import require_tensorboard
    from pipelines.model.training.parallel import joined, world_of_torchrun

    if config.tensorboard:
        require_tensorboard()
    recipe, world = make_recipe(config.preset, config.set, config.seed), world_of_torchrun()
    place = _place(config, world)
    world.check_batch(recipe.batch_size, recipe.micro_batch)
    with joined(world, place.device), leading(world) as start:
        initial = _initial(init_from, recipe, tokens, options.progress.note)
        inputs = _inputs(tokens, initial)
        # The recipe, not the config, is what the result is: however it was spelled, and with the preset's values.
        with stage_run(STAGE, recipe, inputs, output, options) as run:
            if not run.finished:
                opened = open_tokens(tokens)
                _check_size(recipe, opened)
                _introduce(recipe, opened, run.note)
                _foretell(config, recipe, opened, place, world, run)
                job = _job(config, recipe, opened, run.output, place, world, run.note, initial, tokens)
                _train(job, run, Start(recipe, inputs), start)
            return run.finish()


def assist(config: PretrainConfig, *, tokens: str, output: str, init_from: str | None = None) -> None:
    """Train along with the process of rank 0, which writes all files; write and say nothing.

    Raises InputError where this process sees another recipe, other tokens, weights or checkpoints than that one.
    """
    require_torch()
    from pipelines.model.training.checkpoint import find_checkpoints
    from pipelines.model.training.parallel import joined, world_of_torchrun
    from pipelines.model.training.trainer import train

    recipe, world = make_recipe(config.preset, config.set, config.seed), world_of_torchrun()
    place = _place(config, world)
    world.check_batch(recipe.batch_size, recipe.micro_batch)
    with joined(world, place.device):
        # Only after the leader has checked the files, and chosen a checkpoint.
        start: Start | None = world.share(None)
        if start is None:
            return
        initial = _initial(init_from, recipe, tokens, _silent)
        start.check_same(Start(recipe, _inputs(tokens, initial)), world.rank)
        # On another machine than the leader's, the files are others.
        opened = open_tokens(tokens, verify=world.local_rank == 0)
        checkpoint = next((each for each in find_checkpoints(output) if each.step == start.step), None)
        if start.step is not None and checkpoint is None:
            raise InputError(
                f"{output}: process {world.rank} finds no checkpoint of step {start.step:,} there, which process 0 "
                "goes on from; all processes need the same output folder"
            )
        job = _job(config, recipe, opened, output, place, world, _silent, initial, tokens)
        with named_connection_errors(world):
            train(job, checkpoint)


def _inputs(tokens: str, initial: ImportedModel | None) -> dict[str, str]:
    return {"tokens": token_fingerprint(tokens), **({"init_from": initial.sha256} if initial else {})}


def show_batch(config: PretrainConfig, *, tokens: str, step: int) -> list[BatchBlock]:
    """Return what the batch of a step, counted from 1, is made of; needs no torch and no trained model.

    Raises UsageError for a step that the recipe does not have.
    """
    recipe = make_recipe(config.preset, config.set, config.seed)
    _check_step(step, recipe)
    opened = open_tokens(tokens, verify=False)
    _check_size(recipe, opened)
    numbers = batch_numbers(opened.train.blocks(recipe.context), recipe.batch_size, recipe.seed, step)
    return describe_blocks(opened, numbers, recipe.context)


def replay(
    config: PretrainConfig,
    *,
    tokens: str,
    output: str,
    step: int,
    note: Callable[[str], None],
    init_from: str | None = None,
) -> bytes:
    """Return the report of a step, as of a spike, computed anew from the latest checkpoint before it.

    Writes nothing. Raises UsageError for a step that the recipe does not have, ChangedRunError where `output` was
    trained by another recipe.
    """
    require_torch()
    from pipelines.model.training.checkpoint import find_checkpoints
    from pipelines.model.training.parallel import World
    from pipelines.model.training.trainer import replay as replay_training

    recipe, world = make_recipe(config.preset, config.set, config.seed), World()
    _check_step(step, recipe)
    initial = _initial(init_from, recipe, tokens, note)
    _check_same_run(recipe, _inputs(tokens, initial), output)
    place = _place(config, world)
    opened = open_tokens(tokens)
    before = [each for each in find_checkpoints(output) if each.step < step and each.problem() is None]
    if not before:
        note(f"{output}: has no checkpoint before step {step:,}, so all steps before it are computed anew")
    job = _job(config, recipe, opened, output, place, world, note, initial, tokens)
    return replay_training(job, before[-1] if before else None, step)


def _silent(message: str) -> None:
    """Say nothing: the process of rank 0 says it."""


def _place(config: PretrainConfig, world: World) -> Place:
    from pipelines.model.device import pick_device, pick_place

    return pick_place(pick_device(config.device, world.local_rank), config.precision)


def _train(job: TrainingJob, run: StageRun, start: Start, tell: Callable[[Start | None], None]) -> None:
    from pipelines.model.training.checkpoint import latest_checkpoint
    from pipelines.model.training.trainer import train

    if run.resumed_entry("train", "train"):
        # A run that was killed between its last file and its manifest: nothing is computed.
        tell(None)
        run.once("train", lambda: train(job, None))
        return
    checkpoint = latest_checkpoint(run.output, run.note)
    step = checkpoint.step if checkpoint else None
    tell(dataclasses.replace(start, step=step))
    left = job.recipe.steps - (step or 0)

    def work() -> TaskResult:
        with named_connection_errors(job.world):
            return train(job, checkpoint)

    run.once("train", work, total=left * job.recipe.batch_tokens, unit="tokens")


def _job(
    config: PretrainConfig,
    recipe: Recipe,
    tokens: TokenFolder,
    output: str,
    place: Place,
    world: World,
    note: Callable[[str], None],
    initial: ImportedModel | None,
    tokens_path: str,
) -> TrainingJob:
    from pipelines.model.training.engine import EngineOptions
    from pipelines.model.training.trainer import TrainingJob

    first = ["--init-from", storage.real_path(initial.path)] if initial else []
    again = [*_command(config, storage.real_path(tokens_path), storage.real_path(output)), *first]

    def open_sinks(step: int) -> list[Sink]:
        if not config.tensorboard:
            return []
        from pipelines.model.diagnostics.tensorboard import TensorBoardLog

        return [TensorBoardLog(storage.join(output, TENSORBOARD_FOLDER), step)]

    return TrainingJob(
        recipe,
        tokens,
        output,
        place,
        world,
        EngineOptions(config.compile, config.parallel, config.activation_checkpointing),
        config.threads,
        config.checkpoint_every,
        config.keep_checkpoints,
        config.log_every,
        note,
        lambda step: shlex.join([*again, "--replay", str(step)]),
        initial,
        open_sinks,
    )


def _command(config: PretrainConfig, tokens: str, output: str) -> list[str]:
    overrides = [word for value in config.set for word in ("--set", value)]
    return [
        *("webtext", "pretrain", "--input", tokens, "--output", output),
        *("--preset", config.preset, *overrides, "--seed", str(config.seed)),
        *("--device", config.device, "--precision", config.precision, "--compile", config.compile),
        *(["--activation-checkpointing"] if config.activation_checkpointing else []),
        *(["--threads", str(config.threads)] if config.threads else []),
    ]


def _initial(init_from: str | None, recipe: Recipe, tokens: str, note: Callable[[str], None]) -> ImportedModel | None:
    """Read the weights to begin with, and check that they fit recipe and tokens."""
    if init_from is None:
        return None
    from pipelines.model.io.import_weights import check_fits, import_weights
    from pipelines.model.training.trainer import architecture_of

    opened = open_tokens(tokens, verify=False)
    imported = import_weights(init_from, opened.vocab_size)
    note(f"{init_from}: the weights to begin with ({imported.source})")
    for line in imported.notes:
        note(line)
    check_fits(imported, architecture_of(recipe, opened.vocab_size), opened.tokenizer)
    return imported


def _check_size(recipe: Recipe, tokens: TokenFolder) -> None:
    blocks = tokens.train.blocks(recipe.context)
    if blocks < recipe.batch_size:
        raise InputError(
            f"{tokens.path}: the train split has {tokens.train.tokens:,} tokens, {blocks:,} blocks of "
            f"{recipe.context}, fewer than one batch of {recipe.batch_size}; "
            "take more text, or a smaller --set batch_size=..., --set context=... or --preset"
        )


def _check_step(step: int, recipe: Recipe) -> None:
    if not 1 <= step <= recipe.steps:
        raise UsageError(f"step {step:,}: the recipe has the steps 1 to {recipe.steps:,}")


def _check_same_run(recipe: Recipe, inputs: dict[str, str], output: str) -> None:
    from pipelines.model.io.model_folder import CONFIG_FILE

    if not storage.exists(storage.join(output, CONFIG_FILE)):
        raise InputError(f"{output}: nothing was trained here (no {CONFIG_FILE}), so there is no step to replay")
    described = storage.read_json(storage.join(output, CONFIG_FILE))
    first = {"init_from": described["initial_weights"]["sha256"]} if described.get("initial_weights") else {}
    theirs: dict[str, Any] = {**described.get("recipe", {}), "tokens": described.get("tokens_fingerprint"), **first}
    ours = {**dataclasses.asdict(recipe), **inputs}
    different = [name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)]
    if different:
        shown = ", ".join(f"{name} {theirs.get(name)} there, {ours.get(name)} here" for name in different)
        raise ChangedRunError(f"{output}: was trained otherwise ({shown}); give the options of that run")


def _introduce(recipe: Recipe, tokens: TokenFolder, note: Callable[[str], None]) -> None:
    epochs = recipe.steps * recipe.batch_size / tokens.train.blocks(recipe.context)
    note(
        f"{parameter_count(recipe, tokens.vocab_size):,} parameters; {recipe.steps:,} steps of "
        f"{recipe.batch_tokens:,} tokens pass {epochs:.2f} times over the train split of "
        f"{tokens.train.tokens:,} tokens"
    )
    if epochs > _MANY_EPOCHS:
        note(
            f"that is {epochs:,.0f} times the same text: a model learns little new after a few times; take more text, "
            "fewer --set steps=..., or the preset tiny"
        )
    if tokens.held_out.tokens < 2:
        note(f"{tokens.path}: has no held-out tokens, so there will be no held-out loss")
    elif not tokens.held_out.blocks(recipe.context):
        note(
            f"{tokens.path}: its held-out split has only {tokens.held_out.tokens:,} tokens, less than one block of "
            f"{recipe.context}; the held-out loss is taken over that shorter block"
        )


def _foretell(
    config: PretrainConfig, recipe: Recipe, tokens: TokenFolder, place: Place, world: World, run: StageRun
) -> None:
    """Say what the training takes, and refuse one that this machine plainly cannot hold."""
    from pipelines.model.training.compilation import wants_compilation
    from pipelines.model.training.engine import is_sharded

    parameters = parameter_count(recipe, tokens.vocab_size)
    expected = forecast(
        recipe,
        tokens.vocab_size,
        device_type=place.device.type,
        processes=world.size,
        sharded=is_sharded(config.parallel, parameters, world),
        recompute=config.activation_checkpointing,
        bf16=place.bf16,
        compiled=wants_compilation(config.compile, place.device),
        keep_checkpoints=config.keep_checkpoints,
        device_name=place.name,
    )
    for line in forecast_lines(expected):
        run.note(line)
    check(expected, place.free_memory_bytes(world.local_size), _free_disk_bytes(run.output, expected))


def _free_disk_bytes(output: str, expected: Forecast) -> int | None:
    from pipelines.model.training.checkpoint import find_checkpoints

    free = storage.free_bytes(output)
    return None if free is None else free + len(find_checkpoints(output)) * expected.checkpoint_bytes
