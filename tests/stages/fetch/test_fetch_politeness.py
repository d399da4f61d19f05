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
from fetch_run import read_records, run_fetch
from local_web import HTML, Answer, LocalWeb, Request

_TEXT = b"<p>some text</p>"


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


def test_retry_after_is_obeyed_after_the_last_retry(tmp_path: Path) -> None:
    with LocalWeb({"/a": Answer(b"", 429, {"Retry-After": "2"}), "/b": _TEXT}) as web:
        run_fetch(tmp_path, [web.url("/a"), web.url("/b")])
        assert _gaps(web.requests)[1] >= 1.99


def test_few_hosts_of_a_domain_are_requested_from_at_the_same_time(tmp_path: Path) -> None:
    names = [f"http://host{number}.example.org/{page}" for page in range(3) for number in range(12)]
    others = [f"http://other{number}.example/" for number in range(4)]
    with LocalWeb(dict.fromkeys([*names, *others], _slow)) as web, web.as_proxy():
        fetched = run_fetch(tmp_path, [*names, *others], concurrency=16, per_domain_hosts=2)
        assert set(fetched.outcomes.values()) == {"ok"}
        requests = [request for request in web.requests if ".example.org/" in request.url]
        assert len(requests) == 36 + 12
        # The server notes the end of an answer after the client has it, at times when the next request has begun.
        together = [sum(other.started <= one.started < other.ended - 0.05 for other in requests) for one in requests]
        assert max(together) == 2


def test_a_host_that_is_overloaded_is_asked_less_often_until_it_recovers(tmp_path: Path) -> None:
    answers = [Answer(status=503), Answer(status=503)]
    pages: dict[str, Any] = {f"/{number}": answers[number] if number < 2 else _TEXT for number in range(5)}
    robots = {"/robots.txt": Answer(b"User-agent: *\nDisallow: /no", headers={"Content-Type": "text/plain"})}
    with LocalWeb(pages | robots) as web:
        # What is not requested at all is no sign of recovery.
        paths = ["/0", *(f"/no{number}" for number in range(3)), "/1", "/2", "/3", "/4"]
        fetched = run_fetch(tmp_path, map(web.url, paths))
        outcomes = ["http_server_error", *["robots"] * 3, "http_server_error", *["ok"] * 3]
        assert list(fetched.outcomes.values()) == outcomes
        gaps = _gaps(web.requests)[1:]
        assert 1.0 <= gaps[0] < 1.9
        assert 2.0 <= gaps[1] < 2.9
        assert 1.0 <= gaps[2] < 1.9
        assert gaps[3] < 0.9


def test_a_domain_has_no_more_than_so_many_links(tmp_path: Path) -> None:
    urls = [f"http://host{number % 3}.example.org/{number}" for number in range(9)]
    urls += [urls[0], "http://other.example/"]
    with LocalWeb(dict.fromkeys(urls, _TEXT)) as web, web.as_proxy():
        fetched = run_fetch(tmp_path, urls, max_pages_per_domain=4)
        expected = ["ok"] * 4 + ["dropped.domain_limit"] * 5 + ["dropped.duplicate_url", "ok"]
        assert [row["outcome"] for row in fetched.rows] == expected
        assert len(web.paths()) == 5


@pytest.mark.parametrize(
    ("page", "is_refused"),
    [
        (Answer(_TEXT, headers={"Content-Type": HTML, "X-Robots-Tag": "noarchive"}), True),
        (Answer(_TEXT, headers={"Content-Type": HTML, "X-Robots-Tag": "nofollow, NONE"}), True),
        (Answer(_TEXT, headers={"Content-Type": HTML, "X-Robots-Tag": "googlebot: noarchive"}), False),
        (Answer(_TEXT, headers={"Content-Type": HTML, "X-Robots-Tag": "noindex"}), False),
        (b'<html><head><META content="index,NoArchive" name=robots></head><p>text</p>', True),
        (b'<html><head><meta name="robots" content="noindex, nofollow"></head><p>text</p>', False),
        (b'<html><head><meta name="description" content="none of it"></head><p>text</p>', False),
    ],
)
def test_a_wish_not_to_be_archived_is_honored_on_request(tmp_path: Path, page: Any, is_refused: bool) -> None:
    with LocalWeb({"/a": page, "/other": _TEXT}) as web:
        for is_honored in (False, True):
            folder = tmp_path / str(is_honored)
            folder.mkdir()
            fetched = run_fetch(folder, [web.url("/a"), web.url("/other")], honor=("noarchive",) if is_honored else ())
            expected = "noarchive" if is_honored and is_refused else "ok"
            assert fetched.outcomes == {web.url("/a"): expected, web.url("/other"): "ok"}
            if expected == "noarchive":
                records = read_records(folder / "fetch" / "pages-00000.warc.gz")
                [stored] = [body for kind, url, body in records if (kind, url) == ("response", web.url("/a"))]
                assert stored == b""
