"""Bounded reads of untrusted streams: a few hundred kilobytes of zstd can contain one line of 10 GB."""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterator
from typing import BinaryIO

# No web page is near this size; parsing takes several times the memory.
MAX_LINE_BYTES = 64 << 20
# A text file is one document. Text is rarely compressed to less than a tenth, zeros to a ten-thousandth.
_MAX_TEXT_BYTES = 1 << 30
_MAX_RATIO = 16
_READ_BYTES = 1 << 20
# Larger blocks of lines, with what is decoded of them, leave the processor's cache.
BLOCK_BYTES = 1 << 18
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def stream_lines(stream: BinaryIO, max_bytes: int | None = None) -> Iterator[bytes]:
    """Yield the lines of a stream with their ends; see `line_blocks`."""
    return itertools.chain.from_iterable(map(io.BytesIO, line_blocks(stream, max_bytes)))


def line_blocks(stream: BinaryIO, max_bytes: int | None = None, block_bytes: int = BLOCK_BYTES) -> Iterator[bytes]:
    """Yield a stream, without a byte-order mark at its start, in blocks of whole lines; the last may have no line end.

    A line longer than `max_bytes` (by default 64 MiB), and than a block, is cut to that, and ends its block without a
    line end. If the stream is damaged, all whole lines before the damage are yielded, then its error is raised.
    """
    max_bytes = max_bytes or MAX_LINE_BYTES
    # One buffer, since further copies of every block take a tenth of the time of reading a dump.
    buffer = bytearray(2 * block_bytes)
    size = 0  # of the incomplete line at the start of the buffer
    skips_line, is_first = False, True
    while count := stream.readinto(memoryview(buffer)[size : size + block_bytes]):  # type: ignore[attr-defined]
        start = len(BYTE_ORDER_MARK) if is_first and buffer.startswith(BYTE_ORDER_MARK) else 0
        is_first = False
        if skips_line:
            start = buffer.find(b"\n", 0, count) + 1
            if not start:
                continue
            skips_line = False
        end = max(start, buffer.rfind(b"\n", size, size + count) + 1)
        size += count
        if end > start:
            yield bytes(memoryview(buffer)[start:end])
        if size - end >= max_bytes:
            yield bytes(memoryview(buffer)[end : end + max_bytes])
            end, skips_line = size, True
        if end:
            buffer[: size - end] = buffer[end:size]
            size -= end
        if size + block_bytes > len(buffer):
            buffer.extend(bytes(size + block_bytes))
    if size:
        yield bytes(memoryview(buffer)[:size])


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
