"""Extends a finished training to more steps, from its last checkpoint.

The new result is built next to the finished one, which it replaces when it is complete. Its recipe says where it was
extended, so that recipe and tokens still determine the weights.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from pipelines import storage
from pipelines.engine.config import identity_of
from pipelines.engine.journal import OutputFolder
from pipelines.engine.manifest import NEXT, Identity, has_manifest
from pipelines.engine.run import RunOptions, Stage
from pipelines.errors import ChangedRunError, InputError
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

# What a training writes next to its result, and continues when it is extended.
_CONTINUED_FILES = ("timing.jsonl", "samples.jsonl")
_CONTINUED_FOLDERS = ("spikes", "tensorboard")


def prepare_extension(
    stage: Stage, recipe: Recipe, sources: Sources, inputs: Mapping[str, str], output: str, options: RunOptions
) -> tuple[Recipe, RunOptions]:
    """Return the options, and the recipe with its mixture and the steps from which training was or will be extended.

    A finished training of the same recipe with fewer steps is extended, unless `options.overwrite` asks for a new one;
    changed shares, also of new sources, apply from its last step on. Raises ChangedRunError if another result is being
    built there, InputError if the last checkpoint was removed.
    """
    new = plan_recipe(recipe, sources, {})
    following = storage.join(output, NEXT)
    folder = following if has_manifest(following) else output
    recorded = OutputFolder(folder).recorded_identity()
    trained = recorded.with_current_options(recipe).config if recorded else {}
    steps = trained.get("steps")
    if recorded is None or not isinstance(steps, int):
        return new, options
    planned = plan_recipe(recipe, sources, trained)
    requested, known = identity_of(planned), inputs
    if steps < recipe.steps:
        requested |= {key: trained[key] for key in ("steps", "extended_from", "mixture")}
        known = {name: key for name, key in inputs.items() if name in recorded.inputs or name == "init_from"}
    if dataclasses.replace(recorded, config=trained) != Identity(stage.name, stage.version, requested, known):
        return new, options
    if steps == recipe.steps:
        return planned, options
    if options.overwrite or not has_manifest(folder):
        return new, options
    begun = OutputFolder(following).recorded_identity()
    if begun and begun.with_current_options(recipe).config != identity_of(planned):
        raise ChangedRunError(OutputFolder(output).describe_replacement() or following)
    if not find_checkpoints(following) and not _checkpoints_of(output, steps):
        raise InputError(_cannot_extend(output, steps, "its last checkpoint was removed"))
    return planned, dataclasses.replace(options, overwrite=True)


def continue_training(finished: str, output: str, recipe: Recipe, note: Callable[[str], None]) -> Checkpoint:
    """Copy the last checkpoint of a finished training, with the held-out loss measured after it, to where it continues.

    Raises InputError if the checkpoint is damaged.
    """
    step = recipe.extended_from[-1]
    checkpoint = next(iter(_checkpoints_of(finished, step)), None)
    problem = checkpoint.problem() if checkpoint else "its last checkpoint was removed"
    if checkpoint is None or problem:
        raise InputError(_cannot_extend(finished, step, problem or ""))
    names = [*_CONTINUED_FILES]
    for folder in _CONTINUED_FOLDERS:
        names += [storage.join(folder, name) for name in storage.list_folder(storage.join(finished, folder))]
    has_other_shares = shares_at(recipe.mixture, step - 1) != shares_at(recipe.mixture, step)
    # With other shares, later losses of the whole mixture are not comparable with the best one.
    if not has_other_shares and (best := best_checkpoint(finished)) is not None and best.problem() is None:
        names.append(BEST_FILE)
        if best.step != step:
            copy_checkpoint(best, output)
    for name in names:
        if storage.exists(path := storage.join(finished, name)):
            storage.link(path, storage.join(output, name))
    before, after = (learning_rate(number, recipe) for number in (step - 1, step))
    note(
        f"extending the training of {step:,} steps to {recipe.steps:,}: from here the learning rate is that of a "
        f"schedule of {recipe.steps:,} steps ({before:.3g} in step {step:,}, {after:.3g} in the next)"
    )
    return copy_checkpoint(checkpoint, output, storage.read_bytes(storage.join(finished, METRICS_FILE)))


def _checkpoints_of(output: str, step: int) -> list[Checkpoint]:
    return [checkpoint for checkpoint in find_checkpoints(output) if checkpoint.step == step]


def _cannot_extend(output: str, step: int, problem: str) -> str:
    return (
        f"{output}: the training of {step:,} steps cannot be extended: {problem}; use --init-from {output} with "
        "another --output to train its weights further with a new optimizer, or --overwrite to repeat all steps"
    )
