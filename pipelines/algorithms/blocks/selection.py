"""The choice of blocks: the set with the highest expected F1."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pipelines.algorithms.blocks.values import Floats

# Below, the page is more likely to have no main content at all.
_MIN_EXPECTED = 0.3


def select_blocks(shares: Floats, words: Floats) -> tuple[npt.NDArray[np.bool_], float]:
    """Return which blocks to keep, and the F1 by words to expect of them.

    `shares` are the expected shares of each block's words in the main content. With the blocks in order of their
    shares, the set of the first k has about 2 * (expected words in common) / (words in it + expected words of the
    content).
    """
    if not len(shares):
        return np.zeros(0, np.bool_), 0.0
    order = np.argsort(-shares, kind="stable")
    common = np.cumsum((shares * words)[order], dtype=np.float64)
    chosen = np.cumsum(words[order], dtype=np.float64)
    expected = 2 * common / np.maximum(chosen + common[-1], 1e-9)
    best = int(np.argmax(expected))
    if expected[best] < _MIN_EXPECTED:
        return np.zeros(len(shares), np.bool_), float(expected[best])
    keep = np.zeros(len(shares), np.bool_)
    keep[order[: best + 1]] = True
    return keep, float(expected[best])
