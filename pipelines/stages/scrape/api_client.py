"""Client of a JSON API: one request at a time, rate limited, retried after failures and malformed responses.

In practice these APIs send 429 with the time to wait in a header, 500 and 502 for minutes, truncated bodies, and 422
for a query that took the server too long.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from pipelines.engine.retry import RetryPolicy, is_retryable_status, requested_wait_s
from pipelines.errors import InputError
from pipelines.stages.scrape.request_failures import FailureCause, RetryNotes, failure_cause, shorten

USER_AGENT = "webtext/0.1"

# At most two requests per second.
REQUEST_DELAY_S = 0.5
# A server that asks for a longer pause is not waited for.
LONGEST_WAIT_S = 3600.0
_TIMEOUT_S = (10.0, 90.0)  # to connect, and between two chunks of a response
_POLICY = RetryPolicy(attempts=8)
# If the server never responded, the network is down or the address is wrong: more attempts would not help.
_POLICY_UNREACHABLE = RetryPolicy(attempts=3)
_LONG_WAIT_S = 60.0


class SlowQueryError(InputError):
    """The server aborted a query because it took too long; a smaller one may succeed."""


class _RetryableError(Exception):
    """A failure that a later attempt may not have."""

    def __init__(self, cause: FailureCause) -> None:
        super().__init__(cause.text)
        self.cause = cause


class ApiClient:
    """One API by its base URL. Tests replace `clock` (monotonic, s), `now` (s since 1970) and `sleep`."""

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
        self._has_responded = False

    def records(self, path: str, parameters: Mapping[str, str]) -> list[dict[str, Any]]:
        """Return the list under `data` in the response to a query.

        Waits as long as the server requests. Makes up to 8 attempts after failed connections, server errors and
        malformed responses, 3 if the server was never reached. Raises SlowQueryError if the server aborted the query,
        InputError for other refusals and after the last attempt.
        """
        failures = 0
        while True:
            try:
                return self._request(path, parameters)
            except _RetryableError as error:
                failures += 1
                self._schedule_retry(error.cause, failures)

    def _schedule_retry(self, cause: FailureCause, failures: int) -> None:
        never_reached = cause.unreachable and not self._has_responded
        policy = _POLICY_UNREACHABLE if never_reached else _POLICY
        delay_s = policy.delay_s(failures)
        if delay_s is None:
            advice = "check the network and --api-url, then re-run" if never_reached else "re-run"
            raise InputError(
                f"{self._server}: {cause.text}, no response in {failures} attempts; {advice} the same command later to "
                "resume"
            )
        self._postpone(delay_s)
        self._notes.note_retry(cause.text, failures + 1, policy.attempts, self._next_request - self._clock())

    def _request(self, path: str, parameters: Mapping[str, str]) -> list[dict[str, Any]]:
        import requests

        self._wait()
        try:
            response = self._session.get(self._base_url + path, params=dict(parameters), timeout=_TIMEOUT_S)
        except (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError) as error:
            raise _RetryableError(failure_cause(error)) from error
        except requests.RequestException as error:
            raise InputError(f"{self._base_url}: request failed ({shorten(str(error))}); check --api-url") from error
        self._has_responded = True
        self._apply_rate_limit(response.status_code, response.headers)
        if is_retryable_status(response.status_code):
            reason = f" {response.reason}" if response.reason else ""
            raise _RetryableError(FailureCause(f"status {response.status_code}{reason}"))
        try:
            value = json.loads(response.content)
        except (ValueError, RecursionError) as error:
            raise _RetryableError(FailureCause(f"{len(response.content)} bytes that are not JSON")) from error
        if response.status_code != 200:
            self._raise_refusal(response.status_code, path, _error_message(value))
        records = value.get("data") if isinstance(value, dict) else None
        if not isinstance(records, list) or not all(isinstance(record, dict) for record in records):
            cause = _error_message(value) or "unexpected JSON"
            raise _RetryableError(FailureCause(f"no list of records, but {cause}"))
        return records

    def _raise_refusal(self, status: int, path: str, message: str) -> None:
        if status == 422 and "time" in message.lower():
            self._postpone(2.0)
            raise SlowQueryError(
                f"{self._base_url}{path}: the server aborted the query as too slow ({message}); "
                "re-run the same command later to resume"
            )
        raise InputError(f"{self._base_url}{path}: refused with status {status} ({message or 'no reason given'})")

    def _wait(self) -> None:
        delay_s = self._next_request - self._clock()
        if delay_s > _LONG_WAIT_S:
            self._notes.note_pause(delay_s)
        if delay_s > 0:
            self._sleep(delay_s)
        self._next_request = self._clock() + REQUEST_DELAY_S

    def _postpone(self, delay_s: float) -> None:
        self._next_request = max(self._next_request, self._clock() + delay_s)

    def _apply_rate_limit(self, status: int, headers: Mapping[str, str]) -> None:
        """Postpone the next request if the server allows none before."""
        if status != 429 and not _is_used_up(headers):
            return
        wait_s = requested_wait_s(headers, self._now())
        if wait_s is not None and wait_s > LONGEST_WAIT_S:
            raise InputError(
                f"{self._base_url}: allows no request within the next {wait_s / 60:.0f} minutes; "
                "re-run the same command after that to resume"
            )
        self._postpone(wait_s or 0.0)


def _is_used_up(headers: Mapping[str, str]) -> bool:
    try:
        return float(headers.get("X-RateLimit-Remaining", "1")) < 1
    except ValueError:
        return False


def _error_message(value: Any) -> str:
    """Return the error message in a response, empty if there is none."""
    error = value.get("error") if isinstance(value, dict) else None
    return shorten(str(error)) if error else ""
