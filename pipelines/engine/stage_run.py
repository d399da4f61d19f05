"""What a run of a stage does: it maps tasks, verifies what earlier runs did, and writes the manifest.

A task's files are published first, then its entry in the journal, the manifest last. A re-run does the tasks that have
no entry, or whose files no longer match it.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pipelines import storage
from pipelines.engine.journal import JOURNAL, OutputFolder
from pipelines.engine.lease import Lease
from pipelines.engine.manifest import (
    MANIFEST_FILE,
    NEXT,
    Identity,
    Manifest,
    ShardEntry,
    check_entries,
    has_manifest,
    read_entry,
    read_manifest,
    replace_result,
    write_manifest,
)
from pipelines.engine.run_decision import RunDecision
from pipelines.engine.stage import GROWS_BY_FILES, RunOptions, Stage, Summary, TaskResult
from pipelines.engine.tasks import Item, NameOf, SerialExecutor, item_name
from pipelines.errors import ChangedRunError, DamagedShardError, InputError
from pipelines.format import format_bytes, plural
from pipelines.progress import show_progress


class StageRun:
    """A run that holds the lock of its output folder; created by `stage_run`."""

    def __init__(
        self, stage: Stage, identity: Identity, decision: RunDecision, options: RunOptions, shard_inputs: Sequence[str]
    ) -> None:
        self.finished = False
        # The folder of the finished result that this run adds to.
        self.earlier: str | None = None
        # What this run wrote, unless it was complete before.
        self.written: Manifest | None = None
        # In an object store, the lock must be renewed.
        self.lease: Lease | None = None
        self.text_format: str | None = None
        self._stage = stage
        self._identity = identity
        self._decision = decision
        self._folder = decision.folder
        self._replaced: OutputFolder | None = None
        self._options = options
        self._shard_inputs = shard_inputs
        self._started = time.monotonic()
        self._resumed: dict[tuple[str, str], ShardEntry] = {}
        self._entries: list[ShardEntry] = []
        self._kept: list[tuple[str, ShardEntry]] = []
        # Shown when the first task runs, since the stage may still refuse to add to the result.
        self._notes: list[str] = []

    @property
    def output(self) -> str:
        """The folder to write: inside the result that is being replaced, if there is one, until `finish`."""
        return self._folder.path

    @property
    def subfolder(self) -> str:
        """The name of the folder to write in the output folder of the stage; empty if it is that folder."""
        return NEXT if self._replaced else ""

    @property
    def work(self) -> str:
        """The folder of files that only serve later phases."""
        return self._folder.work

    @property
    def is_whole(self) -> bool:
        """Whether this run does all tasks, because it neither resumes a run nor adds to a result."""
        return not self._resumed and self.earlier is None

    @property
    def may_lose(self) -> bool:
        """Whether the result may lack what the earlier one contains."""
        return not self._decision.refusal

    @property
    def workers(self) -> int:
        """How many tasks run at the same time."""
        return self._options.executor.workers

    @property
    def memory_bytes(self) -> int | None:
        """The memory available to all tasks together, None if it is unknown."""
        return self._options.executor.memory_bytes

    def map(
        self,
        function: Callable[..., TaskResult],
        items: Sequence[Item],
        context: Any = None,
        *,
        name: NameOf = item_name,
        phase: str = "shards",
        work: bool = False,
        total: int | None = None,
        unit: str = "records",
        cost: Callable[[Item], int] | None = None,
        serial: bool = False,
        memory_bytes: int | None = None,
        keep: str | None = None,
        is_current: Callable[[Item], bool] | None = None,
        on_complete: Callable[[Item], None] | None = None,
    ) -> list[ShardEntry]:
        """Run `function(item, context)` for the items without a valid entry; return all entries in order of the items.

        Items are small and picklable; `context` is what all of them share (without one, `function(item)` is called). An
        entry is named `item.name`, or `name(item)`. `work` marks a phase whose files only serve a later phase; they
        belong under `run.work`. For the progress bar, `total` is the work of all items in `unit`; if that is not
        records, `cost` returns the work of one item, so that a resumed run shows what remains. `serial` runs the items
        one after the other in this process: for tasks that query one server. `memory_bytes` is what a task needs.

        `keep` is a folder of the stage in which the files of a work phase stay: a run that adds to the result finds
        there what tasks of the same name have written, so a name must say what the task reads. `is_current` returns
        whether the result of a task that is already complete can be used. `on_complete` is called with an item when
        its entry is written.
        """
        names = [name(item) for item in items]
        entries: dict[str, ShardEntry] = {}
        for item, key in zip(items, names, strict=True):
            entry = self._resumed.get((phase, key)) or (self._find_kept(phase, key, keep) if keep else None)
            if entry and (is_current is None or is_current(item)):
                entries[key] = entry
            elif entry:
                self._folder.discard_entry(entry)
        todo = [item for item, key in zip(items, names, strict=True) if key not in entries]
        if cost is not None:
            total = sum(map(cost, todo))
        elif total is not None:
            total = _remaining_work(total, unit, list(entries.values()), len(items))
        label = f"{self._identity.stage}: {re.sub(r'-[0-9a-f]{8}|-[0-9]+', '', phase).replace('-', ' ')}"
        progress = self._options.progress
        while self._notes:
            progress.note(self._notes.pop(0))
        if entries and todo:
            progress.note(f"{label}: resuming; {len(entries):,} of {plural(len(items), 'task')} already complete")
        elif keep and self.earlier and todo:
            progress.note(f"{label}: the earlier result has no files of its {phase} phase, so all tasks run again")
        executor = SerialExecutor() if serial else self._options.executor
        # Closed at once if it ends early, so that no worker continues while the end is reported.
        finishing = contextlib.closing(
            executor.map(
                function, todo, context=context, on_progress=progress.advance, name=name, memory_bytes=memory_bytes
            )
        )
        with show_progress(progress, label, total, unit), finishing as results:
            for item, result in results:
                entry = result.entry(phase, name(item), work=work)
                if self.lease:
                    self.lease.check()
                self._folder.write_entry(entry)
                if on_complete:
                    on_complete(item)
                entries[entry.name] = entry
        ordered = [entries[key] for key in names]
        self._kept += [(keep, entry) for entry in ordered if keep]
        self._entries.extend(ordered)
        return ordered

    def _find_kept(self, phase: str, name: str, folder: str) -> ShardEntry | None:
        """Link the files of a task that the earlier result kept into the work folder; None unless they are intact."""
        if self.earlier is None:
            return None
        try:
            entry = read_entry(_kept_path(self.earlier, folder, f"{name}.json"))
        except InputError:
            return None
        for file in entry.files:
            kept = _kept_path(self.earlier, folder, file.name)
            if not storage.exists(kept):
                return None
            storage.link(kept, storage.join(self.output, file.name))
        if (entry.phase, entry.name) != (phase, name) or check_entries(self.output, [entry]) != [None]:
            return None
        self._folder.write_entry(entry)
        return entry

    def once(
        self,
        name: str,
        function: Callable[..., TaskResult],
        item: Any = None,
        context: Any = None,
        *,
        work: bool = False,
        total: int | None = None,
        unit: str = "records",
    ) -> ShardEntry:
        """Run work that cannot be split, as one task: `function()` in this process, or `function(item)` in a worker."""
        call, is_here = (lambda _: function(), True) if item is None else (function, False)
        [entry] = self.map(
            call, [item], context, name=lambda _: name, phase=name, work=work, total=total, unit=unit, serial=is_here
        )
        return entry

    def discard(self) -> None:
        """Discard what this run has done, so that the next one starts again; an earlier result stays."""
        if self._replaced is None:
            storage.remove(self.work)
            for entry in self._folder.entries():
                self._folder.discard_entry(entry)
        else:
            storage.remove(self.output)

    def refuse_addition(self, refusal: str = "") -> ChangedRunError:
        """Discard what was begun, and return the error to raise if the inputs lack what the earlier result contains."""
        self.discard()
        return ChangedRunError(refusal or self._decision.refusal)

    def declare_outputs(self, names: Sequence[str]) -> None:
        """Record which files will be written into folders of the stage, so that they are its own even after a kill."""
        self._folder.write_header(self._identity, self._shard_inputs, names)

    def note(self, message: str) -> None:
        """Show the user one line."""
        self._options.progress.note(message)

    def resumed_entry(self, phase: str, name: str) -> ShardEntry | None:
        """Return the entry of a task that an earlier run finished."""
        return self._resumed.get((phase, name))

    def finish(self, extra: Mapping[str, Any] | None = None, examples: str = "") -> Summary:
        """Write the manifest and return the summary with the stage's figures `extra`.

        Raises InputError if the input had no records, and WebtextError if one was lost or all dropped (`examples`).
        """
        manifest = Manifest(self._identity, tuple(self._entries), self.text_format)
        if not self.finished:
            if not manifest.records_out:
                # Nothing is worth keeping, and the cause (a network that was down) may have passed.
                self.discard()
            manifest.check_records(examples)
            for folder, entry in self._kept:
                for file in entry.files:
                    storage.link(storage.join(self.output, file.name), _kept_path(self.output, folder, file.name))
                storage.write_json(_kept_path(self.output, folder, f"{entry.name}.json"), entry.to_json())
            if self.lease:
                self.lease.check(now=True)
            if self._replaced is None:
                write_manifest(self.output, manifest)
            else:
                replace_result(self._replaced.path, self._replaced.own_names(), manifest)
                self._folder, self._replaced = self._replaced, None
            self._folder.remove_journal()
            self.finished = True
            self.written = manifest
        return Summary(
            stage=self._identity.stage,
            records_in=manifest.records_in,
            records_out=manifest.records_out,
            dropped=manifest.dropped,
            seconds=round(time.monotonic() - self._started, 3),
            output=self.output,
            extra={**manifest.counts, **(extra or {})},
        )

    def mark_refused(self) -> None:
        """Let other inputs replace this run, which cannot finish with its own."""
        stage = self._stage
        is_costly = stage.is_irreplaceable or stage.is_expensive or GROWS_BY_FILES in stage.grows
        if not self.finished and not is_costly:
            self._folder.mark_refused()

    def open(self, output: str, global_phases: Sequence[str]) -> None:
        """Carry out the decision: verify the finished result, resume what was begun, or start."""
        decision = self._decision
        if decision.action == "refuse":
            raise ChangedRunError(decision.refusal)
        if decision.action == "keep":
            self._open_finished()
            return
        if self._folder.path != output:
            self._begin_replacement(OutputFolder(output, self._stage.writes))
        if decision.discards:
            if entries := self._folder.entries():
                lost = f"{plural(len(entries), 'finished task')} of the unfinished run"
                self.note(f"{self.output}: starting again without {lost}, which differs ({decision.discards})")
            self._folder.empty()
        elif decision.changed_inputs:
            if self._folder.entries():
                self.note(f"{self._identity.stage}: resuming an unfinished run: {decision.changed_inputs}")
            self._folder.discard_phases(global_phases)
        recorded = self._folder.recorded_identity()
        if recorded is None:
            self._folder.check_unclaimed()
        self._folder.remove_temporaries()
        if recorded is None or decision.changed_inputs:
            self._folder.write_header(self._identity, self._shard_inputs)
        elif self._folder.is_refused():
            self._folder.mark_refused(False)  # from now on like any run: it may be killed
        self._resume(self._intact(self._folder.entries()))

    def _begin_replacement(self, replaced: OutputFolder) -> None:
        """Write a new result next to the finished one, which stays until the new one is complete."""
        replaced.check_foreign_files()
        output, action = replaced.path, self._decision.action
        if has_manifest(output):
            size = format_bytes(read_manifest(output).size_bytes)
            self._notes.append(f"{output}: the earlier result ({size}) is kept until the new one is complete")
        if self._decision.reason:
            effect = (
                ["is added to", "is updated"][self._options.overwrite] if action == "add" else "is rebuilt as a whole"
            )
            self._notes.append(f"{self._identity.stage}: {effect} ({self._decision.reason})")
        self.earlier = output if action == "add" else None
        self._replaced = replaced

    def _open_finished(self) -> None:
        """Verify every checksum; if a file is damaged, resume as an unfinished run without its entry."""
        self._folder.remove_temporaries()
        manifest = read_manifest(self.output)
        intact = self._intact(list(manifest.shards))
        if sum(not entry.work for entry in intact) == len(manifest.final_shards):
            self._folder.remove_journal()
            self._entries = list(manifest.shards)
            self.finished = True
            self.note(f"{self._identity.stage}: already complete; checksums verified")
            self._note_replacement()
            return
        for entry in intact:
            self._folder.write_entry(entry)
        self._folder.write_header(self._identity, self._shard_inputs, self._folder.listed_in_stage_folders())
        storage.remove(storage.join(self.output, MANIFEST_FILE))
        self._resume(intact)

    def _note_replacement(self) -> None:
        """Name what `--overwrite` with other options left unfinished; remove it if it contains no results."""
        folder = OutputFolder(storage.join(self.output, NEXT))
        if folder.has_no_results():
            storage.remove(folder.path)
        elif replacement := self._folder.describe_replacement():
            self.note(replacement)

    def _resume(self, entries: list[ShardEntry]) -> None:
        for folder in (storage.join(self.output, JOURNAL), self.work):
            storage.make_folder(folder, is_private=True)
        self._resumed = {(entry.phase, entry.name): entry for entry in entries}

    def _intact(self, entries: list[ShardEntry]) -> list[ShardEntry]:
        """Return the entries whose files match their checksums; name the files of the others."""
        problems = check_entries(self.output, entries)
        for entry, problem in zip(entries, problems, strict=True):
            if problem and not (entry.work and "missing" in problem):
                if self._stage.is_irreplaceable and not (entry.work or self._options.discard_pages):
                    raise DamagedShardError(
                        f"{problem}; restore it from a copy, or use --discard-pages to delete the pages of its shard "
                        "and fetch them again (`webtext extract` can also read single intact WARC files)"
                    )
                self.note(f"{problem}; it will be rebuilt")
        return [entry for entry, problem in zip(entries, problems, strict=True) if not problem]


def _kept_path(output: str, folder: str, name: str) -> str:
    return storage.join(output, folder, storage.basename(name))


def _remaining_work(total: int, unit: str, resumed: Sequence[ShardEntry], items: int) -> int:
    """Return the part of `total` that remains, so that rate and time left are of this run.

    Where the entries of an earlier run do not say how much they were, tasks count as equally large.
    """
    counted = sum(entry.records_in for entry in resumed) if unit == "records" else 0
    return total - counted if counted or not resumed else round(total * (1 - len(resumed) / items))
