"""Local copies of remote files that must be mapped into memory: one per machine and version of a file.

They are in a folder of this user in the folder of temporary files. A copy stays until others need its space; a download
that was interrupted is removed by the next one.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import tempfile
from pathlib import Path

import filelock
from fsspec import AbstractFileSystem

from pipelines.errors import StorageError
from pipelines.format import format_bytes

_MIN_FREE_SHARE = 0.05  # of the disk
_COPY, _PART, _LOCK = ".copy", ".part", ".lock"
_POLL_S = 0.01
# Where this process has removed the downloads of killed ones.
_cleaned: set[Path] = set()

# The copies that were checked to be current in this run, by protocol and path: a run writes a file only once.
_known_copies: dict[tuple[str, str], str] = {}
_run = ""


def temporary_root() -> str:
    """Return the folder of temporary files; raise StorageError for a `TMPDIR` that Python would silently replace."""
    folder = os.environ.get("TMPDIR")
    if folder and not (os.path.isdir(folder) and os.access(folder, os.W_OK | os.X_OK)):
        raise StorageError(f"TMPDIR={folder}: is not a folder that you can write to; create it, or unset TMPDIR")
    return tempfile.gettempdir()


def begin_run(run: str) -> None:
    """Forget which copies were current in an earlier run, in this process or in a worker of it."""
    global _run
    if run != _run:
        _known_copies.clear()
    _run = run


def current_run() -> str:
    """Return the name of the run, for its workers."""
    return _run


def forget_copy(file_system: AbstractFileSystem, plain: str) -> None:
    """Note that this process has written a file."""
    _known_copies.pop((str(file_system.protocol), plain), None)


def local_copy_of(file_system: AbstractFileSystem, plain: str) -> str:
    """Return the path of a copy of a remote file, which is downloaded unless one of this version is there.

    The file must not be changed. Raises StorageError if the disk has no room for it.
    """
    copy = known_copy_of(file_system, plain)
    if copy is None:
        copy = _known_copies[str(file_system.protocol), plain] = _current_copy(file_system, plain)
    return copy


def known_copy_of(file_system: AbstractFileSystem, plain: str) -> str | None:
    """Return the path of a copy that this run has asked for before, None if there is none."""
    copy = _known_copies.get((str(file_system.protocol), plain))
    return copy if copy and os.path.exists(copy) else None


def _current_copy(file_system: AbstractFileSystem, plain: str) -> str:
    info = file_system.info(plain)
    version = [str(info.get(name)) for name in ("name", "size", "etag", "modified")]
    user = getattr(os, "getuid", int)()
    folder = Path(temporary_root(), f"webtext-cache-{user}")
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if folder.lstat().st_uid != user:
            raise PermissionError(errno.EPERM, "owned by another user")
    except OSError as error:
        raise StorageError(
            f"{folder}: cannot hold local copies ({error.strerror}); set TMPDIR to another folder"
        ) from error
    copy = folder / (hashlib.sha256("\n".join(version).encode()).hexdigest()[:32] + _COPY)
    # Processes that need the same file wait for one download.
    with filelock.FileLock(copy.with_suffix(_LOCK), poll_interval=_POLL_S):
        try:
            os.utime(copy)  # the latest use
        except FileNotFoundError:
            _make_room(folder, int(info["size"]))
            part = copy.with_suffix(_PART)
            part.touch(0o600)
            file_system.get_file(plain, str(part))
            part.replace(copy)
    return str(copy)


def _make_room(folder: Path, size: int) -> None:
    """Remove downloads of killed processes, and the least recently used copies until a file fits.

    Copies that are mapped into memory stay readable there.
    """
    if folder in _cleaned and _has_room(folder, size):  # without the lock, for which others would wait
        return
    with filelock.FileLock(folder / f"room{_LOCK}", poll_interval=_POLL_S):
        for part in folder.glob(f"*{_PART}"):
            with contextlib.suppress(filelock.Timeout), filelock.FileLock(part.with_suffix(_LOCK), timeout=0):
                part.unlink(missing_ok=True)
        _cleaned.add(folder)
        copies = sorted(folder.glob(f"*{_COPY}"), key=lambda path: path.stat().st_mtime, reverse=True)
        while not _has_room(folder, size):
            if not copies:
                _, _, free = shutil.disk_usage(folder)
                raise StorageError(
                    f"{folder}: has no space for a file of {format_bytes(size)} ({format_bytes(free)} free); set "
                    "TMPDIR to a folder of a larger disk"
                )
            copies.pop().unlink()


def _has_room(folder: Path, size: int) -> bool:
    total, _, free = shutil.disk_usage(folder)
    return free - size > total * _MIN_FREE_SHARE
