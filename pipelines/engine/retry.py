"""Retries of all HTTP clients: which statuses are retried, how long to wait before the next attempt, and what to say.

No network library is imported here.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import email.utils
import math
import os
import re
import socket
import ssl
import textwrap
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from pipelines import progress
from pipelines.errors import InputError, UsageError, exception_chain

Result = TypeVar("Result")

PROXY_VARIABLES = ("http_proxy", "https_proxy", "all_proxy")
_PROXY = re.compile(r"(?i:(https?|socks[45][ah]?)://)?(\S*@)?([\w.-]+|\[[\da-fA-F:.]+\])(:\d{1,5})?/?")
_RETRYABLE_4XX = frozenset({408, 425, 429})
_FINAL_5XX = frozenset({501, 505})

# At most one note in this time, so that an hour of failures is not a thousand lines.
_NOTE_INTERVAL_S = 30.0
_MAX_CHARACTERS = 200
_EPOCH_FROM = 10**9  # a reset time above this is seconds since 1970; above a thousand times this, milliseconds


@dataclasses.dataclass(frozen=True)
class RetryPolicy:
    """Maximum number of attempts, including the first, and the waits between them.

    If a server asks for a longer pause than `longest_wait_s`, the request is given up.
    """

    attempts: int
    longest_backoff_s: float = 60.0
    longest_wait_s: float = math.inf

    def delay_s(self, failures: int, requested_s: float | None = None) -> float | None:
        """Return the seconds to wait after this many failures in a row; None if the request should be given up.

        Exponential back-off (1, 2, 4, ... seconds), or the pause that the server requested where that is longer.
        """
        requested_s = requested_s or 0.0
        if failures >= self.attempts or requested_s > self.longest_wait_s:
            return None
        # Without the bound on the exponent, thousands of retries would overflow a float.
        return max(requested_s, min(2.0 ** min(failures - 1, 30), self.longest_backoff_s))


# If the server never responded, the network is down or the address is wrong: more attempts would not help.
_POLICY_UNREACHABLE = RetryPolicy(attempts=3)


class RetryableError(Exception):
    """A failure that a later attempt may not have; its text is the cause.

    `unreachable` if no server could be connected to; `requested_wait_s` is the pause that the server asked for.
    """

    def __init__(self, cause: str, unreachable: bool = False, requested_wait_s: float | None = None) -> None:
        super().__init__(cause)
        self.unreachable = unreachable
        self.requested_wait_s = requested_wait_s


def describe_failure(error: BaseException) -> RetryableError:
    """Return why a request failed, as the system reports it; the messages of HTTP libraries contain whole URLs."""
    chain = list(exception_chain(error))
    proxy = "the proxy: " if any(type(cause).__name__ == "ProxyError" for cause in chain) else ""
    for cause in chain:
        if isinstance(cause, socket.gaierror):
            return RetryableError(f"{proxy}name resolution failed", unreachable=True)
        if isinstance(cause, ConnectionRefusedError):
            return RetryableError(f"{proxy}connection refused", unreachable=True)
        if isinstance(cause, ssl.SSLError):
            return RetryableError(f"{proxy}TLS error ({cause.reason or shorten(str(cause))})")
        if isinstance(cause, TimeoutError) or type(cause).__name__ in ("ConnectTimeoutError", "ReadTimeoutError"):
            return RetryableError(f"{proxy}timeout")
        if isinstance(cause, OSError) and cause.strerror:
            return RetryableError(f"{proxy}{cause.strerror.lower()}")
    return RetryableError(proxy + shorten(str(chain[-1]) or type(chain[-1]).__name__))


def check_proxies() -> None:
    """Raise UsageError for an environment variable that should name a proxy and does not."""
    for name, address in os.environ.items():
        # Without the value, which may have a password.
        if address and name.lower() in PROXY_VARIABLES and not _PROXY.fullmatch(address):
            raise UsageError(f"{name}: is not the address of a proxy, such as http://HOST:PORT; correct or unset it")


def shorten(text: str) -> str:
    """Return a text, or its first words if it is long."""
    return textwrap.shorten(text, _MAX_CHARACTERS, placeholder=" ...")


class Retries:
    """Sends requests to one server, again after failures; notes them to the user, at most every 30 seconds."""

    def __init__(
        self,
        server: str,
        policy: RetryPolicy,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._server, self._policy = server, policy
        self._clock, self._sleep = clock, sleep
        self._next_note = clock()
        self._has_responded = False

    def run(self, request: Callable[[], Result]) -> Result:
        """Return the result of a request, which is repeated if it raises RetryableError.

        Raises InputError after the last attempt, the third if the server was never reached.
        """
        failures = 0
        while True:
            try:
                result = request()
            except RetryableError as error:
                failures += 1
                never_reached = error.unreachable and not self._has_responded
                self._has_responded |= not error.unreachable
                policy = _POLICY_UNREACHABLE if never_reached else self._policy
                self.check_wait(error.requested_wait_s)
                delay_s = policy.delay_s(failures, error.requested_wait_s)
                if delay_s is None:
                    raise InputError(
                        f"{self._server}: {error}, no response in {failures} attempts; check the network and the "
                        "address, then re-run the same command to resume"
                    ) from error
                delay = f"in {delay_s:.0f} s" if delay_s >= 0.5 else "now"
                self.note(f"no response ({error}); retrying {delay}, attempt {failures + 1} of {policy.attempts}")
                self._sleep(delay_s)
            else:
                self._has_responded = True
                return result

    def check_wait(self, requested_s: float | None) -> None:
        """Raise InputError if the server asks for a longer pause than the policy allows."""
        if requested_s is not None and requested_s > self._policy.longest_wait_s:
            answer = "refuses requests for now"
            if math.isfinite(requested_s):
                answer = f"allows no request within the next {requested_s / 60:.0f} minutes"
            raise InputError(f"{self._server}: {answer}; re-run the same command later to resume")

    def note(self, message: str) -> None:
        """Note something about the server, unless there was a note in the last 30 seconds."""
        if self._clock() >= self._next_note:
            self._next_note = self._clock() + _NOTE_INTERVAL_S
            progress.note(f"{self._server}: {message}")


def is_retryable_status(status: int) -> bool:
    """Return whether a later attempt may succeed: 408, 425, 429 and server errors other than 501 and 505."""
    return status in _RETRYABLE_4XX or (status // 100 == 5 and status not in _FINAL_5XX)


def requested_wait_s(headers: Mapping[str, str], now: float) -> float | None:
    """Return the pause in seconds that `Retry-After` or `X-RateLimit-Reset` requests; None if there is none.

    Servers send both as seconds from now, as seconds or milliseconds since 1970, or as a date. `now` is in seconds
    since 1970; `headers` must ignore case.
    """
    for name in ("Retry-After", "X-RateLimit-Reset"):
        wait_s = _parse_wait(headers.get(name, "").strip(), now)
        if wait_s is not None:
            return max(0.0, wait_s)
    return None


def _parse_wait(text: str, now: float) -> float | None:
    try:
        number = float(text)
    except ValueError:
        timestamp = _parse_date(text)
        return None if timestamp is None else timestamp - now
    if math.isnan(number):
        return None
    if number >= _EPOCH_FROM:
        return (number / 1000 if number >= _EPOCH_FROM * 1000 else number) - now
    return number


def _parse_date(text: str) -> float | None:
    for parse in (email.utils.parsedate_to_datetime, dt.datetime.fromisoformat):
        try:
            date = parse(text)
            return (date if date.tzinfo else date.replace(tzinfo=dt.UTC)).timestamp()
        except (ValueError, TypeError, IndexError, OverflowError):
            continue
    return None
