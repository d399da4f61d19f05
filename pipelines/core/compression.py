"""Decompressed byte streams, by the name of the file; a truncated or corrupt one is an error, never a short read."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import lzma
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, BinaryIO, cast

import zstandard

from pipelines.core import progress, storage
from pipelines.core.errors import DamagedFileError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

# Reddit's dumps are made with `zstd --long=31`; the decoder's default window refuses them.
_ZSTD_WINDOW_BYTES = 2**31
_CHUNK_BYTES = 1 << 18
_BUFFER_BYTES = 1 << 20

# What the decoders raise for a damaged file; bz2 reports corruption as a plain OSError without an error number.
DAMAGE_ERRORS = (EOFError, lzma.LZMAError, zlib.error, zstandard.ZstdError, OSError)

SUFFIXES = (".zst", ".xz", ".bz2", ".gz")


def strip_compression(name: str) -> str:
    """Return a name without its compression suffix."""
    for suffix in SUFFIXES:
        if name.endswith(suffix):
            return name[: -len(suffix)]
    return name


@contextlib.contextmanager
def open_decompressed(path: str, *, report_bytes: bool = False) -> Iterator[BinaryIO]:
    """Yield the decompressed bytes of `.zst`, `.xz`, `.bz2`, `.gz` or plain files as a buffered stream.

    With `report_bytes`, what is read of the file, in its compressed bytes, is reported as progress. Inside the block, a
    truncated or corrupt file raises DamagedFileError with the file's name and the offset reached in the compressed
    bytes, after all that was decoded before.
    """
    with storage.open_read(path) as raw:
        source = cast(BinaryIO, _ReportedReader(raw)) if report_bytes else raw
        try:
            yield _SteadyReader(_decoder(path, source), _BUFFER_BYTES)
        except DAMAGE_ERRORS as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise DamagedFileError(path, raw.tell(), str(error)) from error


def _decoder(path: str, raw: BinaryIO) -> io.RawIOBase:
    if path.endswith(".zst"):
        return _ZstdReader(raw)
    if path.endswith(".xz"):
        return _PieceReader(lzma.LZMAFile(raw))
    if path.endswith(".bz2"):
        return _PieceReader(bz2.BZ2File(raw))
    if path.endswith(".gz"):
        return _PieceReader(gzip.GzipFile(fileobj=raw, mode="rb"))
    return cast(io.RawIOBase, raw)


class _SteadyReader(io.BufferedReader):
    """Hands out what came before an error, then raises it; `BufferedReader` forgets what it has already filled in."""

    _problem: Exception | None = None

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Fill a buffer as far as the stream goes."""
        if self._problem is not None:
            raise self._problem
        target = memoryview(buffer).cast("B")
        size = 0
        try:
            while size < len(target) and (got := self.readinto1(target[size:])):
                size += got
        except DAMAGE_ERRORS as error:
            if not size:
                raise
            self._problem = error
        return size


class _PieceReader(io.RawIOBase):
    """Reads of a decoder what is ready; asked for more at once, it forgets what it has when an error comes."""

    def __init__(self, decoder: lzma.LZMAFile | bz2.BZ2File | gzip.GzipFile) -> None:
        self._decoder = decoder

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Fill a buffer; return 0 at the end of the data."""
        target = memoryview(buffer).cast("B")
        data = self._decoder.read1(len(target))
        target[: len(data)] = data
        return len(data)


class _ReportedReader(io.RawIOBase):
    """Passes a file on and reports what is read of it as progress."""

    def __init__(self, raw: BinaryIO) -> None:
        self._raw = raw

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Fill a buffer; return 0 at the end of the file."""
        target = memoryview(buffer).cast("B")
        data = self._raw.read(len(target))
        target[: len(data)] = data
        progress.advance(len(data))
        return len(data)


class _ZstdReader(io.RawIOBase):
    """Reads zstd frames one after the other; unlike `stream_reader`, it notices a frame that stops short."""

    def __init__(self, raw: BinaryIO) -> None:
        self._raw = raw
        self._context = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES)
        self._frame = self._context.decompressobj()
        self._frame_has_bytes = False
        self._ready = b""

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Fill a buffer; return 0 at the true end of the data."""
        while not self._ready:
            chunk = self._raw.read(_CHUNK_BYTES)
            if not chunk:
                if self._frame_has_bytes:
                    raise EOFError("the last zstd frame is incomplete")
                return 0
            self._ready = self._decode(chunk)
        target = memoryview(buffer).cast("B")
        size = min(len(target), len(self._ready))
        target[:size] = self._ready[:size]
        self._ready = self._ready[size:]
        return size

    def _decode(self, chunk: bytes) -> bytes:
        parts = []
        while chunk:
            self._frame_has_bytes = True
            parts.append(self._frame.decompress(chunk))
            chunk = b""
            if self._frame.eof:
                chunk = self._frame.unused_data
                self._frame = self._context.decompressobj()
                self._frame_has_bytes = False
        return b"".join(parts)
