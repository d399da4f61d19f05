"""Responses of servers in the tests of fetch: ordinary, unusual and malformed."""

from __future__ import annotations

import http.server
import socket
import time
from collections.abc import Callable, Iterator

from local_web import HTML, Answer


def typed(content_type: str | None, body: bytes, **headers: str) -> Answer:
    kind = {} if content_type is None else {"Content-Type": content_type}
    return Answer(body, 200, {**kind, **{name.replace("_", "-"): value for name, value in headers.items()}})


def redirect(location: str, status: int = 302) -> Answer:
    return Answer(b"moved", status, {"Location": location})


def raw(data: bytes) -> Callable[[http.server.BaseHTTPRequestHandler], None]:
    """Send raw bytes, then close."""

    def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.close_connection = True
        handler.wfile.write(data)
        handler.connection.shutdown(socket.SHUT_WR)

    return answer


def chunked(pieces: Iterator[bytes]) -> Callable[[http.server.BaseHTTPRequestHandler], None]:
    def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", HTML)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        for piece in pieces:
            handler.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        handler.wfile.write(b"0\r\n\r\n")

    return answer


def hang(handler: http.server.BaseHTTPRequestHandler) -> None:
    handler.close_connection = True
    time.sleep(2)
