"""One HTTP request and its response, within limits of time and size, also of the decoded body."""

from __future__ import annotations

import dataclasses
import datetime as dt
import http.client
import re
import socket
import ssl
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import requests
import urllib3.exceptions
from isal import isal_zlib
from requests.cookies import RequestsCookieJar
from requests.structures import CaseInsensitiveDict
from urllib3.exceptions import LocationValueError

from pipelines.engine.retry import is_retryable_status, requested_wait_s
from pipelines.errors import exception_chain
from pipelines.records.archives import ISAL_ERROR
from pipelines.stages.fetch.outcomes import Failure
from pipelines.stages.fetch.transport import Attempt, Client, PrivateAddressError

ACCEPT_ENCODING = "gzip, deflate"

_GZIP_WBITS = 16 + zlib.MAX_WBITS
_SNIFFED_BYTES = 1024
_UTF16_BOMS = (b"\xfe\xff", b"\xff\xfe")
# The "binary data bytes" of the WHATWG's MIME Sniffing Standard.
_BINARY_BYTES = frozenset((*range(0x00, 0x09), 0x0B, *range(0x0E, 0x1B), *range(0x1C, 0x20)))

# Other tokens (`utf-8`, `none`) occur in the header and mean nothing.
_CODINGS = {"gzip": "gzip", "x-gzip": "gzip", "deflate": "deflate"}
_UNSUPPORTED = {"br", "zstd", "compress", "x-compress"}


class BodyError(Exception):
    """A body that cannot be read completely: too large, truncated, or not in its declared content encoding."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.detail)
        self.failure = failure


def content_coding(header: str | None) -> str | None:
    """Return `gzip`, `deflate` or None for a Content-Encoding header; raise BodyError for unsupported encodings."""
    tokens = [token.strip().lower() for token in (header or "").split(",")]
    if any(token in _UNSUPPORTED for token in tokens) or sum(token in _CODINGS for token in tokens) > 1:
        raise BodyError(Failure("unsupported_encoding", f"Content-Encoding: {header}"))
    return next((_CODINGS[token] for token in tokens if token in _CODINGS), None)


class BodyDecoder:
    """Decodes one body incrementally. Like warcio, it reads one gzip member and ignores what follows."""

    def __init__(self, coding: str | None) -> None:
        self._coding = coding
        wbits = _GZIP_WBITS if coding == "gzip" else zlib.MAX_WBITS
        self._decompressor = None if coding is None else isal_zlib.decompressobj(wbits)
        self._started = False
        self.decoded_bytes = 0

    def feed(self, data: bytes, limit: int) -> bytes:
        """Decode a chunk of the body and return at most `limit` bytes, which `decoded_bytes` counts.

        Raises BodyError if the chunk is not in the encoding.
        """
        decoded = data[:limit]
        if self._decompressor is not None:
            decoded = b"" if self._decompressor.eof or not data else self._decompress(data, max(1, limit))
        self.decoded_bytes += len(decoded)
        return decoded

    def _decompress(self, data: bytes, limit: int) -> bytes:
        assert self._decompressor is not None
        try:
            decoded = self._decompressor.decompress(data, limit)
        except ISAL_ERROR as error:
            if self._started or self._coding != "deflate":
                raise BodyError(Failure("bad_encoding", f"not {self._coding} data ({error})")) from error
            # `deflate` is zlib by the standard, but some servers send it without the zlib wrapper.
            self._started, self._decompressor = True, isal_zlib.decompressobj(-zlib.MAX_WBITS)
            return self._decompress(data, limit)
        self._started = True
        return decoded

    def finish(self) -> None:
        """Raise BodyError if the encoded data is truncated."""
        if self._decompressor is not None and self._started and not self._decompressor.eof:
            raise BodyError(Failure("incomplete", f"truncated {self._coding} data", True))


def decode_prefix(body: bytes, coding: str | None, limit: int) -> bytes:
    """Return at most the first `limit` decoded bytes of a body that `BodyDecoder` could read."""
    return BodyDecoder(coding).feed(body, limit)


def looks_binary(body: bytes, coding: str | None) -> bool:
    """Return whether the first KiB of a body contains bytes that never occur in text."""
    prefix = decode_prefix(body, coding, _SNIFFED_BYTES)
    return not prefix.startswith(_UTF16_BOMS) and not _BINARY_BYTES.isdisjoint(prefix)


_CHUNK_BYTES = 1 << 16

# All that a broken server, network or URL can make requests (whose errors are OSErrors), urllib3 and the standard
# library raise.
_ERRORS = (OSError, ValueError, http.client.HTTPException, urllib3.exceptions.HTTPError, PrivateAddressError)
_TIMEOUTS = (TimeoutError, urllib3.exceptions.TimeoutError)
_TLS_ERRORS = (ssl.SSLError, urllib3.exceptions.SSLError, requests.exceptions.SSLError)
_BAD_URLS = (UnicodeError, http.client.InvalidURL, requests.exceptions.InvalidURL, LocationValueError)
_BAD_RESPONSES = (requests.exceptions.InvalidHeader, urllib3.exceptions.InvalidHeader)
_LENGTH = re.compile(r"[0-9]{1,18}")
_MEMORY_ADDRESS = re.compile(r" at 0x[0-9a-f]+")

# The value of WARC-Truncated by drop reason.
_TRUNCATIONS = {"too_large": "length", "timeout": "time", "incomplete": "disconnect", "connection": "disconnect"}


@dataclasses.dataclass(frozen=True)
class Response:
    """A response: status line, headers in order, and the body as received, except for chunked framing.

    `body` is None if it was not requested or not read to its end; `truncated` is then the reason, as in WARC-Truncated.
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
        """Return the first value of a header, given in lower case."""
        return next((value for key, value in self.headers if key.lower() == name), None)

    def values(self, name: str) -> set[str]:
        """Return the distinct values of a header, given in lower case, as lower-case texts; empty ones are left out."""
        values = {value.strip().lower() for key, value in self.headers if key.lower() == name}
        return values - {""}


@dataclasses.dataclass(frozen=True)
class Exchange:
    """One request with its response, its failure, or both; `reached` says whether a host was connected to."""

    url: str
    started_at: dt.datetime
    seconds: float = 0.0
    request_headers: tuple[tuple[str, str], ...] = ()
    peer: str | None = None
    reached: bool = False
    response: Response | None = None
    failure: Failure | None = None

    @property
    def status(self) -> int | None:
        """The status of the response, None without one."""
        return None if self.response is None else self.response.status

    @property
    def requested_wait_s(self) -> float:
        """The pause before the next request that the server asks for with a temporary error; 0 without one."""
        if self.response is None or not is_retryable_status(self.response.status):
            return 0.0
        return requested_wait_s(CaseInsensitiveDict(self.response.headers), self.started_at.timestamp()) or 0.0


def perform_exchange(
    client: Client,
    url: str,
    cookies: RequestsCookieJar,
    wants_body: Callable[[Response], bool],
    timeout_s: float,
    max_bytes: int,
    truncate: bool = False,
    brotli: bool = False,
) -> Exchange:
    """Request a URL and read the body if `wants_body`; every failure is part of the result and not raised.

    A body larger than `max_bytes` is cut there if `truncate`, otherwise it is a failure. So is one in Brotli, unless
    `brotli`, which decodes it if urllib3 can.
    """
    started_at, started = dt.datetime.now(dt.UTC), time.monotonic()
    request_headers: tuple[tuple[str, str], ...] = ()
    response: Response | None = None
    failure: Failure | None = None
    with client.attempt(timeout_s) as attempt:
        try:
            answer = client.open(url, cookies, attempt)
            request_headers = tuple(answer.request.headers.items())
            raw = answer.raw
            version = "HTTP/1.0" if raw.version == 10 else "HTTP/1.1"
            response = Response(answer.status_code, str(raw.reason or ""), version, tuple(raw.headers.iteritems()))
            try:
                if wants_body(response):
                    response = _read_body(answer, response, attempt, max_bytes, truncate, brotli)
                else:
                    response = dataclasses.replace(response, truncated="unspecified")
            finally:
                if response.body is None or response.truncated:
                    answer.close()
        except BodyError as error:
            failure = error.failure
        except _ERRORS as error:
            failure = classify_error(error, attempt)
    if response is not None and failure is not None:
        response = dataclasses.replace(response, body=None, truncated=_TRUNCATIONS.get(failure.reason, "unspecified"))
    seconds = time.monotonic() - started
    return Exchange(url, started_at, seconds, request_headers, attempt.peer, attempt.connected, response, failure)


def classify_error(error: BaseException, attempt: Attempt) -> Failure:
    """Return the failure that an exception stands for; the same cause always has the same detail."""
    chain = list(exception_chain(error))

    def is_any(kinds: type[BaseException] | tuple[type[BaseException], ...]) -> bool:
        return any(isinstance(cause, kinds) for cause in chain)

    text = _MEMORY_ADDRESS.sub("", str(chain[-1])) or type(chain[-1]).__name__
    detail = " ".join(text.split())
    if is_any(PrivateAddressError):
        return Failure("private_address", detail)
    if attempt.is_overdue:
        return Failure("timeout", "no complete response in time", not attempt.connected)
    if errors := [cause.errno for cause in chain if isinstance(cause, socket.gaierror)]:
        return Failure("dns", detail, errors[0] == socket.EAI_AGAIN)
    if is_any(urllib3.exceptions.DecodeError):
        return Failure("bad_encoding", detail)
    if is_any(_BAD_RESPONSES):
        return Failure("bad_response", detail)
    if is_any(_BAD_URLS):
        return Failure("bad_url", detail)
    # urllib3 counts a refused connection among its timeouts.
    if is_any(_TIMEOUTS) and not is_any(urllib3.exceptions.NewConnectionError):
        return Failure("timeout", f"no response: {detail}", not attempt.connected)
    if is_any(_TLS_ERRORS):
        return Failure("tls", detail)
    if is_any(http.client.IncompleteRead):
        return Failure("incomplete", detail, True)
    if is_any(http.client.HTTPException) and not is_any(http.client.RemoteDisconnected):
        return Failure("bad_response", detail)
    return Failure("connection", detail, True)


def _read_body(
    answer: requests.Response, head: Response, attempt: Attempt, max_bytes: int, truncate: bool, brotli: bool
) -> Response:
    """Return the response with its body; raise if it is too large, too slow or truncated."""
    decode = brotli and head.header("content-encoding") == "br" and "br" in answer.raw.CONTENT_DECODERS
    coding = None if decode else content_coding(head.header("content-encoding"))
    length, chunked = _framing(head)
    if not truncate and length is not None and length > max_bytes:
        raise BodyError(Failure("too_large", f"Content-Length: {length}"))
    decoder = BodyDecoder(coding)
    chunks: list[bytes] = []
    received = 0
    truncated = None
    if length is None and not chunked:
        attempt.require_close_notify()
    for chunk in _chunks(answer.raw, attempt, decode):
        chunks.append(chunk)
        received += len(chunk)
        decoder.feed(chunk, max_bytes + 1 - decoder.decoded_bytes)
        if max(received, decoder.decoded_bytes) > max_bytes:
            if not truncate:
                raise BodyError(Failure("too_large", f"more than {max_bytes} bytes"))
            truncated = "length"
            break
    if truncated is None:
        decoder.finish()
    decoded_bytes = min(decoder.decoded_bytes, max_bytes)
    return dataclasses.replace(
        head, coding=coding, body=b"".join(chunks), decoded_bytes=decoded_bytes, truncated=truncated
    )


def _framing(head: Response) -> tuple[int | None, bool]:
    """Return the length of a body, None if it ends with the connection, and whether it is chunked (RFC 9112, 6.3).

    Raises BodyError for what readers disagree about, so that no framing is stored as text.
    """
    codings, lengths = head.values("transfer-encoding"), head.values("content-length")
    if codings == {"chunked"}:
        return None, True
    if codings - {"identity"}:
        raise BodyError(Failure("unsupported_encoding", f"Transfer-Encoding: {', '.join(sorted(codings))[:200]}"))
    if len(lengths) > 1 or any(not _LENGTH.fullmatch(length) for length in lengths):
        raise BodyError(Failure("bad_response", f"Content-Length: {' and '.join(sorted(lengths))[:200]}"))
    return next(map(int, lengths), None), False


def _chunks(raw: Any, attempt: Attempt, decode: bool) -> Iterator[bytes]:
    try:
        while chunk := raw.read(_CHUNK_BYTES, decode_content=decode):
            yield chunk
    except urllib3.exceptions.SSLError as error:
        if attempt.is_overdue or not any(isinstance(cause, ssl.SSLEOFError) for cause in exception_chain(error)):
            raise
        raise BodyError(Failure("incomplete", "TLS connection closed without close_notify", True)) from error
    # A body without a length ends where the connection ends, also when it was cut at the deadline.
    if attempt.is_overdue:
        raise TimeoutError
