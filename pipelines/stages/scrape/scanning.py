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

from pipelines.algorithms.byte_scan import BLOCK
from pipelines.algorithms.plain_urls import plain_hosts
from pipelines.algorithms.submission_scan import (
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

_BLOCK_BYTES = 2 << 20
_LINES_AT_ONCE = 4096

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
    buffer = bytearray(block_bytes + BLOCK)
    size = 0
    problem: Exception | None = None
    at_end = False
    while not at_end:
        try:
            got = stream.readinto(memoryview(buffer)[size : len(buffer) - BLOCK])  # type: ignore[attr-defined]
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
        elif size >= len(buffer) - BLOCK:
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
    while got := stream.readinto(memoryview(buffer)[: len(buffer) - BLOCK]):  # type: ignore[attr-defined]
        newline = buffer.find(b"\n", 0, got)
        if newline >= 0:
            size: int = got - newline - 1
            buffer[:size] = buffer[newline + 1 : got]
            return size
    return 0


class Lines:
    """The submissions of some lines, as arrays: time and score, what they are, where their texts lie.

    `good` are the lines that hold a submission; all arrays are of all lines.
    """

    def __init__(self, block: Block, first_line: int, count: int, scan: _Scan, rejects: Rejects) -> None:
        self._buffer = block.buffer
        self._array = np.frombuffer(block.buffer, np.uint8)
        self._spans = scan.spans[:count]
        self._flags = scan.flags[:count]
        self._parsed: dict[int, RawSubmission] = {}
        self.created_utc = scan.numbers[:count, 0]
        self.score = scan.numbers[:count, 1]
        self.good = np.ones(count, np.bool_)
        self.blank_lines = 0
        self._decide_slow_lines(first_line, scan.bounds[:count], scan.kinds[:count], rejects)
        spans = self._spans
        with_override = spans[:, OVERRIDE, 1] > spans[:, OVERRIDE, 0]
        self._url_column = np.where(with_override, OVERRIDE, URL)
        self._url_spans = np.where(with_override[:, None], spans[:, OVERRIDE], spans[:, URL])
        self.has_url = self._url_spans[:, 1] > self._url_spans[:, 0]
        for row, submission in self._parsed.items():
            self.has_url[row] = submission.url is not None
        self.has_score = self._has(HAS_SCORE)
        self.is_self = self._has(IS_SELF)
        self.promoted = self._has(PROMOTED)

    def _has(self, bit: int) -> npt.NDArray[np.bool_]:
        found: npt.NDArray[np.bool_] = (self._flags & bit) != 0
        return found

    def _decide_slow_lines(self, first_line: int, bounds: Array, kinds: Array, rejects: Rejects) -> None:
        odd = np.flatnonzero((kinds == SLOW) | self._has(NOT_ASCII))
        for row in odd.tolist():
            line = bytes(self._buffer[bounds[row, 0] : bounds[row, 1]])
            if kinds[row] == SLOW or not _is_utf8(line):
                self._parse(row, first_line + row, line, rejects)

    def _parse(self, row: int, number: int, line: bytes, rejects: Rejects) -> None:
        if not line or line.isspace():
            self.good[row] = False
            self.blank_lines += 1
            return
        try:
            submission = parse_line(line)
        except BadLineError as error:
            self.good[row] = False
            rejects.add(number, str(error), line)
            return
        self._parsed[row] = submission
        self.created_utc[row] = submission.created_utc
        self.score[row] = submission.score or 0
        flags = IS_SELF * submission.is_self | PROMOTED * submission.promoted | OVER_18 * submission.over_18
        self._flags[row] = flags | HAS_SCORE * (submission.score is not None)

    def subreddit(self, row: int) -> str:
        """Return the subreddit of a line."""
        if row in self._parsed:
            return self._parsed[row].subreddit
        text = self._buffer[slice(*self._spans[row, SUBREDDIT])].decode()
        return text_of_json(text) if int(self._flags[row]) >> (ESCAPED + SUBREDDIT) & 1 else text

    def submissions(self, rows: Array) -> Iterator[tuple[RawSubmission, str | None]]:
        """Yield the submissions of some lines, with the host of those whose URL is surely canonical as it is."""
        hosts = np.zeros((len(rows), 2), np.int64)
        plain_hosts(self._array, self._url_spans[rows], hosts)
        spans, flags = self._spans[rows], self._flags[rows]
        columns = zip(
            rows.tolist(),
            *(spans[:, field, edge].tolist() for field in (ID, SUBREDDIT, TITLE) for edge in (0, 1)),
            *self._url_spans[rows].T.tolist(),
            *hosts.T.tolist(),
            self.created_utc[rows].tolist(),
            self.score[rows].tolist(),
            flags.tolist(),
            self.has_score[rows].tolist(),
            ((flags & OVER_18) != 0).tolist(),
            ((flags & IS_SELF) != 0).tolist(),
            ((flags & PROMOTED) != 0).tolist(),
            strict=True,
        )
        buffer, parsed = self._buffer, self._parsed
        for (
            row,
            i0,
            i1,
            s0,
            s1,
            t0,
            t1,
            u0,
            u1,
            h0,
            h1,
            created,
            score,
            bits,
            scored,
            over_18,
            is_self,
            ad,
        ) in columns:
            if row in parsed:
                yield parsed[row], None
                continue
            url = buffer[u0:u1].decode() or None
            title = buffer[t0:t1].decode()
            subreddit = buffer[s0:s1].decode()
            if bits >> ESCAPED:
                url, subreddit, title = self._unescaped(row, bits, url, subreddit, title)
                if bits & _ESCAPED_URL:
                    h1 = 0
            submission = RawSubmission(
                buffer[i0:i1].decode(),
                created,
                url,
                score if scored else None,
                subreddit,
                title,
                over_18,
                is_self,
                ad,
            )
            yield submission, buffer[h0:h1].decode() if h1 else None

    def _unescaped(
        self, row: int, bits: int, url: str | None, subreddit: str, title: str
    ) -> tuple[str | None, str, str]:
        """Resolve the escapes of the fields that have some."""
        if bits >> (ESCAPED + int(self._url_column[row])) & 1:
            url = text_of_json(url or "") or None
        if bits >> (ESCAPED + SUBREDDIT) & 1:
            subreddit = text_of_json(subreddit)
        if bits >> (ESCAPED + TITLE) & 1:
            title = text_of_json(title)
        return url, subreddit, title


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
