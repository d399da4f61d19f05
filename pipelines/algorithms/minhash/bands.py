"""Bands of MinHash values: how many to choose, and their keys."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pipelines.algorithms.kernels.compilation import as_read_only, helper, kernel
from pipelines.algorithms.kernels.splitmix import STEP, mix

_RECALL = 0.99

_mixed = helper(mix)


def choose_bands(num_perm: int, threshold: float, recall: float = _RECALL) -> tuple[int, int]:
    """Return the bands and rows per band: the most rows with which pairs at the threshold are found with this recall.

    More rows make fewer false candidates. Where no number of rows reaches the recall, one row per band comes nearest.
    """
    for rows in range(num_perm, 1, -1):
        if candidate_probability(threshold, num_perm // rows, rows) >= recall:
            return num_perm // rows, rows
    return num_perm, 1


def candidate_probability(similarity: float, bands: int, rows: int) -> float:
    """Return the probability that two documents of a Jaccard similarity agree in at least one band."""
    return float(1.0 - (1.0 - similarity**rows) ** bands)


def band_keys(values: npt.NDArray[np.uint32], bands: int, rows: int) -> npt.NDArray[np.uint64]:
    """Return a 64-bit hash of each band: (documents, num_perm) -> (documents, bands); further values are not used.

    The keys of different bands are never equal.
    """
    keys = np.empty((len(values), bands), np.uint64)
    _fill_keys(as_read_only(values), rows, np.uint64((1 << (bands - 1).bit_length()) - 1), keys)
    return keys


@kernel
def _fill_keys(values, rows, band_bits, keys):  # type: ignore[no-untyped-def]
    for document in range(len(keys)):
        for band in range(keys.shape[1]):
            key = np.uint64(0)
            for row in range(band * rows, (band + 1) * rows):
                key = _mixed((key ^ np.uint64(values[document, row])) + STEP)
            # The low bits are the band's number, and mixing is one to one.
            keys[document, band] = _mixed(key & ~band_bits | np.uint64(band))
