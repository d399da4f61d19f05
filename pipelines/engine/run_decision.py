"""What a run does with the result that its output folder contains: keep it, add to it, replace it, or refuse."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Sequence
from typing import Any

from pipelines import storage
from pipelines.engine.journal import OutputFolder
from pipelines.engine.manifest import NEXT, Identity, ShardEntry, has_manifest
from pipelines.engine.stage import GROWS_BY_FILES, RunOptions, Stage
from pipelines.errors import ChangedRunError
from pipelines.format import plural

# Whether the inputs contain all that the finished result in a folder was built from.
Extends = Callable[[str], bool]


@dataclasses.dataclass(frozen=True)
class RunPlan:
    """What a stage would do, and why.

    The actions are `run` (nothing is there), `resume`, `keep` (verify the checksums only), `add` (to the finished
    result), `rebuild` (the stage, as a whole) and `refuse` (without `--overwrite`).
    """

    action: str
    reason: str


class DryRun(Exception):  # noqa: N818, it ends the call of a stage, but is not an error
    """Ends the call of a stage that was called with `dry_run`, before anything is written."""

    def __init__(self, plan: RunPlan) -> None:
        super().__init__(plan.action)
        self.plan = plan


def is_addition(
    stage: Stage,
    recorded: Identity,
    requested: Identity,
    output: str,
    options: RunOptions,
    shard_inputs: Collection[str],
    extends: Extends | None,
) -> bool:
    """Return whether a run adds to the finished result in `output`, which lacks only inputs, or parts of them."""
    if not has_manifest(output) or (stage.is_irreplaceable and options.overwrite and options.discard_pages):
        return False
    names = _changed_inputs(recorded, requested)
    added = {name for name in names if name in shard_inputs and name not in recorded.inputs}
    added = added if GROWS_BY_FILES in stage.grows else set()
    may_grow = _differs_in_inputs_only(recorded, requested) and names - added <= {*stage.grows}
    return may_grow and (extends is None or extends(output))


def may_replace(stage: Stage, recorded: Identity, requested: Identity, options: RunOptions) -> bool:
    """Return whether a result that was built otherwise may be discarded."""
    if options.overwrite and (options.discard_pages or not stage.is_irreplaceable):
        return True
    is_followed = _changed_inputs(recorded, requested) <= {*options.follow_inputs}
    is_costly = stage.is_irreplaceable or stage.is_expensive
    return is_followed and not is_costly and _differs_in_inputs_only(recorded, requested)


def check_may_replace(stage: Stage, recorded: Identity, requested: Identity, options: RunOptions, output: str) -> None:
    """Raise ChangedRunError, with the differences, for a result in `output` that may not be discarded."""
    if may_replace(stage, recorded, requested, options):
        return
    irreplaceable = stage.is_irreplaceable
    if has_manifest(output):
        content = "a different result"
        effect = "fetch all pages again and delete these" if irreplaceable else "rebuild all of it"
        effect = f"{effect} (this result stays in use until the new one is complete)"
    elif irreplaceable and storage.basename(output) == NEXT:
        raise ChangedRunError(
            f"{output}: contains an unfinished addition that differs: {'; '.join(recorded.differences(requested))}. "
            "Complete it with the options and inputs with which it began, or delete this folder: the finished result "
            "stays as it was, without what this addition has fetched"
        )
    else:
        content = "an unfinished run that differs"
        effect = f"delete its {'pages' if irreplaceable else 'work'} and start from the beginning"
    flags = "--overwrite --discard-pages" if irreplaceable and not options.discard_pages else "--overwrite"
    raise ChangedRunError(
        f"{output}: contains {content}: {'; '.join(recorded.differences(requested))}. Use {flags} to {effect}, or "
        "choose another --output to keep both"
    )


def plan_run(
    stage: Stage,
    requested: Identity,
    config: Any,
    output: str,
    options: RunOptions,
    shard_inputs: Collection[str] = (),
    extends: Extends | None = None,
) -> RunPlan:
    """Return what `stage_run` would do; write nothing."""
    folder, recorded = OutputFolder(output, stage.writes), None
    if (identity := folder.recorded_identity()) is not None:
        recorded = identity.with_current_options(config)
    if recorded is None:
        return RunPlan("run", "new")
    differences = "; ".join(recorded.differences(requested))
    if has_manifest(output):
        if not differences:
            return RunPlan("keep", "up to date")
        next_folder = OutputFolder(storage.join(output, NEXT))
        tasks = _tasks(next_folder) if next_folder.recorded_identity() == requested else ""
        if is_addition(stage, recorded, requested, output, options, shard_inputs, extends):
            return RunPlan("add", differences + tasks)
    else:
        tasks = _tasks(folder)
        names = {*shard_inputs, *folder.shard_inputs()}
        if recorded.without_inputs(names) == requested.without_inputs(names):
            return RunPlan("resume", (differences or "unfinished") + tasks)
        if folder.has_no_results():
            return RunPlan("run", differences)
    if may_replace(stage, recorded, requested, options):
        return RunPlan("rebuild", differences + (tasks if has_manifest(output) else ""))
    return RunPlan("refuse", differences)


def remaining_work(total: int, unit: str, resumed: Sequence[ShardEntry], items: int) -> int:
    """Return the part of `total` that remains, so that rate and time left are of this run.

    Where the entries of an earlier run do not say how much they were, tasks count as equally large.
    """
    counted = sum(entry.records_in for entry in resumed) if unit == "records" else 0
    return total - counted if counted or not resumed else round(total * (1 - len(resumed) / items))


def _tasks(folder: OutputFolder) -> str:
    return f"; {plural(len(folder.entries()), 'task')} already complete"


def _differs_in_inputs_only(recorded: Identity, requested: Identity) -> bool:
    return dataclasses.replace(recorded, inputs=requested.inputs) == requested


def _changed_inputs(recorded: Identity, requested: Identity) -> set[str]:
    names = {*recorded.inputs, *requested.inputs}
    return {name for name in names if recorded.inputs.get(name) != requested.inputs.get(name)}
