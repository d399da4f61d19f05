"""Compiles numba kernels, which are kept between runs where there is a place to keep them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba


def kernel(function: Callable[..., Any]) -> Any:
    """Return a function compiled at its first call, which lets go of the interpreter's lock.

    The machine code is kept beside the source, or in the user's cache folder. A read-only installation of a user
    without a home has neither; there it is compiled anew by each process.
    """
    try:
        return numba.njit(cache=True, nogil=True)(function)
    except RuntimeError:
        return numba.njit(nogil=True)(function)
