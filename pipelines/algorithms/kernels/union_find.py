"""Disjoint sets of numbers (union-find)."""

from __future__ import annotations

from array import array

import numpy as np
import numpy.typing as npt


class DisjointSets:
    """Sets of the numbers 0 to `size` - 1, each represented by its smallest number. Memory: 8 bytes per number."""

    def __init__(self, size: int) -> None:
        self._parents = array("q", range(size))

    def find(self, number: int) -> int:
        """Return the smallest number of the set that a number is in."""
        parents = self._parents
        while (parent := parents[number]) != number:
            # Path halving: the next search takes half as many steps.
            parents[number] = number = parents[parent]
        return number

    def union(self, left: int, right: int) -> None:
        """Merge the sets of two numbers."""
        left, right = self.find(left), self.find(right)
        if left < right:
            self._parents[right] = left
        else:
            self._parents[left] = right

    def labels(self) -> npt.NDArray[np.int64]:
        """Return for each number the smallest number of its set."""
        labels = np.array(self._parents, np.int64)
        while ((parents := labels[labels]) != labels).any():
            labels = parents
        return labels
