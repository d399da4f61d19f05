"""The submissions of every file, kept next to the links, so that a further file is added without reading the others.

They are work files, named by content, each with the entry of the task that wrote it. The manifest does not list them:
they are not part of the result, and the folder can be deleted.
"""

from __future__ import annotations

from collections.abc import Sequence

from pipelines import storage
from pipelines.engine.manifest import ShardEntry, check_file, read_entry
from pipelines.engine.run import StageRun
from pipelines.errors import InputError
from pipelines.format import plural
from pipelines.stages.scrape.partition import FileToRead

PARTITIONS = "partitions"


def keep_partitions(run: StageRun, entries: Sequence[ShardEntry]) -> None:
    """Keep what the tasks wrote, which is otherwise removed when the stage is done."""
    folder = storage.join(run.output, PARTITIONS)
    for entry in entries:
        for file in entry.files:
            storage.link(storage.join(run.output, file.name), storage.join(folder, storage.basename(file.name)))
        storage.write_json(storage.join(folder, f"{entry.name}.json"), entry.to_json())


def reuse_partitions(run: StageRun, files: Sequence[FileToRead]) -> None:
    """Count the tasks as done whose files an earlier result kept, and are intact."""
    assert run.earlier is not None
    known = [entry for item in files if (entry := _kept_entry(run.earlier, item))]
    for entry in known:
        if run.resumed_entry(entry.phase, entry.name) is None and _link(run, run.earlier, entry):
            run.adopt_entry(entry)
    if not known:
        run.note("the submissions of the known files were not kept, so that all files are read")
    else:
        run.note(f"the submissions of {plural(len(known), 'known file')} were kept; only the others are read")


def _kept_entry(earlier: str, item: FileToRead) -> ShardEntry | None:
    try:
        entry = read_entry(storage.join(earlier, PARTITIONS, f"{item.name}.json"))
    except InputError:
        return None
    return entry if entry.name == item.name else None


def _link(run: StageRun, earlier: str, entry: ShardEntry) -> bool:
    """Link the files of an entry into the work folder; return whether they are intact."""
    for file in entry.files:
        kept = storage.join(earlier, PARTITIONS, storage.basename(file.name))
        if not storage.exists(kept):
            return False
        storage.link(kept, storage.join(run.output, file.name))
    return not any(check_file(run.output, file) for file in entry.files)
