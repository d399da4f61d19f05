"""Graceful shutdown on Ctrl-C and SIGTERM: the current step and a checkpoint are finished first."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopSignals:
    """Within a `with` block, records the first stop signal in `received` instead of ending the process.

    A second signal has its usual effect, except with several processes: torchrun sends one of its own after the
    terminal's. Outside the main thread, which alone receives signals, nothing is recorded.
    """

    def __init__(self, note: Callable[[str], None], *, several_processes: bool) -> None:
        self.received = False
        self._note, self._several_processes = note, several_processes
        self._immediate = False
        self._handlers: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            self._handlers = {number: signal.signal(number, self._on_signal) for number in _SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[None]:
        """Let a signal interrupt the block at once, because nothing would be lost; ignored with several processes."""
        self._immediate = not self._several_processes
        try:
            yield
        finally:
            self._immediate = False

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        if not self._several_processes:
            self.__exit__()
        if self._immediate:
            raise KeyboardInterrupt
        if not self.received:
            hint = "" if self._several_processes else "; send it again to stop immediately"
            self._note(f"{signal.Signals(number).name}: stopping after this step, with a checkpoint{hint}")
        self.received = True
