"""Reads the submissions of one file, by line; lines that hold none are counted and listed, never passed over."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

import pyarrow as pa

from pipelines.core.compression import open_decompressed
from pipelines.core.errors import InputError
from pipelines.core.shards import ShardWriter
from pipelines.stages.scrape.sources import SourceFile
from pipelines.stages.scrape.submission import BadLineError, RawSubmission, parse_line

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
_MAX_LINE_BYTES = 32 << 20
_SHOWN_CHARACTERS = 200


class Rejects:
    """Lists the lines of one file that hold no submission."""

    def __init__(self, file: SourceFile, writer: ShardWriter) -> None:
        self._file = file
        self._writer = writer
        self.count = 0

    def add(self, line: int, reason: str, content: bytes) -> None:
        """List one line with the first 200 characters of what it holds."""
        # A character has four bytes at most, so this holds the first 200 whole.
        text = content[: 4 * _SHOWN_CHARACTERS].decode(errors="replace")[:_SHOWN_CHARACTERS]
        self._writer.write({"file": self._file.label, "line": line, "reason": reason, "text": text.rstrip("\r\n")})
        self.count += 1

    def check(self, lines: int) -> None:
        """Raise InputError where too many of the file's lines are bad."""
        if self.count > _BAD_LINES_ALLOWED and self.count > lines * _BAD_SHARE_ALLOWED:
            raise InputError(
                f"{self._file.path}: {self.count} of its {lines} lines are no submissions (more than 1%); "
                "check that it is a dump of Reddit submissions, one JSON object a line"
            )


def read_dump(file: SourceFile, rejects: Rejects) -> Iterator[RawSubmission]:
    """Yield the submissions of a dump; report the compressed bytes that were read as progress.

    Raises InputError, naming the file, where it is damaged or empty, where more than 1% of its lines are bad, and where
    no line has a usable URL or score.
    """
    lines = with_url = with_score = 0
    with open_decompressed(file.path, report_bytes=True) as stream:
        for number, line in numbered_lines(stream):
            lines += 1
            try:
                submission = parse_line(line)
            except BadLineError as error:
                rejects.add(number, str(error), line)
                continue
            with_url += submission.url is not None
            with_score += submission.score is not None
            yield submission
    if not lines:
        raise InputError(f"{file.path}: holds no lines at all; is the download complete?")
    rejects.check(lines)
    for name, usable in (("url", with_url), ("score", with_score)):
        if not usable:
            raise InputError(f"{file.path}: none of its {lines} lines has a usable `{name}`; is it of submissions?")


def numbered_lines(stream: BinaryIO, max_bytes: int = _MAX_LINE_BYTES) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that are not blank with their numbers from 1; an endless one only up to `max_bytes`."""
    number = 0
    while line := stream.readline(max_bytes):
        number += 1
        if len(line) == max_bytes and not line.endswith(b"\n"):
            while (rest := stream.readline(max_bytes)) and not rest.endswith(b"\n"):
                pass
        if not line.isspace():
            yield number, line
