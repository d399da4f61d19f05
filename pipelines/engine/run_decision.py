"""What a run does with the result that its output folder contains: keep it, add to it, replace it, or refuse."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Any

from pipelines import storage
from pipelines.engine.journal import OutputFolder
from pipelines.engine.manifest import NEXT, Identity, has_manifest
from pipelines.engine.stage import GROWS_BY_FILES, RunOptions, Stage
from pipelines.format import plural


@dataclasses.dataclass(frozen=True)
class RunDecision:
    """What a run does, and why.

    The actions are `run` (nothing is there), `resume`, `keep` (verify the checksums only), `add` (to the finished
    result), `rebuild` (the stage, as a whole) and `refuse` (without `--overwrite`).

    The run writes `folder`: the output folder, or one inside it while the finished result stays in use. If `discards`
    says how what was begun there differs, the run first removes that; otherwise it resumes it, although its inputs
    differ by `changed_inputs`. `refusal` is the message of `refuse`; of `add`, the one if the inputs turn out to lack
    what the result contains.
    """

    action: str
    reason: str
    folder: OutputFolder
    discards: str = ""
    changed_inputs: str = ""
    refusal: str = ""


class DryRun(Exception):  # noqa: N818, it ends the call of a stage, but is not an error
    """Ends the call of a stage that was called with `dry_run`, before anything is written."""

    def __init__(self, decision: RunDecision) -> None:
        super().__init__(decision.action)
        self.decision = decision


def decide_run(
    stage: Stage,
    requested: Identity,
    config: Any,
    output: str,
    options: RunOptions,
    shard_inputs: Collection[str] = (),
    reopen: bool = False,
) -> RunDecision:
    """Return what `stage_run` does; write nothing."""
    folder, next_folder = (OutputFolder(path, stage.writes) for path in (output, storage.join(output, NEXT)))
    begun = _decide_unfinished(stage, requested, config, next_folder, options, shard_inputs)
    if not has_manifest(output):
        decision = _decide_unfinished(stage, requested, config, folder, options, shard_inputs)
        # A replacement was begun, and then the finished result was found damaged.
        return begun if decision.discards and begun.action == "resume" else decision
    recorded = folder.recorded_identity(config)
    assert recorded is not None
    differences = "; ".join(recorded.differences(requested))
    if not differences and not reopen:
        return RunDecision("keep", "up to date", folder)
    effect = "fetch all pages again and delete these" if stage.is_irreplaceable else "rebuild all of it"
    effect += " (this result stays in use until the new one is complete)"
    refusal = _refusal(stage, recorded, requested, options, f"{output}: contains a different result", effect)
    is_addition = _is_addition(stage, recorded, requested, options, shard_inputs)
    if refusal and not is_addition:
        return RunDecision("refuse", differences, folder, refusal=refusal)
    if begun.action == "refuse":
        return begun
    reason = "; ".join(filter(None, (differences, _tasks(next_folder) if begun.action == "resume" else "")))
    return dataclasses.replace(begun, action="add" if is_addition else "rebuild", reason=reason, refusal=refusal)


def _decide_unfinished(
    stage: Stage,
    requested: Identity,
    config: Any,
    folder: OutputFolder,
    options: RunOptions,
    shard_inputs: Collection[str],
) -> RunDecision:
    """Return what a run does that writes a folder without a finished result."""
    recorded = None if has_manifest(folder.path) else folder.recorded_identity(config)
    if recorded is None:
        return RunDecision("run", "new", folder)
    differences = "; ".join(recorded.differences(requested))
    names = {*shard_inputs, *folder.shard_inputs()}
    if recorded.without_inputs(names) == requested.without_inputs(names):
        reason = "; ".join(filter(None, (differences or "unfinished", _tasks(folder))))
        return RunDecision("resume", reason, folder, changed_inputs=differences)
    # With its own inputs, a refused run cannot finish; tasks that were finished with other options may be of use.
    if folder.has_no_results() or (folder.is_refused() and recorded.differs_in_inputs_only(requested)):
        return RunDecision("run", differences, folder, discards=differences)
    if stage.is_irreplaceable and storage.basename(folder.path) == NEXT:
        effect = (
            f"{folder.path}: contains an unfinished addition that differs: {differences}. Finish it with its own "
            "options and inputs, or delete this folder and what it has fetched: the finished result is not affected"
        )
        refusal = "" if _may_replace(stage, recorded, requested, options) else effect
    else:
        effect = f"delete its {'pages' if stage.is_irreplaceable else 'work'} and start from the beginning"
        content = f"{folder.path}: contains an unfinished run that differs"
        refusal = _refusal(stage, recorded, requested, options, content, effect)
    if refusal:
        return RunDecision("refuse", differences, folder, refusal=refusal)
    return RunDecision("rebuild", differences, folder, discards=differences)


def _refusal(
    stage: Stage, recorded: Identity, requested: Identity, options: RunOptions, content: str, effect: str
) -> str:
    """Return why a result is not replaced, with what `--overwrite` would do; empty if it may be."""
    if _may_replace(stage, recorded, requested, options):
        return ""
    needs_discard = stage.is_irreplaceable and not options.discard_pages
    flags = "--overwrite --discard-pages" if needs_discard else "--overwrite"
    differences = "; ".join(recorded.differences(requested))
    return f"{content}: {differences}. Use {flags} to {effect}, or choose another --output to keep both"


def _may_replace(stage: Stage, recorded: Identity, requested: Identity, options: RunOptions) -> bool:
    if options.overwrite and (options.discard_pages or not stage.is_irreplaceable):
        return True
    is_followed = recorded.changed_inputs(requested) <= {*options.follow_inputs}
    is_costly = stage.is_irreplaceable or stage.is_expensive
    return is_followed and not is_costly and recorded.differs_in_inputs_only(requested)


def _is_addition(
    stage: Stage, recorded: Identity, requested: Identity, options: RunOptions, shard_inputs: Collection[str]
) -> bool:
    """Return whether a run can add to a finished result, which lacks only inputs, or parts of them."""
    if stage.is_irreplaceable and options.overwrite and options.discard_pages:
        return False
    names = recorded.changed_inputs(requested)
    added = {name for name in names if name in shard_inputs and name not in recorded.inputs}
    added = added if GROWS_BY_FILES in stage.grows else set()
    return recorded.differs_in_inputs_only(requested) and names - added <= {*stage.grows}


def _tasks(folder: OutputFolder) -> str:
    return f"{plural(count, 'task')} already complete" if (count := len(folder.entries())) else ""
