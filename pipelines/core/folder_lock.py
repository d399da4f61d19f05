"""The lock of an output folder: one process writes it at a time."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator

import filelock

from pipelines.core import storage
from pipelines.core.errors import LockedError, StorageError


@contextlib.contextmanager
def folder_lock(folder: str) -> Iterator[None]:
    """Lock a folder for this process; raise LockedError if another process holds it.

    On a local disk the operating system releases the lock when its holder dies, even by `kill -9`. A remote store has
    no such lock: there a lock object is written, which has to be removed by hand after a kill.
    """
    storage.make_folder(folder)
    owner = f"process {os.getpid()} on {socket.gethostname()}, since {time.strftime('%Y-%m-%d %H:%M:%S')}"
    lock = _local_lock if storage.is_local(folder) else _object_lock
    with lock(folder, owner):
        yield


def writer_of(folder: str) -> str | None:
    """Return the process that writes a folder, such as `process 12 on host, since 2026-01-02 03:04:05`."""
    name = ".lock-owner" if storage.is_local(folder) else ".lock"
    if not storage.exists(storage.join(folder, name)):
        return None
    with contextlib.suppress(LockedError, StorageError), folder_lock(folder):
        return None  # its process was killed
    return storage.read_bytes(storage.join(folder, name)).decode()


@contextlib.contextmanager
def _local_lock(folder: str, owner: str) -> Iterator[None]:
    lock_path = os.path.join(storage.local_path(folder), ".lock")
    owner_path = os.path.join(storage.local_path(folder), ".lock-owner")
    lock = filelock.FileLock(lock_path, timeout=0)
    with storage.translate_os_errors(folder, "write"):
        try:
            lock.acquire()
        except filelock.Timeout:
            holder = storage.read_bytes(owner_path).decode() if storage.exists(owner_path) else "another process"
            raise LockedError(
                f"{folder}: {holder} is writing it; wait until it finishes, or choose another --output"
            ) from None
    try:
        storage.write_bytes(owner_path, owner.encode())
        yield
    finally:
        storage.remove(owner_path)
        lock.release()


@contextlib.contextmanager
def _object_lock(folder: str, owner: str) -> Iterator[None]:
    lock_path = storage.join(folder, ".lock")
    if storage.exists(lock_path):
        holder = storage.read_bytes(lock_path).decode()
        raise LockedError(f"{folder}: {holder} is writing it; if that process is dead, remove {lock_path}")
    storage.write_bytes(lock_path, owner.encode())
    try:
        yield
    finally:
        storage.remove(lock_path)
