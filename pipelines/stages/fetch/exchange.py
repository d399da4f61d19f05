"""One request and its answer, within its limits of time and size."""

from __future__ import annotations

import dataclasses
import datetime as dt
import http.client
import re
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from typing import Any

import requests
import urllib3.exceptions
from requests.cookies import RequestsCookieJar

from pipelines.stages.fetch.addresses import PrivateAddressError
from pipelines.stages.fetch.decoding import BodyDecoder, BodyError, content_coding
from pipelines.stages.fetch.outcomes import Failure
from pipelines.stages.fetch.transport import Attempt, Client

_CHUNK_BYTES = 1 << 16

# All that a broken server, network or URL can make requests, urllib3 and the standard library raise.
_ERRORS = (
    requests.RequestException,
    urllib3.exceptions.HTTPError,
    http.client.HTTPException,
    OSError,
    ValueError,
    PrivateAddressError,
)
_TIMEOUTS = (TimeoutError, urllib3.exceptions.TimeoutError)
_TLS_ERRORS = (ssl.SSLError, ssl.CertificateError, urllib3.exceptions.SSLError, requests.exceptions.SSLError)
_BAD_URLS = (
    requests.exceptions.InvalidURL,
    urllib3.exceptions.LocationValueError,
    UnicodeError,
    http.client.InvalidURL,
)
_ADDRESS_IN_MEMORY = re.compile(r" at 0x[0-9a-f]+")


@dataclasses.dataclass(frozen=True)
class Response:
    """An answer: status line, headers in their order, and the body as received, but for chunking.

    `body` is None where it was not wanted or not read to its end; `truncated` then says why in WARC's words.
    """

    status: int
    reason: str
    http_version: str
    headers: tuple[tuple[str, str], ...]
    coding: str | None = None
    body: bytes | None = None
    decoded_bytes: int = 0
    truncated: str | None = None

    def header(self, name: str) -> str | None:
        """Return the first value of a header."""
        return next((value for key, value in self.headers if key.lower() == name), None)


@dataclasses.dataclass(frozen=True)
class Exchange:
    """One request with its answer, or with what went wrong, or both; `reached`: a host was connected to."""

    url: str
    started_at: dt.datetime
    seconds: float
    request_headers: tuple[tuple[str, str], ...] = ()
    peer: str | None = None
    reached: bool = False
    response: Response | None = None
    failure: Failure | None = None


@dataclasses.dataclass(frozen=True)
class Limits:
    """How long and how large an answer may be; a larger one is cut there if `cut`, else a failure."""

    timeout_s: float
    max_bytes: int
    cut: bool = False


Wanted = Callable[[Response], bool]


def exchange(client: Client, url: str, cookies: RequestsCookieJar, limits: Limits, wanted: Wanted) -> Exchange:
    """Request a URL and read the body if `wanted` says so; whatever goes wrong is in the result, not raised."""
    started_at, started = dt.datetime.now(dt.UTC), time.monotonic()
    sent: tuple[tuple[str, str], ...] = ()
    response: Response | None = None
    failure: Failure | None = None
    with client.attempt(limits.timeout_s) as attempt:
        try:
            answer = client.open(url, cookies, attempt)
            sent = tuple(answer.request.headers.items())
            response = _head(answer)
            try:
                if wanted(response):
                    response = _with_body(answer, response, attempt, limits)
                else:
                    response = dataclasses.replace(response, truncated="unspecified")
            finally:
                if response.body is None or response.truncated:
                    answer.close()
        except BodyError as error:
            failure = error.failure
        except _ERRORS as error:
            failure = failure_of(error, attempt)
    if response is not None and failure is not None:
        response = dataclasses.replace(response, body=None, truncated=_truncation(failure))
    seconds = time.monotonic() - started
    return Exchange(url, started_at, seconds, sent, attempt.peer, attempt.connected, response, failure)


def failure_of(error: BaseException, attempt: Attempt) -> Failure:
    """Say in words of ours what an exception means; the same failure always gets the same words."""
    chain = list(_chain(error))
    detail = _detail(chain)
    if any(isinstance(each, PrivateAddressError) for each in chain):
        return Failure("private_address", detail)
    if attempt.overdue:
        return Failure("timeout", "no complete answer in time", not attempt.connected)
    for each in chain:
        if isinstance(each, socket.gaierror):
            return Failure("dns", detail, each.errno == socket.EAI_AGAIN)
    if _any(chain, _BAD_URLS):
        return Failure("bad_url", detail)
    if _any(chain, _TIMEOUTS) and not _refused(chain):
        return Failure("timeout", f"no answer: {detail}", not attempt.connected)
    if _any(chain, _TLS_ERRORS):
        return Failure("tls", detail)
    if _any(chain, (http.client.IncompleteRead,)):
        return Failure("incomplete", detail, True)
    if _any(chain, (http.client.HTTPException,)) and not _any(chain, (http.client.RemoteDisconnected,)):
        return Failure("bad_response", detail)
    return Failure("connection", detail, True)


def _head(answer: requests.Response) -> Response:
    raw = answer.raw
    version = "HTTP/1.0" if raw.version == 10 else "HTTP/1.1"
    return Response(int(answer.status_code), str(raw.reason or ""), version, tuple(raw.headers.iteritems()))


def _with_body(answer: requests.Response, head: Response, attempt: Attempt, limits: Limits) -> Response:
    """Return the response with its body; raise where that is too large, too slow, or stops short."""
    coding = content_coding(head.header("content-encoding"))
    length = head.header("content-length") or ""
    if not limits.cut and length.isdecimal() and int(length) > limits.max_bytes:
        raise BodyError(Failure("too_large", f"Content-Length: {length}"))
    decoder = BodyDecoder(coding)
    pieces: list[bytes] = []
    received = 0
    for piece in _pieces(answer.raw, attempt):
        pieces.append(piece)
        received += len(piece)
        decoder.feed(piece, limits.max_bytes + 1 - decoder.decoded_bytes)
        if max(received, decoder.decoded_bytes) > limits.max_bytes:
            if not limits.cut:
                raise BodyError(Failure("too_large", f"more than {limits.max_bytes} bytes"))
            return dataclasses.replace(
                head, coding=coding, body=b"".join(pieces), decoded_bytes=limits.max_bytes, truncated="length"
            )
    decoder.finish()
    return dataclasses.replace(head, coding=coding, body=b"".join(pieces), decoded_bytes=decoder.decoded_bytes)


def _pieces(raw: Any, attempt: Attempt) -> Iterator[bytes]:
    while piece := raw.read(_CHUNK_BYTES, decode_content=False):
        yield piece
    # A body without a length ends where the connection ends, also when it was we who cut it at the deadline.
    if attempt.overdue:
        raise TimeoutError


def _truncation(failure: Failure) -> str:
    return {"too_large": "length", "timeout": "time", "incomplete": "disconnect", "connection": "disconnect"}.get(
        failure.reason, "unspecified"
    )


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and those inside it, outermost first."""
    seen: set[int] = set()
    waiting: list[Any] = [error]
    while waiting:
        each = waiting.pop()
        if not isinstance(each, BaseException) or id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        waiting += [each.__context__, each.__cause__, getattr(each, "reason", None), *each.args]


def _any(chain: list[BaseException], kinds: tuple[type[BaseException], ...]) -> bool:
    return any(isinstance(each, kinds) for each in chain)


def _refused(chain: list[BaseException]) -> bool:
    """Tell whether the system said no to a connection; urllib3 counts that among its timeouts."""
    return any(isinstance(each, urllib3.exceptions.NewConnectionError) for each in chain)


def _detail(chain: list[BaseException]) -> str:
    innermost = chain[-1]
    text = _ADDRESS_IN_MEMORY.sub("", str(innermost)) or type(innermost).__name__
    return " ".join(text.split())[:300]
