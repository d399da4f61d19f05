"""Why an API request failed, in words for the user, and notes about retries."""

from __future__ import annotations

import dataclasses
import socket
import ssl
import textwrap
from collections.abc import Callable

from pipelines import progress
from pipelines.errors import exception_chain

# At most one note in this time, so that an hour of failures is not a thousand lines.
_NOTE_INTERVAL_S = 30.0
_MAX_CHARACTERS = 200


@dataclasses.dataclass(frozen=True)
class FailureCause:
    """Why there was no response; `unreachable` if no server could be connected to."""

    text: str
    unreachable: bool = False


def failure_cause(error: BaseException) -> FailureCause:
    """Return why a request failed, as the system reports it; the messages of HTTP libraries contain whole URLs."""
    chain = list(exception_chain(error))
    proxy = "the proxy: " if any(type(cause).__name__ == "ProxyError" for cause in chain) else ""
    for cause in chain:
        if isinstance(cause, socket.gaierror):
            return FailureCause(f"{proxy}name resolution failed", unreachable=True)
        if isinstance(cause, ConnectionRefusedError):
            return FailureCause(f"{proxy}connection refused", unreachable=True)
        if isinstance(cause, ssl.SSLError):
            return FailureCause(f"{proxy}TLS error ({cause.reason or shorten(str(cause))})")
        if isinstance(cause, TimeoutError) or type(cause).__name__ in ("ConnectTimeoutError", "ReadTimeoutError"):
            return FailureCause(f"{proxy}timeout")
        if isinstance(cause, OSError) and cause.strerror:
            return FailureCause(f"{proxy}{cause.strerror.lower()}")
    return FailureCause(proxy + shorten(str(chain[-1]) or type(chain[-1]).__name__))


def shorten(text: str) -> str:
    """Return a text, or its first words if it is long."""
    return textwrap.shorten(text, _MAX_CHARACTERS, placeholder=" ...")


class RetryNotes:
    """Notes retries to the user: at the first failure, then at most every 30 seconds."""

    def __init__(self, server: str, clock: Callable[[], float]) -> None:
        self._server, self._clock = server, clock
        self._next_note = clock()

    def note_retry(self, cause: str, attempt: int, attempts: int, delay_s: float) -> None:
        """Note that an attempt, counted from 1, follows after a delay."""
        delay = f"in {delay_s:.0f} s" if delay_s >= 0.5 else "now"
        self._note(f"{self._server}: no response ({cause}); retrying {delay}, attempt {attempt} of {attempts}")

    def note_pause(self, delay_s: float) -> None:
        """Note that the server requests a long pause."""
        self._note(f"{self._server}: rate limit reached; waiting {delay_s:.0f} s")

    def _note(self, message: str) -> None:
        if self._clock() >= self._next_note:
            self._next_note = self._clock() + _NOTE_INTERVAL_S
            progress.note(message)
