"""Rows of CSV and TSV from numbered lines; a bad row costs only its first line."""

from __future__ import annotations

import csv
from collections import deque
from collections.abc import Iterator

from pipelines.storage.compression import strip_compression

# The numbered lines of a row of a table, and its cells or the error that prevents parsing them. A plain tuple, since a
# named one makes reading a third slower.
NumberedLines = list[tuple[int, bytes]]
TableRow = tuple[NumberedLines, list[str] | csv.Error]


class LongRowError(csv.Error):
    """A row has more lines or bytes than allowed, as it has after a quote that is never closed."""


def table_rows(
    path: str, lines: Iterator[tuple[int, bytes]], max_lines: int, max_bytes: int | None = None
) -> Iterator[TableRow]:
    """Yield the rows of CSV; after a row with an error, the lines behind its first one are read again.

    TSV, by the name of the file, has no quotes, so that a row is a line.
    """
    feed = _Lines(lines, max_lines, max_bytes)
    is_tsv = strip_compression(path).endswith(".tsv")
    # Strict, so that an unclosed quote is an error and does not swallow the rows after it.
    reader = map(_tsv_cells, feed) if is_tsv else csv.reader(feed, strict=True)
    while True:
        feed.row, feed.row_bytes = [], 0
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            feed.return_all_but_first()
            yield feed.row, error
        else:
            yield feed.row, cells


def _tsv_cells(line: str) -> list[str]:
    line = line.rstrip("\r\n")
    return line.split("\t") if line else []


class _Lines:
    """Feeds lines to `csv.reader` and remembers those of its row, so that a bad row costs only its first line."""

    def __init__(self, lines: Iterator[tuple[int, bytes]], max_lines: int, max_bytes: int | None) -> None:
        self._lines = lines
        self._max_lines = max_lines
        self._max_bytes = max_bytes
        self._returned: deque[tuple[int, bytes]] = deque()
        self.row: NumberedLines = []
        self.row_bytes = 0

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        if len(self.row) == self._max_lines:
            raise LongRowError("a row of too many lines")
        line = self._returned.popleft() if self._returned else next(self._lines)
        self.row.append(line)
        self.row_bytes += len(line[1])
        if self._max_bytes is not None and self.row_bytes >= self._max_bytes:
            raise LongRowError(f"a row of {self._max_bytes} bytes or more")
        # Other columns may contain bytes that are not UTF-8; only the cell that is wanted is checked.
        return line[1].decode("utf-8", "surrogateescape")

    def return_all_but_first(self) -> None:
        """Return all lines of the row except the first, to be read again as separate rows."""
        self._returned.extendleft(reversed(self.row[1:]))
