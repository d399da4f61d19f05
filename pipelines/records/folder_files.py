"""Which files of a folder are read: those of known types, but none that a stage or a data set has for itself."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Sequence

from pipelines import storage
from pipelines.engine.journal import JOURNAL
from pipelines.engine.manifest import MANIFEST_FILE, read_manifest
from pipelines.engine.run_record import without_logs
from pipelines.errors import InputError, UsageError, translate_format_errors
from pipelines.format import plural
from pipelines.records.data_card import DATA_CARD
from pipelines.storage.compression import strip_compression

# One document per file: what is next to them does not describe tables.
_PLAIN_SUFFIXES = (".txt", ".md")


def files_in_folder(folder: str, suffixes: tuple[str, ...], notes: list[str] | None) -> list[str]:
    """Return the files of these types below a folder; `notes` receives a line if there are others.

    Raises InputError if there are none, and UsageError if a stage wrote some of the files.
    """
    files = without_logs(storage.walk_files(folder), notes)
    _check_no_stage_inside(folder, files)
    described = _files_of_data_sets(files)
    files = [file for file in files if described.get(storage.parent(file), {file}) >= {file}]
    matches = [file for file in files if strip_compression(file).endswith(suffixes)]
    if any(not strip_compression(file).endswith(_PLAIN_SUFFIXES) for file in matches):
        # Next to tables, it describes them.
        matches = [file for file in matches if storage.basename(file) != DATA_CARD]
    if not matches:
        patterns = ", ".join("*" + suffix for suffix in suffixes)
        raise InputError(f"{folder}: contains no {patterns} files (compressed or not)")
    others = Counter(_type_of(file) for file in {*files} - {*matches})
    if others and notes is not None:
        types = ", ".join(f"{name} {count:,}" for name, count in sorted(others.items()))
        notes.append(f"{folder}: {plural(others.total(), 'file')} of other types not read: {types}")
    return matches


def _type_of(file: str) -> str:
    name = storage.basename(file)
    _, dot, suffix = strip_compression(name).rpartition(".")
    return name if name == DATA_CARD else f".{suffix}" if dot else "no suffix"


def _check_no_stage_inside(folder: str, files: Sequence[str]) -> None:
    """Raise UsageError if files below a folder were written by a stage: what it dropped would be read, too."""
    for file in files:
        path, is_journal, _ = file.partition(f"/{JOURNAL}/")
        if is_journal:
            raise UsageError(f"{path}: is an unfinished output of webtext; finish it and name it, or leave it out")
        if storage.basename(file) == MANIFEST_FILE and storage.parent(file) != folder.rstrip("/"):
            path = storage.parent(file)
            with contextlib.suppress(InputError):  # a manifest of another program
                stage = read_manifest(path).identity.stage
                raise UsageError(f"{path}: is the output of webtext {stage}; name it, not {folder}, or leave it out")


def _files_of_data_sets(files: Sequence[str]) -> dict[str, set[str]]:
    """Return the files to read of each folder that `datasets.save_to_disk` wrote, which can contain a cache as well."""
    listed: dict[str, set[str]] = {}
    for file in files:
        folder = storage.parent(file)
        if storage.basename(file) == "dataset_dict.json":
            listed.setdefault(folder, set())
        elif storage.basename(file) == "state.json" and storage.join(folder, "dataset_info.json") in files:
            with translate_format_errors(file, "the state of a data set of datasets.save_to_disk"):
                names = [part["filename"] for part in storage.read_json(file)["_data_files"]]
            listed[folder] = {storage.join(folder, str(name)) for name in names}
    return listed
