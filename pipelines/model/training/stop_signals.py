"""Ctrl-C, and SIGTERM as schedulers send it: the step is finished and a checkpoint written, then training ends."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """Whether somebody asked this process to end; `asked` is the signal's number, 0 for none."""

    def __init__(self) -> None:
        self.asked = 0
        self.is_urgent = False

    @contextlib.contextmanager
    def at_once(self) -> Iterator[None]:
        """Take a signal as always within the block, since nothing would be lost; not where others have to stop too."""
        self.is_urgent = True
        try:
            yield
        finally:
            self.is_urgent = False


@contextlib.contextmanager
def stop_requests(note: Callable[[str], None], *, patient: bool) -> Iterator[StopRequest]:
    """Keep the first signal to stop instead of dying of it, for the time of the block.

    A second one is as always, unless `patient`: torchrun sends one of its own after that of the terminal. In a thread
    that is not the main one, which gets no signals, nothing is ever asked.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before: dict[signal.Signals, Any] = {number: signal.getsignal(number) for number in _SIGNALS}

    def put_back() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def ask(number: int, _: FrameType | None) -> None:
        if request.is_urgent and not patient:
            put_back()
            raise KeyboardInterrupt
        if not request.asked:
            again = "" if patient else "; once more to end at once"
            note(f"{signal.Signals(number).name}: training ends after this step, with a checkpoint{again}")
        request.asked = number
        if not patient:
            put_back()

    for number in _SIGNALS:
        signal.signal(number, ask)
    try:
        yield request
    finally:
        put_back()
