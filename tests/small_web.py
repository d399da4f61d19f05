"""A web of a few small sites behind a loopback proxy, and dumps that link to it."""

from __future__ import annotations

import contextlib
import http.server
import json
import lzma
import random
import ssl
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import trustme
import zstandard

_SITES = ("alpha.com", "www.beta.org", "gamma.co.uk", "en.wikipedia.org")
_WORDS = (
    "the of and to in that is was he for it with as his on be at by had not are but from or have an they which one "
    "you were all her she there would their we him been has when who will no more if out so up said what its about "
    "corpus language model network tokenizer merge benchmark overlap archive document paragraph weather river"
).split()


def words_text(seed: int, words: int) -> str:
    """Return random words, the same for equal seeds."""
    source = random.Random(seed)
    return " ".join(source.choice(_WORDS) for _ in range(words))


def _page(title: str, text: str) -> bytes:
    paragraphs = "".join(f"<p>{part.capitalize()}.</p>" for part in _split(text))
    return (
        f"<!doctype html><html lang='en'><head><meta charset='utf-8'><title>{title}</title></head>"
        f"<body><nav><a href='/'>home</a></nav><article><h1>{title}</h1>{paragraphs}</article></body></html>"
    ).encode()


def _split(text: str) -> list[str]:
    words = text.split()
    return [" ".join(words[start : start + 40]) for start in range(0, len(words), 40)]


def pages() -> dict[str, bytes]:
    """Return the pages by URL: nine per site, the last two of each a copy and a near-copy of alpha's."""
    pages = {}
    for number, site in enumerate(_SITES):
        for page in range(9):
            text = words_text(100 * number + page, 240)
            if page == 7:
                text = words_text(0, 240)
            if page == 8:
                text = words_text(1, 240) + f" seen at site {number}"
            title = "A page" if page == 7 else f"Page {page} of {site}"
            pages[f"http://{site}/page-{page}.html"] = _page(title, text)
    pages["http://alpha.com/empty.html"] = _page("", "")
    return pages


def write_dumps(folder: Path) -> list[str]:
    """Write two dumps, of two compressions, that link to the pages, and return their paths."""
    rows = []
    for number, url in enumerate([*pages(), "http://alpha.com/gone.html", "http://nowhere.example/", "ftp://x.org/"]):
        rows.append(_submission(number, url, score=number % 9))
        if number % 4 == 0:
            rows.append(_submission(1000 + number, url + "?utm_source=reddit", score=7))
    rows.append(_submission(2000, "https://www.reddit.com/r/x/", score=50) | {"is_self": True})
    half = len(rows) // 2
    (folder / "RS_2016-01.zst").write_bytes(zstandard.compress(_lines(rows[:half])))
    (folder / "RS_2016-02.xz").write_bytes(lzma.compress(_lines(rows[half:]) + b"a broken line\n"))
    return [str(folder / "RS_2016-01.zst"), str(folder / "RS_2016-02.xz")]


def _submission(number: int, url: str, score: int) -> dict[str, Any]:
    return {
        "id": f"c{number:04d}",
        "url": url,
        "domain": urlsplit(url).netloc,
        "score": score,
        "over_18": False,
        "is_self": False,
        "created_utc": 1451606400 + 60 * number,
        "subreddit": ("news", "science")[number % 2],
        "title": f"Title {number}",
        "author": "someone",
        "permalink": f"/r/news/comments/c{number:04d}/",
        "selftext": "",
        "num_comments": 0,
    }


def _lines(rows: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


class _Handler(http.server.BaseHTTPRequestHandler):
    """A proxy that serves the pages itself: absolute URIs for http, a tunnel that ends here for https."""

    server: _Proxy
    origin = ""

    def do_GET(self) -> None:
        body = self.server.pages.get(self.origin + self.path)
        self.send_response(200 if body is not None else 404)
        self.send_header("Content-Type", self.server.content_type)
        self.send_header("Content-Length", str(len(body or b"")))
        self.end_headers()
        self.wfile.write(body or b"")

    def do_CONNECT(self) -> None:
        host = self.path.rpartition(":")[0]
        self.send_response(200, "Connection established")
        self.end_headers()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.server.authority.issue_cert(host).configure_cert(context)
        with contextlib.suppress(OSError), context.wrap_socket(self.connection, server_side=True) as tunnel:
            _Tunnelled(tunnel, f"https://{host}", self.client_address, self.server)

    def log_message(self, format: str, *args: object) -> None:
        pass


class _Tunnelled(_Handler):
    """Answers the requests inside a tunnel."""

    def __init__(self, tunnel: ssl.SSLSocket, origin: str, client: tuple[str, int], server: _Proxy) -> None:
        self.origin = origin
        super().__init__(tunnel, client, server)


class _Proxy(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128  # with the default of 5, many simultaneous connections wait a second for their retry

    def __init__(self, pages: Mapping[str, bytes], content_type: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.pages = pages
        self.content_type = content_type
        self.authority = trustme.CA()


@contextlib.contextmanager
def served(
    pages: Mapping[str, bytes], folder: Path, content_type: str = "text/html; charset=utf-8"
) -> Iterator[dict[str, str]]:
    """Serve pages under their own URLs from loopback, and yield the environment that sends a program's requests there.

    The certificate of the authority of the https pages is written to `folder`.
    """
    server = _Proxy(pages, content_type)
    certificate = folder / "authority.pem"
    server.authority.cert_pem.write_to_path(str(certificate))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    address = f"http://127.0.0.1:{server.server_port}"
    names = ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY")
    try:
        yield {**dict.fromkeys(names, address), "no_proxy": "", "REQUESTS_CA_BUNDLE": str(certificate)}
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
