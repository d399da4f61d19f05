"""The output folder of a run: the journal of finished tasks, and which files belong to the stage.

The journal is a folder of JSON files next to the shards: `run.json`, the identity of the run, and an entry per finished
task. It exists until the manifest is written; a killed run resumes from it.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from pipelines import storage
from pipelines.engine.manifest import MANIFEST_FILE, NEXT, Identity, ShardEntry, has_manifest, read_entry, read_manifest
from pipelines.errors import InputError, translate_format_errors
from pipelines.format import format_bytes, plural

JOURNAL = "_journal"
WORK = "_work"
_HEADER = "run.json"
_SHARD_INPUTS = "inputs_of_tasks"
_REFUSED = "refused"
_DECLARED = "files_in_folders"
# The names of shards, including those that a killed run did not list yet.
_SHARD = re.compile(r"[a-z-]+-\d{5}(-\d{5})?(-[a-z]+)?\.[a-z.]+$")


def is_unfinished(folder: str) -> bool:
    """Return whether a run was started in a folder and has not finished."""
    return storage.exists(storage.join(folder, JOURNAL))


class OutputFolder:
    """The folder that a run writes.

    `writes` names the files and folders of the stage other than numbered shards. In a folder of the stage, only files
    that a run listed or declared belong to the stage; with a trailing slash, everything in it does.
    """

    def __init__(self, path: str, writes: Sequence[str] = ()) -> None:
        self.path = path
        self.work = storage.join(path, WORK)
        self._writes = tuple(writes)

    # The journal

    def recorded_identity(self, config: Any = None) -> Identity | None:
        """Return the identity of the finished or unfinished run in the folder, with the newer options of a config."""
        if has_manifest(self.path):
            identity = read_manifest(self.path).identity
        elif storage.exists(self._journal_path(_HEADER)):
            identity = msgspec.convert(self._header(), Identity)
        else:
            return None
        return identity if config is None else identity.with_current_options(config)

    def mark_refused(self, refused: bool = True) -> None:
        """Record whether the unfinished run was refused, so that it does not block other inputs."""
        storage.write_json(self._journal_path(_HEADER), self._header() | {_REFUSED: refused})

    def is_refused(self) -> bool:
        """Return whether the unfinished run was refused."""
        return storage.exists(self._journal_path(_HEADER)) and bool(self._header().get(_REFUSED))

    def write_header(
        self, identity: Identity, shard_inputs: Sequence[str] = (), declared: Collection[str] = ()
    ) -> None:
        """Record the identity of the run, the inputs of single tasks, and the files it will write into its folders."""
        lists = {_SHARD_INPUTS: list(shard_inputs), _DECLARED: sorted(declared)}
        header = dataclasses.asdict(identity) | {key: names for key, names in lists.items() if names}
        storage.write_json(self._journal_path(_HEADER), header)

    def describe_replacement(self, writer: str | None = None) -> str | None:
        """Describe the unfinished result, if there is one, that `--overwrite` builds to replace the finished one.

        `writer` is the process that builds it.
        """
        folder = OutputFolder(storage.join(self.path, NEXT))
        if not has_manifest(self.path) or (identity := folder.recorded_identity()) is None:
            return None
        differences = "; ".join(read_manifest(self.path).identity.differences(identity))
        started = storage.modified_at(folder._journal_path(_HEADER)).astimezone()
        tasks, size = plural(len(folder._entry_names()), "task"), format_bytes(storage.folder_bytes(folder.path))
        if writer:
            advice = f"{writer} is building it"
        else:
            command = f"`webtext {identity.stage}` or `webtext build` command"
            advice = f"to complete it, re-run the {command} that started it; to discard it, delete this folder"
        return (
            f"{folder.path}: unfinished replacement of the result ({differences}), started {started:%Y-%m-%d %H:%M}, "
            f"{tasks} complete, {size}; {advice}"
        )

    def shard_inputs(self) -> list[str]:
        """Return the names of the inputs that single tasks of the unfinished run read."""
        return list(self._header().get(_SHARD_INPUTS, []))

    def entries(self) -> list[ShardEntry]:
        """Return the entries of the journal."""
        paths = [self._journal_path(name) for name in self._entry_names()]
        return list(filter(None, storage.map_files(_read_if_whole, paths)))

    def write_entry(self, entry: ShardEntry) -> None:
        """Record a finished task, durably if its files are."""
        with storage.atomic_write(self._journal_path(_entry_name(entry)), durable=not entry.work) as stream:
            stream.write(storage.json_bytes(entry.to_json()))

    def discard_entry(self, entry: ShardEntry) -> None:
        """Remove the entry of a task, so that it runs again."""
        storage.remove(self._journal_path(_entry_name(entry)))

    def discard_phases(self, phases: Collection[str]) -> None:
        """Remove the entries of phases, and what was written or declared for them in folders of the stage."""
        entries = self.entries()
        kept = {file.name for entry in entries if entry.phase not in phases for file in entry.files}
        for name in self.listed_in_stage_folders():
            if name not in kept:
                storage.remove(storage.join(self.path, name))
        for entry in entries:
            if entry.phase in phases:
                self.discard_entry(entry)

    def remove_journal(self) -> None:
        """Remove work files and journal; the manifest is complete."""
        storage.remove(self.work)
        storage.remove(storage.join(self.path, JOURNAL))

    def remove_temporaries(self) -> None:
        """Remove the temporary files of a killed run, not those of a run in another folder below this one."""
        for name in storage.list_folder(self.path):
            if name in (JOURNAL, WORK) or self._belongs_to_stage(name):
                storage.remove_temporaries(storage.join(self.path, name))

    # Ownership of files

    def has_no_results(self) -> bool:
        """Return whether the run here has no manifest, no finished task and no work, so that nothing valuable is lost.

        There may be shards of a task that was killed, or of tasks that dropped all records; other files, such as
        checkpoints, are worth keeping. Of a run that was refused, only finished tasks of many are.
        """
        if has_manifest(self.path):
            return False
        if self.is_refused():  # of work that is not split, as that at the start of a run, the phase is the name
            return all(entry.phase == entry.name for entry in self.entries())
        if self._entry_names() or storage.list_folder(self.work):
            return False
        names = self._result_names()
        return all(name in self._writes or _SHARD.match(name) or storage.is_temporary(name) for name in names)

    def check_unclaimed(self) -> None:
        """Raise InputError if the folder, which has neither manifest nor journal, contains files."""
        names = self._result_names()
        if names and all(self._belongs_to_stage(name) for name in names):
            raise InputError(
                f"{self.path}: contains {names[0]}, ... but no manifest, so its files cannot be verified; "
                "move the folder away and re-run the command"
            )
        if names:
            raise InputError(
                f"{self.path}: is not empty ({names[0]}, ...) and was not written by webtext; choose another --output"
            )

    def empty(self) -> None:
        """Remove the result of another run; raise InputError, before anything is removed, for a file of someone else.

        The manifest goes first and the journal last: a folder that is being emptied must neither look finished nor,
        after a kill, like a folder that webtext did not write.
        """
        self.check_foreign_files()
        if has_manifest(self.path):
            self.write_header(read_manifest(self.path).identity, declared=self.listed_in_stage_folders())
            storage.remove(storage.join(self.path, MANIFEST_FILE))
        for name in storage.list_folder(self.path):
            if not name.startswith(".lock") and name != JOURNAL:
                storage.remove(storage.join(self.path, name))
        storage.remove(storage.join(self.path, JOURNAL))

    def own_names(self) -> list[str]:
        """Return the names in the folder that belong to the run or its result."""
        own = {JOURNAL, WORK, *(name.partition("/")[0] for name in self._listed())}
        return [name for name in storage.list_folder(self.path) if name in own or self._belongs_to_stage(name)]

    def listed_in_stage_folders(self) -> list[str]:
        """Return the files in folders of the stage that its runs listed or declared."""
        return sorted(name for name in self._listed() if "/" in name and name.partition("/")[0] in self._writes)

    def check_foreign_files(self) -> None:
        """Raise InputError for a file of someone else, which a new result must not remove."""
        listed = self._listed()
        for name in (*self._result_names(), *self._names_in_stage_folders()):
            if name not in listed and not self._belongs_to_stage(name):
                raise InputError(
                    f"{storage.join(self.path, name)}: was not written by this stage, so --overwrite keeps it; "
                    "move it away, or choose another --output"
                )

    def _listed(self) -> set[str]:
        """Return the files that the manifest lists, or without a manifest those of the journal."""
        if has_manifest(self.path):
            return {file.name for file in read_manifest(self.path).files}
        storage.remove_temporaries(storage.join(self.path, JOURNAL))
        declared = self._header().get(_DECLARED, []) if storage.exists(self._journal_path(_HEADER)) else []
        return {*declared, *(file.name for entry in self.entries() for file in entry.files)}

    def _belongs_to_stage(self, name: str) -> bool:
        if name in self._writes or f"{name.partition('/')[0]}/" in self._writes:
            return True
        return name == MANIFEST_FILE or bool(_SHARD.match(name)) or storage.is_temporary(name)

    def _result_names(self) -> list[str]:
        names = storage.list_folder(self.path)
        return [name for name in names if not name.startswith(".") and name not in (JOURNAL, WORK, NEXT)]

    def _names_in_stage_folders(self) -> list[str]:
        names: list[str] = []
        folders = [name.rstrip("/") for name in self._writes]
        for folder in folders:  # grows while it is iterated
            for name in storage.list_folder(storage.join(self.path, folder)):
                path = storage.join(folder, name)
                if storage.is_folder(storage.join(self.path, path)):
                    folders.append(path)
                elif not name.startswith("."):
                    names.append(path)
        return sorted(names)

    def _header(self) -> dict[str, Any]:
        path = self._journal_path(_HEADER)
        with translate_format_errors(path, f"the header of a run; delete {self.path} and re-run the command"):
            header: dict[str, Any] = storage.read_json(path)
            msgspec.convert(header, Identity)
            return header

    def _entry_names(self) -> list[str]:
        """Return the names of the entries, without the temporary files of a killed run."""
        names = storage.list_folder(storage.join(self.path, JOURNAL))
        return [name for name in names if name != _HEADER and name.endswith(".json")]

    def _journal_path(self, name: str) -> str:
        return storage.join(self.path, JOURNAL, name)


def _entry_name(entry: ShardEntry) -> str:
    return f"{entry.phase}--{entry.name}.json"


def _read_if_whole(path: str) -> ShardEntry | None:
    """Return an entry; None if a loss of power left no bytes, or zeros, of one of a work phase."""
    try:
        return read_entry(path)
    except InputError:
        if storage.read_range(path, 0, 1) in (b"", b"\0"):
            return None
        raise
