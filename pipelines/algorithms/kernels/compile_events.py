"""Reports that kernels are being compiled, without importing numba."""

from __future__ import annotations

from collections.abc import Callable

_listener: Callable[[], None] | None = None


def set_listener(listener: Callable[[], None] | None) -> None:
    """Set what is called before each compilation of a kernel in this process."""
    global _listener
    _listener = listener


def report() -> None:
    """Tell the listener that a kernel will be compiled."""
    if _listener is not None:
        _listener()
