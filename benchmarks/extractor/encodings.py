"""Values of class names and words for training, from pages other than those they are used on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pipelines.algorithms.blocks import segmentation as seg
from pipelines.algorithms.blocks.text_features import Values, values_table

Floats = npt.NDArray[np.float64]


class Statistics(NamedTuple):
    """Per distinct hash on a page: its weight, at most 1, and the mean label of the blocks that it goes with."""

    hashes: npt.NDArray[np.uint32]
    weights: Floats
    means: Floats


def token_statistics(page: seg.Segments, labels: npt.NDArray[np.float32]) -> Statistics:
    """Return the statistics of parts of class names: a token goes with all blocks in its element.

    Blocks with unknown labels (NaN) do not count, here and below.
    """
    roots = np.sqrt(page.blocks[:, seg.WORDS]) * ~np.isnan(labels)
    sums = np.zeros((2, len(page.parents)))
    for row, values in enumerate((roots, roots * np.nan_to_num(labels))):
        np.add.at(sums[row], page.blocks[:, seg.ELEMENT], values)
    for element in range(len(page.parents) - 1, 0, -1):
        sums[:, page.parents[element]] += sums[:, element]
    element_of = np.repeat(np.arange(len(page.parents)), np.diff(page.token_starts))
    used = sums[0, element_of] > 0
    return _statistics(page.tokens[used], sums[0, element_of[used]], sums[1, element_of[used]], 10.0)


def word_statistics(page: seg.Segments, labels: npt.NDArray[np.float32]) -> Statistics:
    """Return the statistics of words: a word goes with the block that contains it; in long blocks it counts less."""
    count = page.blocks[:, seg.WORDS]
    weights = np.repeat(1 / np.sqrt(np.maximum(count, 1)), count)
    label_of = np.repeat(labels, count)
    known = ~np.isnan(label_of)
    return _statistics(page.words[known], weights[known], (weights * label_of)[known], 1.0)


def _statistics(hashes: npt.NDArray[np.uint32], weights: Floats, weighted: Floats, full: float) -> Statistics:
    distinct, which = np.unique(hashes, return_inverse=True)
    total = np.bincount(which, weights, len(distinct))
    return Statistics(distinct, np.minimum(1, total / full), np.bincount(which, weighted, len(distinct)) / total)


class Encoder:
    """Makes tables of values from the statistics of the pages of some groups."""

    def __init__(
        self, statistics: Sequence[Statistics], groups: Sequence[int], min_pages: int, smoothing: float
    ) -> None:
        self._min_pages, self._smoothing = min_pages, smoothing
        hashes, pages = np.unique(np.concatenate([item.hashes for item in statistics]), return_counts=True)
        self._hashes = hashes[pages >= min_pages]
        # Weights, weighted labels and pages of each hash in each group.
        self._sums = np.zeros((3, max(groups) + 1, len(self._hashes)))
        for item, group in zip(statistics, groups, strict=True):
            where = np.minimum(np.searchsorted(self._hashes, item.hashes), len(self._hashes) - 1)
            known = self._hashes[where] == item.hashes
            for row, values in enumerate((item.weights, item.weights * item.means, np.ones(len(known)))):
                self._sums[row, group, where[known]] += values[known]

    def values(self, groups: Sequence[int]) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.float32]]:
        """Return hashes and values, log odds relative to the mean, from the pages of some groups."""
        weights, weighted, pages = self._sums[:, list(groups)].sum(axis=1)
        prior = weighted.sum() / weights.sum()
        share = (weighted + self._smoothing * prior) / (weights + self._smoothing)
        values = np.log(share / (1 - share)) - np.log(prior / (1 - prior))
        used = pages >= self._min_pages
        return self._hashes[used], values[used].astype(np.float32)

    def table(self, groups: Sequence[int]) -> Values:
        """Return the values as the table that features read."""
        return values_table(*self.values(groups))
