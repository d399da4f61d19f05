"""Asks a JSON API politely: one request at a time, no faster than it likes, and again when an answer is no answer.

What these APIs do in practice: 429 with the time to wait in a header, 500 and 502 for minutes, bodies that stop short,
and 422 for a query that took the server too long.
"""

from __future__ import annotations

import datetime as dt
import email.utils
import json
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from pipelines.core.errors import InputError
from pipelines.stages.scrape.no_answer import Cause, RetryNotes, cause_of, shortened

USER_AGENT = "webtext/0.1"

# At most two requests a second.
_SPACING_S = 0.5
_TIMEOUT_S = (10.0, 90.0)  # to connect, and between two pieces of an answer
_TRIES = 8
# Of a server that never answered: without a network, or by a wrong address, the next minutes bring nothing either.
_TRIES_OF_UNREACHABLE = 3
_LONGEST_BACK_OFF_S = 60.0
# A server that asks for a longer pause than this is not waited for.
LONGEST_WAIT_S = 3600.0

_EPOCH_FROM = 10**9  # a reset time above this is a date in seconds, above a thousand times this in milliseconds


class SlowQueryError(InputError):
    """The server gave a query up because it took too long; a smaller one may do."""


class _NoAnswerError(Exception):
    """An answer that is worth asking for again, and what was wrong with it."""

    def __init__(self, cause: Cause) -> None:
        super().__init__(cause.words)
        self.cause = cause


class ApiClient:
    """One API by its base URL. `clock` (s, never goes back), `now` (s since 1970) and `sleep` are there for tests."""

    def __init__(
        self,
        base_url: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        import requests

        self._base_url = base_url.rstrip("/")
        self._clock, self._now, self._sleep = clock, now, sleep
        self._session = requests.Session()
        self._session.headers.update({"User-Agent": USER_AGENT, "Accept": "application/json"})
        self._next_request = clock()
        self._server = urlsplit(self._base_url).netloc or self._base_url
        self._notes = RetryNotes(self._server, clock)
        self._has_answered = False

    def records(self, path: str, parameters: Mapping[str, str]) -> list[dict[str, Any]]:
        """Return the list under `data` in the answer to a question.

        Waits as the server asks; tries again, 8 times in all, after failed connections, server errors and broken
        answers, 3 times where no server was ever reached. Raises SlowQueryError where the server gave the query up,
        InputError for other refusals and where no try brought an answer.
        """
        failures = 0
        while True:
            try:
                return self._ask(path, parameters)
            except _NoAnswerError as error:
                failures += 1
                self._go_on_after(error.cause, failures)

    def _go_on_after(self, cause: Cause, failures: int) -> None:
        """Put the next try off; raise InputError where there have been enough."""
        never_reached = cause.unreachable and not self._has_answered
        tries = _TRIES_OF_UNREACHABLE if never_reached else _TRIES
        if failures >= tries:
            way_out = "check the network and --api-url, then run" if never_reached else "run"
            raise InputError(
                f"{self._server}: {cause.words}, no answer in {failures} tries; {way_out} the same command again "
                "later: it goes on"
            )
        self._back_off(failures)
        self._notes.note(cause.words, failures + 1, tries, self._next_request - self._clock())

    def _ask(self, path: str, parameters: Mapping[str, str]) -> list[dict[str, Any]]:
        import requests

        self._wait_for_turn()
        try:
            response = self._session.get(self._base_url + path, params=dict(parameters), timeout=_TIMEOUT_S)
        except (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError) as error:
            raise _NoAnswerError(cause_of(error)) from error
        except requests.RequestException as error:
            raise InputError(f"{self._base_url}: cannot be asked ({shortened(str(error))}); check --api-url") from error
        self._has_answered = True
        self._heed_limits(response.status_code, response.headers)
        if response.status_code == 429 or response.status_code >= 500:
            reason = f" {response.reason}" if response.reason else ""
            raise _NoAnswerError(Cause(f"status {response.status_code}{reason}"))
        value = _parse(response.content)
        if response.status_code != 200:
            self._refuse(response.status_code, path, value)
        records = value.get("data") if isinstance(value, dict) else None
        if not isinstance(records, list) or not all(isinstance(record, dict) for record in records):
            raise _NoAnswerError(Cause(f"no list of records, but {_message(value) or 'something else'}"))
        return records

    def _refuse(self, status: int, path: str, value: Any) -> None:
        message = _message(value)
        if status == 422 and "time" in message.lower():
            self._back_off(2)
            raise SlowQueryError(
                f"{self._base_url}{path}: the server gave the query up as too slow ({message}); "
                "run the same command again later: it goes on"
            )
        raise InputError(f"{self._base_url}{path}: refused with status {status} ({message or 'no reason given'})")

    def _wait_for_turn(self) -> None:
        wait_s = self._next_request - self._clock()
        if wait_s > _LONGEST_BACK_OFF_S:
            self._notes.note_pause(wait_s)
        if wait_s > 0:
            self._sleep(wait_s)
        self._next_request = self._clock() + _SPACING_S

    def _back_off(self, failures: int) -> None:
        self._next_request = max(self._next_request, self._clock() + min(2.0 ** (failures - 1), _LONGEST_BACK_OFF_S))

    def _heed_limits(self, status: int, headers: Mapping[str, str]) -> None:
        """Put the next request off where the server says that it allows none before."""
        if status != 429 and not _is_used_up(headers):
            return
        wait_s = requested_wait_s(headers, self._now())
        if wait_s is not None and wait_s > LONGEST_WAIT_S:
            raise InputError(
                f"{self._base_url}: asks for no request within the next {wait_s / 60:.0f} minutes; "
                "run the same command again after that: it goes on"
            )
        self._next_request = max(self._next_request, self._clock() + (wait_s or 0.0))


def requested_wait_s(headers: Mapping[str, str], now: float) -> float | None:
    """Return how many seconds a server asks to wait by `Retry-After` or `X-RateLimit-Reset`, None where it does not.

    Both come as seconds from now, as seconds or milliseconds since 1970, or as a date. `now` in seconds since 1970;
    `headers` know no case.
    """
    for name in ("Retry-After", "X-RateLimit-Reset"):
        text = headers.get(name, "").strip()
        if text and (wait_s := _wait_s(text, now)) is not None:
            return max(0.0, wait_s)
    return None


def _wait_s(text: str, now: float) -> float | None:
    try:
        number = float(text)
    except ValueError:
        moment = _date(text)
        return None if moment is None else moment - now
    if number != number:
        return None
    if number >= _EPOCH_FROM:
        return (number / 1000 if number >= _EPOCH_FROM * 1000 else number) - now
    return number


def _date(text: str) -> float | None:
    try:
        return email.utils.parsedate_to_datetime(text).timestamp()
    except ValueError:
        pass
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)).timestamp()


def _is_used_up(headers: Mapping[str, str]) -> bool:
    try:
        return float(headers.get("X-RateLimit-Remaining", "1")) < 1
    except ValueError:
        return False


def _parse(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError as error:
        raise _NoAnswerError(Cause(f"{len(body)} bytes that are no JSON")) from error


def _message(value: Any) -> str:
    """Return what an answer says of an error."""
    error = value.get("error") if isinstance(value, dict) else None
    return shortened(str(error)) if error else ""
