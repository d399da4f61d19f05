"""The lock of a folder in an object store: an object with a lease, which its holder renews.

Its version changes with every renewal. Whoever finds a lock watches it: one that is not renewed for as long as a lease
is that of a dead process, and is replaced on the condition that it is still the same. So no two clocks are compared. A
holder that slept for longer than its lease renews before it writes anything else, which fails if it was replaced; its
worker processes ask for the lock before changes, see `ObjectStore`.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
import uuid
from collections.abc import Callable

from pipelines import storage
from pipelines.errors import LockedError
from pipelines.storage import object_store
from pipelines.storage.object_store import ObjectStore, Version

SECONDS = 60.0
# In the time of a lease: how often its holder renews it, and its workers ask for it.
_RENEWALS, _ANSWERS = 4, 12
_POLL_S = 0.5


class Lease:
    """The lock `path` of a folder, while it is a context; `owner` describes its holder to others.

    `note` receives a line if there is a lock that may be that of a dead process.
    """

    def __init__(
        self, store: ObjectStore, path: str, folder: str, owner: str, note: Callable[[str], None] | None = None
    ) -> None:
        self._store = store
        self._path = path
        self._folder = folder
        self._note = note
        self._facts = {"owner": owner, "token": uuid.uuid4().hex}
        self._renewals = 0
        self._seconds = SECONDS
        self._valid_s = SECONDS / _ANSWERS
        self._version: Version | None = None
        self._renewed_at = 0.0
        self._is_lost = False
        self._mutex = threading.Lock()
        self._released = threading.Event()
        self._thread = threading.Thread(target=self._keep, daemon=True)

    def __enter__(self) -> Lease:
        """Create the lock, in place of one that is no longer renewed; raise LockedError if another process has it."""
        with storage.translate_os_errors(self._folder, "lock"):
            if not self._write("create"):
                dead = self._watch()
                if not self._write(dead or "create"):
                    self._refuse()
                time.sleep(self._valid_s)  # until no worker of the other process relies on what it was told
        object_store.leases[self._path] = str(self._facts["token"]), self._valid_s
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the lock, unless another process has taken it over."""
        self._released.set()
        self._thread.join()
        object_store.leases.pop(self._path, None)
        with contextlib.suppress(OSError):  # the store does not answer: the lease expires
            if self._store.read_lock(self._path)[0].get("token") == self._facts["token"]:
                self._store.rm(self._path)

    def check(self, now: bool = False) -> None:
        """Raise LockedError if another process took the lock, which it can after this one slept.

        The lock is renewed if that is due, or in any case `now`.
        """
        is_due = now or time.monotonic() - self._renewed_at > self._seconds
        with storage.translate_os_errors(self._folder, "lock"):
            if self._is_lost or (is_due and not self._renew()):
                self._refuse()

    def _keep(self) -> None:
        while not self._is_lost and not self._released.wait(self._seconds / _RENEWALS):
            with contextlib.suppress(Exception):  # the store does not answer: `check` tries again in time
                self._renew()

    def _renew(self) -> bool:
        with self._mutex:
            self._is_lost = not self._write(self._version)
            return not self._is_lost

    def _write(self, mode: str | Version | None) -> bool:
        """Write the lock on a condition; return whether it is this process's afterwards."""
        sent_at = time.monotonic()
        self._renewals += 1  # without it, the content and so its ETag would stay the same
        content = json.dumps({**self._facts, "renewals": self._renewals}).encode()
        version = self._store.put_if(self._path, content, mode)
        if version is None:
            # An answer may have been lost, and the repeated request refused because of the first one.
            facts, version = self._store.read_lock(self._path)
            if facts.get("token") != self._facts["token"]:
                return False
        self._version, self._renewed_at = version, sent_at
        return True

    def _watch(self) -> Version | None:
        """Return the version of a lock that is not renewed, None for a removed one; else raise LockedError."""
        facts, first = self._store.read_lock(self._path)
        if self._note and first is not None:
            owner = facts.get("owner", "another process")
            self._note(f"{self._folder}: waiting up to {self._seconds:.0f} s to see whether {owner} is still running")
        end = time.monotonic() + self._seconds
        while first is not None and time.monotonic() < end:
            time.sleep(min(_POLL_S, self._seconds / _RENEWALS))
            _, version = self._store.read_lock(self._path)
            if version not in (first, None):
                self._refuse()
            first = version
        return first

    def _refuse(self) -> None:
        holder = self._store.read_lock(self._path)[0].get("owner", "another process")
        raise LockedError(f"{self._folder}: is being written by {holder}; wait for it, or choose another --output")
