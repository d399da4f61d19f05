"""Extends a finished training to more steps, from the last checkpoint, or with wsd from the one before its decay.

The new result is built next to the finished one, which it replaces when it is complete. With a cosine its recipe says
where it was extended, so that recipe and tokens still determine the weights. With wsd they are those of one long run.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping

from pipelines import storage
from pipelines.engine.config import identity_of
from pipelines.engine.journal import OutputFolder
from pipelines.engine.manifest import NEXT, Identity, has_manifest, read_manifest
from pipelines.engine.run import RunOptions, Stage
from pipelines.errors import ChangedRunError, InputError, UsageError
from pipelines.model.diagnostics.spikes import spike_file
from pipelines.model.training.checkpoint import (
    BEST_FILE,
    METRICS_FILE,
    Checkpoint,
    best_checkpoint,
    copy_checkpoint,
    find_checkpoints,
)
from pipelines.model.training.mixture import Sources, shares_at
from pipelines.model.training.recipe import Recipe, learning_rate
from pipelines.stages.pretrain.sources import plan_recipe


def prepare_extension(
    stage: Stage, recipe: Recipe, sources: Sources, inputs: Mapping[str, str], output: str, options: RunOptions
) -> tuple[Recipe, RunOptions, int | None]:
    """Return the recipe with its mixture and the steps from which training was or will be extended, and the options.

    The last value is the step of the training in `output` from which an extension begins. A finished training is
    extended by a recipe that has the same learning rates up to there, unless `options.overwrite` asks for a new one;
    changed shares, also of new sources, apply from there on. Raises ChangedRunError if another result is being built
    there, UsageError for a source that is not named again, InputError if the checkpoint was removed.
    """
    # Deferred: epochs may fit an extension, but not a new training, or the other way around.
    plan_new = functools.partial(plan_recipe, recipe, sources, {})
    following = storage.join(output, NEXT)
    folder = following if has_manifest(following) else output
    recorded = OutputFolder(folder).recorded_identity()
    trained = recorded.with_current_options(recipe).config if recorded else {}
    if recorded is None or options.overwrite or not all(isinstance(trained.get(name), int) for name in recipe.lengths):
        return plan_new(), options, None
    step = recipe.branch_of(trained)
    planned = plan_recipe(recipe, sources, trained)
    requested, known, missing = identity_of(planned), inputs, dict[str, str]()
    if step is not None:
        requested |= {key: trained[key] for key in (*recipe.lengths, "extended_from", "mixture")}
        missing = {name: key for name, key in recorded.inputs.items() if name not in inputs and name != "init_from"}
        known = {name: key for name, key in inputs.items() if name in recorded.inputs or name == "init_from"} | missing
    if dataclasses.replace(recorded, config=trained) != Identity(stage.name, stage.version, requested, known):
        return plan_new(), options, None
    if step is None:
        return planned, options, None
    if not has_manifest(folder):
        return plan_new(), options, None
    for source in (name.rpartition(" ")[2] for name in missing):
        raise UsageError(f"--mix: {output} has read {source}; add --mix {source}=DIR:0, or a weight")
    begun = OutputFolder(following).recorded_identity()
    if begun and begun.with_current_options(recipe).config != identity_of(planned):
        raise ChangedRunError(OutputFolder(output).describe_replacement() or following)
    if not find_checkpoints(following):
        _checkpoint_of(output, step, trained["steps"])
    return planned, dataclasses.replace(options, overwrite=True), step


def continue_training(finished: str, output: str, recipe: Recipe, step: int, note: Callable[[str], None]) -> Checkpoint:
    """Copy the checkpoint of a step of a finished training to where it continues, with what was written up to there.

    Raises InputError if the checkpoint is damaged.
    """
    steps = int(read_manifest(finished).identity.config["steps"])
    checkpoint = _checkpoint_of(finished, step, steps)
    if problem := checkpoint.problem():
        raise InputError(_cannot_extend(finished, steps, problem))
    spikes, events = (
        [storage.join(folder, name) for name in storage.list_folder(storage.join(finished, folder))]
        for folder in ("spikes", "tensorboard")
    )
    names = ["timing.jsonl", "samples.jsonl", *events, *(name for name in spikes if name <= spike_file(step))]
    best, has_same_shares = (
        best_checkpoint(finished),
        shares_at(recipe.mixture, step - 1) == shares_at(recipe.mixture, step),
    )
    # With other shares, later losses of the whole mixture are not comparable with the best one.
    if has_same_shares and best is not None and best.step <= step and best.problem() is None:
        names.append(BEST_FILE)
        if best.step != step:
            copy_checkpoint(best, output)
    for name in names:
        if storage.exists(path := storage.join(finished, name)):
            storage.link(path, storage.join(output, name))
    if step < steps:
        note(f"extending the training of {steps:,} steps to {recipe.steps:,} from step {step:,}, before its decay")
        return copy_checkpoint(checkpoint, output)
    before, after = (learning_rate(number, recipe) for number in (step - 1, step))
    note(
        f"extending the training of {step:,} steps to {recipe.steps:,}: from here the learning rate is that of a "
        f"schedule of {recipe.steps:,} steps ({before:.3g} in step {step:,}, {after:.3g} in the next)"
    )
    # With the held-out loss that was measured after the checkpoint.
    return copy_checkpoint(checkpoint, output, storage.read_bytes(storage.join(finished, METRICS_FILE)))


def _checkpoint_of(output: str, step: int, steps: int) -> Checkpoint:
    """Return the checkpoint of a step of a training of so many steps; raise InputError if it was removed."""
    for checkpoint in find_checkpoints(output):
        if checkpoint.step == step:
            return checkpoint
    name = "last checkpoint" if step == steps else f"checkpoint of step {step:,}, before the decay,"
    raise InputError(_cannot_extend(output, steps, f"its {name} was removed"))


def _cannot_extend(output: str, step: int, problem: str) -> str:
    return (
        f"{output}: the training of {step:,} steps cannot be extended: {problem}; use --init-from {output} with "
        "another --output to train its weights further with a new optimizer, or --overwrite to repeat all steps"
    )
