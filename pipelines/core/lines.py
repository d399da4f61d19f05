"""Lines of text files, with a limit on their length."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

# Corrupt data may contain no newline at all; no record of ours is near this size.
MAX_LINE_BYTES = 32 << 20


def numbered_lines(stream: BinaryIO, max_bytes: int = MAX_LINE_BYTES) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that are not blank with their numbers from 1; of a longer line only the first `max_bytes`."""
    number = 0
    while line := stream.readline(max_bytes):
        number += 1
        if len(line) == max_bytes and not line.endswith(b"\n"):
            while (rest := stream.readline(max_bytes)) and not rest.endswith(b"\n"):
                pass
        if not line.isspace():
            yield number, line
