"""Iteration over the records of WARC and ARC files by warcio, with bounded headers and without its own warnings."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, BinaryIO, ClassVar, Generic, TypeVar, cast

from isal import isal_zlib
from warcio.archiveiterator import ArchiveIterator
from warcio.bufferedreaders import DecompressingBufferedReader
from warcio.exceptions import ArchiveLoadFailed
from warcio.statusandheaders import StatusAndHeadersParserException

from pipelines import storage
from pipelines.errors import InputError
from pipelines.storage.compression import open_decompressed, strip_compression

# Crawlers accept at most a quarter of this; every line becomes an object of a few hundred bytes.
MAX_HEADER_BYTES = 1 << 20
# warcio's messages quote the file.
_REASON_CHARACTERS = 200
ISAL_ERROR = cast(type[Exception], isal_zlib.IsalError)  # its stub declares an instance
# What warcio raises for an invalid record (AttributeError: it has no target URI).
RECORD_DAMAGE = (ArchiveLoadFailed, StatusAndHeadersParserException, EOFError, ISAL_ERROR, ValueError, AttributeError)

_ARC_START = b"filedesc://"
_WITHOUT_MEMBERS = (".zst", ".bz2", ".xz")
# Of `find_members`; each member copies what follows it in the data that was read.
_HEAD_BYTES, _SEARCHED_BYTES = 4096, 1 << 15
Content = TypeVar("Content")

# warcio warns of spaces in a URL, which it replaces by %20.
logging.getLogger("warcio").addHandler(logging.NullHandler())


def open_archive(path: str) -> AbstractContextManager[BinaryIO]:
    """Open an archive for `BoundedArchiveIterator`, which decompresses gzip itself: offsets are those of its members.

    The offsets in an archive of another compression are those in the decompressed data.
    """
    return storage.open_read(path) if has_members(path) else open_decompressed(path)


def has_members(path: str) -> bool:
    """Return whether each record of an archive can be read at its offset: it is plain, or a gzip member."""
    return not path.lower().endswith(_WITHOUT_MEMBERS)


def is_arc(path: str) -> bool:
    """Return whether a file is named as an ARC file."""
    return strip_compression(path).endswith(".arc")


def gzip_decoder() -> Any:
    """Return the decoder of a gzip member; ISA-L takes less than half the time of zlib."""
    return isal_zlib.decompressobj(16 + isal_zlib.MAX_WBITS)


def damaged_archive(path: str, offset: int, error: Exception) -> InputError:
    """Return the error for a file whose record after this offset is invalid."""
    lines = ("".join(filter(str.isprintable, line)).strip() for line in str(error).splitlines())
    reason = next(filter(None, lines), type(error).__name__)[:_REASON_CHARACTERS]
    if isinstance(error, AttributeError):
        reason = "a record has no URL"
    advice = "check that the copy is complete, repair it with `warcio recompress`, or omit it"
    return InputError(f"{path}: is damaged after byte {offset} ({reason}); {advice}")


@dataclasses.dataclass(frozen=True, slots=True)
class ArchivedRecord(Generic[Content]):
    """What was read of a record, its position, and whether it is as long as it declares."""

    content: Content
    offset: int
    length: int
    is_intact: bool


def read_archive(path: str, read: Callable[[Any], Content]) -> Iterator[ArchivedRecord[Content]]:
    """Yield what `read` returns for each record of a WARC or ARC file, by its name.

    Raises InputError, with the offset, if the file is damaged.
    """
    if is_arc(path):
        # warcio takes any line of five words for the header of an ARC record.
        with open_decompressed(path) as start:
            if start.read(len(_ARC_START)) != _ARC_START:
                raise InputError(f"{path}: is not an ARC file (it does not begin with {_ARC_START.decode()})")
    with open_archive(path) as stream:
        records = BoundedArchiveIterator(stream, is_arc(path))
        offset, is_cut = 0, False
        while True:
            try:
                record = next(records, None)
                if record is None:
                    if is_cut:  # of other types than responses, too: more may be missing after it
                        raise ArchiveLoadFailed("the last record is truncated")
                    return
                content = read(record)
                errors, offset = records.err_count, records.get_record_offset()
                is_cut = getattr(record.raw_stream, "limit", 0) > 0
            except RECORD_DAMAGE as error:
                raise damaged_archive(path, offset, error) from error
            yield ArchivedRecord(content, offset, records.get_record_length(), records.err_count == errors)


def find_members(path: str, pattern: re.Pattern[bytes]) -> Iterator[tuple[re.Match[bytes], int, int]]:
    """Yield the match, offset and length of each gzip member of a file whose first bytes match, up to any damage."""
    with storage.open_read(path) as stream, contextlib.suppress(ISAL_ERROR):
        start = position = 0
        rest, head, decoder = b"", b"", gzip_decoder()
        while data := rest or stream.read(_SEARCHED_BYTES):
            decoded = decoder.decompress(data)
            head += decoded[: max(0, _HEAD_BYTES - len(head))]
            rest = decoder.unused_data
            position += len(data) - len(rest)
            if decoder.eof:
                if match := pattern.match(head):
                    yield match, start, position - start
                start, head, decoder = position, b"", gzip_decoder()


class BoundedArchiveIterator(ArchiveIterator):  # type: ignore[misc]
    """Yields records, those of ARC as of WARC. `err_count` is the number of records of another length than declared.

    Raises ArchiveLoadFailed for one whose headers, of the record and of HTTP, exceed 1 MiB.
    """

    def __init__(self, stream: BinaryIO, is_arc: bool = False) -> None:
        super().__init__(stream, arc2warc=is_arc)
        self.reader = _HeaderLineReader(self.fh)

    def _next_record(self, next_line: bytes | None) -> Any:
        self.reader.header_bytes = len(next_line or b"")
        return super()._next_record(next_line)

    def _consume_blanklines(self) -> tuple[bytes | None, int]:
        """Return the line after the blank lines behind a record, and their size; see the method of warcio."""
        size_bytes = 0
        while line := self.reader.readline():
            if line.strip() and size_bytes:
                return line, size_bytes
            self.err_count += bool(line.strip())
            size_bytes += len(line)
        return None, size_bytes


class _HeaderLineReader(DecompressingBufferedReader):  # type: ignore[misc]
    """Counts the bytes that are read as lines, which are the headers and the blank lines after a record.

    Raises IsalError where warcio prints it, and ArchiveLoadFailed for an incomplete file, whose end warcio accepts.
    """

    DECOMPRESSORS: ClassVar = {"gzip": gzip_decoder}
    header_bytes = 0

    def _fillbuff(self, block_size: int | None = None) -> None:
        try:
            super()._fillbuff(block_size)
        except EOFError as error:  # of a decoder of `open_archive`; warcio would take it for the end of the file
            raise ArchiveLoadFailed(str(error)) from error

    def _process_read(self, data: bytes) -> None:
        if not data and self.decompressor and self.num_read and not self.decompressor.eof:
            raise ArchiveLoadFailed("the file ends within a compressed record")
        super()._process_read(data)

    def _decompress(self, data: bytes) -> bytes:
        if self.decompressor and self.num_block_read:
            return bytes(self.decompressor.decompress(data))
        return bytes(super()._decompress(data))

    def readline(self, length: int | None = None) -> bytes:
        """Return a line; raise ArchiveLoadFailed if the record has had too many bytes of lines."""
        allowed = MAX_HEADER_BYTES - self.header_bytes + 1
        line: bytes = super().readline(allowed if length is None else min(length, allowed))
        self.header_bytes += len(line)
        if self.header_bytes > MAX_HEADER_BYTES:
            raise ArchiveLoadFailed(f"the headers of a record have more than {MAX_HEADER_BYTES:,} bytes")
        return line
