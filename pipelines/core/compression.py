"""Decompressed byte streams, by the name of the file; a truncated or corrupt one is an error, never a short read."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import lzma
import zlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, BinaryIO, cast

import zstandard

from pipelines.core import progress, storage
from pipelines.core.errors import DamagedFileError, InputError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

# Reddit's dumps are made with `zstd --long=31`; the decoder's default window refuses them.
_ZSTD_WINDOW_BYTES = 2**31

# The parts of zstd's format (RFC 8878, section 3.1): the first bytes of a frame tell the size of its header and whether
# a checksum follows its blocks, and the three before a block whether it is the last, its kind and its size.
_FRAME_START_BYTES = 5
_CHECKSUM_FLAG = 4
_SKIPPABLE_MAGIC = 0x184D2A50
_BLOCK_HEADER_BYTES = 3
_REPEATED_BYTE = 1
_MAX_BLOCK_BYTES = 1 << 17
_CHECKSUM_BYTES = 4

_CHUNK_BYTES = 1 << 18
_READ_BYTES = 1 << 20
# For lines; what is larger is decoded into the caller's buffer without a copy.
_BUFFER_BYTES = 1 << 17
# Where it is counted what a file gave, it is read in small pieces, so that hardly any waits in the decoder.
_COUNTED_READ_BYTES = 1 << 14
_COUNTED_BUFFER_BYTES = 1 << 16

# What the decoders raise for a damaged file; bz2 reports corruption as a plain OSError without an error number.
DAMAGE_ERRORS = (EOFError, lzma.LZMAError, zlib.error, zstandard.ZstdError, OSError)

# How compressed data begins: what made it, and the suffix that says so.
COMPRESSED_STARTS = {
    b"\x28\xb5\x2f\xfd": ("zstd", ".zst"),
    b"\xfd7zXZ": ("xz", ".xz"),
    b"BZh": ("bzip2", ".bz2"),
    b"\x1f\x8b": ("gzip", ".gz"),
}
_ZIP_START = b"PK\x03\x04"
_TAR_MAGIC = slice(257, 262)

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
    bytes, after all that was decoded before. Raises InputError for an archive, and for data under a wrong suffix.
    """
    with storage.open_read(path) as raw, _named_damage(path, raw):
        source = cast(BinaryIO, _WatchedReader(raw, progress.advance)) if report_bytes else raw
        _refuse_misnamed(path, raw)
        yield _SteadyReader(_decoder(path, source), _BUFFER_BYTES)


@contextlib.contextmanager
def open_counted(path: str) -> Iterator[CountedReader]:
    """Yield the decompressed bytes as `open_decompressed` does, with how many bytes of the file gave them.

    For the ratio of a beginning: of a file that is damaged, the last bytes before the damage may be missing.
    """
    with storage.open_read(path) as raw, _named_damage(path, raw):
        _refuse_misnamed(path, raw)
        yield CountedReader(path, raw)


class CountedReader(io.BufferedReader):
    """Decompressed bytes; the first `file_bytes` of the file gave the first `decoded_bytes`, of which some wait here.

    Both are as they were when the decoder last had nothing left to give, since some take in much before they give.
    """

    def __init__(self, path: str, raw: BinaryIO) -> None:
        self.file_bytes = self.decoded_bytes = 0
        self._taken_in = self._given = self._settled = 0
        source = _WatchedReader(raw, self._takes_in, _COUNTED_READ_BYTES)
        decoder = _decoder(path, cast(BinaryIO, source))
        super().__init__(_WatchedReader(cast(BinaryIO, decoder), self._gives), _COUNTED_BUFFER_BYTES)

    def _takes_in(self, size: int) -> None:
        if self._given > self._settled:
            self.file_bytes = self._taken_in
            self.decoded_bytes = self._settled = self._given
        self._taken_in += size

    def _gives(self, size: int) -> None:
        self._given += size
        if not self._settled:
            self.file_bytes, self.decoded_bytes = self._taken_in, self._given


@contextlib.contextmanager
def _named_damage(path: str, raw: BinaryIO) -> Iterator[None]:
    try:
        yield
    except DAMAGE_ERRORS as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise DamagedFileError(path, raw.tell(), str(error)) from error


def _refuse_misnamed(path: str, raw: BinaryIO) -> None:
    """Raise InputError for compressed data, or an archive, under a name that does not say so."""
    start = raw.read(_TAR_MAGIC.stop)
    raw.seek(0)
    if start[_TAR_MAGIC] == b"ustar" or path.endswith(".tgz") or strip_compression(path).endswith(".tar"):
        raise InputError(f"{path}: is a tar archive; unpack it first")
    if start.startswith(_ZIP_START):
        raise InputError(f"{path}: holds a zip archive, which its name does not say; unpack it first")
    for beginning, (kind, suffix) in COMPRESSED_STARTS.items():
        if start.startswith(beginning) and not path.endswith(suffix):
            raise InputError(
                f"{path}: holds {kind} data, which its name does not say; give it a name that ends in {suffix}"
            )


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


class _WatchedReader(io.RawIOBase):
    """Passes a stream on and tells of every read how many bytes it gave."""

    def __init__(self, raw: BinaryIO, tell_of: Callable[[int], None], most_bytes: int = _READ_BYTES) -> None:
        self._raw = raw
        self._tell_of = tell_of
        self._most_bytes = most_bytes

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Fill a buffer; return 0 at the end of the file."""
        target = memoryview(buffer).cast("B")
        data = self._raw.read(min(len(target), self._most_bytes))
        target[: len(data)] = data
        self._tell_of(len(data))
        return len(data)


class _ZstdReader(io.RawIOBase):
    """Decodes zstd frames block by block, so that memory is bounded and nothing before damage is lost."""

    def __init__(self, raw: BinaryIO) -> None:
        context = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES)
        source = cast(BinaryIO, _BlockSource(raw))
        self._decoder = context.stream_reader(source, read_across_frames=True)
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Fill a buffer with the content of a block; return 0 at the true end of the data."""
        target = memoryview(buffer).cast("B")
        # The decoder loses the end of a block that is larger than its target where the next cannot be read.
        if not self._rest and len(target) >= _MAX_BLOCK_BYTES:
            return self._decoder.readinto1(target)
        self._rest = self._rest or memoryview(self._decoder.read1(_MAX_BLOCK_BYTES))
        size = min(len(target), len(self._rest))
        target[:size], self._rest = self._rest[:size], self._rest[size:]
        return size


class _BlockSource:
    """The bytes of zstd frames, one block per call of `read`; raises EOFError if the last frame is incomplete.

    The decoder itself takes a frame that stops short for a whole one, and loses what it decoded in a call that fails.
    """

    def __init__(self, raw: BinaryIO) -> None:
        self._raw = raw
        self._compressed = memoryview(b"")
        self._parts = self._frames()

    def read(self, size: int = -1) -> memoryview:
        """Return the next block or header, whatever its size; empty at the end."""
        return next(self._parts, memoryview(b""))

    def _frames(self) -> Iterator[memoryview]:
        while self._has(1):
            self._require(_FRAME_START_BYTES)
            start = self._compressed[:_FRAME_START_BYTES]
            if int.from_bytes(start[:4], "little") & ~0xF == _SKIPPABLE_MAGIC:
                self._skip_frame()
                continue
            header_bytes = zstandard.frame_header_size(start)
            self._require(header_bytes)
            yield self._take(header_bytes)
            yield from self._blocks()
            if start[-1] & _CHECKSUM_FLAG:
                self._require(_CHECKSUM_BYTES)
                yield self._take(_CHECKSUM_BYTES)

    def _skip_frame(self) -> None:
        self._require(8)
        size = int.from_bytes(self._take(8)[4:], "little")
        while size:
            self._require(1)
            size -= len(self._take(size))

    def _blocks(self) -> Iterator[memoryview]:
        is_last = False
        while not is_last:
            self._require(_BLOCK_HEADER_BYTES)
            header = int.from_bytes(self._compressed[:_BLOCK_HEADER_BYTES], "little")
            is_last, kind, size = bool(header & 1), header >> 1 & 3, header >> 3
            size = _BLOCK_HEADER_BYTES + (1 if kind == _REPEATED_BYTE else size)
            self._has(size)
            part = self._take(size)
            yield part  # of a block that stops short, some may be decoded
            self._require(size - len(part))

    def _has(self, size: int) -> bool:
        """Read on until there are so many compressed bytes; tell whether the file has them."""
        while len(self._compressed) < size:
            chunk = self._raw.read(_CHUNK_BYTES)
            if not chunk:
                return False
            self._compressed = memoryview(bytes(self._compressed) + chunk)
        return True

    def _require(self, size: int) -> None:
        if not self._has(size):
            raise EOFError("the last zstd frame is incomplete")

    def _take(self, size: int) -> memoryview:
        """Return the next compressed bytes, fewer where there are no more."""
        part, self._compressed = self._compressed[:size], self._compressed[size:]
        return part
