"""One run of a stage: its lock, its refusals, its journal, and at last its manifest.

    with stage_run(STAGE, config, {"documents": fingerprint}, output, options) as run:
        if not run.finished:
            run.map(keep_shard, tasks, total=records)
        return run.finish()

A task's files are written and renamed first, then its entry in the journal, the manifest last. A rerun does the tasks
that have no entry, or whose files are no longer what the entry says.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pipelines.core import storage
from pipelines.core.config import identity_of
from pipelines.core.errors import ChangedRunError, InputError, WebtextError
from pipelines.core.executor import Executor, SerialExecutor, TaskType
from pipelines.core.manifest import (
    MANIFEST_FILE,
    FileEntry,
    Identity,
    Manifest,
    ShardEntry,
    check_file,
    has_manifest,
    read_manifest,
    write_manifest,
)
from pipelines.core.progress import Progress, Silent, show_progress

JOURNAL = "_journal"
_WORK = "_work"
_HEADER = "run.json"
_PARTS = "inputs_of_tasks"
_ANNOUNCED = "files_in_folders"
_CHECKING_THREADS = 4
# The names of shards, also of those that a killed run had not listed yet.
_SHARD = re.compile(r"[a-z-]+-\d{5}(-[a-z]+)?\.[a-z.]+$")


@dataclasses.dataclass(frozen=True)
class Stage:
    """The name and version of a stage; raise the version when equal inputs give other outputs.

    `writes` are the files and folders that it writes beside numbered shards: with them `--overwrite` knows what is its
    own in a folder. In such a folder of its own that are the files which it listed, or announced to its run; where the
    name ends with a slash, all that is in the folder.
    """

    name: str
    version: int
    writes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class RunOptions:
    """How a stage is run; nothing here is part of what its result is."""

    executor: Executor = dataclasses.field(default_factory=SerialExecutor)
    overwrite: bool = False
    progress: Progress = dataclasses.field(default_factory=Silent)


@dataclasses.dataclass(frozen=True)
class TaskResult:
    """What a task reports: its counts and the files it wrote into the output folder."""

    records_in: int = 0
    records_out: int = 0
    dropped: Mapping[str, int] = dataclasses.field(default_factory=dict)
    counts: Mapping[str, float] = dataclasses.field(default_factory=dict)
    files: tuple[FileEntry, ...] = ()


@dataclasses.dataclass(frozen=True)
class Summary:
    """What a command prints at its end: the funnel, and what the stage adds to it."""

    stage: str
    records_in: int
    records_out: int
    dropped: Mapping[str, int]
    seconds: float
    output: str
    extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the summary as JSON values."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {**{name: value for name, value in fields.items() if name != "extra"}, **self.extra}


@dataclasses.dataclass(frozen=True)
class _Named:
    name: str


class StageRun:
    """A run that holds the lock of its output folder; made by `stage_run`."""

    def __init__(
        self,
        stage: Stage,
        identity: Identity,
        output: str,
        options: RunOptions,
        parts: Sequence[str] = (),
        of_all_parts: Sequence[str] = (),
    ) -> None:
        self.output = output
        self._parts = list(parts)
        self._of_all_parts = frozenset(of_all_parts)
        self._stage = stage
        self.work = storage.join(output, _WORK)
        self.finished = False
        self._identity = identity
        self._options = options
        self._started = time.monotonic()
        self._known: dict[tuple[str, str], ShardEntry] = {}
        self._done: list[ShardEntry] = []

    def map(
        self,
        function: Callable[[TaskType], TaskResult],
        tasks: Sequence[TaskType],
        *,
        phase: str = "shards",
        work: bool = False,
        total: int | None = None,
        unit: str = "records",
        cost: Callable[[TaskType], int] | None = None,
        serial: bool = False,
    ) -> list[ShardEntry]:
        """Run a function over the tasks that have no valid entry yet; return all entries in the order of the tasks.

        `work` marks a phase whose files only serve a later phase; they belong under `run.work`. For the progress bar,
        `total` is the work of all tasks in `unit`; where that is not records, `cost` tells the work of one task, so
        that the bar shows what is left of a run that goes on. `serial` runs them one after the other in this process,
        whatever the workers: for tasks that ask one server.
        """
        if cost is not None:
            total = sum(cost(task) for task in tasks if (phase, task.name) not in self._known)
        elif total is not None:
            total = self._left(total, unit, phase, tasks)
        executor = SerialExecutor() if serial else self._options.executor
        return self._run_tasks(executor, function, tasks, phase, work, total, unit)

    def once(
        self,
        name: str,
        function: Callable[[], TaskResult],
        *,
        work: bool = False,
        total: int | None = None,
        unit: str = "records",
    ) -> ShardEntry:
        """Run one piece of work that cannot be split, in this process, with an entry like any task."""
        task = _Named(name)
        return self._run_tasks(SerialExecutor(), lambda _: function(), [task], name, work, total, unit)[0]

    @property
    def workers(self) -> int:
        """How many tasks run at the same time."""
        return self._options.executor.workers

    def declare_outputs(self, names: Sequence[str]) -> None:
        """Note which files will be written into folders of the stage's own: after a kill they are known as its own."""
        self._write_header(names)

    def note(self, message: str) -> None:
        """Show the user one line."""
        self._options.progress.note(message)

    def finish(self, extra: Mapping[str, Any] | None = None) -> Summary:
        """Write the manifest and return the summary; raise where nothing came in or out, or a record is lost.

        `extra` are figures of the stage's own for the summary.
        """
        manifest = Manifest(self._identity, tuple(self._done))
        if not self.finished:
            self._check_funnel(manifest)
            write_manifest(self.output, manifest)
            self._remove_journal()
            self.finished = True
        seconds = round(time.monotonic() - self._started, 3)
        own = {**manifest.counts, **(extra or {})}
        return Summary(
            self._identity.stage,
            manifest.records_in,
            manifest.records_out,
            manifest.dropped,
            seconds,
            self.output,
            own,
        )

    def open(self) -> None:
        """Take up the folder: finished, begun, or new; raise ChangedRunError for one that was made otherwise."""
        found = self._recorded_identity()
        if found is not None and self._only_parts_changed(found):
            self.note(f"goes on with other inputs: {'; '.join(found.differences(self._identity))}")
            self._keep_entries_of_parts()
            found = self._identity
        if found is None:
            self._refuse_foreign_folder()
        elif differences := found.differences(self._identity):
            if not self._options.overwrite and not self._is_bare():
                held = (
                    "another result" if has_manifest(self.output) else "an unfinished run with other options or inputs"
                )
                raise ChangedRunError(
                    f"{self.output}: holds {held}: {'; '.join(differences)}. "
                    "Use --overwrite to replace it, or another --output or --corpus"
                )
            self._empty_folder()
            found = None
        own = (storage.join(self.output, folder) for folder in self._own_folders())
        for folder in (self.output, self.work, storage.join(self.output, JOURNAL), *own):
            storage.remove_temporaries(folder)
        if found is None:
            self._write_header()
        elif has_manifest(self.output):
            self._take_up_finished()
        else:
            self._take_up_begun()

    def _result_names(self) -> list[str]:
        names = storage.list_folder(self.output)
        return [name for name in names if not name.startswith(".") and name not in (JOURNAL, _WORK)]

    def _is_own(self, name: str) -> bool:
        if name in self._stage.writes or f"{name.partition('/')[0]}/" in self._stage.writes:
            return True
        return name == MANIFEST_FILE or bool(_SHARD.match(name)) or ".tmp-" in name

    def _own_folders(self) -> list[str]:
        """Return the folders that the stage writes, and all below them, by their names in the output folder."""
        names = [name.rstrip("/") for name in self._stage.writes]
        folders = [name for name in names if storage.is_folder(storage.join(self.output, name))]
        for folder in folders:  # which grows as it goes
            below = [storage.join(folder, name) for name in storage.list_folder(storage.join(self.output, folder))]
            folders += [name for name in below if storage.is_folder(storage.join(self.output, name))]
        return folders

    def _names_in_own_folders(self) -> list[str]:
        folders = self._own_folders()
        names = [
            storage.join(folder, name)
            for folder in folders
            for name in storage.list_folder(storage.join(self.output, folder))
            if not name.startswith(".")
        ]
        return sorted(set(names) - set(folders))

    def _is_bare(self) -> bool:
        """Whether a run began here but made nothing yet, so that there is no result that another could differ from."""
        journal = storage.list_folder(storage.join(self.output, JOURNAL))
        return not self._result_names() and not storage.list_folder(self.work) and set(journal) <= {_HEADER}

    def _run_tasks(
        self,
        executor: Executor,
        function: Callable[[TaskType], TaskResult],
        tasks: Sequence[TaskType],
        phase: str,
        work: bool,
        total: int | None,
        unit: str,
    ) -> list[ShardEntry]:
        entries = {task.name: entry for task in tasks if (entry := self._known.get((phase, task.name)))}
        todo = [task for task in tasks if task.name not in entries]
        progress = self._options.progress
        if entries and todo:
            progress.note(
                f"{self._identity.stage}: goes on, {len(entries)} of {len(tasks)} {phase} were finished before"
            )
        # Closed at once where it ends early, so that no worker goes on beside what is said of the end.
        finishing = contextlib.closing(executor.map(function, todo, progress.advance))
        with show_progress(progress, f"{self._identity.stage}: {phase}", total, unit), finishing as finished:
            for task, result in finished:
                fields = {field.name: getattr(result, field.name) for field in dataclasses.fields(result)}
                fields["dropped"] = dict(sorted(result.dropped.items()))
                entry = ShardEntry(phase=phase, name=task.name, work=work, **fields)
                self._write_entry(entry)
                entries[task.name] = entry
        ordered = [entries[task.name] for task in tasks]
        self._done.extend(ordered)
        return ordered

    def _left(self, total: int, unit: str, phase: str, tasks: Sequence[TaskType]) -> int:
        """Return what remains of the work of all tasks: the rate and the time left are of what this run does.

        Where the entries of an earlier run do not tell how much that was, its tasks count as of the same size.
        """
        done = [entry for task in tasks if (entry := self._known.get((phase, task.name)))]
        counted = sum(entry.records_in for entry in done) if unit == "records" else 0
        return total - counted if counted or not done else round(total * (1 - len(done) / len(tasks)))

    def _check_funnel(self, manifest: Manifest) -> None:
        name, came, went = self._identity.stage, manifest.records_in, manifest.records_out
        lost = came - went - sum(manifest.dropped.values())
        if lost:
            raise WebtextError(
                f"{name}: {came} records came in, but {went} out and {sum(manifest.dropped.values())} dropped leave "
                f"{lost} unexplained; this is a bug in webtext, please report it"
            )
        if came == 0:
            raise InputError(
                f"{name}: the input holds no records at all; check the files that were named, or the stage before"
            )
        if went == 0:
            # Nothing of it is worth keeping, and what caused it (a network that was down) may have passed.
            self._forget_tasks()
            reasons = ", ".join(f"{reason} {count}" for reason, count in list(manifest.dropped.items())[:5])
            raise WebtextError(
                f"{name}: all {came} records were dropped ({reasons}); nothing is left for the next stage. "
                "Change the options and run again with --overwrite; if the cause has passed, just run again"
            )

    def _forget_tasks(self) -> None:
        storage.remove(self.work)
        for name in storage.list_folder(storage.join(self.output, JOURNAL)):
            if name != _HEADER:
                storage.remove(self._journal(name))

    def _recorded_identity(self) -> Identity | None:
        if has_manifest(self.output):
            return read_manifest(self.output).identity
        if storage.exists(self._journal(_HEADER)):
            header = storage.read_json(self._journal(_HEADER))
            return Identity(**{key: value for key, value in header.items() if key not in (_PARTS, _ANNOUNCED)})
        return None

    def _write_header(self, announced: Sequence[str] = ()) -> None:
        more = {_PARTS: self._parts, _ANNOUNCED: sorted(announced)}
        header = dataclasses.asdict(self._identity) | {name: values for name, values in more.items() if values}
        storage.write_json(self._journal(_HEADER), header)

    def _only_parts_changed(self, found: Identity) -> bool:
        """Whether a run that was begun here differs from this one in nothing but inputs of single tasks."""
        if not self._parts or has_manifest(self.output) or found == self._identity:
            return False
        parts = {*self._parts, *storage.read_json(self._journal(_HEADER)).get(_PARTS, [])}

        def without_parts(identity: Identity) -> Identity:
            rest = {name: value for name, value in identity.inputs.items() if name not in parts}
            return dataclasses.replace(identity, inputs=rest)

        return without_parts(found) == without_parts(self._identity)

    def _keep_entries_of_parts(self) -> None:
        """Forget what the phases made that read all parts; take up the new inputs."""
        for name in storage.list_folder(storage.join(self.output, JOURNAL)):
            if name != _HEADER and storage.read_json(self._journal(name))["phase"] in self._of_all_parts:
                storage.remove(self._journal(name))
        self._write_header()

    def forget(self, phase: str, name: str) -> None:
        """Forget the entry of a finished task, so that it is run again."""
        if self._known.pop((phase, name), None) is not None:
            storage.remove(self._journal(f"{phase}--{name}.json"))

    def known(self, phase: str, name: str) -> ShardEntry | None:
        """Return the entry of a task that was finished before."""
        return self._known.get((phase, name))

    def _refuse_foreign_folder(self) -> None:
        names = self._result_names()
        if names and all(self._is_own(name) for name in names):
            raise InputError(
                f"{self.output}: holds {names[0]}, ... but no manifest, so nothing vouches for them; "
                "delete the folder, then run again to make it anew"
            )
        if names:
            raise InputError(
                f"{self.output}: is not empty ({names[0]}, ...) and was not made by webtext; choose an empty --output"
            )

    def _take_up_finished(self) -> None:
        """Check every file by its checksum; if one is damaged, fall back to a begun run without its entry."""
        manifest = read_manifest(self.output)
        intact = self._intact(list(manifest.shards))
        if sum(not entry.work for entry in intact) == len(manifest.final_shards):
            self._remove_journal()
            self._done = list(manifest.shards)
            self.finished = True
            self.note(f"{self._identity.stage}: was finished before, and its files are intact")
            return
        for entry in intact:
            self._write_entry(entry)
        self._write_header(self._listed_in_own_folders())
        storage.remove(storage.join(self.output, MANIFEST_FILE))
        self._known = {(entry.phase, entry.name): entry for entry in intact}

    def _take_up_begun(self) -> None:
        names = storage.list_folder(storage.join(self.output, JOURNAL))
        entries = [ShardEntry.from_json(storage.read_json(self._journal(name))) for name in names if name != _HEADER]
        self._known = {(entry.phase, entry.name): entry for entry in self._intact(entries)}

    def _intact(self, entries: list[ShardEntry]) -> list[ShardEntry]:
        """Return the entries whose files all are what they say; name the files of the others."""
        with ThreadPoolExecutor(_CHECKING_THREADS) as threads:
            problems = list(threads.map(self._problem, entries))
        for entry, problem in zip(entries, problems, strict=True):
            if problem and not (entry.work and "missing" in problem):
                self.note(f"{problem}; it is made again")
        return [entry for entry, problem in zip(entries, problems, strict=True) if not problem]

    def _problem(self, entry: ShardEntry) -> str | None:
        return next(filter(None, (check_file(self.output, file) for file in entry.files)), None)

    def _write_entry(self, entry: ShardEntry) -> None:
        storage.write_json(self._journal(f"{entry.phase}--{entry.name}.json"), entry.to_json())

    def _journal(self, name: str) -> str:
        return storage.join(self.output, JOURNAL, name)

    def _remove_journal(self) -> None:
        storage.remove(self.work)
        storage.remove(storage.join(self.output, JOURNAL))

    def _empty_folder(self) -> None:
        # The manifest goes first, the journal last: a folder that is being emptied must neither look finished nor,
        # after a kill, like one that is not ours.
        self._refuse_foreign_files()
        if has_manifest(self.output):
            header = dataclasses.asdict(read_manifest(self.output).identity)
            storage.write_json(self._journal(_HEADER), header | {_ANNOUNCED: self._listed_in_own_folders()})
            storage.remove(storage.join(self.output, MANIFEST_FILE))
        for name in storage.list_folder(self.output):
            if not name.startswith(".lock") and name != JOURNAL:
                storage.remove(storage.join(self.output, name))
        storage.remove(storage.join(self.output, JOURNAL))

    def _listed(self) -> set[str]:
        """Return the names of the files that the manifest lists; without one those of the journal."""
        if has_manifest(self.output):
            return {file.name for file in read_manifest(self.output).files}
        listed: set[str] = set()
        storage.remove_temporaries(storage.join(self.output, JOURNAL))
        for name in storage.list_folder(storage.join(self.output, JOURNAL)):
            noted = storage.read_json(self._journal(name))
            if name == _HEADER:
                listed.update(noted.get(_ANNOUNCED, []))
            else:
                listed.update(file.name for file in ShardEntry.from_json(noted).files)
        return listed

    def _listed_in_own_folders(self) -> list[str]:
        return sorted(name for name in self._listed() if name.partition("/")[0] in self._stage.writes and "/" in name)

    def _refuse_foreign_files(self) -> None:
        """Raise InputError, before anything is removed, for a file in the folder that is not of this stage."""
        listed = self._listed()
        for name in (*self._result_names(), *self._names_in_own_folders()):
            if name not in listed and not self._is_own(name):
                raise InputError(
                    f"{storage.join(self.output, name)}: was not made by this stage, so --overwrite keeps it; "
                    "move it away, or choose another --output"
                )


@contextlib.contextmanager
def stage_run(
    stage: Stage,
    config: Any,
    inputs: Mapping[str, str],
    output: str,
    options: RunOptions,
    *,
    parts: Mapping[str, str] | None = None,
    of_all_parts: Sequence[str] = (),
) -> Iterator[StageRun]:
    """Yield the run of a stage under the lock of its output folder.

    `inputs` maps the name of each input to its fingerprint. Raises LockedError where another process writes the folder,
    ChangedRunError where it holds the result of another config, version or input, and InputError where it is not ours.

    `parts` are further inputs, each read by tasks whose names say what they read, but for the phases `of_all_parts`.
    Where only these inputs changed, a run that was not finished goes on: only what those phases made is made again.
    """
    identity = Identity(stage.name, stage.version, identity_of(config), {**inputs, **(parts or {})})
    with storage.folder_lock(output):
        run = StageRun(stage, identity, output, options, sorted(parts or {}), of_all_parts)
        run.open()
        yield run
