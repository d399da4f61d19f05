"""Reads dumps in blocks of whole lines and finds the fields of each line's submission, most of them without Python.

The numba scanner takes the lines that it is sure of; `parse_line` decides on the others. Both fill the same arrays, so
that what follows need not know which of them it was.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.algorithms.kernels.byte_scan import BLOCK
from pipelines.algorithms.text.json_strings import text_column
from pipelines.algorithms.web.plain_urls import plain_hosts
from pipelines.algorithms.web.submission_scan import (
    ESCAPED,
    HAS_SCORE,
    ID,
    IS_SELF,
    NOT_ASCII,
    OVER_18,
    OVERRIDE,
    PROMOTED,
    SLOW,
    SPANS,
    SUBREDDIT,
    TITLE,
    URL,
    scan_lines,
)
from pipelines.core.compression import DAMAGE_ERRORS
from pipelines.stages.scrape.reading import MAX_LINE_BYTES, Rejects
from pipelines.stages.scrape.submission import BadLineError, RawSubmission, parse_line, text_of_json

# What is done once a block, in Python, is little beside what its lines cost.
_BLOCK_BYTES = 8 << 20
# What kernels may read beyond the last line, and the newline that it may lack.
_PADDING = BLOCK + 1
_LINES_AT_ONCE = 1 << 15

_ESCAPED_URL = 1 << (ESCAPED + URL) | 1 << (ESCAPED + OVERRIDE)

Array = npt.NDArray[Any]


@dataclasses.dataclass
class Block:
    """Whole lines of a dump: `buffer[:end]`, which ends with a newline; `BLOCK` bytes more may be read."""

    buffer: bytearray
    end: int


def line_blocks(
    stream: BinaryIO, block_bytes: int = _BLOCK_BYTES, max_line_bytes: int = MAX_LINE_BYTES
) -> Iterator[Block]:
    """Yield a stream in blocks of whole lines; each is only good until the next.

    A line beyond `max_line_bytes` comes as its first part, and a last one without newline with one. Where the stream
    turns out to be damaged, all whole lines before it are yielded, then its error is raised.
    """
    buffer = bytearray(block_bytes + _PADDING)
    size = 0
    problem: Exception | None = None
    at_end = False
    while not at_end:
        try:
            got = stream.readinto(memoryview(buffer)[size : len(buffer) - _PADDING])  # type: ignore[attr-defined]
        except DAMAGE_ERRORS as error:
            got, problem = 0, error
        size += got
        at_end = got == 0
        if at_end and problem is None and size and buffer[size - 1] != 10:
            buffer[size] = 10  # there is room: the padding
            size += 1
        end = buffer.rfind(b"\n", 0, size) + 1
        if end:
            yield Block(buffer, end)
            buffer[: size - end] = buffer[end:size]
            size -= end
        elif size >= len(buffer) - _PADDING:
            if size < max_line_bytes:
                buffer = buffer + bytes(len(buffer))
            else:
                buffer[size] = 10
                yield Block(buffer, size + 1)
                size = _skip_line(stream, buffer)
    if problem is not None:
        raise problem


def _skip_line(stream: BinaryIO, buffer: bytearray) -> int:
    """Read on to the end of the line; leave what follows at the start of the buffer and return its size."""
    while got := stream.readinto(memoryview(buffer)[: len(buffer) - _PADDING]):  # type: ignore[attr-defined]
        newline = buffer.find(b"\n", 0, got)
        if newline >= 0:
            size: int = got - newline - 1
            buffer[:size] = buffer[newline + 1 : got]
            return size
    return 0


class Lines:
    """The submissions of some lines, as arrays: time and score, what they are, where their texts lie.

    `good` are the lines that hold a submission; all arrays are of all lines. Spans are (start, end) in `array`.
    """

    def __init__(self, block: Block, first_line: int, count: int, scan: _Scan, rejects: Rejects) -> None:
        self.first_line = first_line
        self.array = np.frombuffer(block.buffer, np.uint8)
        self._buffer = block.buffer
        self._spans = scan.spans[:count]
        self._flags = scan.flags[:count]
        self._parsed: dict[int, RawSubmission] = {}
        self.created_utc = scan.numbers[:count, 0]
        self.score = scan.numbers[:count, 1]
        self.good = np.ones(count, np.bool_)
        self.blank_lines = 0
        self._decide_slow_lines(scan.bounds[:count], scan.kinds[:count], rejects)
        overridden = self._spans[:, OVERRIDE, 1] > self._spans[:, OVERRIDE, 0]
        self._url_field = np.where(overridden, OVERRIDE, URL)
        self.url_spans = np.where(overridden[:, None], self._spans[:, OVERRIDE], self._spans[:, URL])
        self.has_escaped_url = self._has(_ESCAPED_URL)
        self.has_url = self.url_spans[:, 1] > self.url_spans[:, 0]
        for row, submission in self._parsed.items():
            self.has_url[row] = submission.url is not None
        self.has_score = self._has(HAS_SCORE)
        self.is_self = self._has(IS_SELF)
        self.promoted = self._has(PROMOTED)
        self.over_18 = self._has(OVER_18)

    def _has(self, bit: int) -> npt.NDArray[np.bool_]:
        found: npt.NDArray[np.bool_] = (self._flags & bit) != 0
        return found

    def _decide_slow_lines(self, bounds: Array, kinds: Array, rejects: Rejects) -> None:
        odd = np.flatnonzero((kinds == SLOW) | self._has(NOT_ASCII))
        for row in odd.tolist():
            line = bytes(self._buffer[bounds[row, 0] : bounds[row, 1]])
            if kinds[row] == SLOW or not _is_utf8(line):
                self._parse(row, line, rejects)

    def _parse(self, row: int, line: bytes, rejects: Rejects) -> None:
        self._spans[row] = 0
        if not line or line.isspace():
            self.good[row] = False
            self.blank_lines += 1
            return
        try:
            submission = parse_line(line)
        except BadLineError as error:
            self.good[row] = False
            rejects.add(self.first_line + row, str(error), line)
            return
        self._parsed[row] = submission
        self.created_utc[row] = submission.created_utc
        self.score[row] = submission.score or 0
        flags = IS_SELF * submission.is_self | PROMOTED * submission.promoted | OVER_18 * submission.over_18
        self._flags[row] = flags | HAS_SCORE * (submission.score is not None)

    def hosts_of_plain_urls(self, rows: Array) -> Array:
        """Return where the host lies of the URLs that are surely canonical as they are, (0, 0) for other rows."""
        spans = self.url_spans[rows]
        spans[self.has_escaped_url[rows]] = 0
        hosts = np.zeros_like(spans)
        plain_hosts(self.array, spans, hosts)
        return hosts

    def column(self, spans: Array) -> pa.StringArray:
        """Return the bytes of spans, as they are, as a column."""
        return text_column(self.array, spans)

    def text(self, field: int, rows: Array) -> pa.StringArray:
        """Return a field (ID, SUBREDDIT, TITLE) of rows whose URL is plain as a column."""
        return text_column(self.array, self._spans[rows, field], (self._flags[rows] >> (ESCAPED + field) & 1) != 0)

    def subreddit(self, row: int) -> str:
        """Return the subreddit of a line."""
        return self._parsed[row].subreddit if row in self._parsed else self._text(SUBREDDIT, row)

    def submission(self, row: int) -> RawSubmission:
        """Return the submission of a good line."""
        if row in self._parsed:
            return self._parsed[row]
        return RawSubmission(
            id=self._text(ID, row),
            created_utc=int(self.created_utc[row]),
            url=self._text(int(self._url_field[row]), row) or None,
            score=int(self.score[row]) if self.has_score[row] else None,
            subreddit=self._text(SUBREDDIT, row),
            title=self._text(TITLE, row),
            over_18=bool(self.over_18[row]),
            is_self=bool(self.is_self[row]),
            promoted=bool(self.promoted[row]),
        )

    def _text(self, field: int, row: int) -> str:
        start, stop = self._spans[row, field].tolist()
        text = self._buffer[start:stop].decode()
        return text_of_json(text) if int(self._flags[row]) >> (ESCAPED + field) & 1 else text


@dataclasses.dataclass
class _Scan:
    """The arrays that `scan_lines` fills."""

    bounds: Array
    spans: Array
    numbers: Array
    flags: Array
    kinds: Array


def scanned_lines(stream: BinaryIO, rejects: Rejects) -> Iterator[Lines]:
    """Yield the submissions of a dump's lines, some thousand at a time, each only good until the next.

    Bad lines go to `rejects`, blank ones count for nothing. Raises what the stream raises, after what was read before.
    """
    count = _LINES_AT_ONCE
    scan = _Scan(
        np.zeros((count, 2), np.int64),
        np.zeros((count, SPANS, 2), np.int64),
        np.zeros((count, 2), np.int64),
        np.zeros(count, np.int64),
        np.zeros(count, np.uint8),
    )
    line = 1
    for block in line_blocks(stream):
        array = np.frombuffer(block.buffer, np.uint8)
        at = 0
        while at < block.end:
            found, at = scan_lines(array, at, block.end, scan.bounds, scan.spans, scan.numbers, scan.flags, scan.kinds)
            yield Lines(block, line, found, scan, rejects)
            line += found


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True
