"""The retry policy: statuses, delays and requested waits."""

from __future__ import annotations

import email.utils

import pytest
from requests.structures import CaseInsensitiveDict

from pipelines.engine.retry import RetryPolicy, is_retryable_status, requested_wait_s

_NOW = 1763600000.0


def test_retryable_statuses() -> None:
    retryable = [status for status in range(200, 600) if is_retryable_status(status)]
    assert retryable[:3] == [408, 425, 429]
    assert retryable[3:] == [status for status in range(500, 600) if status not in (501, 505)]


def test_exponential_back_off_up_to_a_maximum() -> None:
    policy = RetryPolicy(attempts=9, longest_backoff_s=60.0)
    assert [policy.delay_s(failures) for failures in range(1, 10)] == [1, 2, 4, 8, 16, 32, 60, 60, None]
    assert RetryPolicy(attempts=10**6).delay_s(5000) == 60.0


def test_requested_waits_extend_the_back_off() -> None:
    policy = RetryPolicy(attempts=3, longest_wait_s=3600.0)
    assert policy.delay_s(1, 17.0) == 17.0
    assert policy.delay_s(2, 0.5) == 2.0
    assert policy.delay_s(1, 3601.0) is None


def test_no_retries() -> None:
    assert RetryPolicy(attempts=1).delay_s(1, 5.0) is None


@pytest.mark.parametrize(
    ("text", "wait_s"),
    [
        ("5", 5.0),
        ("-3", 0.0),
        ("1.5", 1.5),
        (str(int(_NOW) - 10), 0.0),
        (str(int(_NOW * 1000) + 2500), 2.5),
        ("2025-11-20T00:53:30Z", 10.0),
        ("2025-11-20T00:53:30", 10.0),
        (email.utils.formatdate(_NOW + 30, usegmt=True), 30.0),
        ("nan", None),
        ("Mon, 01 Jan 99999999999999 00:00:00 GMT", None),
        ("later", None),
        ("", None),
    ],
)
def test_requested_wait(text: str, wait_s: float | None) -> None:
    assert requested_wait_s({"X-RateLimit-Reset": text}, _NOW) == wait_s
    assert requested_wait_s(CaseInsensitiveDict({"retry-after": text}), _NOW) == wait_s
