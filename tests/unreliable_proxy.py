"""A proxy in front of a store that answers a share of the requests with errors, cut bodies, or not at all."""

from __future__ import annotations

import contextlib
import http.client
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_FAILURES = ("500", "503", "hangs", "cut", "lost")


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, target: str, share: float, hang_seconds: float) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.target = target.removeprefix("http://")
        self.share = share
        self.hang_seconds = hang_seconds
        self.mutex = threading.Lock()
        self.requests: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()

    def next_failure(self, request: str) -> str:
        """Return how a request fails, which depends on it and how often it was sent, not on the order of requests."""
        with self.mutex:
            self.requests[request] += 1
            source = random.Random(f"{request} {self.requests[request]}")
            failure = source.choice(_FAILURES) if source.random() < self.share else ""
            self.failures[failure] += 1
            return failure


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # a body would wait for 40 ms after its headers
    server: _Server

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        _, _, key = self.path[1:].partition("/")  # the names of buckets are random
        failure = self.server.next_failure(f"{self.command} {key} {self.headers.get('Range')}")
        if failure in ("500", "503"):
            self._answer(int(failure), b"<Error><Code>SlowDown</Code></Error>")
            return
        if failure == "hangs":
            time.sleep(self.server.hang_seconds)
            self.close_connection = True
            return
        connection = http.client.HTTPConnection(self.server.target, timeout=60)
        connection.request(self.command, self.path, body, dict(self.headers))
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        if failure == "lost":  # the store has done it, but the answer does not arrive
            self.close_connection = True
            return
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("content-length", "transfer-encoding", "connection", "date", "server"):
                self.send_header(name, value)
        length = answer.getheader("Content-Length") if self.command == "HEAD" else str(len(content))
        self.send_header("Content-Length", length or "0")
        self.end_headers()
        if failure == "cut" and content:
            self.wfile.write(content[: len(content) // 2])
            self.close_connection = True
            return
        self.wfile.write(content)

    def _answer(self, status: int, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _serve  # noqa: N815 - the names of http.server

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def unreliable_proxy(target: str, share: float, hang_seconds: float) -> Iterator[tuple[str, Counter[str]]]:
    """Yield the address of a proxy that fails a share of the requests, and the counts of its failures."""
    server = _Server(target, share, hang_seconds)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", server.failures
    finally:
        server.shutdown()
        server.server_close()
