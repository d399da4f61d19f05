"""Bounded reads of untrusted files: a few hundred kilobytes of zstd can contain one line of 10 GB."""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterator
from typing import BinaryIO

from pipelines import storage
from pipelines.errors import InputError
from pipelines.format import format_bytes

# No web page is near this size; parsing takes several times the memory.
MAX_LINE_BYTES = 64 << 20
# A text file is one document. Text is rarely compressed to less than a tenth, zeros to a ten-thousandth.
_MAX_TEXT_BYTES = 1 << 30
_MAX_TEXT_RATIO = 16
# A compressed or Parquet file may contain 1 GiB, or this many times its size: more than one repeated line has, of which
# gzip makes at most a 1,032nd, xz a 6,900th and zstd a 32,768th. It stops Parquet's dictionaries and bombs of bzip2.
MAX_RATIO = 100_000
MAX_DATA_BYTES = 1 << 30
_READ_BYTES = 1 << 20
# Larger blocks of lines, with what is decoded of them, leave the processor's cache.
BLOCK_BYTES = 1 << 18
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def stream_lines(stream: BinaryIO, max_bytes: int | None = None) -> Iterator[bytes]:
    """Yield the lines of a stream with their ends; see `line_blocks`."""
    return itertools.chain.from_iterable(map(io.BytesIO, line_blocks(stream, max_bytes)))


def line_blocks(stream: BinaryIO, max_bytes: int | None = None, block_bytes: int = BLOCK_BYTES) -> Iterator[bytes]:
    """Yield a buffered stream, without a byte-order mark, in blocks of whole lines; the last may have no line end.

    A line longer than `max_bytes` (by default 64 MiB), and than a block, is cut to that, and ends its block without a
    line end. If the stream is damaged, all whole lines before the damage are yielded, then its error is raised.
    """
    max_bytes, is_first = max_bytes or MAX_LINE_BYTES, True
    while block := stream.read1(block_bytes):  # type: ignore[attr-defined]
        if is_first:
            block, is_first = block.removeprefix(BYTE_ORDER_MARK), False
        end = block.rfind(b"\n") + 1
        if end < len(block):
            try:
                rest = skipped = stream.readline(max_bytes)
                while skipped and not skipped.endswith(b"\n"):
                    skipped = stream.readline(_READ_BYTES)
            except Exception:
                if end:
                    yield block[:end]
                raise
            block += rest
            if len(block) - end > max_bytes:
                block = block[: end + max_bytes]
        if block:
            yield block


def max_text_bytes(file_bytes: int) -> int:
    """Return the largest document that a text file of this size on disk, possibly compressed, may contain."""
    return max(MAX_LINE_BYTES, min(_MAX_TEXT_BYTES, _MAX_TEXT_RATIO * file_bytes))


def read_at_most(stream: BinaryIO, max_bytes: int) -> bytearray | None:
    """Return the rest of a stream, or None if it is longer than `max_bytes`."""
    data = bytearray()
    while block := stream.read(_READ_BYTES):
        data += block
        if len(data) > max_bytes:
            return None
    return data


class DataLimit:
    """Counts the data that are read of a file, and refuses a decompression bomb."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._data_bytes = 0
        self._limit = MAX_DATA_BYTES

    def count(self, data_bytes: int, evidence: str = "") -> None:
        """Add bytes of data; raise InputError above 1 GiB and 100,000 times the size of the file."""
        self._data_bytes += data_bytes
        if self._data_bytes > self._limit:
            file_bytes = storage.size_bytes(self._path)
            self._limit = max(self._limit, MAX_RATIO * file_bytes)
            if self._data_bytes > self._limit:
                raise InputError(
                    f"{self._path}: contains at least {self._data_bytes // max(1, file_bytes):,} times its size "
                    f"({evidence or format_bytes(self._data_bytes)} in {file_bytes:,} bytes; the limit is {MAX_RATIO:,}"
                    "); if you trust the file, decompress it, or write the table again without dictionaries"
                )
