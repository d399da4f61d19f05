"""Reads the lines of source files; lines that are not a submission are counted and listed, never skipped silently."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, Protocol

import pyarrow as pa

from pipelines.errors import DamagedFileError
from pipelines.stages.scrape.file_stats import FileStats
from pipelines.stages.scrape.sources import SourceFile
from pipelines.stages.scrape.submission import BadLineError, Submission, decode_lines, parse_line
from pipelines.storage.compression import open_decompressed

REJECT_SCHEMA = pa.schema(
    [
        pa.field("file", pa.string(), nullable=False),
        pa.field("line", pa.int64(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("text", pa.string(), nullable=False),
    ]
)

# A file is refused with more bad lines than both of these: a few occur, many mean that it is not what it seems.
_BAD_LINES_ALLOWED = 9
_BAD_SHARE_ALLOWED = 0.01

# Decompressed garbage may contain no newline at all; no submission is near this size.
_MAX_LINE_BYTES = 32 << 20
# Larger blocks, with what is decoded of them, leave the processor's cache.
_BLOCK_BYTES = 1 << 18
_SHOWN_CHARACTERS = 200


class RowWriter(Protocol):
    """Writes rows of REJECT_SCHEMA."""

    def write(self, record: Any) -> None:
        """Add one row."""


class Rejects:
    """Lists the lines of one file that are not a submission."""

    def __init__(self, file: SourceFile, writer: RowWriter) -> None:
        self._file = file
        self._writer = writer
        self.count = 0

    def add(self, line: int, reason: str, content: bytes) -> None:
        """List one line with its first 200 characters."""
        # A character has at most four bytes.
        text = content[: 4 * _SHOWN_CHARACTERS].decode(errors="replace")[:_SHOWN_CHARACTERS]
        self._writer.write({"file": self._file.label, "line": line, "reason": reason, "text": text.rstrip("\r\n")})
        self.count += 1

    def too_many(self, lines: int) -> bool:
        """Return whether so many lines are bad that the file is not what it seems."""
        return self.count > _BAD_LINES_ALLOWED and self.count > lines * _BAD_SHARE_ALLOWED


def count_submissions(
    file: SourceFile, rejects: Rejects, stats: FileStats
) -> Iterator[tuple[Sequence[int], list[Submission]]]:
    """Yield the submissions of a dump as `read_submissions` does and count them; a damaged file ends early."""
    try:
        with open_decompressed(file.path, report_bytes=True) as stream:
            for numbers, submissions in read_submissions(stream, rejects):
                stats.count(submissions)
                yield numbers, submissions
    except DamagedFileError as error:
        stats.damaged_at, stats.damage = error.offset_bytes, error.reason
    stats.lines += rejects.count
    stats.bad_lines = rejects.count
    stats.too_many_bad = rejects.too_many(stats.lines)
    if stats.damaged_at is None:
        stats.diagnose()


def read_submissions(
    stream: BinaryIO, rejects: Rejects, *, block_bytes: int = _BLOCK_BYTES, max_line_bytes: int = _MAX_LINE_BYTES
) -> Iterator[tuple[Sequence[int], list[Submission]]]:
    """Yield the submissions of a dump with their line numbers from 1, a few hundred at a time.

    Bad lines are added to `rejects`, blank ones skipped.
    """
    line = 1
    for block in line_blocks(stream, block_bytes, max_line_bytes):
        submissions = decode_lines(block)
        if submissions is not None:
            yield range(line, line + len(submissions)), submissions
            line += len(submissions)
        else:
            lines = block[:-1].split(b"\n")
            yield _parse_lines(lines, line, rejects)
            line += len(lines)


def _parse_lines(lines: Sequence[bytes], first_line: int, rejects: Rejects) -> tuple[list[int], list[Submission]]:
    """Return the submissions of a block with bad or uncommon lines, with their line numbers."""
    numbers, submissions = [], []
    for number, line in enumerate(lines, first_line):
        if not line or line.isspace():
            continue
        try:
            submissions.append(parse_line(line))
            numbers.append(number)
        except BadLineError as error:
            rejects.add(number, str(error), line)
    return numbers, submissions


def line_blocks(
    stream: BinaryIO, block_bytes: int = _BLOCK_BYTES, max_line_bytes: int = _MAX_LINE_BYTES
) -> Iterator[bytes]:
    """Yield a stream in blocks of whole lines; the last line gets a newline if it has none.

    Of a line longer than `max_line_bytes` only the first part is yielded. If the stream is damaged, all whole lines
    before the damage are yielded, then its error is raised.
    """
    # One buffer, since further copies of every block take a tenth of the time of reading a dump.
    buffer = bytearray(2 * block_bytes)
    size = 0  # of the incomplete line at the start of the buffer
    skips_line = False
    while count := stream.readinto(memoryview(buffer)[size : size + block_bytes]):  # type: ignore[attr-defined]
        start = 0
        if skips_line:
            start = buffer.find(b"\n", 0, count) + 1
            if not start:
                continue
            skips_line = False
        end = buffer.rfind(b"\n", size, size + count) + 1
        if end > start:
            yield bytes(memoryview(buffer)[start:end])
        rest = buffer[max(start, end) : size + count]
        if len(rest) >= max_line_bytes:
            yield bytes(rest[:max_line_bytes] + b"\n")
            rest, skips_line = bytearray(), True
        size = len(rest)
        if size + block_bytes > len(buffer):
            buffer = bytearray(2 * (size + block_bytes))
        buffer[:size] = rest
    if size:
        yield bytes(buffer[:size] + b"\n")
