"""Object stores (S3, Google Cloud Storage, Azure) as file systems of fsspec, by obstore.

A file is written to a temporary local file and uploaded when it is closed: an object appears whole or not at all, and
an upload can be repeated. Reads are ranges, which grow while a file is read in order.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import importlib
import io
import itertools
import json
import math
import os
import random
import re
import shutil
import threading
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, TypeVar

from fsspec import AbstractFileSystem

from pipelines.errors import LockedError, StorageError
from pipelines.extras import require_extra
from pipelines.storage.object_files import FIRST_RANGE, MAX_RANGE, Ranges, Upload

PROTOCOLS = ("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss")
# Of web servers, files are only read.
WEB_PROTOCOLS = ("https", "http")
# Requests that take longer are repeated.
_CONNECT_S, _REQUEST_S = 20, 120
# Protocols without requests for the last bytes of an object.
_WITHOUT_SUFFIXES = ("az", "abfs", "abfss")
# For how long obstore repeats a request by itself: half a lease, since it does not ask for the lock again.
_RETRY_S = 30
_TRIES = 4
_FIRST_PAUSE_S = 0.25
# Statuses after which a request is repeated: timeout, conflict, too early, too many requests.
_PASSING = ("408", "409", "425", "429")
# Larger files are uploaded in parts, four at a time; they are mapped, so parts take no memory. The parts in flight must
# arrive before the request times out: 64 MiB do at 0.6 MB/s. S3 accepts 10,000 parts.
_MAX_PUT_BYTES, _PART_BYTES, _PARTS, _MOST_PARTS = 64 << 20, 16 << 20, 4, 10_000
# S3 refuses to copy larger objects in one request.
_MAX_COPY_BYTES = 5 << 30
Result = TypeVar("Result")
Version = dict[str, str]
"""What identifies an object in a condition: its ETag and, on Google Cloud Storage, its generation (`version`)."""


class ObjectStore(AbstractFileSystem):  # type: ignore[misc]
    """The objects of all buckets of one kind of store; a folder is a common beginning of names."""

    def __init__(self, protocol: str) -> None:
        super().__init__()
        require_extra("object-stores", f"{protocol}://", "obstore")
        self.protocol = protocol
        self._obstore: Any = importlib.import_module("obstore")

    def info(self, path: str, **_options: Any) -> dict[str, Any]:
        """Return name, size and type of an object or folder; raise FileNotFoundError if there is neither."""
        bucket, key = _split(path)
        store = _store(self.protocol, bucket)
        with contextlib.suppress(FileNotFoundError):
            return _entry(bucket, _request(lambda: self._obstore.head(store, key))) if key else _folder(bucket)
        if self.protocol in WEB_PROTOCOLS:
            raise FileNotFoundError(path)
        listed = _request(lambda: self._obstore.list(store, f"{key}/", chunk_size=1).collect())
        if not listed:
            raise FileNotFoundError(path)
        return _folder(f"{bucket}/{key}")

    # The methods of fsspec would return that nothing is there when a request fails.

    def exists(self, path: str, **_options: Any) -> bool:
        """Return whether there is an object or folder."""
        return self._type(path) is not None

    def isdir(self, path: str) -> bool:
        """Return whether there is a folder."""
        return self._type(path) == "directory"

    def isfile(self, path: str) -> bool:
        """Return whether there is an object."""
        return self._type(path) == "file"

    def _type(self, path: str) -> str | None:
        try:
            return str(self.info(path)["type"])
        except FileNotFoundError:
            return None

    def ls(self, path: str, detail: bool = True, **_options: Any) -> list[Any]:
        """Return the objects and folders of a folder."""
        bucket, key = _split(path)
        store = _store(self.protocol, bucket)
        listed = _request(lambda: self._obstore.list_with_delimiter(store, f"{key}/" if key else None))
        entries = [_folder(f"{bucket}/{name}") for name in listed["common_prefixes"]]
        entries += [_entry(bucket, meta) for meta in listed["objects"]]
        return entries if detail else [entry["name"] for entry in entries]

    def find(
        self, path: str, maxdepth: int | None = None, withdirs: bool = False, detail: bool = False, **_options: Any
    ) -> Any:
        """Return all objects below a folder."""
        if maxdepth is not None or withdirs:
            return super().find(path, maxdepth, withdirs, detail=detail, on_error="raise")
        entries = {entry["name"]: entry for entry in self._below(path)}
        return entries if detail else sorted(entries)

    def _below(self, path: str) -> list[dict[str, Any]]:
        bucket, key = _split(path)
        store = _store(self.protocol, bucket)
        listed = _request(lambda: list(self._obstore.list(store, f"{key}/" if key else None)))
        entries = [_entry(bucket, meta) for chunk in listed for meta in chunk]
        return entries or ([self.info(path)] if key and self.exists(path) else [])

    def modified(self, path: str) -> dt.datetime:
        """Return when an object was written."""
        return self.info(path)["modified"]  # type: ignore[no-any-return]

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Do nothing: folders are parts of names."""

    def rm(self, path: str, recursive: bool = False, maxdepth: int | None = None) -> None:
        """Remove an object, or all objects of a folder."""
        self._check_leases(path)
        names = [entry["name"] for entry in self._below(path)] if recursive else [path]
        bucket, _ = _split(path)
        keys = [_split(name)[1] for name in names]
        if keys:
            _request(lambda: self._obstore.delete(_store(self.protocol, bucket), keys))

    def cp_file(self, path1: str, path2: str, **_options: Any) -> None:
        """Copy an object, through this machine if one request cannot."""
        self._check_leases(path2)
        (bucket, source), (other, target) = _split(path1), _split(path2)
        if bucket != other or self.info(path1)["size"] > _MAX_COPY_BYTES:
            with self.open(path1, size=MAX_RANGE) as reader:
                writer = self.open(path2, "wb")
                shutil.copyfileobj(reader, writer, MAX_RANGE)
                writer.close()  # not if the reader fails: what was written would become the object
        else:
            _request(lambda: self._obstore.copy(_store(self.protocol, bucket), source, target))

    def mv(self, path1: str, path2: str, **_options: Any) -> None:
        """Copy an object and remove the first one."""
        self.cp_file(path1, path2)
        self.rm(path1)

    def get_file(self, path: str, local: str, **_options: Any) -> None:
        """Download an object."""
        with self.open(path, size=MAX_RANGE) as source, open(local, "wb") as target:
            shutil.copyfileobj(source, target, MAX_RANGE)

    def open(self, path: str, mode: str = "rb", start: int = 0, size: int = 0, **_options: Any) -> Any:
        """Open an object for reading, first `size` bytes from `start` on, or for writing; see `storage.open_read`."""
        if mode == "wb":
            return Upload(functools.partial(self.put, path))
        read_range, info = functools.partial(self.read_range, path), functools.partial(self.info, path)
        return io.BufferedReader(Ranges(read_range, info, start, max(size, FIRST_RANGE)), FIRST_RANGE)

    def read_range(self, path: str, start: int, size: int, tag: str | None = None) -> tuple[memoryview, Any]:
        """Return bytes of an object, and its size and ETag; raise OSError unless that is `tag`.

        They are the last ones if `start` is negative (then it is -`size`), and fewer at the end.
        """
        bucket, key = _split(path)
        if start < 0 and self.protocol in _WITHOUT_SUFFIXES:
            start = max(0, self.info(path)["size"] + start)
        options: Any = {"range": (start, start + size) if start >= 0 else {"suffix": -start}}
        options |= {"if_match": tag} if tag else {}

        def read() -> tuple[memoryview, Any]:
            answer = self._obstore.get(_store(self.protocol, bucket), key, options=options)
            data, total = memoryview(answer.bytes()), answer.meta["size"]
            expected = min(size, total - start if start >= 0 else total)
            if len(data) != expected:
                raise OSError(f"{len(data):,} of {expected:,} bytes arrived")
            return data, answer.meta

        try:
            return _request(read)
        except self._obstore.exceptions.PreconditionError as error:
            raise OSError("it was replaced while it was read") from error

    def put(self, path: str, data: Any) -> None:
        """Write bytes, which may be those of a mapped file, as an object."""
        if self.protocol in WEB_PROTOCOLS:
            raise OSError("a web server is read-only")
        bucket, key = _split(path)
        part_bytes = max(_PART_BYTES, -(-len(data) // _MOST_PARTS))
        options = {"chunk_size": part_bytes, "max_concurrency": _PARTS, "use_multipart": len(data) > _MAX_PUT_BYTES}

        def write() -> None:
            self._check_leases(path)  # before every attempt: earlier ones may have taken longer than the lease
            self._obstore.put(_store(self.protocol, bucket), key, data, **options)

        _request(write)

    def put_if(self, path: str, content: bytes, condition: Any) -> Version | None:
        """Write an object if there is none (`create`) or of a version; return its version, None if it was refused."""
        bucket, key = _split(path)
        store = _store(self.protocol, bucket)
        try:
            return _version(_request(lambda: self._obstore.put(store, key, content, mode=condition)))
        except (self._obstore.exceptions.AlreadyExistsError, self._obstore.exceptions.PreconditionError):
            return None
        except FileNotFoundError as error:
            if condition == "create":
                raise StorageError(f"{self.protocol}://{bucket}: no such bucket") from error
            return None  # what was there was removed

    def read_version(self, path: str) -> tuple[bytes, Version | None]:
        """Return the content of an object and its version; empty and None if there is none."""
        bucket, key = _split(path)

        def read() -> tuple[bytes, Version | None]:
            answer = self._obstore.get(_store(self.protocol, bucket), key)
            return bytes(answer.bytes()), _version(answer.meta)

        try:
            return _request(read)
        except FileNotFoundError:
            return b"", None

    def read_lock(self, path: str) -> tuple[dict[str, Any], Version | None]:
        """Return the content of a folder's lock and its version; empty and None if there is none."""
        content, version = self.read_version(path)
        return json.loads(content or b"{}"), version

    def append(self, path: str, line: bytes) -> None:
        """Append a line that no other writer appends to an object, which is created if there is none."""
        content, version = self.read_version(path)
        while self.put_if(path, content + line, version or "create") is None:
            content, version = self.read_version(path)
            if line in content:  # the answer to a request was lost, and the repeated one refused
                return

    def _check_leases(self, path: str) -> None:
        """Raise LockedError if another process now has the lock of a folder that this run writes.

        Every process of the run checks before a change, since it or its driver may have been suspended. A process that
        takes a lock over first waits until the answers to these checks have expired.
        """
        for lock, (token, valid_s) in leases.items():
            bucket, key = _split(lock)
            now = time.time()  # unlike a monotonic clock, it has advanced after a suspended machine resumes
            is_due = not 0 <= now - _checked_at.get(token, math.inf) < valid_s
            if is_due and _split(path)[0] == bucket and _split(path)[1].startswith(key.removesuffix(".lock")):
                facts, _ = self.read_lock(lock)
                _checked_at[token] = now
                if facts.get("token") != token:
                    owner = facts.get("owner", "another process")
                    raise LockedError(
                        f"{self.protocol}://{lock.removesuffix('/.lock')}: {owner} took over the lock, since "
                        "this process did not renew it in time"
                    )


# The locks of this run by path: the token, and for how many seconds the answer to a check is valid. Executors pass
# them to their workers.
leases: dict[str, tuple[str, float]] = {}
_checked_at: dict[str, float] = {}


class ThreadedObjectStore(ObjectStore):
    """An object store for DuckDB, whose threads share a file, and move and read it in two calls."""

    def open(self, path: str, mode: str = "rb", start: int = 0, size: int = 0, **_options: Any) -> Any:
        """Open a file that every thread reads at its own position."""
        return _ThreadedFile(lambda: super(ThreadedObjectStore, self).open(path, mode, start, size))


class _ThreadedFile:
    def __init__(self, open_file: Callable[[], Any]) -> None:
        self._open_file = open_file
        self._files = threading.local()

    def __getattr__(self, name: str) -> Any:
        """Return what the file of this thread has."""
        if not hasattr(self._files, "file"):
            self._files.file = self._open_file()
        return getattr(self._files.file, name)


@functools.cache
def _store(protocol: str, bucket: str) -> Any:
    """Return the client of a bucket, with the credentials that the tools of its provider would find."""
    from obstore.exceptions import BaseError
    from obstore.store import from_url

    url = {"gcs": "gs"}.get(protocol, protocol) + f"://{bucket}"
    seconds = dt.timedelta
    options: dict[str, Any] = {"timeout": seconds(seconds=_REQUEST_S), "connect_timeout": seconds(seconds=_CONNECT_S)}
    is_s3 = protocol in ("s3", "s3a")
    endpoint = os.environ.get("AWS_ENDPOINT_URL", "")
    if is_s3 and endpoint and not endpoint.startswith(("http://", "https://")):
        raise StorageError(f"AWS_ENDPOINT_URL: {endpoint!r} does not begin with http:// or https://")
    if protocol == "http" or (is_s3 and endpoint.startswith("http://")):
        options["allow_http"] = True
    more: Any = {}
    if is_s3 and not {"AWS_ACCESS_KEY_ID", "AWS_SKIP_SIGNATURE"} & os.environ.keys() and find_spec("boto3"):
        from obstore.auth.boto3 import Boto3CredentialProvider  # also reads profiles, which obstore does not

        try:
            more["credential_provider"] = Boto3CredentialProvider()
        except ValueError as error:
            advice = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_SKIP_SIGNATURE=true for a public bucket"
            raise StorageError(f"{url}: no credentials found; {advice}") from error
    connect: Any = from_url
    try:
        return connect(url, client_options=options, retry_config={"retry_timeout": seconds(seconds=_RETRY_S)}, **more)
    except BaseError as error:
        raise StorageError(f"{url}: {_reason(str(error))}") from error


def _request(send: Callable[[], Result]) -> Result:
    """Return the answer to a request; repeat it where obstore does not: after an upload timed out, or a short body.

    Raises FileNotFoundError for an object that does not exist, PreconditionError and AlreadyExistsError of obstore, and
    OSError for any other failure.
    """
    from obstore import exceptions

    for number in itertools.count(1):
        try:
            return send()
        except (FileNotFoundError, exceptions.PreconditionError, exceptions.AlreadyExistsError):
            raise
        except (exceptions.BaseError, OSError) as error:
            status = re.search(r"status code: (4\d\d)", str(error))
            is_final = isinstance(error, exceptions.PermissionDeniedError | exceptions.UnauthenticatedError)
            if number == _TRIES or is_final or (status and status[1] not in _PASSING):
                raise OSError(_reason(str(error))) from error
            time.sleep(_FIRST_PAUSE_S * 2**number * random.uniform(0.5, 1.5))
    raise AssertionError("unreachable")


def _reason(message: str) -> str:
    """Return the code and message of a store's answer, or else the first lines of an error of obstore."""
    if answer := re.search(r"<Code>(.*?)</Code>\s*<Message>(.*?)</Message>", message, re.DOTALL):
        return f"{answer[2].rstrip('.')} ({answer[1]})"
    if address := re.search(r"Error performing \w+ (\w+://[^/\s]+).*HTTP error: error sending request", message):
        causes = re.findall(r'(?:message|error): "(.+?)"|kind: (Timeout)', message)
        cause = next((text or kind.lower() for text, kind in causes), "the connection failed")
        return f"no answer from {address[1]} ({cause})"
    return message.partition("Debug source")[0].strip()


def _split(path: str) -> tuple[str, str]:
    bucket, _, key = path.rpartition("://")[2].partition("/")
    return bucket, key.strip("/")


def _version(answer: Any) -> Version:
    return {name: answer[name] for name in ("e_tag", "version") if answer[name]}


def _entry(bucket: str, meta: Any) -> dict[str, Any]:
    return {
        "name": f"{bucket}/{meta['path']}",
        "size": meta["size"],
        "type": "file",
        "modified": meta["last_modified"],
        "etag": meta["e_tag"],
    }


def _folder(name: str) -> dict[str, Any]:
    return {"name": name.rstrip("/"), "size": 0, "type": "directory"}
