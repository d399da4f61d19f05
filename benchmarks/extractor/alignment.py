"""Labels for training: which share of each block's words is in the text that a person marked as the main content."""

from __future__ import annotations

import html
from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from pipelines.algorithms.blocks import segmentation as seg

Words = npt.NDArray[np.uint32]
_RUN = 3
# The content may be in another order than the page; each round aligns what is left.
_ROUNDS = 4
_SHORT_BLOCK = 4
# Above so many pairs of words, three words in a row anywhere in the content count as aligned.
_MAX_PAIRS = 6 * 10**8

_njit: Any = numba.njit(cache=True)


def hash_words(text: str) -> Words:
    """Return the words of a plain text, hashed as those of pages."""
    return seg.segment(f"<html><body>{html.escape(text)}</body></html>".encode("utf-8", "replace")).words


def label_blocks(page: seg.Segments, content: Words) -> npt.NDArray[np.float32]:
    """Return for each block the share of its words that are aligned with the content.

    The alignment is the longest common subsequence. Only runs of three words that follow each other in both count, or
    whole short blocks: else frequent words of menus match by chance.
    """
    blocks, words = page.blocks, page.words
    first, count = blocks[:, seg.FIRST_WORD], blocks[:, seg.WORDS]
    if not len(content) or not len(words):
        return np.zeros(len(blocks), np.float32)
    in_runs = _cover_runs(np.isin(_trigrams(words), _trigrams(content)), len(words))
    in_short = np.repeat(count <= _SHORT_BLOCK, count)
    aligned = np.zeros(len(words), np.bool_)
    rest = np.arange(len(content))
    for _ in range(_ROUNDS):
        candidates = np.flatnonzero(np.isin(words, content[rest]) & (in_runs | in_short) & ~aligned)
        if len(candidates) * len(rest) > _MAX_PAIRS:
            aligned |= in_runs
            break
        matches = np.full(len(words), -1, np.int64)
        partners = _align(words[candidates], content[rest])
        matches[candidates] = np.where(partners >= 0, rest[partners] if len(rest) else -1, -1)
        follows = (matches[1:] == matches[:-1] + 1) & (matches[:-1] >= 0)
        good = _cover_runs(follows[:-1] & follows[1:], len(words))
        for start, size in zip(first, count, strict=True):
            if 0 < size <= _SHORT_BLOCK and matches[start] >= 0 and follows[start : start + size - 1].all():
                good[start : start + size] = True
        good &= matches >= 0
        if good.sum() < _RUN:
            break
        aligned |= good
        rest = np.setdiff1d(rest, matches[good])
    sums = np.concatenate([[0], np.cumsum(aligned)])
    return ((sums[first + count] - sums[first]) / np.maximum(count, 1)).astype(np.float32)


def _trigrams(words: Words) -> npt.NDArray[np.uint64]:
    wide = words.astype(np.uint64)
    factors = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F))
    return wide[:-2] * factors[0] ^ wide[1:-1] * factors[1] ^ wide[2:]


def _cover_runs(starts: npt.NDArray[np.bool_], size: int) -> npt.NDArray[np.bool_]:
    """Return which positions are in a run of three that begins at one of `starts`."""
    covered = np.zeros(size, np.bool_)
    for offset in range(_RUN):
        covered[offset : offset + len(starts)] |= starts
    return covered


@_njit
def _align(first: Any, second: Any) -> Any:
    """Return for each word of the first text its position in the second, -1 if it is not in the common subsequence."""
    rows, columns = len(first), len(second)
    steps = np.zeros((rows, columns), np.uint8)
    below, row = np.zeros(columns + 1, np.int32), np.zeros(columns + 1, np.int32)
    for i in range(rows - 1, -1, -1):
        for j in range(columns - 1, -1, -1):
            if first[i] == second[j]:
                row[j] = below[j + 1] + 1
                steps[i, j] = 1
            elif below[j] >= row[j + 1]:
                row[j] = below[j]
                steps[i, j] = 2
            else:
                row[j] = row[j + 1]
        below, row = row, below
    matches = np.full(rows, -1, np.int64)
    i = j = 0
    while i < rows and j < columns:
        if steps[i, j] == 1:
            matches[i] = j
            i += 1
            j += 1
        elif steps[i, j] == 2:
            i += 1
        else:
            j += 1
    return matches
