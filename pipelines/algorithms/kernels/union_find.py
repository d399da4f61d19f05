"""Connected components of a graph that is given as arrays of edges."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]


def connected_components(left: Numbers, right: Numbers, nodes: int) -> Numbers:
    """Return, for each of the nodes 0 to `nodes` - 1, the smallest node that it is connected with.

    `left` and `right` are the ends of the edges. Takes some 40 bytes an edge and 24 a node.
    """
    parents = np.arange(nodes, dtype=np.int64)
    while True:
        left, right = parents[left], parents[right]
        apart = left != right
        if not apart.any():
            return parents
        left, right = left[apart], right[apart]
        # Each root is hung under a smaller one, so that no cycle can arise; then every node under its root.
        np.minimum.at(parents, np.maximum(left, right), np.minimum(left, right))
        while ((roots := parents[parents]) != parents).any():
            parents = roots
