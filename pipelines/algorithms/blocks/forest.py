"""Gradient-boosted trees as flat arrays, evaluated for all rows at once."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pipelines.algorithms.kernels.compilation import as_read_only, kernel

Floats = npt.NDArray[np.float32]


class Forest(NamedTuple):
    """The nodes of all trees.

    A node tests `features[node]` (below 0: it is a leaf with the value `thresholds[node]`) against `thresholds[node]`;
    rows that are not above go to the next node, the others to `right[node]`. A tree begins at each of `roots`.
    """

    roots: npt.NDArray[np.int32]
    features: npt.NDArray[np.int16]
    thresholds: Floats
    right: npt.NDArray[np.int32]


def sum_of_leaves(forest: Forest, features: Floats) -> Floats:
    """Return the sum of the leaves of each row; `features` is float32 of shape (features, rows)."""
    sums = np.zeros(features.shape[1], np.float32)
    nodes = (as_read_only(values) for values in forest)
    _add_leaves(*nodes, as_read_only(np.ascontiguousarray(features.T)), sums)
    return sums


@kernel
def _add_leaves(roots: Any, features: Any, thresholds: Any, right: Any, rows: Any, sums: Any) -> None:
    for row in range(len(rows)):
        total = np.float32(0)
        for tree in range(len(roots)):
            node = roots[tree]
            feature = features[node]
            while feature >= 0:
                node = node + 1 if rows[row, feature] <= thresholds[node] else right[node]
                feature = features[node]
            total += thresholds[node]
        sums[row] = total


def sigmoid(values: Floats) -> Floats:
    """Return the logistic function of values."""
    return np.asarray(1 / (1 + np.exp(-values)), np.float32)
