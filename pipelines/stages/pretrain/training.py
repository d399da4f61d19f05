"""Carries out `webtext pretrain`: rank 0 owns the output folder, worker ranks train along."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import shlex
from collections.abc import Callable, Sequence

from pipelines import storage
from pipelines.engine.config import identity_of
from pipelines.engine.journal import OutputFolder
from pipelines.engine.manifest import MANIFEST_FILE, NEXT
from pipelines.engine.run import RunOptions, Stage, StageRun, Summary, TaskResult, stage_run
from pipelines.errors import ChangedRunError, InputError, UsageError
from pipelines.extras import require_extra
from pipelines.model.device import DeviceConfig, device_config, select_device
from pipelines.model.diagnostics.estimate import check_estimate
from pipelines.model.io.import_weights import ImportedModel, check_compatible, import_weights
from pipelines.model.training.checkpoint import find_checkpoints, latest_checkpoint
from pipelines.model.training.data import open_mixture
from pipelines.model.training.job import TrainingJob, architecture_of
from pipelines.model.training.mixture import SINGLE, Sources, parse_sources
from pipelines.model.training.next_token import NextToken
from pipelines.model.training.objective import evaluation_work
from pipelines.model.training.parallel import RunSpec, World, process_group, torchrun_world
from pipelines.model.training.recipe import Recipe
from pipelines.model.training.trainer import replay as replay_step
from pipelines.model.training.trainer import train
from pipelines.progress import Silent
from pipelines.records.inputs import open_stage
from pipelines.stages.pretrain.config import PretrainConfig
from pipelines.stages.pretrain.extension import continue_training, prepare_extension
from pipelines.stages.pretrain.preset import choose_recipe
from pipelines.stages.pretrain.sources import check_sources, fingerprints, plan_recipe


def run_rank_zero(
    stage: Stage, config: PretrainConfig, *, sources: Sources, output: str, options: RunOptions, init_from: str | None
) -> Summary:
    """Run the stage in a single process, or in rank 0 of several; see `pretrain`."""
    if config.tensorboard:
        require_extra("tensorboard", "--tensorboard", "tensorboard")
    recipe, world, device = _set_up(config, output, options.progress.note)
    with process_group(world, device.device), contextlib.ExitStack() as without_training:
        without_training.callback(world.broadcast, None)  # ends the worker ranks, also after an error
        initial = _import_initial(init_from, recipe, sources, options.progress.note)
        inputs = _inputs(sources, initial)
        recipe, options, extended_step = prepare_extension(stage, recipe, sources, inputs, output, options)
        # The recipe, not the config, is the identity of the result: however it was given, with the preset's values.
        texts = [file for source in sources.values() for file in open_stage(source.folder, ("tokenize",)).files("")]
        with stage_run(stage, recipe, inputs=inputs, output=output, options=options, texts=texts) as run:
            if not run.finished and run.resumed_entry("train", "train"):
                run.once("train", TaskResult)  # killed before the manifest: nothing is left to compute
            elif not run.finished:
                job = _make_job(
                    config, recipe, world, device, sources=sources, output=run.output, initial=initial, note=run.note
                )
                if job.options.sample_every and job.is_sharded:
                    raise UsageError(
                        "--sample-every: no process has the whole model with --parallel fsdp; use ddp or generate"
                    )
                check_sources(job, recipe, open_mixture(sources, verify=False), config.max_epochs)
                check_estimate(job)

                def start_workers(step: int | None) -> None:
                    without_training.pop_all()
                    world.broadcast(RunSpec(recipe, inputs, step, run.subfolder))

                _train(job, recipe, run, extended_step, start_workers)
            return run.finish()


def run_worker_rank(
    config: PretrainConfig, *, tokens: str | Sequence[str], output: str, init_from: str | None = None
) -> None:
    """Train along with rank 0, which writes all files and messages.

    Raises InputError if this process has a different recipe, tokens, weights or checkpoints than rank 0.
    """
    note, sources = Silent().note, parse_sources(tokens)  # rank 0 shows the messages
    recipe, world, device = _set_up(config, output, note)
    with process_group(world, device.device):
        # Rank 0 sends this once it has verified the files and selected a checkpoint.
        spec: RunSpec | None = world.broadcast(None)
        if spec is None:
            return
        output = storage.join(output, spec.subfolder) if spec.subfolder else output
        recipe = plan_recipe(recipe, sources, vars(spec.recipe))
        initial = _import_initial(init_from, recipe, sources, note)
        spec.check_same(RunSpec(recipe, _inputs(sources, initial)), world.rank)
        checkpoints = {checkpoint.step: checkpoint for checkpoint in find_checkpoints(output)}
        if spec.step is not None and spec.step not in checkpoints:
            raise InputError(
                f"{output}: rank {world.rank} has no checkpoint of step {spec.step:,}, from which rank 0 resumes; "
                "use one output folder for all processes"
            )
        job = _make_job(config, recipe, world, device, sources=sources, output=output, initial=initial, note=note)
        train(job, None if spec.step is None else checkpoints[spec.step])


def replay(
    config: PretrainConfig, *, tokens: str | Sequence[str], output: str, step: int, note: Callable[[str], None],
    init_from: str | None = None,
) -> bytes:  # fmt: skip
    """Recompute a step from the latest checkpoint before it; return its report as for a spike. Writes nothing.

    Raises UsageError for a step beyond the recipe's, ChangedRunError if `output` was trained with a different recipe.
    """
    recipe, world, device = _set_up(config, output, note)
    recipe.check_step(step)
    sources = parse_sources(tokens)
    initial = _import_initial(init_from, recipe, sources, note)
    recorded = OutputFolder(output).recorded_identity(recipe)
    if recorded is None:
        raise InputError(
            f"{output}: no training to replay ({MANIFEST_FILE} is missing); copy the whole folder, or name another "
            "--output"
        )
    recipe = plan_recipe(recipe, sources, recorded.config)
    requested = dataclasses.replace(recorded, config=identity_of(recipe), inputs=_inputs(sources, initial))
    if differences := recorded.differences(requested):
        raise ChangedRunError(
            f"{output}: trained with different options ({', '.join(differences)}); use the options of that run"
        )
    job = _make_job(config, recipe, world, device, sources=sources, output=output, initial=initial, note=note)
    earlier = [checkpoint for checkpoint in find_checkpoints(output) if checkpoint.step < step]
    checkpoint = next((checkpoint for checkpoint in reversed(earlier) if checkpoint.problem() is None), None)
    if checkpoint is None:
        note(f"{output}: has no checkpoint before step {step:,}; recomputing all steps before it")
    return replay_step(job, checkpoint, step)


def _set_up(config: PretrainConfig, output: str, note: Callable[[str], None]) -> tuple[Recipe, World, DeviceConfig]:
    """Return what follows from the options alone, in every process."""
    recipe, world = choose_recipe(config, output, note), torchrun_world()
    device = device_config(select_device(config.device, world.local_rank), config.precision)
    world.check_batch(recipe.batch_size, recipe.micro_batch)
    return recipe, world, device


def _train(
    job: TrainingJob, recipe: Recipe, run: StageRun, extended_step: int | None,
    start_workers: Callable[[int | None], None],
) -> None:  # fmt: skip
    """Train from the latest checkpoint, together with the worker ranks, which start from the same step.

    Without one, an extension begins with that of `extended_step` of the finished training.
    """
    checkpoint = latest_checkpoint(run.output, run.note)
    if checkpoint is None and run.subfolder and extended_step is not None:
        finished = run.output.removesuffix(f"/{run.subfolder}")
        checkpoint = continue_training(finished, run.output, recipe, extended_step, run.note)
    step = checkpoint.step if checkpoint else None
    start_workers(step)
    tokens = (recipe.steps - (step or 0)) * recipe.batch_tokens + evaluation_work(job, step or 0)
    run.once("train", lambda: train(job, checkpoint), total=tokens, unit="tokens")


def _make_job(
    config: PretrainConfig, recipe: Recipe, world: World, device: DeviceConfig, *, sources: Sources, output: str,
    initial: ImportedModel | None, note: Callable[[str], None],
) -> TrainingJob:  # fmt: skip
    """Verify and open the tokens, and return what to train."""
    # The command is for a later time, when the result has been moved to its place.
    final_output = storage.real_path(output.removesuffix(f"/{NEXT}"))
    folders = {name: storage.real_path(source.folder) for name, source in sources.items()}
    mix = [word for name, source in sources.items() for word in ("--mix", source.argument(name, folders[name]))]
    read = ["--input", folders[SINGLE]] if [*folders] == [SINGLE] else mix
    command = [
        *("webtext", "pretrain", *read, "--output", final_output),
        *("--preset", recipe.preset, *(word for value in config.set for word in ("--set", value))),
        *("--seed", str(config.seed), "--device", config.device),
        *("--precision", config.precision, "--compile", config.compile),
        *(["--activation-checkpointing"] if config.activation_checkpointing else []),
        *(["--threads", str(config.threads)] if config.threads else []),
        *(["--init-from", storage.real_path(initial.path)] if initial else []),
    ]
    # Another machine has its own copy of the tokens.
    tokens = open_mixture(sources, verify=world.local_rank == 0)
    objective, named = NextToken(recipe, tokens, device, world), tokens.sources.items()
    listed = {name: {"fingerprint": folder.fingerprint, "tokens": folder.train.tokens} for name, folder in named}
    return TrainingJob(
        recipe=recipe,
        options=config,
        objective=objective,
        sample=objective.sample,
        architecture=architecture_of(recipe, tokens.first.vocab_size),
        title=f"Training of {recipe.preset}",
        description={
            "end_of_text": tokens.first.end_of_text,
            "tokenizer_sha256": hashlib.sha256(tokens.first.tokenizer).hexdigest(),
            **({"tokens_fingerprint": tokens.first.fingerprint} if tokens.is_single else {"sources": listed}),
        },
        tokenizer=tokens.first.tokenizer,
        output=output,
        device=device,
        world=world,
        note=note,
        initial=initial,
        replay_command=lambda step: shlex.join([*command, "--replay", str(step)]),
    )


def _import_initial(
    init_from: str | None, recipe: Recipe, sources: Sources, note: Callable[[str], None]
) -> ImportedModel | None:
    """Import the initial weights and check that they fit the recipe and the tokens."""
    if init_from is None:
        return None
    folder = open_mixture(sources, verify=False).first
    imported = import_weights(init_from, folder.vocab_size)
    note(f"{init_from}: initial weights ({imported.source})")
    for line in imported.notes:
        note(line)
    check_compatible(imported, architecture_of(recipe, folder.vocab_size), folder.tokenizer)
    return imported


def _inputs(sources: Sources, initial: ImportedModel | None) -> dict[str, str]:
    return fingerprints(sources) | ({"init_from": initial.sha256} if initial else {})
