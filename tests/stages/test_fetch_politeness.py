"""Politeness: one request at a time per host, a delay in between, Retry-After."""

from __future__ import annotations

import contextlib
import datetime as dt
import email.utils
import itertools
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from fetch_run import run_fetch
from local_web import HTML, PROXY_VARIABLES, Answer, LocalWeb, Request

_TEXT = b"<p>some text</p>"


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PROXY_VARIABLES:
        monkeypatch.delenv(name, raising=False)


def _slow(handler: object) -> None:
    time.sleep(0.1)
    handler.send_response(200)  # type: ignore[attr-defined]
    handler.send_header("Content-Type", HTML)  # type: ignore[attr-defined]
    handler.send_header("Content-Length", "0")  # type: ignore[attr-defined]
    handler.end_headers()  # type: ignore[attr-defined]


def _gaps(requests: Sequence[Request]) -> list[float]:
    return [after.started - before.ended for before, after in itertools.pairwise(requests)]


def test_a_host_gets_one_request_at_a_time_with_a_delay(tmp_path: Path) -> None:
    with LocalWeb({f"/{number}": _slow for number in range(4)}) as web:
        run_fetch(tmp_path, [web.url(path) for path in web.pages], per_host_delay=0.2, concurrency=8)
        assert len(web.requests) == 5
        assert min(_gaps(web.requests)) >= 0.19


def test_a_host_gets_one_request_at_a_time_without_a_delay_and_by_redirects(tmp_path: Path) -> None:
    with LocalWeb({f"/{number}": _slow for number in range(6)}) as target, LocalWeb() as source:
        for number in range(6):
            source.pages[f"/{number}"] = Answer(b"", 302, {"Location": target.url(f"/{number}")})
        urls = [web.url(f"/{number}") for number in range(6) for web in (source, target)]
        fetched = run_fetch(tmp_path, urls, concurrency=8)
        assert set(fetched.outcomes.values()) == {"ok"}
        assert min(_gaps(target.requests)) >= 0
        assert len(target.requests) == 13


def test_hosts_are_requested_concurrently(tmp_path: Path) -> None:
    together = threading.Barrier(4, timeout=5)

    def meet(handler: object) -> None:
        together.wait()
        _slow(handler)

    with LocalWeb({"/": meet}) as a, LocalWeb({"/": meet}) as b, LocalWeb({"/": meet}) as c, LocalWeb({"/": meet}) as d:
        urls = [web.url("/") for web in (a, b, c, d)]
        assert set(run_fetch(tmp_path, urls, concurrency=4).outcomes.values()) == {"ok"}


def test_concurrency_is_limited(tmp_path: Path) -> None:
    with LocalWeb({"/": _slow}) as a, LocalWeb({"/": _slow}) as b, LocalWeb({"/": _slow}) as c:
        run_fetch(tmp_path, [web.url("/") for web in (a, b, c)], concurrency=1)
        requests = sorted([*a.requests, *b.requests, *c.requests], key=lambda request: request.started)
        assert min(_gaps(requests)) >= -0.005  # the answer is out before the server notes its end


def test_delays_of_one_host_do_not_block_another(tmp_path: Path) -> None:
    pages = {f"/{number}": _TEXT for number in range(5)}
    with LocalWeb(pages) as one, LocalWeb(pages) as two:
        started = time.monotonic()
        urls = [web.url(path) for path in pages for web in (one, two)]
        run_fetch(tmp_path, urls, per_host_delay=0.6, concurrency=1)
        assert time.monotonic() - started < 5.5  # 5 concurrent delays of both hosts take 3 s, sequential ones 6


def _fetch_after_retry(tmp_path: Path, first_answers: Sequence[object], **config: Any) -> list[list[float]]:
    """Fetch one page from a host for each first answer, all with one retry; return the gaps between its requests."""
    with contextlib.ExitStack() as stack:
        pages = [{"/": [first, Answer(_TEXT)], "/other": _TEXT} for first in first_answers]
        webs = [stack.enter_context(LocalWeb(site)) for site in pages]
        fetched = run_fetch(tmp_path, [web.url(path) for web in webs for path in ("/", "/other")], retries=1, **config)
        assert set(fetched.outcomes.values()) == {"ok"}
        for web in webs:
            assert [request.url for request in web.requests][:2] == ["/robots.txt", "/"]
        return [_gaps(web.requests) for web in webs]


def test_retry_after_in_seconds_delays_the_whole_host(tmp_path: Path) -> None:
    busy = [Answer(b"", status, {"Retry-After": "1"}) for status in (429, 503)]
    for gaps in _fetch_after_retry(tmp_path, busy):
        assert gaps[1] >= 0.99


def test_retry_after_as_a_date(tmp_path: Path) -> None:
    def busy(handler: object) -> None:
        until = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=2)
        handler.send_response(503)  # type: ignore[attr-defined]
        handler.send_header("Retry-After", email.utils.format_datetime(until, usegmt=True))  # type: ignore[attr-defined]
        handler.send_header("Content-Length", "0")  # type: ignore[attr-defined]
        handler.end_headers()  # type: ignore[attr-defined]

    ((_, gap, *_),) = _fetch_after_retry(tmp_path, [busy])
    assert 0.9 <= gap <= 2.1


def test_an_invalid_retry_after_is_ignored(tmp_path: Path) -> None:
    dates = [
        "Mon, 01 Jan 99999999999999 00:00:00 GMT",
        "Mon, 01 Jan 2024 00:00:00 +999999999999999999",
        "Mon, 99 Jan 2024 00:00:00 GMT",
        "soon",
        "",
    ]
    for gaps in _fetch_after_retry(tmp_path, [Answer(b"", 503, {"Retry-After": date}) for date in dates]):
        assert 0.99 <= gaps[1] <= 5  # the back-off after a first failure


def test_retry_after_is_limited_by_max_wait(tmp_path: Path) -> None:
    ((_, gap, *_),) = _fetch_after_retry(tmp_path, [Answer(b"", 429, {"Retry-After": "86400"})], max_wait=0.3)
    assert 0.29 <= gap <= 1
