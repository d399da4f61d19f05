"""SplitMix64: mixes a 64-bit number so that every bit of the result depends on every bit of the number."""

from __future__ import annotations

from typing import Any

import numpy as np

# A number, the number plus one step, plus two steps and so on mix to independent words.
STEP = np.uint64(0x9E3779B97F4A7C15)


def mix(number: Any) -> Any:
    """Mix a uint64, or each of an array, as SplitMix64 does (Steele, Lea and Flood 2014): one to one.

    Kernels call `helper(mix)`; this module itself does not import numba.
    """
    number = (number ^ (number >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    number = (number ^ (number >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return number ^ (number >> np.uint64(31))
