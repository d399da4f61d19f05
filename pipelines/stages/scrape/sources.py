"""The files that are read: which of a folder's are dumps, and in what order whatever the order they were named in."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO

import zstandard

from pipelines.core import storage
from pipelines.core.compression import COMPRESSED_STARTS, SUFFIXES, strip_compression
from pipelines.core.errors import InputError
from pipelines.core.journal import JOURNAL
from pipelines.core.manifest import MANIFEST_FILE

STANDARD_INPUT = "-"
_SPOOL_FILE = "stdin.ndjson.zst"

_READ_BYTES = 1 << 20
_LINE_SUFFIXES = (".json", ".ndjson", ".jsonl")
_URL_LIST_SUFFIXES = (".txt", ".csv", ".tsv", ".parquet", *_LINE_SUFFIXES)


@dataclasses.dataclass(frozen=True)
class SourceFile:
    """One file to read; `label` names it in the results, where no path may stand."""

    label: str
    path: str
    fingerprint: str

    @property
    def shown(self) -> str:
        """How messages name the file."""
        return "standard input" if self.label == _SPOOL_FILE else self.path

    @property
    def key(self) -> str:
        """A short name for what the file holds, and under which label."""
        return hashlib.sha256(f"{self.label}\n{self.fingerprint}".encode()).hexdigest()[:16]


def find_files(paths: Sequence[str], source: str) -> list[SourceFile]:
    """Return the files meant by names, folders and globs, in an order that does not depend on theirs.

    A file that is named is taken whatever its name; of a folder or glob only what looks like a dump (or like a list of
    URLs). Raises InputError for a path that means no file.
    """
    fits, what = (_is_url_list, "list of URLs") if source == "urls" else (_is_dump, "file of submissions")
    found: dict[str, None] = {}
    for path in paths:
        found.update(dict.fromkeys(_files_of(path, fits, what)))
    named = sorted((storage.basename(path), storage.content_fingerprint(path), path) for path in found)
    seen: dict[str, int] = {}
    files = []
    for name, fingerprint, path in named:
        seen[name] = seen.get(name, 0) + 1
        files.append(SourceFile(name if seen[name] == 1 else f"{name}~{seen[name]}", path, fingerprint))
    return files


def _files_of(path: str, fits: Callable[[str], bool], what: str) -> list[str]:
    if storage.exists(path) and not storage.is_folder(path):
        return [path]
    if storage.is_glob(path):
        matches, problem = storage.glob(path), f"matches no {what}"
    elif storage.is_folder(path):
        matches, problem = _outside_of_results(storage.walk_files(path)), f"holds no {what}"
    else:
        raise InputError(f"{path}: no such file or folder")
    kept = [match for match in matches if fits(match) and not storage.is_folder(match)]
    if not kept:
        raise InputError(f"{path}: {problem}")
    return kept


def _outside_of_results(paths: list[str]) -> list[str]:
    """Return the files that lie in no folder of a stage, where a corpus stands beside its dumps."""
    folders = {path.rpartition("/")[0] for path in paths}
    begun = {folder.removesuffix(f"/{JOURNAL}") for folder in folders if folder.endswith(f"/{JOURNAL}")}
    results = begun | {folder for folder in folders if f"{folder}/{MANIFEST_FILE}" in paths}
    return [path for path in paths if not any(path.startswith(f"{folder}/") for folder in results)]


def _is_dump(path: str) -> bool:
    name = storage.basename(path)
    # Dumps of comments lie beside those of submissions, by month (RC_2017-11) or by subreddit (python_comments.zst).
    if name.startswith((".", "RC_")) or strip_compression(name).endswith("_comments"):
        return False
    return name.endswith((*SUFFIXES, *_LINE_SUFFIXES)) or (name.startswith("RS_") and "." not in name)


def _is_url_list(path: str) -> bool:
    name = storage.basename(path)
    return not name.startswith(".") and strip_compression(name).endswith(_URL_LIST_SUFFIXES)


@contextlib.contextmanager
def with_standard_input(paths: Sequence[str], output: str) -> Iterator[list[str]]:
    """Yield the paths with `-` replaced by a file that holds all of standard input, beside the output folder.

    The file exists only inside the block. It makes standard input like any other file: it has a fingerprint, so that a
    run that was killed goes on where the same bytes come in again, and says so where others do.
    """
    if STANDARD_INPUT not in paths:
        yield list(paths)
        return
    folder = output.rstrip("/") + "-stdin"
    spool = storage.join(folder, _SPOOL_FILE)
    with storage.folder_lock(folder):
        storage.remove_temporaries(folder)
        try:
            _spool(sys.stdin.buffer, spool)
            yield [spool if path == STANDARD_INPUT else path for path in paths]
        finally:
            storage.remove(folder)


def _spool(stream: BinaryIO, path: str) -> None:
    """Write a stream into a file, compressed; raise InputError where it is empty or already compressed."""
    chunk = stream.read(_READ_BYTES)
    if not chunk:
        raise InputError("standard input is empty; pipe submissions into it, one JSON object a line")
    for start, (kind, _) in COMPRESSED_STARTS.items():
        if chunk.startswith(start):
            raise InputError(f"standard input is compressed with {kind}; decompress it first, or name the file instead")
    compressor = zstandard.ZstdCompressor(level=1).compressobj()
    with storage.atomic_write(path) as writer:
        while chunk:
            writer.write(compressor.compress(chunk))
            chunk = stream.read(_READ_BYTES)
        writer.write(compressor.flush())
