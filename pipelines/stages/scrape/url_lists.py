"""Reads lists of URLs: one a line, or a column of a table."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

import pyarrow as pa

from pipelines.core import shards
from pipelines.core.compression import open_decompressed, strip_compression
from pipelines.core.errors import InputError
from pipelines.stages.scrape.reading import Rejects, numbered_lines
from pipelines.stages.scrape.sources import SourceFile
from pipelines.stages.scrape.submission import RawSubmission


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
