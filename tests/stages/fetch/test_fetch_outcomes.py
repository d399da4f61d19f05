"""The outcome of every kind of page, from servers on loopback."""

from __future__ import annotations

import gzip
import http.server
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from fetch_answers import chunked, raw, redirect, typed
from fetch_run import Fetched, read_rows, run_fetch
from local_web import HTML, PROXY_VARIABLES, Answer, LocalWeb

from pipelines.stages.fetch.outcomes import REASONS

_MAX_BYTES = 100_000
_TEXT = b"<p>" + b"some words " * 50 + b"</p>"
_CYRILLIC = "<p>Привет, мир</p>".encode("cp1251")


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*PROXY_VARIABLES, "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)


def _cookie_wall(handler: http.server.BaseHTTPRequestHandler) -> None:
    if "seen=1" in handler.headers.get("Cookie", ""):
        handler.send_response(200)
        handler.send_header("Content-Type", HTML)
    else:
        handler.send_response(302)
        handler.send_header("Set-Cookie", "seen=1")
        handler.send_header("Location", "/cookie-wall")
    handler.send_header("Content-Length", "0")
    handler.end_headers()


def _deflate(data: bytes) -> bytes:
    compress = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return compress.compress(data) + compress.flush()


# path -> the page, and the outcome that it must have.
_PAGES = {
    "/html": (Answer(_TEXT), "ok"),
    "/xhtml": (typed("application/xhtml+xml", _TEXT), "ok"),
    "/plain": (typed("text/plain", b"just text"), "ok"),
    "/markdown": (typed("text/markdown; charset=utf-8", b"# text"), "ok"),
    "/typed-twice": (typed("text/html; charset=utf-8, text/html", _TEXT), "ok"),
    "/status-203": (Answer(_TEXT, 203), "ok"),
    "/cp1251": (typed("text/html; charset=windows-1251", _CYRILLIC), "ok"),
    "/untyped": (typed(None, _TEXT), "ok"),
    "/untyped-binary": (typed(None, b"\x89PNG\r\n\x1a\n\x00\x00"), "unsupported_content_type"),
    "/plain-binary": (typed("text/plain", b"PK\x03\x04\x00\x00"), "unsupported_content_type"),
    "/pdf": (typed("application/pdf", b"%PDF-1.4"), "unsupported_content_type"),
    "/image": (typed("image/png", b"\x89PNG"), "unsupported_content_type"),
    "/empty": (Answer(b""), "ok"),
    "/empty-gzip": (typed(HTML, b"", Content_Encoding="gzip"), "ok"),
    "/gzip": (typed(HTML, gzip.compress(_TEXT), Content_Encoding="gzip"), "ok"),
    "/x-gzip": (typed(HTML, gzip.compress(_TEXT), Content_Encoding="x-gzip"), "ok"),
    "/deflate": (typed(HTML, zlib.compress(_TEXT), Content_Encoding="deflate"), "ok"),
    "/raw-deflate": (typed(HTML, _deflate(_TEXT), Content_Encoding="deflate"), "ok"),
    "/odd-encoding": (typed(HTML, _TEXT, Content_Encoding="utf-8"), "ok"),
    "/brotli": (typed(HTML, b"\x8b\x02\x80", Content_Encoding="br"), "unsupported_encoding"),
    "/not-gzip": (typed(HTML, _TEXT, Content_Encoding="gzip"), "bad_encoding"),
    "/cut-gzip": (typed(HTML, gzip.compress(_TEXT)[:-9], Content_Encoding="gzip"), "incomplete"),
    "/large": (Answer(b"x" * (_MAX_BYTES + 1)), "too_large"),
    "/largest": (Answer(b"x" * _MAX_BYTES), "ok"),
    "/chunked": (chunked(iter([_TEXT, _TEXT])), "ok"),
    "/until-close": (raw(b"HTTP/1.0 200 OK\r\nContent-Type: text/html\r\n\r\nabc"), "ok"),
    "/404": (Answer(b"no", 404), "http_not_found"),
    "/410": (Answer(b"no", 410), "http_not_found"),
    "/401": (Answer(b"no", 401), "http_forbidden"),
    "/403": (Answer(b"no", 403), "http_forbidden"),
    "/451": (Answer(b"no", 451), "http_forbidden"),
    "/418": (Answer(b"no", 418), "http_client_error"),
    "/429": (Answer(b"no", 429), "http_rate_limited"),
    "/500": (Answer(b"no", 500), "http_server_error"),
    "/503": (Answer(b"no", 503), "http_server_error"),
    "/204": (Answer(b"", 204), "http_unexpected"),
    "/206": (Answer(b"part", 206), "http_unexpected"),
    "/304": (Answer(b"", 304), "http_unexpected"),
    "/moved": (redirect("/html", 301), "ok"),
    "/moved-308": (redirect("html#part", 308), "ok"),
    "/to-404": (redirect("/404", 307), "http_not_found"),
    "/cookie-wall": (_cookie_wall, "ok"),
    "/odd-headers": (
        raw(
            b"HTTP/1.1 200 Sch\xf6n\r\nContent-Type: text/html\r\nX-Note: caf\xe9 \xc3\xa9; a=\"\xff\"\r\n"
            b"Content-Length: 3\r\nX-\xe9: 1\r\n\r\nabc"
        ), "ok",
    ),
}  # fmt: skip
_CHAIN = {f"/chain-{number}": redirect(f"/chain-{number + 1}") for number in range(14)} | {"/chain-14": Answer(_TEXT)}
_NOT_REQUESTED = ["ftp://example.org/", "no url at all", "http://", "http://[::1", "mailto:a@example.org"]


@pytest.fixture(scope="module")
def web() -> Iterator[LocalWeb]:
    with LocalWeb({path: page for path, (page, _) in _PAGES.items()} | _CHAIN) as started:
        yield started


@pytest.fixture(scope="module")
def fetched(web: LocalWeb, tmp_path_factory: pytest.TempPathFactory) -> Fetched:
    urls = [web.url(path) for path in (*_PAGES, "/chain-0", "/chain-4")] + _NOT_REQUESTED + [web.url("/html")]
    with pytest.MonkeyPatch.context() as patch:
        for name in PROXY_VARIABLES:
            patch.delenv(name, raising=False)
        return run_fetch(tmp_path_factory.mktemp("outcomes"), urls, max_page_bytes=_MAX_BYTES)


@pytest.mark.parametrize("path", _PAGES)
def test_outcome(fetched: Fetched, web: LocalWeb, path: str) -> None:
    assert fetched.outcomes[web.url(path)] == _PAGES[path][1] or path == "/html"


def test_one_row_per_link_in_the_order_of_the_links(fetched: Fetched, web: LocalWeb) -> None:
    urls = [web.url(path) for path in (*_PAGES, "/chain-0", "/chain-4")] + _NOT_REQUESTED + [web.url("/html")]
    assert [row["url"] for row in fetched.rows] == urls
    assert {row["source"] for row in fetched.rows} == {"live"}


def test_invalid_and_duplicate_urls_are_not_requested(fetched: Fetched, web: LocalWeb) -> None:
    assert {fetched.outcomes[url] for url in _NOT_REQUESTED} == {"bad_url"}
    rows = [row for row in fetched.rows if row["url"] == web.url("/html")]
    assert [row["outcome"] for row in rows] == ["ok", "dropped.duplicate_url"]
    # /html itself, and two redirects to it
    assert web.paths().count("/html") == 3


def test_counts_add_up_and_every_drop_is_listed(fetched: Fetched) -> None:
    summary = fetched.summary
    assert summary is not None
    assert summary.records_in == len(fetched.rows)
    assert summary.records_out == sum(row["outcome"] == "ok" for row in fetched.rows)
    assert summary.records_in == summary.records_out + sum(summary.dropped.values())
    assert set(summary.dropped) <= set(REASONS)
    dropped = read_rows(fetched.folder, "dropped")
    assert [(row["url"], f"dropped.{row['reason']}") for row in dropped] == [
        (row["url"], row["outcome"]) for row in fetched.rows if row["outcome"] != "ok"
    ]
    assert all(row["detail"] for row in dropped)


def test_status_final_url_and_bytes(fetched: Fetched, web: LocalWeb) -> None:
    row = fetched.row(web.url("/moved-308"))
    assert (row["final_url"], row["status"], row["bytes"]) == (web.url("/html"), 200, len(_TEXT))
    row = fetched.row(web.url("/to-404"))
    assert (row["final_url"], row["status"], row["bytes"]) == (web.url("/404"), 404, 0)
    assert (row["warc_file"], row["warc_offset"]) == (None, None)
    assert fetched.row(web.url("/gzip"))["bytes"] == len(_TEXT)
    assert fetched.row(web.url("/large"))["status"] == 200
    assert fetched.row("http://")["final_url"] is None


def test_redirects_are_followed_up_to_the_limit(fetched: Fetched, web: LocalWeb) -> None:
    assert fetched.outcomes[web.url("/chain-0")] == "too_many_redirects"
    assert fetched.outcomes[web.url("/chain-4")] == "ok"  # ten redirects
    assert fetched.row(web.url("/chain-4"))["final_url"] == web.url("/chain-14")


@pytest.mark.parametrize("path", ["/gzip", "/x-gzip", "/deflate", "/raw-deflate", "/html", "/moved"])
def test_the_stored_page_decodes_to_the_text(fetched: Fetched, web: LocalWeb, path: str) -> None:
    assert fetched.record(web.url(path)).content_stream().read() == _TEXT


def test_the_stored_page_is_what_was_sent(fetched: Fetched, web: LocalWeb) -> None:
    assert fetched.record(web.url("/gzip")).raw_stream.read() == _PAGES["/gzip"][0].body
    record = fetched.record(web.url("/cp1251"))
    assert record.content_stream().read() == _CYRILLIC
    assert record.http_headers.get_header("Content-Type") == "text/html; charset=windows-1251"
    chunked = fetched.record(web.url("/chunked"))
    assert chunked.content_stream().read() == _TEXT * 2
    assert chunked.http_headers.get_header("Transfer-Encoding") is None
    assert chunked.http_headers.get_header("X-Archive-Orig-Transfer-Encoding") == "chunked"
    odd = fetched.record(web.url("/odd-headers"))
    assert odd.http_headers.statusline == "200 Sch%F6n"
    assert odd.http_headers.get_header("X-Note") == 'caf%E9 %C3%A9; a="%FF"'


def test_every_reason_is_documented() -> None:
    page = Path(__file__).resolve().parents[3] / "docs" / "fetch.md"
    text = page.read_text(encoding="utf-8")
    assert [reason for reason in REASONS if f"`{reason}`" not in text] == []
