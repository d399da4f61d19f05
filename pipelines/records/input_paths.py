"""The files that the names, folders and globs of an input refer to."""

from __future__ import annotations

import contextlib
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence

from pipelines import storage
from pipelines.engine.journal import JOURNAL
from pipelines.engine.manifest import MANIFEST_FILE, read_manifest
from pipelines.errors import InputError, UsageError, translate_format_errors
from pipelines.format import plural
from pipelines.records.data_card import DATA_CARD
from pipelines.records.reader import FORMATS
from pipelines.storage.compression import strip_compression

TEXT_SUFFIXES = (*FORMATS, ".wet")
ARCHIVE_SUFFIXES = (".warc", ".arc")
PAGE_SUFFIXES = (".html", ".htm", ".xhtml", *ARCHIVE_SUFFIXES)
# One document per file: what is next to them does not describe tables.
_PLAIN_SUFFIXES = (".txt", ".md")


def expand_paths(
    paths: Sequence[str], suffixes: Sequence[str], *, check_types: bool = True, notes: list[str] | None = None
) -> list[str]:
    """Return the files that names, folders and globs refer to, in order; raise InputError for one that matches none.

    `suffixes` (without compression, in lower case) select the files of a folder; `notes` receives a line for each
    folder with others. With `check_types`, other named files are refused.
    """
    files: list[str] = []
    for path in expand_globs(paths):
        if storage.is_folder(path):
            files.extend(_files_in_folder(path, tuple(suffixes), notes))
        elif not storage.exists(path):
            raise InputError(f"{path}: no such file or folder")
        elif not storage.is_file(path):
            # Inputs are read more than once, first for their fingerprint, which would wait for a pipe forever.
            raise InputError(f"{path}: is not a regular file; save it as one")
        elif check_types and not strip_compression(path).endswith(tuple(suffixes)):
            problem = f"unknown file type; supported are {', '.join(suffixes)} (compressed or not)"
            raise _unsupported(path, problem, [path], suffixes)
        else:
            files.append(path)
    # A file that is named twice, also by two spellings of its path, is read once.
    return list({storage.absolute_path(file): file for file in reversed(files)}.values())[::-1]


def _files_in_folder(folder: str, suffixes: tuple[str, ...], notes: list[str] | None) -> list[str]:
    """Return the files of these types below a folder; `notes` receives a line if there are others.

    Raises InputError if there are none, and UsageError if a stage wrote some of the files.
    """
    files = storage.walk_files(folder)
    _check_no_stage_inside(folder, files)
    described = _files_of_data_sets(files)
    files = [file for file in files if described.get(storage.parent(file), {file}) >= {file}]
    matches = [file for file in files if strip_compression(file).endswith(suffixes)]
    if any(not strip_compression(file).endswith(_PLAIN_SUFFIXES) for file in matches):
        # Next to tables, it describes them.
        matches = [file for file in matches if storage.basename(file) != DATA_CARD]
    if not matches:
        patterns = ", ".join("*" + suffix for suffix in suffixes)
        raise _unsupported(folder, f"contains no {patterns} files (compressed or not)", files, suffixes)
    others = Counter(_type_of(file) for file in {*files} - {*matches})
    if others and notes is not None:
        types = ", ".join(f"{name} {count:,}" for name, count in sorted(others.items()))
        notes.append(f"{folder}: {plural(others.total(), 'file')} of other types not read: {types}")
    return matches


def _unsupported(path: str, problem: str, files: Iterable[str], suffixes: Sequence[str]) -> InputError:
    """Return the error for an input without files of the right types, which may be pages."""
    if not {*PAGE_SUFFIXES} & {*suffixes} and any(strip_compression(file).endswith(PAGE_SUFFIXES) for file in files):
        problem = f"contains web pages; extract their text first: `webtext extract {shlex.quote(path)}`"
        problem += "; `webtext extract --explain` explains one of them"
    elif ".html" in suffixes and any(strip_compression(file).endswith(TEXT_SUFFIXES) for file in files):
        problem += f"; texts need no extraction: `webtext dedup {shlex.quote(path)}` reads them"
    return InputError(f"{path}: {problem}")


def _type_of(file: str) -> str:
    name = storage.basename(file)
    _, dot, suffix = strip_compression(name).rpartition(".")
    return name if name == DATA_CARD else f".{suffix}" if dot else "no suffix"


def _check_no_stage_inside(folder: str, files: Sequence[str]) -> None:
    """Raise UsageError if files below a folder were written by a stage: what it dropped would be read, too."""
    for file in files:
        path, is_journal, _ = file.partition(f"/{JOURNAL}/")
        if is_journal:
            raise UsageError(f"{path}: is an unfinished output of webtext; finish it and name it, or omit it")
        if storage.basename(file) == MANIFEST_FILE and storage.parent(file) != folder.rstrip("/"):
            path = storage.parent(file)
            with contextlib.suppress(InputError):  # a manifest of another program
                stage = read_manifest(path).identity.stage
                raise UsageError(f"{path}: is the output of webtext {stage}; name it or --corpus {folder}")


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


def expand_globs(paths: Sequence[str]) -> list[str]:
    """Return the paths with the matches of each glob in its place; raise InputError for one that matches nothing."""
    expanded: list[str] = []
    for path in paths:
        matches = storage.glob(path) if storage.is_glob(path) else [path]
        if not matches:
            raise InputError(f"{path}: matches no files")
        expanded.extend(matches)
    return expanded
