"""Paths: local ones, and URLs of the file systems that fsspec knows; names of temporary files and folders.

Paths are strings. What a file system reports is raised as an error of webtext that names the path.
"""

from __future__ import annotations

import contextlib
import glob as globbing
import itertools
import os
import re
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import fsspec
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from pipelines.errors import InputError, StorageError, WebtextError
from pipelines.format import mask_credentials
from pipelines.storage.local_cache import temporary_root
from pipelines.storage.object_store import PROTOCOLS, WEB_PROTOCOLS, ObjectStore

_MALFORMED_URL = re.compile(rf"({'|'.join(PROTOCOLS)}):(?!//[^/:]+(/|$))")
_TEMPORARY = re.compile(r"\.tmp-[0-9a-f-]+$")
# Returns the pattern that only a given path matches.
escape_pattern = globbing.escape


def join(folder: str, *parts: str) -> str:
    """Join a folder and the parts of a name with slashes."""
    return "/".join([folder.rstrip("/"), *parts])


def basename(path: str) -> str:
    """Return the last part of a path; bytes of a name that are not UTF-8 are written as `\\xe9`."""
    name = path.rstrip("/").rsplit("/", 1)[-1]
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def parent(path: str) -> str:
    """Return the folder that contains a path."""
    folder, _, _ = path.rstrip("/").rpartition("/")
    return folder or ("/" if path.startswith("/") else ".")


def absolute_path(path: str) -> str:
    """Return a local path as an absolute one without `.` and `..`, a URL unchanged."""
    return path if "://" in path else os.path.abspath(path)


def names_below_common_folder(paths: Sequence[str]) -> list[str]:
    """Return the part of each path below the folder that all of them have in common, so that no two are equal."""
    parts = [mask_credentials(absolute_path(path)).split("/") for path in paths]
    levels = zip(*(folders for *folders, _ in parts), strict=False)
    shared = len(list(itertools.takewhile(lambda names: len(set(names)) == 1, levels)))
    # `basename` of each part, since it escapes what is not UTF-8 so that a document can contain it.
    return ["/".join(map(basename, names[shared:])) for names in parts]


def is_local(path: str) -> bool:
    """Return whether a path is on a local file system."""
    return isinstance(locate(path)[0], LocalFileSystem)


def local_path(path: str) -> str:
    """Return the plain path of a local file; raise StorageError for a remote one."""
    file_system, plain = locate(path)
    if not isinstance(file_system, LocalFileSystem):
        raise StorageError(f"{path}: must be on a local disk")
    return plain


def real_path(path: str) -> str:
    """Return the canonical name of a file: absolute and without symbolic links if it is local, else as of fsspec."""
    file_system, plain = locate(path)
    return os.path.realpath(plain) if isinstance(file_system, LocalFileSystem) else file_system.unstrip_protocol(plain)


def free_bytes(path: str) -> int | None:
    """Return the free space of the disk of a local path, which need not exist yet; None for a remote one."""
    file_system, plain = locate(path)
    if not isinstance(file_system, LocalFileSystem):
        return None
    while not os.path.isdir(plain) and os.path.dirname(plain) != plain:
        plain = os.path.dirname(plain)
    return shutil.disk_usage(plain).free


def temporary_folder() -> contextlib.AbstractContextManager[str]:
    """Return a local folder for temporary files (in `TMPDIR`) that is removed at the end of the block."""
    return tempfile.TemporaryDirectory(prefix="webtext-", dir=temporary_root())


def temporary_file(memory_bytes: int) -> Any:
    """Return a file without a name, in memory up to a size, then in `TMPDIR`; its errors are those of the system."""
    return tempfile.SpooledTemporaryFile(memory_bytes, dir=temporary_root())


def temporary_folder_of(owner: object) -> str:
    """Return a local folder for temporary files, of this user alone, that is removed with the object that needs it."""
    folder = tempfile.mkdtemp(prefix="webtext-", dir=temporary_root())
    weakref.finalize(owner, shutil.rmtree, folder, ignore_errors=True)
    return folder


def is_temporary(path: str) -> bool:
    """Return whether a path has the name of a temporary file that a killed writer left."""
    return bool(_TEMPORARY.search(path))


def file_system(path: str) -> fsspec.AbstractFileSystem:
    """Return the file system of a path, for a library that reads through fsspec."""
    return locate(path)[0]


def locate(path: str) -> tuple[fsspec.AbstractFileSystem, str]:
    """Return the file system of a path, and its plain path there; raise StorageError if there is none."""
    if _MALFORMED_URL.match(path):  # otherwise a local folder `s3:` would be made
        raise StorageError(f"{path}: not a URL of an object store; write s3://BUCKET/FOLDER")
    if "://" not in path:  # also a name with `::`, which fsspec would take for a chain of URLs
        return LocalFileSystem(), str(LocalFileSystem._strip_protocol(path))
    protocol, _, rest = path.partition("://")
    if protocol in (*PROTOCOLS, *WEB_PROTOCOLS):
        return ObjectStore(protocol), rest.rstrip("/")
    try:
        file_system, plain = url_to_fs(path)
    except Exception as error:  # of any type: third-party file systems raise their own
        url = f"{protocol}://{rest.partition('/')[0]}"  # without an internal name such as `_next/manifest.json`
        raise StorageError(f"{url}: cannot access this storage ({error}); use a local path or another URL") from error
    return file_system, str(plain)


@contextlib.contextmanager
def accessing(path: str, verb: str) -> Iterator[tuple[fsspec.AbstractFileSystem, str]]:
    """Yield the file system of a path and its plain path there; an error in the block names the path."""
    file_system, plain = locate(path)
    with translate_os_errors(path, verb):
        yield file_system, plain


def with_protocol(requested: str, file_system: fsspec.AbstractFileSystem, plain: str) -> str:
    """Return a path that a file system returned in the form in which a folder or pattern was requested."""
    if isinstance(file_system, LocalFileSystem):
        # fsspec returns absolute paths; a relative request keeps relative results.
        return plain if os.path.isabs(requested) or "://" in requested else os.path.relpath(plain)
    return str(file_system.unstrip_protocol(plain))


@contextlib.contextmanager
def translate_os_errors(path: str, verb: str) -> Iterator[None]:
    """Raise what the operating system reports as InputError (a missing file that is read) or StorageError."""
    try:
        yield
    except OSError as error:
        if isinstance(error, FileNotFoundError) and verb == "read":
            raise InputError(f"{path}: no such file or folder") from error
        reason = error.strerror or str(error)
        remedies = {
            "No space left on device": "; free some space and re-run the same command to resume",
            "File exists": "; it is not a folder",
        }
        raise StorageError(f"{path}: cannot {verb}: {reason}{remedies.get(reason, '')}") from error
    except Exception as error:
        if "://" not in path or isinstance(error, WebtextError):
            raise
        raise StorageError(f"{path}: cannot {verb}: {error}") from error  # of a third-party file system
