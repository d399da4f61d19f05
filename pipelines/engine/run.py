"""Opens a run of a stage: under the lock of its output folder, after a decision about what is there.

with stage_run(STAGE, config, inputs={"documents": fingerprint}, output=output, options=options) as run:
    if not run.finished:
        run.map(filter_shard, source.shards, run.output, total=source.records)
    return run.finish()
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pipelines import storage
from pipelines.engine.config import check_effects, identity_of
from pipelines.engine.folder_lock import folder_lock
from pipelines.engine.journal import WORK
from pipelines.engine.manifest import Identity, ShardEntry, TextFile, common_text_format, complete_replacement
from pipelines.engine.run_decision import DryRun, RunDecision, decide_run
from pipelines.engine.run_record import RecordedProgress
from pipelines.engine.stage import RunOptions, Stage, Summary, TaskResult
from pipelines.engine.stage_run import StageRun
from pipelines.errors import InputError, StorageError, UsageError

__all__ = ["RunOptions", "Stage", "StageRun", "Summary", "TaskResult", "result_files", "stage_run"]

# In a corpus from which documents are being removed.
REMOVAL = "removals/pending.json"


def result_files(entries: Sequence[ShardEntry]) -> TaskResult:
    """Return the files of a work phase that belong to the result: those outside the work folder."""
    files = (file for entry in entries for file in entry.files)
    return TaskResult(files=tuple(file for file in files if not file.name.startswith(f"{WORK}/")))


def check_removal_complete(corpus: str) -> None:
    """Raise InputError if a removal was interrupted, so that some stages have documents that others lack."""
    if storage.exists(storage.join(corpus, REMOVAL)):
        raise InputError(f"{corpus}: a removal of documents was interrupted; complete it with `webtext remove`")


@contextlib.contextmanager
def stage_run(
    stage: Stage,
    config: Any,
    *,
    inputs: Mapping[str, str],
    output: str,
    options: RunOptions,
    shard_inputs: Mapping[str, str] | None = None,
    global_phases: Sequence[str] = (),
    reopen: bool = False,
    texts: Iterable[TextFile] = (),
) -> Iterator[StageRun]:
    """Yield the run of a stage under the lock of its output folder.

    `inputs` maps the name of each input to its fingerprint. `shard_inputs` are further inputs, each read by tasks whose
    names say what they read, except in `global_phases`: if only these inputs changed, an unfinished run resumes and
    repeats just the global phases.

    A finished result that differs only in inputs by which the stage `grows` is replaced by a run that may use it,
    `run.earlier`. `reopen` does so for equal inputs. The manifest records the format of `texts`, which the
    stage reads.

    Raises LockedError if another process writes the folder, ChangedRunError if it contains the result of another
    config, version or input, and InputError if webtext did not write it, or if the texts have different formats.
    """
    check_removal_complete(storage.parent(output))
    check_effects(config)
    text_format = common_text_format(texts)
    shard_inputs = shard_inputs or {}
    identity = Identity(stage.name, stage.version, identity_of(config), {**inputs, **shard_inputs})

    def decide() -> RunDecision:
        return decide_run(stage, identity, config, output, options, shard_inputs, reopen)

    if options.dry_run:
        raise DryRun(decide())
    recorded = RecordedProgress(options.progress, output, identity)
    options = dataclasses.replace(options, progress=recorded)
    with contextlib.ExitStack() as stack:
        lease = stack.enter_context(folder_lock(output, recorded.note))
        complete_replacement(output)
        check_removal_complete(storage.parent(output))  # again: one may have begun before it could see the lock
        run = StageRun(stage, identity, decide(), options, sorted(shard_inputs))
        run.lease, run.text_format = lease, text_format
        run.open(output, global_phases)
        recorded.begin()
        stack.callback(recorded.remove)
        was_finished = run.finished
        try:
            if not run.finished:
                recorded.workers = run.workers
            yield run
        except BaseException as error:
            if run.lease and isinstance(error, Exception):
                # What another process did that took the lock may be the cause; a store may not answer.
                with contextlib.suppress(StorageError):
                    run.lease.check()
            if isinstance(error, InputError | UsageError):
                run.mark_refused()
            recorded.end(None, str(error) or type(error).__name__)
            raise
        if not was_finished:
            recorded.end(run.written, None, is_whole=run.is_whole)
