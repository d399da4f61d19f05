"""A local web server for tests: pages on 127.0.0.1, served directly or, as an HTTP proxy, under any host's name."""

from __future__ import annotations

import contextlib
import dataclasses
import http.server
import math
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

HTML = "text/html; charset=utf-8"
PROXY_VARIABLES = ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")


@dataclasses.dataclass(frozen=True)
class Answer:
    """A response; without a Content-Length in `headers` the correct one is sent."""

    body: bytes = b""
    status: int = 200
    headers: Mapping[str, str] = dataclasses.field(default_factory=lambda: {"Content-Type": HTML})


@dataclasses.dataclass
class Request:
    """A request that the server received: the path, or the whole URL if proxied; times on the monotonic clock."""

    url: str
    headers: Mapping[str, str]
    started: float
    ended: float = math.inf


Handler = Callable[[http.server.BaseHTTPRequestHandler], None]


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # threads that still drip bytes at the end of a test are not waited for
    request_queue_size = 128  # with the default of 5, connections made at the same time wait a second

    def handle_error(self, request: object, client_address: object) -> None:
        """Stay silent: clients that go away in the middle are a part of these tests."""


class LocalWeb:
    """A server on a free port of loopback, for use as a context manager.

        with LocalWeb({"/a": b"<p>text</p>", "http://example.org/b": Answer(status=404)}) as web:
            requests.get(web.url("/a"))
            with web.as_proxy():  # in this process and its children
                requests.get("http://example.org/b")

    A page is its body, an `Answer`, a list of answers sent in turn (the last one is repeated), or a
    function that writes to the handler. Other paths are a 404, and hosts without any page a 502.
    """

    def __init__(self, pages: Mapping[str, Any] | None = None) -> None:
        self.pages: dict[str, Any] = dict(pages or {})
        self.requests: list[Request] = []
        self._asked: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), self._handler_class())
        self.port = self._server.server_address[1]

    def __enter__(self) -> LocalWeb:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def url(self, path: str = "/") -> str:
        """Return the URL of a path on the server itself."""
        return f"http://127.0.0.1:{self.port}{path}"

    def paths(self) -> list[str]:
        """Return the requested paths in order, without robots.txt."""
        with self._lock:
            return [request.url for request in self.requests if not request.url.endswith("/robots.txt")]

    @contextlib.contextmanager
    def as_proxy(self) -> Iterator[None]:
        """Send the HTTP requests of this process and its children here, whatever their host."""
        before = {name: os.environ.get(name) for name in (*PROXY_VARIABLES, "no_proxy", "NO_PROXY")}
        for name in before:
            os.environ.pop(name, None)
        os.environ.update({name: self.url("") for name in PROXY_VARIABLES})
        try:
            yield
        finally:
            for name, value in before.items():
                os.environ.pop(name, None)
                if value is not None:
                    os.environ[name] = value

    def _find(self, url: str) -> Answer | Handler:
        page = self.pages.get(url)
        if page is None:
            host = url.split("/")[2] if "://" in url else None
            known = host is None or any(name.split("/")[2:3] == [host] for name in self.pages if "://" in name)
            return Answer(b"no such page", 404 if known else 502, {"Content-Type": "text/plain"})
        if isinstance(page, bytes):
            return Answer(page)
        if isinstance(page, Sequence):
            with self._lock:
                turn = min(self._asked[url], len(page) - 1)
                self._asked[url] += 1
            return page[turn]
        return page

    def _serve(self, handler: http.server.BaseHTTPRequestHandler) -> None:
        request = Request(handler.path, dict(handler.headers.items()), time.monotonic())
        with self._lock:
            self.requests.append(request)
        try:
            page = self._find(handler.path)
            if isinstance(page, Answer):
                _send(handler, page)
            else:
                page(handler)
        except (BrokenPipeError, ConnectionError):
            handler.close_connection = True
        finally:
            request.ended = time.monotonic()

    def _handler_class(self) -> type[http.server.BaseHTTPRequestHandler]:
        web = self

        class _Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_GET(self) -> None:
                web._serve(self)

            def do_CONNECT(self) -> None:
                _send(self, Answer(b"no https here", 502, {"Content-Type": "text/plain"}))

            def log_message(self, format: str, *args: object) -> None:
                pass

        return _Handler


def _send(handler: http.server.BaseHTTPRequestHandler, answer: Answer) -> None:
    handler.send_response(answer.status)
    for name, value in answer.headers.items():
        handler.send_header(name, value)
    if not {"content-length", "transfer-encoding"} & {name.lower() for name in answer.headers}:
        handler.send_header("Content-Length", str(len(answer.body)))
    handler.end_headers()
    handler.wfile.write(answer.body)
