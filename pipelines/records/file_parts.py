"""Parts of large files, so that several tasks read one file; they depend on the input alone."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pipelines import storage
from pipelines.storage.compression import SUFFIXES, count_line_ends, estimate_lines

# Bytes of text in a part: a 64th of a large input.
_MIN_PART_BYTES, _MAX_PART_BYTES, _PARTS = 64 << 20, 896 << 20, 64
# A file with less text is read whole: other workers would take longer to start than they save.
_MIN_DIVIDED_BYTES = 256 << 20
# The task of a part of a row group or of a compressed file also decodes what precedes it: an input is decoded half as
# often as it has such parts. xz and bzip2 are decompressed hardly faster than text is processed.
_MAX_PREFIX_PARTS = 4
_FAST_SUFFIXES = (".zst", ".gz")
# Of a file whose lines are not counted.
_END = 1 << 62


class FilePart(NamedTuple):
    """Part of a file: rows of a table, or lines, from 0; `offset` is a byte of the line before `start`, if not 0."""

    start: int
    stop: int
    offset: int = 0


def split_rows(group_rows: Sequence[int], text_bytes: int, input_bytes: int) -> list[FilePart]:
    """Return parts of a table by row groups, or by rows if it has few; none if it is read whole.

    `text_bytes` is an estimate of its text, `input_bytes` of that of the whole input.
    """
    count, prefix_parts = count_parts(text_bytes, input_bytes)
    pieces = -(-min(count, prefix_parts) // max(1, len(group_rows)))
    groups = zip(itertools.accumulate(group_rows, initial=0), group_rows, strict=False)
    cuts = sorted({start + rows * piece // pieces for start, rows in groups if rows for piece in range(pieces)})
    count = min(count, len(cuts))
    return _parts_between([*(cuts[len(cuts) * part // count] for part in range(count)), sum(group_rows)])


def split_lines(path: str, size_bytes: int, text_bytes: int, input_bytes: int) -> list[FilePart]:
    """Return parts of a file of lines by bytes, of a compressed one by lines; none if it is read whole."""
    count, prefix_parts = count_parts(text_bytes, input_bytes)
    if path.lower().endswith(SUFFIXES):
        count = min(count, prefix_parts) if path.lower().endswith(_FAST_SUFFIXES) else 1
        lines = estimate_lines(path) if count > 1 else 0
        return _parts_between(sorted({*(lines * part // count for part in range(count)), _END}))
    offsets = [size_bytes * part // count for part in range(count)]
    ranges = itertools.starmap(range, itertools.pairwise(offsets))
    count_ends = functools.partial(count_line_ends, path)
    ends = storage.map_files(count_ends, list(ranges), folder=path, local_threads=storage.HASHING_THREADS)
    starts = [0, *(line + 1 for line in itertools.accumulate(ends))]
    return [
        part._replace(offset=offset) for part, offset in zip(_parts_between([*starts, _END]), offsets, strict=False)
    ]


def count_parts(text_bytes: int, input_bytes: int) -> tuple[int, int]:
    """Return the number of parts of a file, and the largest number of those that decode what precedes them."""
    part_bytes = min(max(_MIN_PART_BYTES, input_bytes // _PARTS), _MAX_PART_BYTES)
    count = -(-text_bytes // part_bytes) if text_bytes >= _MIN_DIVIDED_BYTES else 1
    return count, -(-_MAX_PREFIX_PARTS * text_bytes // max(1, input_bytes))


def _parts_between(bounds: Iterable[int]) -> list[FilePart]:
    parts = list(itertools.starmap(FilePart, itertools.pairwise(bounds)))
    return parts if len(parts) > 1 else []
