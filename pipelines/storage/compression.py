"""Decompressed byte streams by file suffix; a truncated or corrupt file raises an error, never a short read."""

from __future__ import annotations

import bz2
import contextlib
import functools
import gzip
import io
import itertools
import lzma
import re
import zlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import zstandard

from pipelines import progress, storage
from pipelines.errors import DamagedFileError, InputError
from pipelines.storage.bounded import DataLimit

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

# Reddit's dumps are compressed with `zstd --long=31`, beyond the decoder's default maximum window.
_ZSTD_WINDOW_BYTES = 2**31

# The zstd format (RFC 8878, section 3.1): the first bytes of a frame give the size of its header and whether a checksum
# follows its blocks; the three bytes before a block give its size, its type and whether it is the last.
_FRAME_START_BYTES = 5
_CHECKSUM_FLAG = 4
_SKIPPABLE_MAGIC = 0x184D2A50
_BLOCK_HEADER_BYTES = 3
_REPEATED_BYTE = 1
_CHECKSUM_BYTES = 4
# 2 MiB: between blocks, the decoder's window and tables leave the processor's cache (benchmarks/scrape.md).
_PIECES_AHEAD = 16

_CHUNK_BYTES = 1 << 18
_READ_BYTES = 1 << 20
_SAMPLE_READS = 128
# For reading lines; larger reads are decoded into the caller's buffer without a copy.
_BUFFER_BYTES = 1 << 17

# The decoders' exceptions for damaged files; bz2 reports corruption as an OSError without an error number.
DAMAGE_ERRORS = (EOFError, lzma.LZMAError, zlib.error, zstandard.ZstdError, OSError)

# The format and the suffix of compressed files by their magic number.
COMPRESSION_MAGIC = {
    b"\x28\xb5\x2f\xfd": ("zstd", ".zst"),
    b"\xfd7zXZ": ("xz", ".xz"),
    b"BZh": ("bzip2", ".bz2"),
    b"\x1f\x8b": ("gzip", ".gz"),
}
# A stream of bzip2 that has data begins with these bytes.
_BZIP2_STREAM = re.compile(rb"BZh[1-9]1AY&SY")
_BZIP2_STREAM_BYTES = 10
_ZIP_MAGIC = b"PK\x03\x04"
_TAR_MAGIC = slice(257, 262)

SUFFIXES = (".zst", ".xz", ".bz2", ".gz")


def strip_compression(name: str) -> str:
    """Return a name in lower case and without its compression suffix, to tell types of files apart."""
    name = name.lower()
    return name.removesuffix(next(filter(name.endswith, SUFFIXES), ""))


@contextlib.contextmanager
def open_decompressed(path: str, *, report_bytes: bool = False) -> Iterator[BinaryIO]:
    """Yield the decompressed bytes of `.zst`, `.xz`, `.bz2`, `.gz` or plain files as a buffered stream.

    With `report_bytes`, progress is reported in compressed bytes read. Inside the block, a truncated or corrupt file
    raises DamagedFileError with its name and the offset reached in the compressed bytes, once all data before the
    damage has been read. Raises InputError for an archive, for compressed data under another suffix, and see DataLimit.
    """
    with storage.open_read(path) as raw, _translate_damage(path, raw):
        source = cast(BinaryIO, _Reader(functools.partial(_read_reported, raw))) if report_bytes else raw
        _check_format(path, raw)
        decode = _decoder(path, source)
        yield io.BufferedReader(_Reader(decode, DataLimit(path)) if decode else cast(Any, source), _BUFFER_BYTES)


def count_line_ends(path: str, part: range) -> int:
    """Return how many lines end in a part of the bytes of a file."""
    count = 0
    with storage.open_read(path, start=part.start, size=len(part)) as stream:
        for position in range(part.start, part.stop, _READ_BYTES):
            count += stream.read(min(_READ_BYTES, part.stop - position)).count(b"\n")
    return count


def estimate_lines(path: str) -> int:
    """Estimate the number of lines of a compressed file from its first megabytes."""
    with storage.open_read(path) as raw, _translate_damage(path, raw):
        decode = _decoder(path, raw) or raw.read
        lines = sum(bytes(decode(_CHUNK_BYTES)).count(b"\n") for _ in range(_SAMPLE_READS))
        return lines * storage.size_bytes(path) // max(1, raw.tell())


def _read_reported(raw: BinaryIO, size: int) -> bytes:
    data = raw.read(min(size, _READ_BYTES))
    progress.advance(len(data))
    return data


def find_bzip2_stream(path: str, begin: int, end: int) -> int | None:
    """Return where the first stream with data in a part of the bytes of a `.bz2` file begins, None if none does."""
    with storage.open_read(path) as raw:
        for start in range(begin, end, _READ_BYTES):
            raw.seek(start)
            match = _BZIP2_STREAM.search(raw.read(_READ_BYTES + _BZIP2_STREAM_BYTES - 1))
            if match and start + match.start() < end:
                return start + match.start()
    return None


def read_bzip2_streams(path: str, begin: int, end: int) -> Iterator[bytes]:
    """Yield the data of the streams of a `.bz2` file from `begin`, where one begins, in chunks of up to 1 MiB.

    The last is the one that begins before `end`. Raises DamagedFileError if a stream is truncated or corrupt.
    """
    with storage.open_read(path) as raw, _translate_damage(path, raw):
        _check_format(path, raw)
        position, limit = begin, DataLimit(path)
        while position < end:
            raw.seek(position)
            decoder = bz2.BZ2Decompressor()
            while not decoder.eof:
                compressed = raw.read(_CHUNK_BYTES) if decoder.needs_input else b""
                if decoder.needs_input and not compressed:
                    raise EOFError("the last bzip2 stream is incomplete")
                if data := decoder.decompress(compressed, _READ_BYTES):
                    limit.count(len(data))
                    yield data
            position = raw.tell() - len(decoder.unused_data)


@contextlib.contextmanager
def _translate_damage(path: str, raw: BinaryIO) -> Iterator[None]:
    try:
        yield
    except DAMAGE_ERRORS as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        offset, reason = raw.tell(), str(error)
        problem = f"is truncated or corrupt near compressed byte {offset} ({reason})"
        remedy = "check that the copy is complete, or omit it"
        raise DamagedFileError(f"{path}: {problem}; {remedy}", offset, reason) from error


def _check_format(path: str, raw: BinaryIO) -> None:
    """Raise InputError for an archive, and for compressed data whose suffix is missing or wrong."""
    start = raw.read(_TAR_MAGIC.stop)
    raw.seek(0)
    if start[_TAR_MAGIC] == b"ustar" or path.lower().endswith(".tgz") or strip_compression(path).endswith(".tar"):
        raise InputError(f"{path}: is a tar archive; unpack it first")
    if start.startswith(_ZIP_MAGIC):
        raise InputError(f"{path}: is a zip archive; unpack it first")
    for magic, (kind, suffix) in COMPRESSION_MAGIC.items():
        if start.startswith(magic) and not path.lower().endswith(suffix):
            raise InputError(f"{path}: contains {kind} data; rename it to end in {suffix}")


def _decoder(path: str, raw: BinaryIO) -> Callable[[int], bytes | memoryview] | None:
    name = path.lower()
    if name.endswith(".zst"):
        return _zstd_decoder(raw)
    if name.endswith(".xz"):
        return lzma.LZMAFile(raw).read1
    if name.endswith(".bz2"):
        return bz2.BZ2File(raw).read1
    if name.endswith(".gz"):
        return gzip.GzipFile(fileobj=raw, mode="rb").read1
    return None


class _Reader(io.RawIOBase):
    """Reads by a function that returns at most so many bytes: of a decoder, `read1` keeps the data before an error."""

    def __init__(self, read: Callable[[int], bytes | memoryview], limit: DataLimit | None = None) -> None:
        self._read = read
        self._limit = limit

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Fill a buffer; return 0 at the end of the data."""
        target = memoryview(buffer).cast("B")
        data = self._read(len(target))
        if self._limit:
            self._limit.count(len(data))
        target[: len(data)] = data
        return len(data)


def _zstd_decoder(raw: BinaryIO) -> Callable[[int], memoryview]:
    """Return a function that reads zstd frames block by block: memory is bounded, and all data before damage is read.

    The decoder discards its output when a call fails.
    """
    decoder = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES).decompressobj(read_across_frames=True)
    parts = _zstd_parts(io.BufferedReader(_Reader(raw.read), _CHUNK_BYTES))
    pieces, pending = _read_ahead(filter(None, map(decoder.decompress, parts))), memoryview(b"")

    def read(size: int) -> memoryview:
        nonlocal pending
        pending = pending or memoryview(next(pieces, b""))
        data, pending = pending[:size], pending[size:]
        return data

    return read


def _read_ahead(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield pieces that are read several at a time; those before an error are yielded before it is raised."""
    while True:
        batch: list[bytes] = []
        try:
            batch.extend(itertools.islice(pieces, _PIECES_AHEAD))
        finally:
            yield from batch
        if not batch:
            return


def _zstd_parts(stream: io.BufferedReader) -> Iterator[bytes]:
    """Yield the headers and blocks of zstd frames; raise EOFError if the last one is incomplete, which zstd accepts."""

    def read(size: int) -> bytes:
        data = stream.read(size)
        if len(data) < size:
            raise EOFError("the last zstd frame is incomplete")
        return data

    while stream.peek(1):
        start = read(_FRAME_START_BYTES)
        if int.from_bytes(start[:4], "little") & ~0xF == _SKIPPABLE_MAGIC:
            size = int.from_bytes(start[4:] + read(3), "little")
            while size:
                size -= len(read(min(size, _CHUNK_BYTES)))
            continue
        yield start + read(zstandard.frame_header_size(start) - _FRAME_START_BYTES)
        is_last = False
        while not is_last:
            header = read(_BLOCK_HEADER_BYTES)
            number = int.from_bytes(header, "little")
            is_last, kind, size = bool(number & 1), number >> 1 & 3, number >> 3
            size = 1 if kind == _REPEATED_BYTE else size
            block = stream.read(size)
            yield header + block  # part of a truncated block may still be decoded
            read(size - len(block))
        if start[-1] & _CHECKSUM_FLAG:
            yield read(_CHECKSUM_BYTES)
