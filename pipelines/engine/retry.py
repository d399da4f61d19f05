"""Retry policy of all HTTP clients: which statuses are retried, and how long to wait before the next attempt.

Pure functions of status codes, headers and attempt counts; no network library is imported here.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import email.utils
import math
from collections.abc import Mapping

_RETRYABLE_4XX = frozenset({408, 425, 429})
_FINAL_5XX = frozenset({501, 505})

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
