"""The lock of an output folder: one process writes it at a time."""

from __future__ import annotations

import contextlib
import os
import socket
import time
import uuid
from collections.abc import Callable, Iterator

import filelock

from pipelines import storage
from pipelines.engine import lease
from pipelines.engine.lease import Lease
from pipelines.errors import InputError, LockedError, StorageError
from pipelines.storage import local_cache
from pipelines.storage.object_store import ObjectStore

_LOCK = ".lock"
# Leases after which a lock is shown as that of a dead process; the clocks of store and machine may differ.
_FORGOTTEN = 3


@contextlib.contextmanager
def folder_lock(folder: str, note: Callable[[str], None] | None = None) -> Iterator[Lease | None]:
    """Lock a folder for this process; raise LockedError if another process holds it. `note` receives why it waits.

    On a local disk the operating system releases the lock when its holder dies, even by `kill -9`; in an object store
    it is a lease, which is yielded, since it can end while this process sleeps. In other stores a lock object is
    written, which has to be removed by hand after a kill.
    """
    storage.make_folder(folder)
    owner = f"process {os.getpid()} on {socket.gethostname()}, since {time.strftime('%Y-%m-%d %H:%M:%S')}"
    file_system = storage.file_system(folder)
    if isinstance(file_system, ObjectStore):
        path = storage.join(folder, _LOCK).partition("://")[2]
        with Lease(file_system, path, folder, owner, note) as lease:
            local_cache.begin_run(uuid.uuid4().hex)
            yield lease
        return
    lock = _local_lock if storage.is_local(folder) else _object_lock
    with lock(folder, owner):
        local_cache.begin_run(uuid.uuid4().hex)
        yield None


def writer_of(folder: str) -> str | None:
    """Return the process that writes a folder, such as `process 12 on host, since 2026-01-02 03:04:05`."""
    path = storage.join(folder, ".lock-owner" if storage.is_local(folder) else _LOCK)
    if not storage.exists(path):
        return None
    if isinstance(storage.file_system(folder), ObjectStore):
        with contextlib.suppress(InputError):  # it was removed meanwhile
            age = time.time() - storage.modified_at(path).timestamp()
            return None if age > _FORGOTTEN * lease.SECONDS else str(storage.read_json(path)["owner"])
        return None
    with contextlib.suppress(LockedError, StorageError), folder_lock(folder):
        return None  # its process was killed
    return storage.read_bytes(path).decode()


@contextlib.contextmanager
def _local_lock(folder: str, owner: str) -> Iterator[None]:
    lock_path = os.path.join(storage.local_path(folder), _LOCK)
    owner_path = os.path.join(storage.local_path(folder), ".lock-owner")
    lock = filelock.FileLock(lock_path, timeout=0)
    with storage.translate_os_errors(folder, "write"):
        try:
            lock.acquire()
        except filelock.Timeout:
            holder = storage.read_bytes(owner_path).decode() if storage.exists(owner_path) else "another process"
            raise LockedError(
                f"{folder}: is being written by {holder}; wait for it, or choose another --output"
            ) from None
    try:
        storage.write_bytes(owner_path, owner.encode())
        yield
    finally:
        storage.remove(owner_path)
        lock.release()


@contextlib.contextmanager
def _object_lock(folder: str, owner: str) -> Iterator[None]:
    lock_path = storage.join(folder, _LOCK)
    if storage.exists(lock_path):
        holder = storage.read_bytes(lock_path).decode()
        raise LockedError(f"{folder}: is being written by {holder}; if that process is dead, remove {lock_path}")
    storage.write_bytes(lock_path, owner.encode())
    try:
        yield
    finally:
        storage.remove(lock_path)
