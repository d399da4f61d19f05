"""Servers that are slow, dead or broken, a network that is down, and unexpected errors."""

from __future__ import annotations

import gzip
import http.server
import random
import socket
import threading
import time
from pathlib import Path

import pytest
from fetch_answers import hang, raw
from fetch_run import Fetched, read_records, read_rows, run_fetch
from local_web import PROXY_VARIABLES, Answer, LocalWeb

from pipelines.errors import StorageError, WebtextError
from pipelines.stages.fetch import crawl, visit

_TEXT = b"<p>" + b"some words " * 50 + b"</p>"


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*PROXY_VARIABLES, "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)


def test_the_deadline_includes_redirects(tmp_path: Path) -> None:
    def slow_redirect(handler: http.server.BaseHTTPRequestHandler) -> None:
        time.sleep(0.4)
        handler.send_response(302)
        number = int(handler.path.removeprefix("/slow-"))
        handler.send_header("Location", f"/slow-{number + 1}")
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    with LocalWeb({f"/slow-{number}": slow_redirect for number in range(9)} | {"/ok": _TEXT}) as web:
        fetched = run_fetch(tmp_path, [web.url("/slow-0"), web.url("/ok")], timeout=1.0)
        assert fetched.outcomes == {web.url("/slow-0"): "timeout", web.url("/ok"): "ok"}
        assert len([path for path in web.paths() if path.startswith("/slow")]) <= 3


def test_a_dead_port_and_a_dead_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resolve = socket.getaddrinfo

    def no_such_name(host: str, *arguments: object, **options: object) -> object:
        if host == "gone.example":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return resolve(host, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", no_such_name)
    with socket.socket() as bound, LocalWeb({"/ok": _TEXT}) as web:
        bound.bind(("127.0.0.1", 0))  # bound, but nobody listens
        dead = f"http://127.0.0.1:{bound.getsockname()[1]}/"
        for private in (True, False):
            folder = tmp_path / str(private)
            folder.mkdir()
            urls = [dead, "http://gone.example/a", "http://gone.example/b", "http://a..b/", web.url("/ok")]
            if private:
                outcomes = run_fetch(folder, urls).outcomes
                assert list(outcomes.values()) == ["connection", "dns", "dns", "bad_url", "ok"]
            else:
                with pytest.raises(WebtextError, match="all 5 records were dropped"):
                    run_fetch(folder, urls, allow_private_addresses=False)
                outcomes = Fetched(folder / "fetch", None).outcomes
                assert list(outcomes.values()) == ["private_address", "dns", "dns", "bad_url", "private_address"]


def test_failing_pages_are_retried_a_bounded_number_of_times(tmp_path: Path) -> None:
    pages = {
        "/recovers": [Answer(b"", 500), Answer(b"", 503), Answer(_TEXT)],
        "/stays-broken": Answer(b"", 500),
        "/closed-once": [raw(b""), Answer(_TEXT)],
        "/not-implemented": Answer(b"", 501),
        "/gone": Answer(b"", 404),
    }
    with LocalWeb(pages) as web:
        fetched = run_fetch(tmp_path, [web.url(path) for path in pages], retries=2, max_wait=0.05)
        paths = web.paths()
    assert list(fetched.outcomes.values()) == ["ok", "http_server_error", "ok", "http_server_error", "http_not_found"]
    assert [paths.count(path) for path in pages] == [3, 3, 2, 1, 1]


def _closes_at_the_second_request(handler: http.server.BaseHTTPRequestHandler) -> None:
    """Answer the first request of a connection; close it without a word at the next, as if it had waited too long."""
    if vars(handler).setdefault("answered", False):
        handler.close_connection = True
        return
    vars(handler)["answered"] = True
    handler.send_response(200)
    handler.send_header("Content-Type", "text/html")
    handler.send_header("Content-Length", str(len(_TEXT)))
    handler.end_headers()
    handler.wfile.write(_TEXT)


def test_a_connection_closed_while_idle_is_not_a_failure_of_the_page(tmp_path: Path) -> None:
    pages = {f"/{number}": _closes_at_the_second_request for number in range(4)} | {"/closed": raw(b"")}
    with LocalWeb(pages) as web:
        fetched = run_fetch(tmp_path, [web.url(path) for path in pages], retries=0)
        paths = web.paths()
    assert list(fetched.outcomes.values()) == ["ok"] * 4 + ["connection"]
    assert all(paths.count(path) <= 2 for path in pages)
    assert len(paths) > len(pages)  # some were sent on an idle connection, and again on a new one


def test_a_host_is_given_up_after_many_failures_in_a_row(tmp_path: Path) -> None:
    pages = {f"/{number}": Answer(b"", 429) for number in range(50)} | {"/ok": Answer(_TEXT)}
    with LocalWeb({"/ok": _TEXT}) as alive, LocalWeb(pages) as web:
        fetched = run_fetch(tmp_path, [*(web.url(path) for path in pages), alive.url("/ok")], max_wait=0.0)
        assert len(web.paths()) == crawl.GIVE_UP_AFTER
    rows = [row for row in fetched.rows if row["url"] != alive.url("/ok")]
    assert {(row["outcome"], row["status"]) for row in rows} == {("dropped.http_rate_limited", 429)}


def test_a_host_is_given_up_sooner_after_timeouts(tmp_path: Path) -> None:
    pages = {f"/{number}": hang for number in range(20)} | {"/ok": _TEXT}
    with LocalWeb({"/ok": _TEXT}) as alive, LocalWeb(pages) as web:
        urls = [alive.url("/ok"), *(web.url(path) for path in pages)]
        fetched = run_fetch(tmp_path, urls, max_wait=0.0, timeout=0.2)
        assert len(web.paths()) == 4
    assert list(fetched.outcomes.values()) == ["ok"] + ["timeout"] * 21
    details = [row["detail"] for row in read_rows(fetched.folder, "dropped")]
    assert details[-1].startswith("not requested: the pages before it failed in a row (")


@pytest.mark.parametrize(
    ("sites", "message"),
    [
        (150, "none of the last 100 sites could be reached .*re-run the same command to resume"),
        (
            30,
            r"all 30 records were dropped \(dns 30\), such as http://site-0\.example:\d+/ \(.*known\), .*site-2\.",
        ),
    ],
)
def test_a_network_outage_ends_the_run_without_outcomes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sites: int, message: str
) -> None:
    up = False

    def resolve(host: str, port: int, *rest: object, **options: object) -> list[object]:
        if not up:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with LocalWeb({"/": _TEXT}) as web:
        urls = [f"http://site-{number}.example:{web.port}/" for number in range(sites)]
        with pytest.raises(WebtextError, match=message):
            run_fetch(tmp_path, urls)
        up = True
        assert set(run_fetch(tmp_path).outcomes.values()) == {"ok"}


_ANSWERS = [
    b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 12\r\nSet-Cookie: a=b; path=/\r\n\r\n<p>words</p>",
    b"HTTP/1.1 302 Found\r\nLocation: /elsewhere?a=b\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Encoding: gzip\r\n\r\n" + gzip.compress(b"words " * 9),
    b"HTTP/1.1 503 Busy\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n",
]
_INSERTED = [b"\r\n", b"\r", b"\n", b"\x00", b": ", b"http://[", b"%", b"9" * 30, b"-1", b"\xff\xfe", b";", b"\xc3"]


def _broken(answer: bytes, source: random.Random) -> bytes:
    data = bytearray(answer)
    for _ in range(source.randint(1, 6)):
        place = source.randrange(len(data))
        data[place : place + source.randint(0, 4)] = source.choice([*_INSERTED, b"", source.randbytes(2)])
    return bytes(data)


def test_malformed_responses_never_end_the_shard(tmp_path: Path) -> None:
    source = random.Random(1)
    pages = {f"/{number}": raw(_broken(source.choice(_ANSWERS), source)) for number in range(150)}
    with LocalWeb({**pages, "/ok": _TEXT}) as web:
        fetched = run_fetch(tmp_path, [web.url(path) for path in web.pages], timeout=2.0, max_wait=0.0)
        assert fetched.outcomes[web.url("/ok")] == "ok"
    assert len(set(fetched.outcomes.values())) > 5
    assert not [row for row in read_rows(fetched.folder, "dropped") if "unexpected" in row["detail"]]
    assert read_records(fetched.folder / "pages-00000.warc.gz")


def _failing(monkeypatch: pytest.MonkeyPatch, error: Exception, *endings: str) -> None:
    """Make requests of URLs with these endings raise an error."""

    def follow(self: visit.Visit, *rest: object) -> object:
        if self.url.endswith(endings):
            raise error
        return original(self, *rest)  # type: ignore[arg-type]

    original = visit.Visit.follow
    monkeypatch.setattr(visit.Visit, "follow", follow)


def test_an_unexpected_error_is_the_outcome_of_its_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with LocalWeb({"/bug": _TEXT, "/ok": _TEXT}) as web, LocalWeb({"/": _TEXT}) as odd:
        _failing(monkeypatch, RuntimeError("a bug"), "/bug", f":{odd.port}/robots.txt")
        fetched = run_fetch(tmp_path, [web.url("/bug"), web.url("/ok"), odd.url("/")])
    assert list(fetched.outcomes.values()) == ["bad_response", "ok", "robots_unreachable"]
    assert [row["detail"] for row in read_rows(fetched.folder, "dropped")] == [
        "unexpected RuntimeError: a bug", "bad_response: unexpected RuntimeError: a bug",
    ]  # fmt: skip


def test_a_storage_error_ends_the_run_at_once_despite_a_hanging_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {*threading.enumerate()}  # a server of other tests
    with LocalWeb({"/hang": hang}) as hanging, LocalWeb({"/full": _TEXT}) as web:
        _failing(monkeypatch, StorageError("the disk is full"), "/full")
        started = time.monotonic()
        with pytest.raises(StorageError, match="the disk is full"):
            run_fetch(tmp_path, [hanging.url("/hang"), web.url("/full")], timeout=60.0)
        assert time.monotonic() - started < 20
        # The thread that waits for the server ends as its connection is closed, which takes it a moment.
        deadline = time.monotonic() + 20
        while any("_serve" in thread.name for thread in {*threading.enumerate()} - before):
            assert time.monotonic() < deadline
            time.sleep(0.01)
