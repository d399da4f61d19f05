"""Iteration over the records of WARC and ARC files with bounded headers, which warcio reads whole."""

from __future__ import annotations

from typing import Any, BinaryIO

from warcio.archiveiterator import ArchiveIterator
from warcio.bufferedreaders import DecompressingBufferedReader
from warcio.exceptions import ArchiveLoadFailed

# Crawlers accept at most a quarter of this; every line becomes an object of a few hundred bytes.
MAX_HEADER_BYTES = 1 << 20


class BoundedArchiveIterator(ArchiveIterator):  # type: ignore[misc]
    """Yields records, those of ARC as of WARC.

    Raises ArchiveLoadFailed for one whose headers, of the record and of HTTP, exceed 1 MiB.
    """

    def __init__(self, stream: BinaryIO, is_arc: bool = False) -> None:
        super().__init__(stream, arc2warc=is_arc)
        self.reader = _HeaderLineReader(self.fh)

    def _next_record(self, next_line: bytes | None) -> Any:
        self.reader.header_bytes = len(next_line or b"")
        return super()._next_record(next_line)


class _HeaderLineReader(DecompressingBufferedReader):  # type: ignore[misc]
    """Counts the bytes that are read as lines, which are the headers and the blank lines after a record."""

    header_bytes = 0

    def readline(self, length: int | None = None) -> bytes:
        """Return a line; raise ArchiveLoadFailed if the record has had too many bytes of lines."""
        allowed = MAX_HEADER_BYTES - self.header_bytes + 1
        line: bytes = super().readline(allowed if length is None else min(length, allowed))
        self.header_bytes += len(line)
        if self.header_bytes > MAX_HEADER_BYTES:
            raise ArchiveLoadFailed(f"the headers of a record have more than {MAX_HEADER_BYTES:,} bytes")
        return line
