"""Compiles numba kernels, which are kept between runs where there is a place to keep them."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator
from typing import Any

import numba
from numba.core import entrypoints


def kernel(function: Callable[..., Any]) -> Any:
    """Return a function compiled at its first call, which lets go of the interpreter's lock.

    The machine code is kept beside the source, or in the user's cache folder. A read-only installation of a user
    without a home has neither; there it is compiled anew by each process.
    """
    try:
        return numba.njit(cache=True, nogil=True)(function)
    except RuntimeError:
        return numba.njit(nogil=True)(function)


@contextlib.contextmanager
def _without_blas() -> Iterator[None]:
    """Tell numba, while it loads its functions of arrays, that there is no library of linear algebra to look for."""
    linear_algebra: Any = importlib.import_module("numba.np.linalg")
    found = linear_algebra.ensure_blas

    def missing() -> None:
        raise ImportError("no kernel here multiplies matrices")

    linear_algebra.ensure_blas = missing
    try:
        yield
    finally:
        linear_algebra.ensure_blas = found


def _start_lightly() -> None:
    """Keep numba from loading, before its first kernel, what no kernel here uses.

    That is scipy's linear algebra, and the extensions of other libraries: gigatoken brings awkward, which has one.
    Together they take half a second and much memory in each process. These are numba's own names: where a version has
    others, it starts as it would.
    """
    with contextlib.suppress(ImportError, AttributeError):
        entrypoints._already_initialized = True
        with _without_blas():
            importlib.import_module("numba.np.arraymath")


_start_lightly()
