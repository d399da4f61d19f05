"""Parts of large files, so that several tasks read one file; they depend on the input alone."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import NamedTuple

from pipelines import storage
from pipelines.storage.compression import SUFFIXES, count_line_ends, estimate_data_bytes

# Bytes of text in a part: a 64th of a large input.
_MIN_PART_BYTES, _MAX_PART_BYTES, _PARTS = 64 << 20, 896 << 20, 64
# The task of a part of a row group or of a compressed file also decodes what precedes it: an input is decoded half as
# often as it has such parts. xz and bzip2 are decompressed hardly faster than text is processed.
_MAX_PREFIX_PARTS = 4
_FAST_SUFFIXES = (".zst", ".gz")
# Of a compressed file, whose true size is not known.
_END = 1 << 62


class FilePart(NamedTuple):
    """Part of a file: rows `start` to `stop` of a table, or the lines that begin in these bytes; see `open_lines`."""

    start: int
    stop: int
    line_ends: int | None = None


def split_rows(group_rows: Sequence[int], text_bytes: int, input_bytes: int) -> list[FilePart]:
    """Return parts of a table by row groups, or by rows if it has few; none if it is read whole.

    `text_bytes` is an estimate of its text, `input_bytes` of that of the whole input.
    """
    count, prefix_parts = _count_parts(text_bytes, input_bytes)
    if count < 2 or not group_rows:
        return []
    pieces = min(-(-count // len(group_rows)), -(-prefix_parts // len(group_rows)))
    starts = list(itertools.accumulate(group_rows, initial=0))
    rows = zip(starts, group_rows, strict=False)
    cuts = sorted({start + size * piece // pieces for start, size in rows for piece in range(pieces)})
    count = min(count, len(cuts))
    return _parts_between([*(cuts[len(cuts) * part // count] for part in range(count)), starts[-1]])


def split_lines(path: str, size_bytes: int, text_bytes: int, input_bytes: int) -> list[FilePart]:
    """Return parts of a file of lines by bytes, of a compressed one by those of its data; none if it is read whole."""
    count, prefix_parts = _count_parts(text_bytes, input_bytes)
    is_compressed = path.lower().endswith(SUFFIXES)
    if is_compressed:
        count = min(count, prefix_parts) if path.lower().endswith(_FAST_SUFFIXES) else 1
    if count < 2:
        return []
    if is_compressed:
        data_bytes = estimate_data_bytes(path)
        return _parts_between([*(data_bytes * part // count for part in range(count)), _END])
    bounds = [size_bytes * part // count for part in range(count + 1)]
    before = [range(max(0, start - 1), stop - 1) for start, stop in itertools.pairwise(bounds[:-1])]
    count_ends = functools.partial(count_line_ends, path)
    ends = storage.map_files(count_ends, before, folder=path, local_threads=storage.HASHING_THREADS)
    return [FilePart(*part) for part in zip(bounds, bounds[1:], itertools.accumulate(ends, initial=0), strict=False)]


def _count_parts(text_bytes: int, input_bytes: int) -> tuple[int, int]:
    """Return the number of parts of a file, and the largest number of those that decode what precedes them."""
    part_bytes = min(max(_MIN_PART_BYTES, input_bytes // _PARTS), _MAX_PART_BYTES)
    return -(-text_bytes // part_bytes), -(-_MAX_PREFIX_PARTS * text_bytes // max(1, input_bytes))


def _parts_between(bounds: Sequence[int]) -> list[FilePart]:
    return [FilePart(start, stop) for start, stop in itertools.pairwise(bounds)]
