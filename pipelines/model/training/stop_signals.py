"""Graceful shutdown on Ctrl-C and SIGTERM: the current step and a checkpoint are finished first."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """Whether this process has received a signal to stop."""

    def __init__(self) -> None:
        self.received = False
        self.immediate = False

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[None]:
        """Let a signal interrupt the block at once, because nothing would be lost; ignored with several processes."""
        self.immediate = True
        try:
            yield
        finally:
            self.immediate = False


@contextlib.contextmanager
def stop_requests(note: Callable[[str], None], *, several_processes: bool) -> Iterator[StopRequest]:
    """Record the first stop signal instead of ending the process, for the duration of the block.

    A second signal has its usual effect, except with several processes: torchrun sends one of its own after the
    terminal's. Outside the main thread, which alone receives signals, the request is never set.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    handlers: dict[signal.Signals, Any] = {number: signal.getsignal(number) for number in _SIGNALS}

    def restore_handlers() -> None:
        for number, handler in handlers.items():
            signal.signal(number, handler)

    def on_signal(number: int, _: FrameType | None) -> None:
        if request.immediate and not several_processes:
            restore_handlers()
            raise KeyboardInterrupt
        if not request.received:
            hint = "" if several_processes else "; send it again to stop immediately"
            note(f"{signal.Signals(number).name}: stopping after this step, with a checkpoint{hint}")
        request.received = True
        if not several_processes:
            restore_handlers()

    for number in _SIGNALS:
        signal.signal(number, on_signal)
    try:
        yield request
    finally:
        restore_handlers()
