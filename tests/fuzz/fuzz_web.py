"""The targets that a server or the author of a page controls: URLs, robots.txt, HTTP responses, HTML."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import socket
import threading
from pathlib import Path
from typing import Any

from fuzz_targets import add, gz

HTML = (
    b"<!doctype html><html lang=en><head><meta charset=utf-8><title>A title</title></head><body><article><h1>A</h1><p>"
    + b"The river rises in the hills above the town. " * 20
    + b"</p><table><tr><td>1</td></tr></table></article></body></html>"
)
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\nSet-Cookie: a=b; Path=/; Max-Age=9\r\n"


def _read_urls(data: bytes, folder: Path) -> None:
    from pipelines.algorithms.web.urls import canonical_url, registered_domain
    from pipelines.stages.fetch.addresses import literal_address
    from pipelines.stages.fetch.links import redirect_url, request_url, url_origin
    from pipelines.stages.fetch.outcomes import Failure

    for text in data.decode("utf-8", "surrogateescape").split("\n")[:1000]:
        canonical = canonical_url(text)
        assert canonical is None or canonical_url(canonical) == canonical, f"{canonical!r} has another canonical form"
        registered_domain(text)
        literal_address(text)
        for make_url in (request_url, functools.partial(redirect_url, "http://a.example/b/c")):
            with contextlib.suppress(Failure):
                url = make_url(text)
                assert url_origin(url)


def _read_robots(data: bytes, folder: Path) -> None:
    from pipelines.stages.fetch.exchange import Response
    from pipelines.stages.fetch.robots import parse_rules

    rules = parse_rules(Response(200, "OK", "HTTP/1.1", (), body=data), ["webtext", "GPTBot"])
    for path in ("", "b/c.html?d=e", "a" * 2000):
        rules.check("http://a.example/" + path)


class _Server:
    """Sends `answer` on every connection to loopback, whatever the request, and closes it."""

    def __init__(self) -> None:
        self.answer = b""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            with connection, contextlib.suppress(OSError):
                connection.settimeout(5)
                request = b""
                while b"\r\n\r\n" not in request:
                    request += connection.recv(65536) or b"\r\n\r\n"
                connection.sendall(self.answer)
                connection.shutdown(socket.SHUT_WR)


_server = functools.cache(_Server)


def _receive(data: bytes, folder: Path, is_robots: bool = False) -> None:
    from warcio.archiveiterator import ArchiveIterator

    from pipelines.stages.fetch.config import FetchConfig
    from pipelines.stages.fetch.outcomes import Failure
    from pipelines.stages.fetch.transport import Client
    from pipelines.stages.fetch.visit import Visit
    from pipelines.stages.fetch.warc import exchange_records

    server = _server()
    server.answer = data
    config = FetchConfig(allow_private_addresses=True, timeout=8.0, retries=0)
    visit = Visit(server.url, link=0, robots_of=server.url if is_robots else None)
    with contextlib.closing(Client[Visit]({"User-Agent": "webtext"}, 1, allow_private_addresses=True)) as client:
        exchange = client.perform(visit.next_request(config), visit)
        end = visit.follow(exchange, config)
    assert not isinstance(end, Failure) or len(end.detail) <= 300, "an unbounded detail"
    records = exchange_records(exchange) if exchange.response is not None else b""
    assert not records or len(list(ArchiveIterator(io.BytesIO(records)))) == 2, "not two WARC records"


def _responses() -> list[bytes]:
    packed = gz(HTML)
    return [
        _HEAD + b"Content-Length: %d\r\n\r\n" % len(HTML) + HTML,
        _HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\n<p>ab\r\n2;x=y\r\nc\n\r\n0\r\nTrailer: 1\r\n\r\n",
        _HEAD + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed) + packed,
        b"HTTP/1.1 302 Found\r\nLocation: /other?a=%C3%A9#b\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.0 503 Busy\r\nRetry-After: 120\r\nConnection: close\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" + _HEAD + b"\r\nUser-agent: *\nDisallow: /x*y$\nCrawl-delay: 2\n",
    ]


def _search(data: bytes, folder: Path) -> None:
    """Read a page of Arctic Shift's answers, whose body is the input."""
    from pipelines.stages.scrape.arctic_shift import ApiClient, Search

    server = _server()
    server.answer = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n" + data
    client = ApiClient(server.url, sleep=lambda seconds: None)
    for record in Search(client, {"subreddit": "a"}, 1400000000, 1500000000).next_page()[0]:
        json.dumps(record, ensure_ascii=False)


def _play_back(data: bytes, folder: Path) -> None:
    """Look up a page in the Wayback Machine, which answers every request, of its index too, with the input."""
    from pipelines.stages.fetch.captures import Wanted, find_page
    from pipelines.stages.fetch.config import FetchConfig
    from pipelines.stages.fetch.outcomes import Failure, dropped
    from pipelines.stages.fetch.transport import Client
    from pipelines.stages.fetch.warc import response_record
    from pipelines.stages.fetch.wayback import Wayback

    class Impatient(Wayback):
        def _pause(self, seconds: float) -> None:
            """Send the next request at once."""

    server = _server()
    server.answer = data
    config = FetchConfig(wayback_url=server.url.rstrip("/"), timeout=2.0, archive_window=9)
    client = Client[None]({"User-Agent": "webtext"}, 1, allow_private_addresses=True, decode=True)
    wayback, wanted = (
        Impatient(config, client),
        Wanted("http://a.example/1", 1388631845, dropped(0, Failure("dns", ""))),
    )
    with contextlib.closing(client):
        row = {"timestamp": "20140102030405", "url": wanted.url}
        capture, _, _ = find_page([row], wayback._playback, wanted, wanted.url, config)
        assert capture is None or response_record(capture.url, "2014-01-02T03:04:05Z", capture.response, {})
        wayback.find_page(wanted)


def _captures() -> list[bytes]:
    rows = [["timestamp", "original"], ["20140102030405", "http://a.example/1"], ["2014", "http://a.example/1"]]
    original = _HEAD.replace(b"Set-Cookie", b"X-Archive-Orig-Content-Type: text/html\r\nX-Archive-Orig-Date")
    moved = b"HTTP/1.1 302 Found\r\nLocation: /web/20140102030406id_/http://a.example/2\r\nContent-Length: 0\r\n\r\n"
    answers = [json.dumps(rows).encode(), HTML]
    return [original + b"Content-Length: %d\r\n\r\n" % len(body) + body for body in answers] + [moved]


def _extract(data: bytes, folder: Path) -> None:
    """Extract a page; the first line of the input is its Content-Type and its Content-Encoding."""
    from pipelines.stages.extract.child import RawPage

    head, _, body = data.partition(b"\n")
    content_type, _, coding = head.decode("latin-1").partition("|")
    encodings = {"Content-Encoding": coding or None}
    page = RawPage(body, content_type or None, "http://a.example/", encodings)
    [(_, text)] = _page_reader().extract([(None, page)])
    text.text.encode()
    assert len(text.detail or "") <= 200, "an unbounded detail"


def _read_formulas(data: bytes, folder: Path) -> None:
    from pipelines.algorithms.blocks.page import parse_page

    page = parse_page(data.decode("utf-8", "replace"))
    page.segments.text.tobytes().decode()


@functools.cache
def _page_reader() -> Any:
    from pipelines.stages.extract.child import Limits, PageReader
    from pipelines.stages.extract.extractors import EXTRACTORS

    # A page that exceeds these limits is dropped, which is an outcome like another.
    return PageReader(EXTRACTORS["trafilatura"], Limits(timeout_s=5.0, memory_limit_mib=1024))


def _pages() -> list[bytes]:
    utf16 = HTML.decode().encode("utf-16")
    return [b"text/html; charset=utf-8|\n" + HTML, b"text/html|gzip\n" + gz(HTML), b"|\n" + utf16]


_HTTP_WORDS = (
    "chunked|gzip|br|deflate|identity|Content-Length|Transfer-Encoding|Content-Encoding|Location|Set-Cookie|Retry-After"
    "|HTTP/1.1|HTTP/0.9|text/plain|close\r\n|keep-alive|-1|FFFFFFFFFFFFFFFFF"
)
_HTML_WORDS = (
    "<div>,<p>,</p>,<table>,<td>,<a href=x>,<script>,</script>,<!--,-->,<![CDATA[,]]>,<meta charset=utf-16>,<svg>"
    ",<math>,<?xml version='1.0' encoding='utf-7'?>,<template>,<select>,<frameset>,<plaintext>,&#0;,&#xD800;,&#x110000;"
    ",&nbsp;,<br>,<ul><li>,<b>,<i>,<p itemprop=a>,<textarea>,<![if !IE]>,<html xmlns:a=b>,<a:b>"
).replace(",", "|")
_FORMULAS = (
    b"<p>The value \\(x_1\\) is $$y^2$$ [tex]z[/tex] <em>a</em><br>\\begin{align}a\\end{align}</p><span class=katex>"
    b"<math><semantics><mrow><munder><mo>x</mo><mfrac><mn>1</mn></mfrac></munder></mrow>"
    b"<annotation encoding=application/x-tex>{\\displaystyle x}</annotation></semantics></math></span>"
    b"<span class=MathJax>y</span><script type=math/tex>\\color{a}{b}</script><img class=tex alt='$x$' "
    b"src='/a.latex?x%5E2'><b data-tex=x^2>y</b><table><mtable><mtr><mtd>"
)
_FORMULA_WORDS = (
    "<math>|</math>|<msubsup>|<mover>|<mtable>|<mfenced>|<mroot>|<msqrt>|<mi>sin</mi>|<mo>^</mo>|\\(|\\)|\\[|\\]|$$|$"
    "|{|}|<span data-latex='|<pre>|</em>|<script type=math/mml>|alttext='|</script>|%|\\textcolor{|\u206a|\u206b"
)
_SEARCH = b'{"data": [{"id": "a1", "created_utc": 1400000001, "url": "http://a.example/", "score": 4, "title": "A"}]}'
_SEARCH_WORDS = 'null|1e400|"1e3"|1400000002|"crosspost_parent_list"|"error"'
_URLS = b"http://a.example/1\nhttps://user:x@b.example:8080/a%20b/?utm_source=x&y=1#z\nhttp://[::1]/\n"
_ROBOTS = b"User-agent: *\nDisallow: /a*b$\nAllow: /c\nCrawl-delay: 1.5\nSitemap: http://a.example/s.xml\n"
_URL_WORDS = "http://|https://|%2e%2e|xn--|user@|:99999|[::1]|&amp;|#!|//|\\|..|0x7f.1"
_ROBOTS_WORDS = "User-agent:|Disallow:|Allow:|Crawl-delay:|*|$|#|webtext|%2F|%GG|nan|inf"

add("urls", _read_urls, lambda: [_URLS], _URL_WORDS)
add("robots", _read_robots, lambda: [_ROBOTS], _ROBOTS_WORDS)
add("http-page", _receive, _responses, _HTTP_WORDS)
add("http-robots", functools.partial(_receive, is_robots=True), lambda: _responses()[::-1], _HTTP_WORDS)
add("arctic-shift", _search, lambda: [_SEARCH], _SEARCH_WORDS)
add("wayback", _play_back, _captures, _HTTP_WORDS + "|X-Archive-Orig-|/web/2014id_/|[[]]|null")
add("html", _extract, _pages, _HTML_WORDS)
add("formulas", _read_formulas, lambda: [_FORMULAS], _FORMULA_WORDS)
