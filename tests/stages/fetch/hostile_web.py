"""A hostile web: servers on loopback that each misbehave in one way, and the outcome that a fetch must record."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
import gzip
import random
import socket
import ssl
import threading
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import trustme

TEXT = b"<p>" + b"some words " * 50 + b"</p>"
_OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n"
_PAGE = _OK + b"Content-Length: %d\r\n\r\n%s" % (len(TEXT), TEXT)
_MISSING = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"

# The bytes of a response, after which the connection is closed, or a function that writes it.
Answer = bytes | Callable[[asyncio.StreamWriter], Awaitable[None]]


@dataclasses.dataclass(frozen=True)
class Behavior:
    """Answers to requests of a path, in turn (the last is repeated), or to the start of a TLS handshake if it is None.

    `outcome` is the start of the outcome and detail of the link to /page, `outcome_after` that of the next, to /after.
    """

    outcome: str
    answers: tuple[Answer, ...]
    path: str | None = "/page"
    tls: ssl.SSLContext | None = None

    @property
    def outcome_after(self) -> str:
        return "ok" if self.path == "/page" else self.outcome

    @property
    def scheme(self) -> str:
        return "https" if self.tls or self.path is None else "http"


def _page(outcome: str, *answers: Answer) -> Behavior:
    return Behavior(outcome, answers)


def _robots(outcome: str, *answers: Answer) -> Behavior:
    return Behavior(outcome, answers, "/robots.txt")


def _handshake(outcome: str, answer: Answer) -> Behavior:
    return Behavior(outcome, (answer,), None)


def _endless(head: bytes, piece: bytes, pause_s: float = 0.0) -> Answer:
    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(head)
        while True:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(pause_s)

    return answer


async def _hang(writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(60)


async def _reset(writer: asyncio.StreamWriter) -> None:
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    writer.transport.abort()


async def _reset_in_body(writer: asyncio.StreamWriter) -> None:
    writer.write(_OK + b"Content-Length: 99\r\n\r\nabc")
    await asyncio.sleep(0.1)
    await _reset(writer)


async def _answer_late_again(writer: asyncio.StreamWriter) -> None:
    writer.write(_PAGE)
    asyncio.get_running_loop().call_later(0.05, writer.write, _OK + b"Content-Length: 4\r\n\r\nlate")


async def _answer_twice(writer: asyncio.StreamWriter) -> None:
    writer.write(_PAGE + _OK + b"Content-Length: 4\r\n\r\nsoon")


def _html(*headers: bytes, body: bytes = TEXT) -> bytes:
    return _OK + b"".join(header + b"\r\n" for header in headers) + b"\r\n" + body


def _coded(coding: bytes, body: bytes) -> bytes:
    return _html(b"Content-Encoding: " + coding, body=body)


def _chunked(body: bytes, *headers: bytes) -> bytes:
    return _html(b"Transfer-Encoding: Chunked", *headers, body=body)


def _status(status: str, *headers: bytes) -> bytes:
    return b"\r\n".join([f"HTTP/1.1 {status}".encode(), *headers, b"Content-Length: 0\r\n\r\n"])


def _redirect(location: str) -> bytes:
    return _status("302 Found", b"Location: " + location.encode())


def _bomb(wbits: int, start: bytes = b"") -> bytes:
    """Return about 1 MB that decodes to 1 GB: one compressed block, repeated."""
    compress = zlib.compressobj(9, wbits=wbits)
    head = compress.compress(start) + compress.flush(zlib.Z_FULL_FLUSH)
    return head + (compress.compress(bytes(1 << 20)) + compress.flush(zlib.Z_FULL_FLUSH)) * 1000


def _damaged(place: int) -> bytes:
    body = bytearray(gzip.compress(b"".join(b"%d words of a page. " % number**3 for number in range(3000))))
    body[place] ^= 0xFF
    return bytes(body)


def _text(body: bytes) -> bytes:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n"
    return head % len(body) + body


_GZIP, _ZLIB, _RAW = 31, 15, -15
_NOISE = random.Random(1).randbytes(5000)

_BODIES = {
    "gzip bomb": _page("too_large", _coded(b"gzip", _bomb(_GZIP))),
    "zlib bomb": _page("too_large", _coded(b"deflate", _bomb(_ZLIB))),
    "raw deflate bomb": _page("too_large", _coded(b"deflate", _bomb(_RAW))),
    "gzip, damaged text": _page("bad_encoding", _text(_damaged(10))),
    "gzip, damaged text, later": _page("ok", _text(_damaged(-100))),
    "gzip bomb in a chunk": _page("too_large", _chunked(b"40000000\r\n" + _bomb(_GZIP), b"Content-Encoding: x-gzip")),
    "gzip bomb in gzip": _page("unsupported_encoding", _coded(b"gzip, gzip", _bomb(_GZIP))),
    "brotli bomb": _page("unsupported_encoding", _endless(_coded(b"br", b""), bytes(1 << 16))),
    "zstd bomb": _page("unsupported_encoding", _endless(_coded(b"zstd", b""), bytes(1 << 16))),
    "gzip header without end": _page(
        "too_large", _endless(_coded(b"gzip", b"\x1f\x8b\x08\x10" + bytes(6)), b"x" * 5000)
    ),
    "endless": _page("too_large", _endless(_html(body=b""), b"y" * 10_000)),
    "endless chunks": _page("too_large", _endless(_chunked(b""), b"2710\r\n" + b"y" * 10_000 + b"\r\n")),
    "endless chunks of a byte": _page("bad_response", _endless(_chunked(b""), (b"%020x\r\ny\r\n" % 1) * 1000)),
    "endless chunk extensions": _page("timeout", _endless(_chunked(b""), b"1;" + b"e" * 60_000 + b"\r\ny\r\n")),
    "endless trailers": _page("bad_response", _endless(_chunked(b"1\r\ny\r\n0\r\n"), b"X-Trailer: 1\r\n" * 1000)),
    "trailer line without end": _page("bad_response", _endless(_chunked(b"1\r\ny\r\n0\r\n"), b"t" * 10_000)),
    "a byte per half second": _page("timeout", _endless(_html(body=b""), b"y", 0.5)),
    "a chunk per half second": _page("timeout", _endless(_chunked(b""), b"1\r\ny\r\n", 0.5)),
    "a body that hangs": _page("timeout", _endless(_html(b"Content-Length: 99", body=b"abc"), b"", 60)),
    "a body that is reset": _page("connection", _reset_in_body),
}
_FRAMINGS = {
    "length too large": _page("incomplete", _html(b"Content-Length: 99999")),
    "length too small": _page("ok", _html(b"Content-Length: 5")),
    "two equal lengths": _page("ok", _html(*[b"Content-Length: %d" % len(TEXT)] * 2)),
    "two lengths": _page("bad_response", _html(b"Content-Length: 12", b"Content-Length: 5")),
    "two lengths in a line": _page("bad_response", _html(b"Content-Length: 12, 5")),
    "negative length": _page("bad_response", _html(b"Content-Length: -5")),
    "length of 20 digits": _page("bad_response", _html(b"Content-Length: 99999999999999999999")),
    "length of 5,000 digits": _page("bad_response", _html(b"Content-Length: " + b"9" * 5000)),
    "length of 1 TB": _page("too_large", _html(b"Content-Length: 999999999999")),
    "empty length": _page("bad_response", _html(b"Content-Length:")),
    "late second answer": _page("ok", _answer_late_again),
    "second answer at once": _page("ok", _answer_twice),
    "identity as a transfer encoding": _page("ok", _html(b"Transfer-Encoding: identity")),
    "chunks and a length": _page("ok", _chunked(b"3\r\nabc\r\n0\r\n\r\n", b"Content-Length: 99")),
    "chunk that is cut": _page("incomplete", _chunked(b"40\r\nabc")),
    "chunk of negative size": _page("bad_response", _chunked(b"-5\r\nhello\r\n0\r\n\r\n")),
    "chunk size of 5,000 digits": _page("bad_response", _chunked(b"f" * 5000 + b"\r\nhello\r\n0\r\n\r\n")),
    "chunk size that is not a number": _page("bad_response", _chunked(b"zz\r\nhello\r\n0\r\n\r\n")),
    "gzip, chunked": _page("unsupported_encoding", _html(b"Transfer-Encoding: gzip, chunked")),
    "gzip, then chunked": _page("unsupported_encoding", _chunked(b"0\r\n\r\n", b"Transfer-Encoding: gzip")),
    "identity, chunked": _page("unsupported_encoding", _html(b"Transfer-Encoding: identity, chunked")),
}
_COOKIES = [b"Set-Cookie: a%d=%s" % (number, b"x" * 60_000) for number in range(4)]
_HEADS = {
    "100,000 headers": _page("bad_response", _html(*[b"X-Header: 1"] * 100_000)),
    "header line of 10 MB": _page("bad_response", _html(b"X-Header: " + b"x" * 10_000_000)),
    "status line of 10 MB": _page("bad_response", b"HTTP/1.1 200 " + b"x" * 10_000_000),
    "90 headers of 64 KB": _page("bad_response", _html(*[b"X-Header: " + b"x" * 65_000] * 90)),
    "redirect with 240 KB of cookies": _page("ok", _status("302 Found", b"Location: /page?", *_COOKIES), _PAGE),
    "a header per half second": _page("timeout", _endless(_OK, b"X-Header: 1\r\n", 0.5)),
    "no answer": _page("timeout", _hang),
    "endless 100 Continue": _page("bad_response", _endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 1000)),
    "103 Early Hints": _page("ok", b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + _PAGE),
    "101 Switching Protocols": _page("http_unexpected", b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\n\r\n"),
    "closed": _page("connection", b""),
    "reset": _page("connection", _reset),
    "another protocol": _page("bad_response", b"220 mail.example ESMTP ready\r\n"),
    "HTTP/2": _page("bad_response", b"\x00\x00\x12\x04\x00\x00\x00\x00\x00" * 9),
    "noise": _page("bad_response", _NOISE),
    "status of six digits": _page("bad_response", b"HTTP/1.1 200200 OK\r\n\r\n"),
    "zero bytes in a header": _page("bad_response", _html(b"X-\0: \0\0", b"Content-Length: %d" % len(TEXT))),
}

# Names that the resolver of the test knows; there is no other.
NAMES = {"metadata.google.internal": "169.254.169.254", "inside.example": "10.0.0.1"}
_LOCATIONS = {
    "bad_redirect": [
        "ftp://127.0.0.1/", "file:///etc/passwd", "data:text/html,text", "javascript:alert(1)", "gopher://127.0.0.1/",
        "ws://127.0.0.1/", "http+unix://%2Frun%2Fdocker.sock/", "mailto:a@example.org", "about:blank", "http://[::1",
        "http://127.0.0.2:99999/", "http://１２７.0.0.2/", "http://127.0.0.2%00.example.org/", "http://a..b/",
        "/" + "x" * 20_000, "http://" + "ü" * 20_000, f"http://{'a' * 64}.example/",
    ],
    "private_address": [
        "http://127.0.0.2/", "http://127.2/", "http://2130706434/", "http://0x7f.2/", "http://0177.0.0.2/", "http://0/",
        "http://127.0.0.2./", "//127.0.0.2/", "https://127.0.0.2/", "http://127.0.0.1@127.0.0.2/", "http://[::1]/",
        "http://[::]/", "http://[::ffff:127.0.0.2]/", "http://[::ffff:7f00:2]/", "http://[64:ff9b::7f00:2]/",
        "http://[2002:7f00:2::]/", "http://[fd00:ec2::254]/", "http://[fe80::1%25lo]/", "http://10.0.0.1/",
        "http://172.16.0.1/", "http://192.168.1.1/", "http://100.100.100.200/", "http://169.254.169.254/latest/",
        "http://2852039166/",
        *(f"http://{name}/" for name in NAMES),
    ],
    "dns": ["http://gone.example/"],
    "too_many_redirects": ["/page", ""],
    "ok": ["http:///after?"],
}  # fmt: skip
_REDIRECTS = {
    "redirect without a location": _page("bad_redirect", _status("302 Found")),
    "endless body of a redirect": _page(
        "ok", _endless(b"HTTP/1.1 302 Found\r\nLocation: /after?\r\n\r\n", b"y" * 10_000)
    ),
} | {
    f"redirect to {location[:40]}": _page(outcome, _redirect(location))
    for outcome, locations in _LOCATIONS.items()
    for location in locations
}

_DELAYS = [
    b"Fri, 31 Dec 2100 23:59:59 GMT",
    b"Mon, 99 Jan 2024 00:00:00 GMT",
    b"86400",
    b"-5",
    b"9" * 5000,
    b"inf",
    b"nan",
    b"soon" * 9000,
]
_BUSY = {
    f"{status} with Retry-After: {value[:30].decode()}": _page("ok", _status(status, b"Retry-After: " + value), _PAGE)
    for status in ("429 Too Many Requests", "503 Busy")
    for value in _DELAYS
} | {
    "429 forever": _page("http_rate_limited", _status("429 Too Many Requests", b"Retry-After: 1")),
    "503 forever": _page("http_server_error", _status("503 Busy", b"Retry-After: 1")),
}

_DISALLOW = b"User-agent: *\nDisallow: /\n"
_WILDCARDS = b"".join(b"Disallow: /*a*a*a*b%d$\n" % number for number in range(20_000))
_AGENTS = b"".join(b"User-agent: b%d\n" % number for number in range(15_000))
_ROBOTS = {
    "robots.txt: hangs": _robots("robots_unreachable: timeout", _hang),
    "robots.txt: a byte per half second": _robots("robots_unreachable: timeout", _endless(_html(body=b""), b"#", 0.5)),
    "robots.txt: closed": _robots("robots_unreachable: connection", b""),
    "robots.txt: noise": _robots("robots_unreachable: bad_response", _NOISE),
    "robots.txt: endless": _robots("robots: ", _endless(_html(body=_DISALLOW), b"# endless\n" * 1000)),
    "robots.txt: redirect to itself": _robots("ok", _redirect("/robots.txt")),
    "robots.txt: redirects without end": _robots("ok", *(_redirect(f"/robots.txt?{number}") for number in range(9))),
    "robots.txt: redirect without a location": _robots("ok", _status("302 Found")),
    "robots.txt: redirect to another scheme": _robots("ok", _redirect("ftp://127.0.0.1/")),
    "robots.txt: redirect to a private address": _robots("robots_unreachable: private", _redirect("http://127.0.0.2/")),
    "robots.txt: gzip bomb": _robots("robots: ", _coded(b"gzip", _bomb(_GZIP, _DISALLOW))),
    "robots.txt: deflate bomb": _robots("ok", _coded(b"deflate", _bomb(_RAW))),
    "robots.txt: not gzip": _robots("robots_unreachable: bad_encoding", _coded(b"gzip", _DISALLOW)),
    "robots.txt: binary": _robots("ok", _html(body=_NOISE * 50)),
    "robots.txt: a line of 600 KB": _robots("ok", _html(body=b"User-agent: *\nDisallow: /" + b"x" * 600_000)),
    "robots.txt: 20,000 wildcards": _robots("ok", _html(body=b"User-agent: *\n" + _WILDCARDS)),
    "robots.txt: 15,000 user agents": _robots("ok", _html(body=_AGENTS + b"Disallow: /b\n" * 15_000)),
    "robots.txt: 5,000 stars": _robots("ok", _html(body=b"User-agent: *\nDisallow: /" + b"*a" * 5000 + b"$")),
} | {
    f"robots.txt: Crawl-delay {delay.decode()}": _robots("ok", _html(body=b"User-agent: *\nCrawl-delay: " + delay))
    for delay in (b"inf", b"nan", b"-1", b"1e300")
}

AUTHORITY = trustme.CA()


def _certified(
    outcome: str,
    identity: str = "127.0.0.1",
    authority: trustme.CA = AUTHORITY,
    path: str = "/robots.txt",
    answer: Answer = _MISSING,
    client: ssl.VerifyMode = ssl.CERT_NONE,
    **days: int,
) -> Behavior:
    """Serve TLS; `days` are the start and the end of the certificate's validity from now."""
    dates: Any = {name: dt.datetime.now(dt.UTC) + dt.timedelta(number) for name, number in days.items()}
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = client
    authority.issue_cert(identity, **dates).configure_cert(context)
    return Behavior(outcome, (answer,), path, context)


_TLS = {
    "TLS: valid": _certified("ok"),
    "TLS: unknown authority": _certified("tls", authority=trustme.CA()),
    "TLS: another name": _certified("tls", "elsewhere.example"),
    "TLS: another address": _certified("tls", "127.0.0.2"),
    "TLS: expired": _certified("tls", not_before=-9, not_after=-1),
    "TLS: not yet valid": _certified("tls", not_before=1, not_after=9),
    "TLS: wants a certificate": _certified("robots_unreachable: connection", client=ssl.CERT_REQUIRED),
    "TLS: page without an answer": _certified("connection", path="/page", answer=b""),
    "TLS: plain HTTP": _handshake("tls", _PAGE),
    "TLS: noise": _handshake("tls", _NOISE),
    "TLS: alert": _handshake("tls", b"\x15\x03\x01\x00\x02\x02\x46"),
    "TLS: endless warnings": _handshake("tls", _endless(b"", b"\x15\x03\x01\x00\x02\x01\x5a" * 1000)),
    # OpenSSL ignores a HelloRequest and reads on, without returning to check a timeout.
    "TLS: endless hello requests": _handshake("timeout", _endless(b"", (b"\x16\x03\x03\x00\x04" + bytes(4)) * 9000)),
    "TLS: closed": _handshake("tls", b""),
    "TLS: reset": _handshake("connection", _reset),
    "TLS: hangs": _handshake("timeout", _hang),
    "TLS: a byte per half second": _handshake(
        "timeout", _endless(b"\x16\x03\x03\x40\x00\x02\x00\x3f\xfc", b"\x03", 0.5)
    ),
}

_HEALTHY = _page("ok", _PAGE)
BEHAVIORS = (
    {"healthy, first": _HEALTHY} | _BODIES | _FRAMINGS | _HEADS | {"healthy, between": _HEALTHY}
    | _REDIRECTS | _BUSY | _ROBOTS | _TLS | {"healthy, last": _HEALTHY}
)  # fmt: skip


class HostileWeb:
    """The servers of all behaviors, each on its own port; `requests` counts what each was asked.

    A context manager: they run in one thread until its end.
    """

    def __init__(self) -> None:
        self.origins: dict[str, str] = {}
        self.requests = Counter[str]()
        self._started, self._stopped = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    def __enter__(self) -> HostileWeb:
        self._thread.start()
        assert self._started.wait(30)
        return self

    def __exit__(self, *error: object) -> None:
        self._stopped.set()
        self._thread.join(30)

    async def _run(self) -> None:
        servers = []
        for name, behavior in BEHAVIORS.items():
            server = await asyncio.start_server(self._handler(name), "127.0.0.1", 0, ssl=behavior.tls)
            self.origins[name] = f"{behavior.scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            servers.append(server)
        self._started.set()
        while not self._stopped.is_set():
            await asyncio.sleep(0.05)
        for server in servers:
            server.close()

    def _handler(self, name: str) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
        behavior = BEHAVIORS[name]
        answers = iter(behavior.answers)

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                while data := await (reader.readuntil(b"\r\n\r\n") if behavior.path else reader.read(1 << 16)):
                    self.requests[name] += 1
                    path = data.split()[1].decode().partition("?")[0] if behavior.path else None
                    if path != behavior.path:
                        writer.write(_PAGE if path in ("/page", "/after") else _MISSING)
                        continue
                    answer = next(answers, behavior.answers[-1])
                    if isinstance(answer, bytes):
                        writer.write(answer)
                        break
                    await answer(writer)
                writer.close()
            except (ConnectionError, asyncio.IncompleteReadError):
                writer.close()
            except asyncio.CancelledError:
                writer.transport.abort()

        return serve
