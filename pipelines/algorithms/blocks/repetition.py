"""Leaves out what a page has twice: texts of its metadata that its body contains, and copies for other screens."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from pipelines.algorithms.blocks import segmentation as seg
from pipelines.algorithms.blocks.markup import IN_PRE

Flags = npt.NDArray[np.bool_]

# A text of the metadata is left out if at least this share of its runs of three words is in the other blocks.
_RUN, _CONTAINED = 3, 0.5
# Blocks in a row that repeat earlier ones are left out if they have at least so many words; code may repeat itself.
_REPEATED_WORDS = 20


def without_repetitions(segments: seg.Segments, keep: Flags, are_descriptions: Flags) -> Flags:
    """Return which of the kept blocks to keep if each text is to be there once; the first of equal texts stays."""
    keep = keep.copy()
    in_body = np.flatnonzero(keep & ~are_descriptions)
    declared = np.flatnonzero(keep & are_descriptions)
    if len(declared) and len(in_body):
        known = _runs(np.concatenate([_words(segments, block) for block in in_body.tolist()]))
        for block in declared.tolist():
            runs = _runs(_words(segments, block))
            keep[block] = len(runs) > 0 and np.isin(runs, known).mean() < _CONTAINED
    for repeated in _repeated_rows(segments, np.flatnonzero(keep)):
        keep[repeated] = False
    return keep


def _words(segments: seg.Segments, block: int) -> npt.NDArray[np.uint32]:
    first = segments.blocks[block, seg.FIRST_WORD]
    return np.asarray(segments.words[first : first + segments.blocks[block, seg.WORDS]])


def _runs(words: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint64]:
    """Return a number for each run of three words."""
    numbers = words.astype(np.uint64)
    runs = np.zeros(max(0, len(words) - _RUN + 1), np.uint64)
    for start in range(_RUN):
        runs = runs * np.uint64(0x9E3779B97F4A7C15) + numbers[start : start + len(runs)]
    return runs


def _repeated_rows(segments: seg.Segments, blocks: npt.NDArray[np.int64]) -> Iterator[list[int]]:
    """Yield the blocks, of those given, that repeat earlier ones: rows of enough words, without another in between."""
    words = segments.words.tobytes()
    starts, counts = (segments.blocks[blocks, column].tolist() for column in (seg.FIRST_WORD, seg.WORDS))
    texts = [words[4 * start : 4 * (start + count)] for start, count in zip(starts, counts, strict=True)]
    if len(set(texts)) == len(texts):  # as on most pages
        return
    known: set[bytes] = set()
    is_code = segments.flags[segments.blocks[blocks, seg.ELEMENT]] & IN_PRE != 0
    row: list[int] = []
    size = 0
    for block, text, count, stands in zip(blocks.tolist(), texts, counts, is_code.tolist(), strict=True):
        if text in known and not stands:
            row.append(block)
            size += count
            continue
        known.add(text)
        if size >= _REPEATED_WORDS:
            yield row
        row, size = [], 0
    if size >= _REPEATED_WORDS:
        yield row
