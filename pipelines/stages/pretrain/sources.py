"""The sources of a training: their fingerprints, their shares, and what the run reads of each."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from pipelines.errors import UsageError
from pipelines.format import format_percent
from pipelines.model.training.data import Mixture, read_token_description
from pipelines.model.training.mixture import Segment, Sources, input_name, planned_blocks, segments_of, shares_at
from pipelines.model.training.recipe import Recipe
from pipelines.records.inputs import open_stage

if TYPE_CHECKING:
    from pipelines.model.training.job import TrainingJob  # imports torch

# More epochs of a single source than this are probably a mistake.
_MANY_EPOCHS = 50
# A smaller share would need tables of millions of blocks.
_MIN_SHARE = 1e-6


def fingerprints(sources: Sources) -> dict[str, str]:
    """Return the fingerprints of sources by the names that they have among the inputs of a training.

    Raises UsageError for two sources with the same tokens, whose epochs would not be counted together.
    """
    prints = {name: open_stage(source.folder, ("tokenize",)).manifest.fingerprint() for name, source in sources.items()}
    names = {fingerprint: name for name, fingerprint in prints.items()}
    for name, fingerprint in prints.items():
        if (other := names[fingerprint]) != name:
            raise UsageError(
                f"--mix {name}: has the same tokens as {other}; use one of them, with the sum of the weights"
            )
    return {input_name(name): fingerprint for name, fingerprint in prints.items()}


def plan_recipe(recipe: Recipe, sources: Sources, trained: Mapping[str, Any]) -> Recipe:
    """Return the recipe with its mixture, as it continues the recipe `trained`; that is empty for a new training.

    If it is extended, its shares stay, and those that the sources ask for begin at the step from which it is. Raises
    UsageError for sources that contradict the recipe.
    """
    extended_from, mixture = tuple(trained.get("extended_from", ())), tuple(trained.get("mixture", ()))
    start = recipe.branch_of(trained) if trained else None
    if start is None:  # its last shares are those that the sources ask for, unless something else was trained
        start = mixture[-1]["from_step"] if mixture else 0
    elif recipe.schedule == "cosine":
        extended_from = (*extended_from, start)
    mixture = tuple(segment for segment in mixture if segment["from_step"] < start)
    shares = _plan_shares(recipe, sources, mixture, start)
    if not start or shares != shares_at(mixture, start):
        mixture = (*(segments_of(mixture) if start else ()), Segment(from_step=start, shares=shares))
    return dataclasses.replace(
        recipe, extended_from=extended_from, mixture=() if mixture == segments_of(()) else mixture
    )


def _plan_shares(recipe: Recipe, sources: Sources, earlier: Sequence[Segment], start: int) -> dict[str, float]:
    """Return the shares from step `start` on: sources with epochs get what they lack of them, the others the rest."""
    blocks: dict[str, Fraction] = {}
    used, left = planned_blocks(earlier, start, recipe.batch_size), (recipe.steps - start) * recipe.batch_size
    for name, source in sources.items():
        if source.epochs is not None:
            files = read_token_description(open_stage(source.folder, ("tokenize",)))["splits"].get("train", [])
            epoch = max(0, sum(int(file["tokens"]) for file in files) - 1) // recipe.context
            lacking = Fraction(str(source.epochs)) * epoch - Fraction(used.get(name, 0))
            if lacking >= 1:
                blocks[name] = lacking
            elif lacking <= -1:
                before = f"{used[name] / epoch:.2f} before step {start + 1:,}"
                raise UsageError(
                    f"--mix {name}: {source.epochs:g} epochs are fewer than {before}; use more, or weight 0"
                )
    weights = {name: Fraction(str(source.weight)) for name, source in sources.items() if source.weight}
    if not weights and not blocks:
        raise UsageError("--mix: no source is read; give one of them a weight above 0, or epochs")
    filled = sum(blocks.values(), Fraction(0))
    if filled >= left if weights else abs(left - filled) >= recipe.batch_size:
        raise UsageError(
            f"--mix: the sources with epochs fill {start + float(filled / recipe.batch_size):,.1f} of {recipe.steps:,} "
            f"steps, but should fill {'fewer' if weights else 'all'}; use another --set steps=..., other epochs, or "
            f"{'no' if weights else 'a'} weight"
        )
    blocks |= {name: (left - filled) * weight / sum(weights.values()) for name, weight in weights.items()}
    shares = {name: float(count / sum(blocks.values())) for name, count in sorted(blocks.items())}
    for name, share in shares.items():
        if share < _MIN_SHARE:
            raise UsageError(f"--mix {name}: its share is {share:.2g}, below one block in a million; use more, or 0")
    return shares


def check_sources(job: TrainingJob, recipe: Recipe, tokens: Mixture, max_epochs: float) -> None:
    """Show the size of the run and its sources; raise UsageError for more epochs of a source of a mixture."""
    is_single = tokens.is_single
    tokens.order(recipe)  # raises InputError if a source is too small
    blocks = planned_blocks(recipe.mixture, recipe.steps, recipe.batch_size)
    *earlier, last = segments_of(recipe.mixture)
    part = "of the blocks from here on" if earlier else "of the blocks"
    job.note(f"{job.parameters:,} parameters; {recipe.steps:,} steps of {recipe.batch_tokens:,} tokens")
    for name, folder in tokens.sources.items():
        read, split, held_out = blocks.get(name, 0), folder.train, folder.held_out
        epochs = read / split.blocks(recipe.context) if read else 0
        job.note(
            f"  {name}: {format_percent(last['shares'].get(name, 0), 2)} {part}, {read * recipe.context:,.0f} tokens, "
            f"{epochs:.2f} epochs of the train split ({split.tokens:,} tokens)"
        )
        if not is_single and epochs > max_epochs * (1 + 1e-9):
            raise UsageError(
                f"--mix {name}: {epochs:.2f} epochs of {folder.path} are more than --max-epochs {max_epochs:g}; use a "
                "lower weight, fewer --set steps=..., more text of this source, or a higher --max-epochs"
            )
        if is_single and epochs > _MANY_EPOCHS:
            job.note(
                f"{epochs:,.0f} epochs are many: a model learns little after the first few; use more text, fewer "
                "--set steps=..., or the preset tiny"
            )
        if held_out.tokens < 2:
            job.note(f"{folder.path}: no held-out tokens, so the held-out loss is not measured")
        elif not held_out.blocks(recipe.context):
            job.note(
                f"{folder.path}: the held-out split has {held_out.tokens:,} tokens, less than one block of "
                f"{recipe.context}; its loss is measured on that shorter block"
            )
