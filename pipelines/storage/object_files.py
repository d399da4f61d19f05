"""Files in an object store: one that is read by ranges, and one that becomes an object when it is closed."""

from __future__ import annotations

import io
import mmap
import tempfile
from collections.abc import Callable
from typing import Any, BinaryIO, NamedTuple

from pipelines.storage.local_cache import temporary_root

# Sizes of the first range, and the minimum and maximum of further ones. Files that are read in order are soon read in
# the largest ranges; the latency of a request is about the time of half a MB.
FIRST_RANGE, _MIN_RANGE, MAX_RANGE = 64 << 10, 512 << 10, 16 << 20


class Upload:
    """A temporary local file that becomes an object, by `put`, when it is closed."""

    def __init__(self, put: Callable[[Any], None]) -> None:
        self._put = put
        self._file: BinaryIO = tempfile.TemporaryFile(dir=temporary_root())  # noqa: SIM115 - closed by `discard`

    def write(self, data: Any) -> int:
        """Write bytes to the temporary file."""
        return self._file.write(data)

    def flush(self) -> None:
        """Do nothing: the object is written at the end."""

    def discard(self) -> None:
        """Close without writing the object."""
        self._file.close()

    def close(self) -> None:
        """Upload what was written."""
        if not self._file.closed:
            try:
                size = self._file.tell()
                self._file.flush()
                # Mapped, it needs no memory of its own; what is empty cannot be mapped.
                data = mmap.mmap(self._file.fileno(), size, access=mmap.ACCESS_READ) if size else b""
                self._put(data)
            finally:
                self.discard()


class _Block(NamedTuple):
    """Some bytes of an object, and their position."""

    start: int
    data: memoryview

    @property
    def end(self) -> int:
        return self.start + len(self.data)


class Ranges(io.RawIOBase):
    """An object that is read by ranges, which double while they follow each other.

    `read_range` is that of the object store for its path; `info` returns its size and ETag. A small first block stays,
    since that of the end has the indexes and footers to which readers return.
    """

    def __init__(
        self,
        read_range: Callable[..., tuple[memoryview, Any]],
        info: Callable[[], dict[str, Any]],
        start: int,
        first_range: int,
    ) -> None:
        self._read_range = read_range
        self._position = 0
        size = min(max(first_range, -start), MAX_RANGE)
        try:
            block, meta = read_range(start if start >= 0 else -size, size)
            self._size, self._tag = meta["size"], meta["e_tag"]
        except FileNotFoundError:
            raise
        except OSError as error:  # there is no range at the end of an object
            try:
                facts = info()
            except OSError:  # without a body, and so without the store's reason
                raise error from None
            if facts["size"] > max(0, start):
                raise
            block, self._size, self._tag = memoryview(b""), facts["size"], facts["etag"]
        first = _Block(self._size - len(block) if start < 0 else start, block)
        kept = first if len(block) <= FIRST_RANGE else _Block(0, memoryview(b""))
        self._blocks = [kept, first]  # the first one if it is small, and the latest

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to a position, and return it."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(0, base + offset)
        return self._position

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Read bytes into a buffer, those of one block at most; return how many."""
        wanted = max(0, min(len(buffer), self._size - self._position))
        if not wanted:
            return 0
        block = next((block for block in self._blocks if block.start <= self._position < block.end), None)
        if block is None:
            block = self._blocks[1] = self._read_block(wanted)
        part = block.data[self._position - block.start :][:wanted]
        buffer[: len(part)] = part
        self._position += len(part)
        return len(part)

    def _read_block(self, wanted: int) -> _Block:
        kept, latest = self._blocks
        follows = self._position == latest.end > 0
        ahead = max(_MIN_RANGE, min(2 * len(latest.data), MAX_RANGE)) if follows else _MIN_RANGE
        start, end = self._position, min(self._position + min(max(wanted, ahead), MAX_RANGE), self._size)
        if start < kept.start < end:
            end = kept.start
        elif end == self._size:  # indexes and footers are read backwards
            start = max(0, min(start, end - FIRST_RANGE))
        data, _ = self._read_range(start, end - start, self._tag)
        return _Block(start, data)
