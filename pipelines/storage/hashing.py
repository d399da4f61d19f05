"""Checksums of files while they are written: SHA-256, and CRC-32 of work files."""

from __future__ import annotations

import hashlib
import io
from typing import TYPE_CHECKING, BinaryIO

from isal import isal_zlib

from pipelines.storage.paths import translate_os_errors

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

CRC32_PREFIX = "crc32:"  # before the checksum of a work file


class Crc32:
    """CRC-32 with the interface of hashlib."""

    def __init__(self) -> None:
        self._value = 0

    def update(self, data: ReadableBuffer) -> None:
        """Add bytes."""
        self._value = isal_zlib.crc32(data, self._value)

    def hexdigest(self) -> str:
        """Return the checksum of all bytes so far."""
        return f"{CRC32_PREFIX}{self._value:08x}"


class HashingWriter(io.BufferedIOBase):
    """A write-only stream that counts and hashes the bytes written; `checksum` is in the form of `checksum_of`."""

    def __init__(self, raw: BinaryIO, path: str, durable: bool = True) -> None:
        self._raw = raw
        self._path = path
        self._hash = hashlib.sha256() if durable else Crc32()
        self.size_bytes = 0

    @property
    def checksum(self) -> str:
        """The checksum of all bytes written so far."""
        return self._hash.hexdigest()

    def write(self, data: ReadableBuffer) -> int:
        """Write bytes; raise StorageError, naming the file, if the file system refuses."""
        view = memoryview(data).cast("B")
        with translate_os_errors(self._path, "write"):
            self._raw.write(view)
        self._hash.update(view)
        self.size_bytes += len(view)
        return len(view)

    def writable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the number of bytes written."""
        return self.size_bytes

    def flush(self) -> None:
        """Hand the bytes to the operating system; they are made durable when the file is published."""
        with translate_os_errors(self._path, "write"):
            self._raw.flush()
