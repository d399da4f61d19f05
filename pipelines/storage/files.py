"""Reads and writes files, on a disk or in an object store; nothing outside of `storage` does.

Paths are strings: a local path, or a URL that fsspec knows (`s3://`, `gs://`, `memory://`).
Every file is written under a temporary name and then renamed, so a reader never sees an incomplete file.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import glob as globbing
import hashlib
import io
import json
import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar, cast

import fsspec
from fsspec.implementations.local import LocalFileSystem

from pipelines.errors import InputError
from pipelines.storage.hashing import CRC32_PREFIX, Crc32, HashingWriter
from pipelines.storage.local_cache import forget_copy, known_copy_of, local_copy_of
from pipelines.storage.object_files import MAX_RANGE, Upload
from pipelines.storage.object_store import ObjectStore
from pipelines.storage.paths import (
    accessing,
    basename,
    is_local,
    is_temporary,
    join,
    locate,
    temporary_folder_of,
    translate_os_errors,
    with_protocol,
)

if TYPE_CHECKING:
    import numpy.typing as npt

# Opening a file in an object store takes several requests, one after the other.
_REMOTE_THREADS = 16
# Memory for ranges while all these threads read large files.
MAX_REMOTE_BYTES = _REMOTE_THREADS * MAX_RANGE
# Local files are read by threads only where most of the work releases Python's lock: checksums, parsing by pyarrow.
HASHING_THREADS = 4
# Parsed JSON takes up to 30 times its size. A manifest has 500 to 1,100 bytes per shard: room for 100,000 shards.
_MAX_JSON_BYTES = 128 << 20
_READ_BYTES = 1 << 20
_WHOLE = MAX_RANGE  # at once, of a file that is read as a whole
_SAMPLE_WINDOWS = 16
_SAMPLED_ABOVE_BYTES = 64 << 20
# Of files that others may read; the system tells it only by a change.
_UMASK = os.umask(0o077)
os.umask(_UMASK)


File = TypeVar("File")
Result = TypeVar("Result")


def mapped_path(path: str) -> str:
    """Return the path of a file for a memory map: its own, or that of a copy in the local cache, see `local_cache`."""
    with accessing(path, "read") as (file_system, plain):
        return plain if isinstance(file_system, LocalFileSystem) else local_copy_of(file_system, plain)


def map_files(
    function: Callable[[File], Result], files: Sequence[File], *, folder: str | None = None, local_threads: int = 1
) -> list[Result]:
    """Return the results of a function of files, in order, from several threads if the files are remote.

    `folder` contains the files if they are not given as paths. For local files, threads pay where the function releases
    Python's lock, such as one that computes a checksum.
    """
    are_local = all(is_local(path) for path in ([folder] if folder is not None else cast(Sequence[str], files)))
    if are_local and local_threads == 1:
        return list(map(function, files))
    with ThreadPoolExecutor(local_threads if are_local else _REMOTE_THREADS) as threads:
        return list(threads.map(function, files))


def fetch_copies(paths: Sequence[str]) -> None:
    """Download files of a remote folder that will be mapped, several at a time."""
    if paths and not is_local(paths[0]):
        # Starting threads costs more than looking up known copies: 25 ms instead of 0.5 ms for 64 files.
        new = [path for path in paths if known_copy_of(*locate(path)) is None]
        map_files(mapped_path, new)


def link_copies(paths: Sequence[str], owner: object) -> str:
    """Return a folder with links to files, or to copies of remote ones, that is removed with the object that needs it.

    For libraries that open a folder, and write locks into it.
    """
    fetch_copies(paths)
    folder = temporary_folder_of(owner)
    for path in paths:
        os.symlink(os.path.abspath(mapped_path(path)), join(folder, basename(path)))
    return folder


def exists(path: str) -> bool:
    """Return whether a file or folder exists."""
    with accessing(path, "read") as (file_system, plain):
        return bool(file_system.exists(plain))


def is_folder(path: str) -> bool:
    """Return whether a folder exists."""
    with accessing(path, "read") as (file_system, plain):
        return bool(file_system.isdir(plain))


def is_file(path: str) -> bool:
    """Return whether a regular file exists: not a folder, pipe or device."""
    with accessing(path, "read") as (file_system, plain):
        return bool(file_system.isfile(plain))


def size_bytes(path: str) -> int:
    """Return the size of a file in bytes."""
    with accessing(path, "read") as (file_system, plain):
        return int(file_system.size(plain))


def folder_bytes(path: str) -> int:
    """Return the size of the files below a folder, without those that are removed meanwhile."""
    total = 0
    for file in walk_files(path):
        with contextlib.suppress(InputError):
            total += size_bytes(file)
    return total


def modified_at(path: str) -> dt.datetime:
    """Return when a file was written."""
    with accessing(path, "read") as (file_system, plain):
        return cast(dt.datetime, file_system.modified(plain))


def make_folder(path: str, *, is_private: bool = False) -> None:
    """Create a folder and its parents if they do not exist; a private one is readable by this user only."""
    with accessing(path, "write") as (file_system, plain):
        file_system.makedirs(plain, exist_ok=True)
        if is_private and isinstance(file_system, LocalFileSystem):
            os.chmod(plain, 0o700)


def list_folder(path: str) -> list[str]:
    """List the names in a folder, sorted; a missing folder is empty."""
    with accessing(path, "read") as (file_system, plain):
        if not file_system.isdir(plain):
            return []
        file_system.invalidate_cache(plain)
        return sorted(str(name).rstrip("/").rsplit("/", 1)[-1] for name in file_system.ls(plain, detail=False))


def walk_files(path: str) -> list[str]:
    """List every regular file below a folder as full paths, sorted, without hidden files."""
    with accessing(path, "read") as (file_system, plain):
        names = [str(name) for name in file_system.find(plain)]
    if isinstance(file_system, LocalFileSystem):
        names = [name for name in names if os.path.isfile(name)]  # opening a pipe would wait forever
    visible = [name for name in names if "/." not in f"/{name[len(plain) :]}"]
    return sorted(with_protocol(path, file_system, name) for name in visible)


def glob(pattern: str) -> list[str]:
    """List the paths that match a glob, sorted."""
    with accessing(pattern, "read") as (file_system, plain):
        return sorted(with_protocol(pattern, file_system, str(name)) for name in file_system.glob(plain))


def is_glob(path: str) -> bool:
    """Return whether a path is a glob: it has glob characters, and no file has exactly that name."""
    return globbing.has_magic(path) and not exists(path)


def remove(path: str) -> None:
    """Remove a file, or a folder with its contents; a missing one is not an error."""
    with accessing(path, "remove") as (file_system, plain):
        if file_system.exists(plain):
            file_system.rm(plain, recursive=True)


def move(source: str, target: str) -> None:
    """Move a file, or a folder with its contents; after an interruption, the same call completes it."""
    file_system, plain = locate(source)
    _, final = locate(target)
    with translate_os_errors(target, "write"):
        names = [plain] if isinstance(file_system, LocalFileSystem) else file_system.find(plain)
        for name in names:
            _rename(file_system, name, final + name[len(plain) :])


def link(source: str, target: str) -> None:
    """Give a file a second name, in place of any file of that name; copy it where there are no hard links."""
    remove(target)
    _, original = locate(source)
    with accessing(target, "write") as (file_system, path):
        file_system.makedirs(path.rsplit("/", 1)[0] or "/", exist_ok=True)
        if isinstance(file_system, LocalFileSystem):
            with contextlib.suppress(OSError):
                os.link(original, path)
                return
        file_system.copy(original, path)


def open_read(path: str, *, start: int = 0, size: int = 0) -> BinaryIO:
    """Open a file for reading bytes, at a position (a negative one is counted from the end).

    Requests to an object store begin there, with `size` bytes if that many will be read in order. Raises InputError if
    the file does not exist.
    """
    with accessing(path, "read") as (file_system, plain):
        try:
            options = {"start": start, "size": size} if isinstance(file_system, ObjectStore) else {}
            stream = cast(BinaryIO, file_system.open(plain, "rb", **options))
            if start:
                stream.seek(start if start > 0 else max(0, stream.seek(0, io.SEEK_END) + start))
            return stream
        except (FileNotFoundError, IsADirectoryError) as error:
            if file_system.isdir(plain):
                raise InputError(f"{path}: is a folder, expected a file") from error
            raise


def read_range(path: str, start: int, size: int) -> bytes:
    """Return `size` bytes of a file from a position on, fewer at its end; of a remote file, by one request."""
    with open_read(path, start=start, size=size) as stream, translate_os_errors(path, "read"):
        return stream.read(size)


def read_bytes(path: str) -> bytes:
    """Return all bytes of a file."""
    with open_read(path, size=_WHOLE) as stream, translate_os_errors(path, "read"):
        return stream.read()


def read_array(path: str) -> npt.NDArray[Any]:
    """Return the array of a `.npy` file, memory-mapped and read-only; of a remote file, that of its local copy."""
    import numpy as np  # deferred: it would slow the start of every command

    with translate_os_errors(path, "read"):
        try:
            # Not as a `memmap`, whose parts take a microsecond each to make.
            return np.asarray(np.load(mapped_path(path), mmap_mode="r", allow_pickle=False))
        except (ValueError, EOFError) as error:
            raise InputError(f"{path}: is not a complete .npy array ({error})") from error


def read_json(path: str) -> Any:
    """Return the JSON value in a file; raise InputError if it is not valid JSON."""
    try:
        data = read_range(path, 0, _MAX_JSON_BYTES + 1)
        if len(data) > _MAX_JSON_BYTES:
            raise InputError(f"{path}: has more than {_MAX_JSON_BYTES:,} bytes, too many for a file of this name")
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: is not valid JSON ({error})") from error


@contextlib.contextmanager
def atomic_write(path: str, *, durable: bool = True) -> Iterator[HashingWriter]:
    """Yield a stream whose bytes appear under `path` when the block ends, and not at all if it raises.

    Until then, only this user can read them.

    `durable` waits until they are on the disk, and computes their SHA-256. A work file needs neither: a power loss
    shows in its CRC-32, which takes an eighth of the time.
    """
    file_system, plain = locate(path)
    # An object appears when its upload is complete: there is nothing to rename.
    is_object, is_file = isinstance(file_system, ObjectStore), isinstance(file_system, LocalFileSystem)
    temporary = plain if is_object else f"{plain}.tmp-{uuid.uuid4().hex[:16]}"
    with translate_os_errors(path, "write"):
        file_system.makedirs(plain.rsplit("/", 1)[0] or "/", exist_ok=True)
        private = functools.partial(os.open, mode=0o600)
        raw: Any = open(temporary, "xb", opener=private) if is_file else file_system.open(temporary, "wb")  # noqa: SIM115
    writer = HashingWriter(raw, path, durable)
    try:
        yield writer
        with translate_os_errors(path, "write"):
            raw.flush()
            if durable and is_file:
                os.fsync(raw.fileno())
            raw.close()
            if is_file:
                os.chmod(temporary, 0o666 & ~_UMASK)
            if not is_object:
                _rename(file_system, temporary, plain)
        forget_copy(file_system, plain)
    except BaseException:
        if isinstance(raw, Upload):
            raw.discard()
            raise
        with contextlib.suppress(OSError):
            raw.close()
        with contextlib.suppress(OSError):
            file_system.rm(temporary)
        raise


@contextlib.contextmanager
def gradual_write(path: str) -> Iterator[HashingWriter]:
    """Yield a stream whose flushed bytes are in the file, even if the process is killed; durable when the block ends.

    In an object store they appear when the block ends.
    """
    file_system, plain = locate(path)
    if not isinstance(file_system, LocalFileSystem):
        with atomic_write(path, durable=False) as stream:
            yield stream
        return
    with translate_os_errors(path, "write"):
        file_system.makedirs(plain.rsplit("/", 1)[0] or "/", exist_ok=True)
        raw = open(plain, "wb")  # noqa: SIM115 - closed below, where errors are reported
    writer = HashingWriter(raw, path, durable=False)
    try:
        yield writer
    finally:
        with translate_os_errors(path, "write"), raw:
            raw.flush()
            os.fsync(raw.fileno())


def check_replaceable(path: str, overwrite: bool) -> None:
    """Raise InputError if a file to write exists and must not be replaced, or is not a regular file."""
    if exists(path) and not is_file(path):
        raise InputError(f"{path}: is not a regular file; name a file with --output")
    if not overwrite and exists(path):
        raise InputError(f"{path}: already exists; use --overwrite to replace it, or choose another --output")


def write_bytes(path: str, data: bytes) -> None:
    """Write a whole file atomically."""
    with atomic_write(path) as writer:
        writer.write(data)


def append_line(path: str, line: str) -> None:
    """Append a line to a text file, which may not exist yet; in an object store, the whole file is written again.

    A last line without a line end, as an editor may leave it in a local file, gets one.
    """
    data = f"{line}\n".encode()
    with accessing(path, "write") as (file_system, plain):
        if isinstance(file_system, ObjectStore):
            file_system.append(plain, data)
        elif isinstance(file_system, LocalFileSystem):
            with open(plain, "ab+") as stream:
                stream.seek(max(0, stream.tell() - 1))
                end = b"" if stream.read(1) in (b"", b"\n") else b"\n"
                stream.write(end + data)  # in one call: lines of two processes do not mix
        else:
            write_bytes(path, (read_bytes(path) if exists(path) else b"") + data)


def write_json(path: str, value: Any) -> None:
    """Write a JSON value atomically, with sorted keys, so that equal values give equal bytes."""
    write_bytes(path, json_bytes(value))


def json_bytes(value: Any) -> bytes:
    """Return a JSON value, with sorted keys, as the content of a file."""
    return (json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()


def sha256_of(path: str) -> str:
    """Return the hex SHA-256 of a file's bytes."""
    return checksum_of(path, "")


def checksum_of(path: str, like: str) -> str:
    """Return the checksum of a file, of the same kind as another one: `crc32:` and CRC-32, or SHA-256, hexadecimal."""
    digest = Crc32() if like.startswith(CRC32_PREFIX) else hashlib.sha256()
    with open_read(path, size=_WHOLE) as stream, translate_os_errors(path, "read"):
        while block := stream.read(_READ_BYTES):
            digest.update(block)
    return digest.hexdigest()


def content_fingerprint(path: str) -> str:
    """Return a hash of an input file: of all its bytes up to 64 MiB, else of its size and 16 windows of 1 MiB."""
    size = size_bytes(path)
    if is_local(path) and not is_file(path):
        raise InputError(f"{path}: is not a regular file; save it as one")
    if size <= _SAMPLED_ABOVE_BYTES:
        return sha256_of(path)
    digest = hashlib.sha256(str(size).encode())
    with open_read(path) as stream, translate_os_errors(path, "read"):
        for window in range(_SAMPLE_WINDOWS):
            stream.seek((size - _READ_BYTES) * window // (_SAMPLE_WINDOWS - 1))
            digest.update(stream.read(_READ_BYTES))
    return digest.hexdigest()


def remove_temporaries(folder: str) -> None:
    """Remove the temporary files of killed writers below a folder (call only under its lock)."""
    with accessing(folder, "remove") as (file_system, plain):
        # In an object store there are none.
        for name in () if isinstance(file_system, ObjectStore) else file_system.find(plain):
            if is_temporary(name):
                file_system.rm(name)


def _rename(file_system: fsspec.AbstractFileSystem, temporary: str, final: str) -> None:
    if isinstance(file_system, LocalFileSystem):
        os.replace(temporary, final)
    else:
        file_system.mv(temporary, final)
        forget_copy(file_system, final)
