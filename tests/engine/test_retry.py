"""The retry policy: statuses, delays, requested waits, and the causes of failures."""

from __future__ import annotations

import email.utils
import socket

import pytest
import requests
import urllib3
from requests.structures import CaseInsensitiveDict
from urllib3.exceptions import ConnectTimeoutError, MaxRetryError, NameResolutionError, ProxyError

from pipelines.engine.retry import RetryPolicy, check_proxies, describe_failure, is_retryable_status, requested_wait_s
from pipelines.errors import UsageError

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


def _failed_connection(cause: Exception) -> Exception:
    """What requests raises, as it wraps what urllib3 raises."""
    pool = urllib3.HTTPSConnectionPool("arctic-shift.example", 443)
    url = "/api/posts/search?subreddit=python&after=1&sort=asc&limit=auto&fields=" + "x" * 300
    return requests.ConnectionError(MaxRetryError(pool, url, cause))


def _unknown_name() -> Exception:
    connection = urllib3.connection.HTTPSConnection("arctic-shift.example")
    cause = socket.gaierror(-2, "Name or service not known")
    error = NameResolutionError("arctic-shift.example", connection, cause)
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "cause", "unreachable"),
    [
        (_failed_connection(_unknown_name()), "name resolution failed", True),
        (
            _failed_connection(ProxyError("Unable to connect to proxy", ConnectionRefusedError(111, "refused"))),
            "the proxy: connection refused",
            True,
        ),
        (requests.ConnectTimeout(ConnectTimeoutError("timed out")), "timeout", False),
        (_failed_connection(OSError(101, "Network is unreachable")), "network is unreachable", False),
        (requests.ConnectionError("word " * 100), "word " * 39 + "...", False),
        (ValueError(), "ValueError", False),
    ],
    ids=["name", "proxy", "time", "network", "long", "nothing"],
)
def test_causes_do_not_contain_urls(error: Exception, cause: str, unreachable: bool) -> None:
    failure = describe_failure(error)
    assert (str(failure), failure.unreachable) == (cause, unreachable)


@pytest.mark.parametrize(
    "address",
    ["proxy", "proxy.example:3128", "http://127.0.0.1:8080/", "https://user:p@ss@proxy:1", "SOCKS5h://[::1]:1080", ""],
)
def test_addresses_of_proxies(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv("https_proxy", address)
    monkeypatch.setenv("no_proxy", "anything goes")
    check_proxies()


@pytest.mark.parametrize(
    "address", ["http://", "http://:3128", "http://proxy:port", "ftp://proxy:1", "http://user:secret@", "two words"]
)
def test_a_variable_that_is_no_address_of_a_proxy_is_named(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv("HTTPS_PROXY", address)
    with pytest.raises(UsageError, match=r"^HTTPS_PROXY: is not the address of a proxy, .*; correct or unset it$"):
        check_proxies()
