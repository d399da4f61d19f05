"""Reads the submissions of one file, by line; lines that hold none are counted and listed, never passed over."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import BinaryIO

import pyarrow as pa

from pipelines.core import shards
from pipelines.core.compression import open_decompressed, strip_compression
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


def read_url_list(file: SourceFile, rejects: Rejects) -> Iterator[RawSubmission]:
    """Yield the URLs of a list as submissions without id, score and time.

    A list is a Parquet or CSV file with a column `url`, or one URL a line (`#` begins a comment), also compressed.
    Raises InputError, naming the file, where it is damaged, is no text, or has no such column.
    """
    name = strip_compression(file.path)
    if name.endswith(".parquet"):
        urls = _parquet_urls(file.path)
    elif name.endswith(".csv"):
        urls = _csv_urls(file.path)
    else:
        urls = _plain_urls(file.path, rejects)
    for url in urls:
        yield RawSubmission("", 0, url or None, None, "", "", over_18=False, is_self=False, promoted=False)


def _plain_urls(path: str, rejects: Rejects) -> Iterator[str | None]:
    lines = 0
    with open_decompressed(path, report_bytes=True) as stream:
        for number, line in numbered_lines(stream):
            if line.lstrip().startswith(b"#"):
                continue
            lines += 1
            try:
                yield line.decode("utf-8-sig").strip()
            except UnicodeDecodeError:
                rejects.add(number, "not_utf8", line)
    rejects.check(lines)


def _csv_urls(path: str) -> Iterator[str | None]:
    with open_decompressed(path, report_bytes=True) as stream:
        text = io.TextIOWrapper(stream, encoding="utf-8-sig", newline="")
        rows = csv.DictReader(text)
        try:
            shards.require_columns(path, list(rows.fieldnames or ()), ["url"])
            for row in rows:
                yield row["url"]
        except (UnicodeDecodeError, csv.Error) as error:
            raise InputError(f"{path}: cannot be read as CSV near line {rows.line_num} ({error})") from error


def _parquet_urls(path: str) -> Iterator[str | None]:
    for batch in shards.read_batches(path, ["url"]):
        column = batch.column("url")
        if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
            raise InputError(f"{path}: column 'url' is {column.type}, not text")
        yield from column.to_pylist()
