"""The files to read: which files of a folder are dumps, in an order that does not depend on that of the arguments."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO

import zstandard

from pipelines import storage
from pipelines.engine.folder_lock import folder_lock
from pipelines.engine.journal import JOURNAL
from pipelines.engine.manifest import MANIFEST_FILE
from pipelines.engine.run_record import without_logs
from pipelines.errors import InputError
from pipelines.records.url_lists import JSON_SUFFIXES, URL_LIST_SUFFIXES
from pipelines.storage.compression import COMPRESSION_MAGIC, SUFFIXES, strip_compression

STANDARD_INPUT = "-"
_SPOOL_FILE = "stdin.ndjson.zst"

_CHUNK_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True)
class SourceFile:
    """One file to read; `label` names it in the results, which must not contain paths."""

    label: str
    path: str
    fingerprint: str

    @property
    def shown(self) -> str:
        """The name of the file in messages."""
        return "standard input" if self.label == _SPOOL_FILE else self.path

    @property
    def key(self) -> str:
        """A short name for the content of the file and its label."""
        return hashlib.sha256(f"{self.label}\n{self.fingerprint}".encode()).hexdigest()[:16]


def find_files(paths: Sequence[str], source: str) -> list[SourceFile]:
    """Return the files that names, folders and globs stand for, in an order that does not depend on theirs.

    A file that is named is used whatever its name; of a folder or glob only files that look like a dump (or like a list
    of URLs). Raises InputError for a path without files.
    """
    matches, noun = (_is_url_list, "list of URLs") if source == "urls" else (_is_dump, "file of submissions")
    unique = dict.fromkeys(file for path in paths for file in _expand(path, matches, noun))
    named = sorted((storage.basename(path), storage.content_fingerprint(path), path) for path in unique)
    seen = Counter[str]()
    files = []
    for name, fingerprint, path in named:
        seen[name] += 1
        files.append(SourceFile(name if seen[name] == 1 else f"{name}~{seen[name]}", path, fingerprint))
    return files


def _expand(path: str, matches: Callable[[str], bool], noun: str) -> list[str]:
    if storage.exists(path) and not storage.is_folder(path):
        return [path]
    if storage.is_glob(path):
        candidates, problem = storage.glob(path), f"matches no {noun}"
    elif storage.is_folder(path):
        candidates, problem = _outside_stage_folders(storage.walk_files(path)), f"contains no {noun}"
    else:
        raise InputError(f"{path}: no such file or folder")
    files = [file for file in without_logs(candidates) if matches(file) and storage.is_file(file)]
    if not files:
        raise InputError(f"{path}: {problem}")
    return files


def _outside_stage_folders(paths: list[str]) -> list[str]:
    """Return the files that are not in the folder of a stage, because a corpus may be next to its dumps."""
    folders = {path.rpartition("/")[0] for path in paths}
    unfinished = {folder.removesuffix(f"/{JOURNAL}") for folder in folders if folder.endswith(f"/{JOURNAL}")}
    stage_folders = unfinished | {folder for folder in folders if f"{folder}/{MANIFEST_FILE}" in paths}
    return [path for path in paths if not any(path.startswith(f"{folder}/") for folder in stage_folders)]


def _is_dump(path: str) -> bool:
    name = storage.basename(path)
    # Dumps of comments are next to those of submissions, by month (RC_2017-11) or by subreddit (python_comments.zst).
    if name.startswith((".", "RC_")) or strip_compression(name).endswith("_comments"):
        return False
    return name.endswith((*SUFFIXES, *JSON_SUFFIXES)) or (name.startswith("RS_") and "." not in name)


def _is_url_list(path: str) -> bool:
    name = storage.basename(path)
    return not name.startswith(".") and strip_compression(name).endswith(URL_LIST_SUFFIXES)


@contextlib.contextmanager
def with_standard_input(paths: Sequence[str], output: str) -> Iterator[list[str]]:
    """Yield the paths with `-` replaced by a temporary file that contains standard input, next to the output folder.

    Standard input then has a fingerprint like any file: a killed run resumes if the same bytes come in again, and is
    refused otherwise.
    """
    if STANDARD_INPUT not in paths:
        yield list(paths)
        return
    folder = output.rstrip("/") + "-stdin"
    spool = storage.join(folder, _SPOOL_FILE)
    with folder_lock(folder):
        storage.remove_temporaries(folder)
        try:
            _spool(sys.stdin.buffer, spool)
            yield [spool if path == STANDARD_INPUT else path for path in paths]
        finally:
            storage.remove(folder)


def _spool(stream: BinaryIO, path: str) -> None:
    """Write a stream to a compressed file; raise InputError if it is empty or already compressed."""
    chunk = stream.read(_CHUNK_BYTES)
    if not chunk:
        raise InputError("standard input is empty; pipe submissions into it, one JSON object per line")
    for magic, (name, _) in COMPRESSION_MAGIC.items():
        if chunk.startswith(magic):
            raise InputError(f"standard input is compressed with {name}; decompress it first, or pass the file instead")
    compressor = zstandard.ZstdCompressor(level=1).compressobj()
    with storage.atomic_write(path) as writer:
        while chunk:
            writer.write(compressor.compress(chunk))
            chunk = stream.read(_CHUNK_BYTES)
        writer.write(compressor.flush())
