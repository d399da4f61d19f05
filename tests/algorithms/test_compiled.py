"""Kernels start without what they do not use."""

from __future__ import annotations

import subprocess
import sys


def test_numba_starts_without_scipys_algebra_and_extensions_of_others() -> None:
    """Each costs a quarter of a second in every process; and `numpy.dot` works in a kernel all the same."""
    script = """
import sys
import numpy as np, numba
from pipelines.algorithms.bpe.word_counts import count_words
assert count_words([b"a a"]) == [(b"a", 1), (b" a", 1)]
print(sorted({"scipy.linalg", "awkward"} & set(sys.modules)))
print(numba.njit(lambda left, right: np.dot(left, right))(np.ones(3), np.ones(3)))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["[]", "3.0"]
