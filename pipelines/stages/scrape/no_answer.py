"""Says in words why a server gave no answer, and now and then that it is asked again."""

from __future__ import annotations

import dataclasses
import socket
import ssl
import textwrap
from collections.abc import Callable, Iterator

from pipelines.core import progress

# One note in this time, so that an hour of failures is not a thousand lines.
_NOTE_EVERY_S = 30.0
_LONGEST_WORDS = 200


@dataclasses.dataclass(frozen=True)
class Cause:
    """Why there was no answer; `unreachable` where no server was found that could have given one."""

    words: str
    unreachable: bool = False


def cause_of(error: BaseException) -> Cause:
    """Return why a connection failed: what the system says, not the client library, which tells whole URLs."""
    chain = list(_chain(error))
    proxy = "the proxy: " if any(type(each).__name__ == "ProxyError" for each in chain) else ""
    for each in chain:
        if isinstance(each, socket.gaierror):
            return Cause(f"{proxy}name resolution failed", unreachable=True)
        if isinstance(each, ConnectionRefusedError):
            return Cause(f"{proxy}connection refused", unreachable=True)
        if isinstance(each, ssl.SSLError):
            return Cause(f"{proxy}no secure connection ({each.reason or shortened(str(each))})")
        if isinstance(each, TimeoutError) or type(each).__name__ in ("ConnectTimeoutError", "ReadTimeoutError"):
            return Cause(f"{proxy}no answer in time")
        if isinstance(each, OSError) and each.strerror:
            return Cause(f"{proxy}{each.strerror.lower()}")
    return Cause(proxy + shortened(str(chain[-1]) or type(chain[-1]).__name__))


def shortened(text: str) -> str:
    """Return a text, or its first words where it is long."""
    return textwrap.shorten(text, _LONGEST_WORDS, placeholder=" ...")


class RetryNotes:
    """Notes that a server is asked again: at the first failure, then at most every 30 seconds."""

    def __init__(self, server: str, clock: Callable[[], float]) -> None:
        self._server, self._clock = server, clock
        self._next_note = clock()

    def note(self, cause: str, try_: int, tries: int, wait_s: float) -> None:
        """Say that try number `try_` of `tries` comes in `wait_s`."""
        wait = f"in {wait_s:.0f} s" if wait_s >= 0.5 else "now"
        self._show(f"{self._server}: no answer ({cause}); tries again, {try_} of {tries}, {wait}")

    def note_pause(self, wait_s: float) -> None:
        """Say that the server asks for a long pause."""
        self._show(f"{self._server}: asks for no request within the next {wait_s:.0f} s; goes on then")

    def _show(self, message: str) -> None:
        if self._clock() >= self._next_note:
            self._next_note = self._clock() + _NOTE_EVERY_S
            progress.note(message)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and those that it came of: requests keeps them in arguments, urllib3 as the reason."""
    seen: list[BaseException] = []
    causes: list[object] = [error]
    while causes:
        cause = causes.pop(0)
        if not isinstance(cause, BaseException) or any(cause is each for each in seen):
            continue
        seen.append(cause)
        yield cause
        kept = (getattr(cause, "original_exception", None), getattr(cause, "reason", None))
        causes += [*kept, *cause.args, cause.__cause__, cause.__context__]
