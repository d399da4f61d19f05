"""Bounded reads of untrusted streams: a few hundred kilobytes of zstd can contain one line of 10 GB."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

# No web page is near this size; parsing takes several times the memory.
MAX_LINE_BYTES = 64 << 20
# A text file is one document. Text is rarely compressed to less than a tenth, zeros to a ten-thousandth.
_MAX_TEXT_BYTES = 1 << 30
_MAX_RATIO = 16
_READ_BYTES = 1 << 20
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def numbered_lines(
    stream: BinaryIO, max_bytes: int = MAX_LINE_BYTES, *, keep_blank: bool = False
) -> Iterator[tuple[int, bytes]]:
    """Yield the lines, by default without blank ones, with numbers from 1; a longer line is cut to `max_bytes`.

    A byte-order mark at the beginning is removed.
    """
    number = 0
    while line := stream.readline(max_bytes):
        number += 1
        if len(line) == max_bytes and not line.endswith(b"\n"):
            while (rest := stream.readline(_READ_BYTES)) and not rest.endswith(b"\n"):
                pass
        line = line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line
        if keep_blank or (line and not line.isspace()):
            yield number, line


def max_text_bytes(file_bytes: int) -> int:
    """Return the largest document that a text file of this size on disk, possibly compressed, may contain."""
    return max(MAX_LINE_BYTES, min(_MAX_TEXT_BYTES, _MAX_RATIO * file_bytes))


def read_at_most(stream: BinaryIO, max_bytes: int) -> bytearray | None:
    """Return the rest of a stream, or None if it is longer than `max_bytes`."""
    data = bytearray()
    while block := stream.read(_READ_BYTES):
        data += block
        if len(data) > max_bytes:
            return None
    return data
