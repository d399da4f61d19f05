"""The API client: rate limits, retries and refusals."""

from __future__ import annotations

import email.utils
from collections.abc import Iterator

import pytest
from local_apis import ArcticShift, Fault, post
from scrape_run import Notes

from pipelines.errors import InputError
from pipelines.progress import show_progress
from pipelines.stages.scrape.arctic_shift import ApiClient, SlowQueryError

_NOW = 1763600000.0
_ASK = {"ids": "60001", "fields": "id,score"}


class _Clock:
    """A clock that only advances by `sleep`."""

    def __init__(self) -> None:
        self.time = 100.0
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time += seconds


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here goes through a proxy, whatever the environment, or another test's, says."""
    monkeypatch.setenv("no_proxy", "127.0.0.1,example.com")


@pytest.fixture
def clock() -> _Clock:
    return _Clock()


@pytest.fixture
def api() -> Iterator[ArcticShift]:
    with ArcticShift([post(1, "http://example.com/1", 7)]).serving() as server:
        yield server


def _client(api: ArcticShift, clock: _Clock) -> ApiClient:
    return ApiClient(api.address + "/", clock=lambda: clock.time, now=lambda: _NOW, sleep=clock.sleep)


def _ask(client: ApiClient) -> list[dict[str, object]]:
    return client.records("/api/posts/ids", _ASK)


def test_request_rate_and_user_agent(api: ArcticShift, clock: _Clock) -> None:
    client = _client(api, clock)
    for _ in range(4):
        assert _ask(client) == [{"id": "60001", "score": 7}]
    assert clock.slept == [0.5, 0.5, 0.5]
    assert api.agents == {"webtext/0.1"}


@pytest.mark.parametrize(
    ("headers", "wait_s"),
    [
        ({"Retry-After": "17"}, 17.0),
        ({"X-RateLimit-Reset": "23"}, 23.0),
        ({"Retry-After": "17", "X-RateLimit-Reset": "23"}, 17.0),
        ({"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": str(int(_NOW) + 41)}, 41.0),
        ({"Retry-After": email.utils.formatdate(_NOW + 30, usegmt=True)}, 30.0),
        ({}, 1.0),
        ({"Retry-After": "soon"}, 1.0),
    ],
)
def test_retry_after_a_429(api: ArcticShift, clock: _Clock, headers: dict[str, str], wait_s: float) -> None:
    api.faults = [Fault(429, headers, b'{"data":null,"error":"Too many requests"}')]
    assert len(_ask(_client(api, clock))) == 1
    assert sum(clock.slept) == pytest.approx(wait_s)
    assert len(api.requests) == 2


def test_a_used_up_rate_limit_delays_the_next_request(api: ArcticShift, clock: _Clock) -> None:
    api.faults = [Fault(headers={"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "12"})]
    client = _client(api, clock)
    _ask(client)
    assert clock.slept == []
    _ask(client)
    assert sum(clock.slept) == pytest.approx(12.0)
    api.faults = [Fault(headers={"X-RateLimit-Remaining": "5", "X-RateLimit-Reset": "60"})]
    _ask(client)
    _ask(client)
    assert sum(clock.slept) == pytest.approx(13.0)


def test_waits_longer_than_an_hour_are_refused(api: ArcticShift, clock: _Clock) -> None:
    api.faults = [Fault(429, {"Retry-After": "7200"}, b"{}")]
    with pytest.raises(InputError, match=r"no request within the next 120 minutes; re-run the same command later"):
        _ask(_client(api, clock))


@pytest.mark.parametrize(
    "fault",
    [
        Fault(500, body=b"oops"),
        Fault(502, body=b"<html>Bad gateway</html>"),
        Fault(cut=5),
        Fault(body=b'{"data": [{"id": "600'),
        Fault(body=b'{"data": null, "error": "Under maintenance"}'),
        Fault(body=b"\xff\xfe"),
        Fault(body=b'{"data": ["60001"]}'),
    ],
    ids=["500", "502", "truncated", "half-json", "no-data", "not-utf-8", "no-records"],
)
def test_malformed_responses_are_retried(api: ArcticShift, clock: _Clock, fault: Fault) -> None:
    api.faults = [fault, fault]
    assert _ask(_client(api, clock)) == [{"id": "60001", "score": 7}]
    assert clock.slept == [1.0, 2.0]


def test_attempts_are_bounded_with_exponential_back_off(api: ArcticShift, clock: _Clock) -> None:
    api.faults = [Fault(500, body=b"oops")] * 100
    with pytest.raises(InputError, match=r"status 500.*, no response in 8 attempts; .*re-run the same command"):
        _ask(_client(api, clock))
    assert clock.slept == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0]


def test_unreachable_servers(clock: _Clock) -> None:
    client = ApiClient("http://127.0.0.1:9", clock=lambda: clock.time, now=lambda: _NOW, sleep=clock.sleep)
    with pytest.raises(
        InputError,
        match=r"^127\.0\.0\.1:9: connection refused, no response in 3 attempts; check the network",
    ):
        _ask(client)
    assert clock.slept == [1.0, 2.0]
    client = ApiClient("example.com", clock=lambda: clock.time, now=lambda: _NOW, sleep=clock.sleep)
    with pytest.raises(InputError, match="check --api-url"):
        _ask(client)


def test_notes_about_retries_are_rate_limited(api: ArcticShift, clock: _Clock) -> None:
    api.faults = [Fault(500, body=b"oops")] * 7
    notes = Notes()
    with show_progress(notes, "scrape: scores", None, "scores"):
        client = _client(api, clock)
        _ask(client)
        api.faults = [Fault(headers={"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "600"})]
        _ask(client)
        _ask(client)
    server = api.address.removeprefix("http://")
    assert notes.lines == [
        f"{server}: no response (status 500 Internal Server Error); retrying in 1 s, attempt 2 of 8",
        f"{server}: no response (status 500 Internal Server Error); retrying in 32 s, attempt 7 of 8",
        f"{server}: no response (status 500 Internal Server Error); retrying in 60 s, attempt 8 of 8",
        f"{server}: rate limit reached; waiting 600 s",
    ]


def test_a_server_that_responded_before_gets_all_attempts(clock: _Clock) -> None:
    with ArcticShift([post(1, "http://example.com/1", 7)]).serving() as api:
        client = _client(api, clock)
        api.faults = [None, Fault(cut=5)]
        _ask(client)
    client._session.close()
    with pytest.raises(InputError, match="connection refused, no response in 8 attempts; "):
        _ask(client)


def test_refusals_are_final(api: ArcticShift, clock: _Clock) -> None:
    with pytest.raises(InputError, match=r"refused with status 400 \(Invalid field: is_self\)"):
        _client(api, clock).records("/api/posts/ids", {"ids": "1", "fields": "id,is_self"})
    with pytest.raises(InputError, match=r"/api/nothing: refused with status 404 \(Not found\)"):
        _client(api, clock).records("/api/nothing", {"fields": "id"})
    assert len(api.requests) == 2
    api.faults = [Fault(422, body=b'{"data":null,"error":"Timeout. Maybe slow down a bit"}')]
    with pytest.raises(SlowQueryError, match="too slow"):
        _ask(_client(api, clock))
    api.faults = [Fault(422, body=b'{"data":null,"error":"bad id"}')]
    with pytest.raises(InputError, match=r"status 422 \(bad id\)"):
        _ask(_client(api, clock))
