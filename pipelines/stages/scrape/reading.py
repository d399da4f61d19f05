"""Lines that hold no submission are counted and listed, never passed over."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO, Protocol

import pyarrow as pa

from pipelines.stages.scrape.sources import SourceFile

REJECT_SCHEMA = pa.schema(
    [
        pa.field("file", pa.string(), nullable=False),
        pa.field("line", pa.int64(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("text", pa.string(), nullable=False),
    ]
)

# A file is refused with more bad lines than both of these: a few happen, many mean that it is not what it seems.
_BAD_LINES_ALLOWED = 9
_BAD_SHARE_ALLOWED = 0.01

# Decompressed garbage may hold no newline at all; no submission is near this size.
MAX_LINE_BYTES = 32 << 20
_SHOWN_CHARACTERS = 200


class RowWriter(Protocol):
    """Takes rows of REJECT_SCHEMA."""

    def write(self, record: Any) -> None:
        """Add one row."""


class Rejects:
    """Lists the lines of one file that hold no submission."""

    def __init__(self, file: SourceFile, writer: RowWriter) -> None:
        self._file = file
        self._writer = writer
        self.count = 0

    def add(self, line: int, reason: str, content: bytes) -> None:
        """List one line with the first 200 characters of what it holds."""
        # A character has four bytes at most, so this holds the first 200 whole.
        text = content[: 4 * _SHOWN_CHARACTERS].decode(errors="replace")[:_SHOWN_CHARACTERS]
        self._writer.write({"file": self._file.label, "line": line, "reason": reason, "text": text.rstrip("\r\n")})
        self.count += 1

    def too_many(self, lines: int) -> bool:
        """Tell whether so many lines are bad that the file is not what it seems."""
        return self.count > _BAD_LINES_ALLOWED and self.count > lines * _BAD_SHARE_ALLOWED


def numbered_lines(stream: BinaryIO, max_bytes: int = MAX_LINE_BYTES) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that are not blank with their numbers from 1; an endless one only up to `max_bytes`."""
    number = 0
    while line := stream.readline(max_bytes):
        number += 1
        if len(line) == max_bytes and not line.endswith(b"\n"):
            while (rest := stream.readline(max_bytes)) and not rest.endswith(b"\n"):
                pass
        if not line.isspace():
            yield number, line
