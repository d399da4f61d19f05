"""One request by libcurl: its options, limits and checks, what it receives, and what it fails with.

An address is checked where its socket is made, so that no name can lead elsewhere afterwards.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import errno
import os
import re
import select
import socket
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import pycurl

from pipelines import storage
from pipelines.errors import InputError
from pipelines.stages.fetch import addresses
from pipelines.stages.fetch.exchange import Exchange, Response, body_length, content_coding, decode_body, gzip_size
from pipelines.stages.fetch.links import url_origin
from pipelines.stages.fetch.outcomes import Failure, unexpected_failure

# For how long messages in a TLS handshake may keep libcurl from returning, while all other requests wait.
MAX_CALL_S = 2.0
# Of all headers of a response, also of interim ones.
_MAX_HEADER_BYTES = 1 << 18
# Visits wait with their cookies in the queue of the host that they were redirected to.
_MAX_COOKIE_BYTES = 1 << 14
# Of a body, before it is in a temporary file: hundreds of requests are open at a time.
_BODY_BYTES_IN_MEMORY = 1 << 18
# Of a body that is not wanted, so that its connection can be used again.
_MAX_DISCARDED_BYTES, _MAX_DISCARD_S = 1 << 14, 1.0
# Elsewhere, TLS connections are not reused.
_SHOWS_BYTES = hasattr(socket, "TCP_INFO")
# What a request has for the proxy alone, such as its password.
_FOR_PROXY = re.compile(rb"(?<=\AGET )http://[^/ ]*|^Proxy-.*\n", re.IGNORECASE | re.MULTILINE)
_E_TOO_LARGE = 100  # missing in pycurl

# The value of WARC-Truncated by drop reason.
_TRUNCATIONS = {"too_large": "length", "timeout": "time", "incomplete": "disconnect", "connection": "disconnect"}
_REASONS = {
    pycurl.E_URL_MALFORMAT: "bad_url",
    pycurl.E_COULDNT_RESOLVE_HOST: "dns",
    pycurl.E_OPERATION_TIMEDOUT: "timeout",
    pycurl.E_SSL_CONNECT_ERROR: "tls",
    pycurl.E_PEER_FAILED_VERIFICATION: "tls",
    pycurl.E_PARTIAL_FILE: "incomplete",
    pycurl.E_UNSUPPORTED_PROTOCOL: "bad_response",  # such as HTTP/0.9
    pycurl.E_FTP_WEIRD_SERVER_REPLY: "bad_response",
    pycurl.E_BAD_CONTENT_ENCODING: "bad_encoding",
    _E_TOO_LARGE: "bad_response",
}
_RESETS = (errno.ECONNRESET, errno.EPIPE)
_NO_HTTP = (pycurl.E_UNSUPPORTED_PROTOCOL, pycurl.E_FTP_WEIRD_SERVER_REPLY)
_RETRYABLE = ("connection", "incomplete")
_STATUS, _DURATION = re.compile("[0-9]{3}"), re.compile(" after [0-9]+ ms")
Token = TypeVar("Token")


@dataclasses.dataclass(frozen=True)
class Request:
    """A GET request with its limits; `wants_body` decides by the head of the response.

    A body larger than `max_bytes`, also decoded, is cut there if `truncate`, otherwise it is a failure. `cookies` are
    those that an earlier exchange ended with.
    """

    url: str
    timeout_s: float
    max_bytes: int
    wants_body: Callable[[Response], bool]
    truncate: bool = False
    cookies: Sequence[bytes] = ()


class Transfer(Generic[Token]):
    """A request on its way, with the handle of libcurl that performs it, and what it received so far."""

    def __init__(
        self, curl: pycurl.Curl, request: Request, token: Token, proxy: str, public_only: bool, decode: bool,
        known_sockets: Mapping[tuple[Any, ...], int], sent: list[pycurl.Curl],
    ) -> None:  # fmt: skip
        self.curl, self.token, self._sent = curl, token, sent
        self._exchange = Exchange(request.url, dt.datetime.now(dt.UTC))
        self._request, self._proxy, self._decode, self._known_sockets = request, proxy, decode, known_sockets
        self._checks_addresses = public_only and not proxy
        self.deadline = time.monotonic() + request.timeout_s
        self._saved_s = 0.0
        scheme, _, authority = url_origin(request.url).partition("://")
        self.host, _, self.port = authority.rpartition(":")
        self._is_tls = scheme == "https"
        self._sockets: list[socket.socket] = []
        self._opened_at = 0.0
        self._reused: tuple[int, int] | None = None  # a descriptor, and the bytes that it had received
        self.is_early = False
        self.connection: tuple[Any, ...] = ()
        self._refused = ""
        self._is_cut = self._is_reset = False
        self._header_bytes = self._body_bytes = 0
        self._head: list[str] = []
        self._body: Any = None  # a file, if the body is wanted
        self._error: Exception | None = None
        options: dict[int, Any] = {
            pycurl.URL: request.url,
            pycurl.PROXY: proxy,
            pycurl.HEADERFUNCTION: self._guard(self._read_header),
            pycurl.WRITEFUNCTION: self._guard(self._read_body),
            pycurl.OPENSOCKETFUNCTION: self._open_socket,
            pycurl.PREREQFUNCTION: self._check_connection,
            pycurl.DEBUGFUNCTION: self._record_request,
        }
        set_options(curl, options)
        for line in (b"ALL", *request.cookies):  # without those of the request before
            curl.setopt(pycurl.COOKIELIST, line)

    def is_unanswered(self, code: int) -> bool:
        """Return whether what came on a reused connection is no answer to this request, which needs a new one.

        It was there before, or is not HTTP.
        """
        return self.is_early or (not self._sockets and not self._head and code in _NO_HTTP)

    def failure_of(self, code: int, message: str) -> Failure | None:
        """Return the failure that a code of libcurl stands for; the same cause always has the same detail.

        Raises InputError for unreadable certificates of authorities, StorageError if a body could not be stored.
        """
        if isinstance(self._error, OSError):
            with storage.translate_os_errors("the folder for temporary files (TMPDIR)", "write"):
                raise self._error
        if self._error is not None:
            return unexpected_failure(self._error)
        response = self._exchange.response
        if self._exchange.failure or (response is not None and (response.truncated or code == pycurl.E_OK)):
            return self._exchange.failure
        if code == pycurl.E_SSL_CACERT_BADFILE:
            raise InputError(f"{message}; see REQUESTS_CA_BUNDLE and CURL_CA_BUNDLE")
        if self._refused and not self._sockets:
            return self.private_address(self._refused)
        reason = "timeout" if self._is_cut else _REASONS.get(code, "connection")
        # A host that is not there refuses a connection; this one accepted it before.
        is_reset = self.curl.getinfo(pycurl.OS_ERRNO) in _RESETS
        self._is_reset = is_reset and code == pycurl.E_COULDNT_CONNECT and not self._is_tls
        if code == pycurl.E_OK:
            reason, message = "bad_response", "the headers have no end"
        elif reason == "tls" and is_reset:
            reason = "connection"
        elif code == pycurl.E_BAD_CONTENT_ENCODING and not self._decode:
            reason = "unsupported_encoding"  # of the transfer
        elif code == pycurl.E_RECV_ERROR and ("chunk" in message or "header" in message):
            reason = "bad_response"
        elif code == pycurl.E_RECV_ERROR and response is not None and "eof" in message:
            reason, message = "incomplete", "TLS connection closed without close_notify"
        elif reason == "timeout":
            message = "no connection in time"
        return Failure(
            reason, _DURATION.sub("", message), reason in _RETRYABLE or (not self.connection and reason == "timeout")
        )

    def private_address(self, address: str) -> Failure:
        """Return the failure of a host with an address that is not public."""
        return Failure("private_address", f"{self.host} is {address}; see --allow-private-addresses")

    def end(self, failure: Failure | None) -> None:
        """Set what the request ended with."""
        exchange, response = self._exchange, self._exchange.response
        exchange.seconds = self._request.timeout_s - (self.deadline + self._saved_s - time.monotonic())
        # Of a body that nobody wants, a failure does not count.
        exchange.failure = failure if response is None or response.truncated is None else None
        exchange.peer = self.connection[0] if self.connection and not self._proxy else None
        exchange.reached = bool(self.connection) or self._is_reset
        cookies = tuple(self.curl.getinfo_raw(pycurl.INFO_COOKIELIST))
        is_bounded = sum(map(len, cookies)) <= _MAX_COOKIE_BYTES
        exchange.cookies = cookies if is_bounded else tuple(self._request.cookies)
        for opened in self._sockets:
            opened.close()

    def close(self) -> Exchange:
        """Return the request with its response; the body is in memory only from now on."""
        exchange, response, limit = self._exchange, self._exchange.response, self._request.max_bytes
        del self._exchange  # the handle holds its callbacks, and so this, until it is used again
        if self._body is not None and response is not None:
            with self._body:
                self._body.seek(0)
                body = self._body.read()
            try:  # what is wrong with a part of a body came before what is wrong with its end
                is_whole = exchange.failure is None and response.truncated is None
                # Decoding takes a third of a page's time. Without a length, it shows whether the body is complete;
                # damage inside of a body is found by `extract`, which drops the page.
                size = gzip_size(body) if is_whole and response.coding == "gzip" and response.has_end else None
                if size is None or size > limit:
                    size = len(decode_body(body, response.coding, limit + 1, is_whole))
                if size > limit and not self._request.truncate:
                    raise self._too_large()
                response.body, response.decoded_bytes = body, min(size, limit)
            except Failure as failure:
                exchange.failure = failure.with_traceback(None)  # which would hold the body
        if exchange.failure is not None and response is not None:
            response.truncated = _TRUNCATIONS.get(exchange.failure.reason, "unspecified")
            response.coding = response.body = None
        return exchange

    def cut(self, fd: int) -> None:
        """Shut down the socket of a descriptor, or any if it is none, that is not new, unless it is connected."""
        is_old = self._opened_at + MAX_CALL_S < time.monotonic()
        for opened in list(self._sockets) if is_old and not self.connection else ():
            with contextlib.suppress(OSError):
                # libcurl has a descriptor of its own for the same socket.
                if fd < 0 or os.fstat(fd).st_ino == os.fstat(opened.fileno()).st_ino:
                    self._is_cut = True
                    opened.shutdown(socket.SHUT_RDWR)

    def _open_socket(self, _purpose: int, address: Any) -> Any:
        family, kind, protocol, name = address
        if self._checks_addresses and not addresses.is_public(str(name[0])):
            self._refused = self._refused or str(name[0])
            return pycurl.SOCKET_BAD
        self._opened_at = time.monotonic()
        try:
            self._sockets.append(socket.socket(family, kind, protocol))
        except OSError:  # such as IPv6 where there is none
            return pycurl.SOCKET_BAD
        return self._sockets[-1]

    def _check_connection(self, *connection: Any) -> int:
        """Refuse a reused connection on which there is something to read; libcurl looks only once per second."""
        self.connection = connection
        if not self._sockets:
            fd = self._known_sockets.get(connection, -1)
            self.is_early = fd < 0 or (self._is_tls and not _SHOWS_BYTES) or _is_readable(fd)
            self._reused = (fd, _received_bytes(fd) if self._is_tls else 0) if not self.is_early else None
        return pycurl.PREREQFUNC_ABORT if self.is_early else pycurl.PREREQFUNC_OK

    def _record_request(self, kind: int, data: bytes) -> None:
        # It comes in parts if the connection is slow, and again if a connection was stale. CONNECT is the proxy's.
        if kind == pycurl.INFOTYPE_HEADER_OUT and (self._exchange.request or data.startswith(b"GET ")):
            request = data if data.startswith(b"GET ") else self._exchange.request + data
            self._exchange.request = _FOR_PROXY.sub(b"", request) if self._proxy else request
            if data.endswith(b"\r\n\r\n"):
                self._sent.append(self.curl)

    def _guard(self, function: Callable[[bytes], bool]) -> Callable[[bytes], int]:
        """Return a callback that ends the transfer, by another number than that of its bytes, on an error or False."""

        def callback(data: bytes) -> int:
            try:
                return len(data) if function(data) else -1
            except Failure as failure:
                self._exchange.failure = failure.with_traceback(None)
            except Exception as error:  # noqa: BLE001 - pycurl would print it; see `failure_of`
                self._error = error
            return -1

        return callback

    def _read_header(self, line: bytes) -> bool:
        self._header_bytes += len(line)
        if self._header_bytes > _MAX_HEADER_BYTES:
            raise Failure("bad_response", f"more than {_MAX_HEADER_BYTES:,} bytes of headers")
        if self._exchange.response is not None:
            return True  # a trailer
        # Without a new socket: libcurl replaces a connection that was closed meanwhile.
        reused = self._reused if self._is_tls and not self._head and not self._sockets else None
        if reused and _received_bytes(reused[0]) == reused[1]:
            self.is_early = True  # it was in OpenSSL's buffer
            return False
        if line.startswith(b"HTTP/"):  # also after interim responses
            self._head = []
        if text := line.decode("latin-1").rstrip("\r\n"):
            self._head.append(text)
            return True
        version, status, reason = [*"".join(self._head[:1]).split(None, 2), "", "", ""][:3]
        if not (version.startswith("HTTP/") and _STATUS.fullmatch(status)):  # libcurl reads the first digits
            raise Failure("bad_response", f"status {status[:20]}")
        if status[0] == "1" and status != "101":
            return True
        headers: list[tuple[str, str]] = []
        for text in self._head[1:]:
            if text[0] in " \t" and headers:
                headers[-1] = headers[-1][0], f"{headers[-1][1]} {text.strip()}"
            else:
                name, _, value = text.partition(":")
                headers.append((name, value.strip()))
        version = "HTTP/1.0" if version == "HTTP/1.0" else "HTTP/1.1"
        return self._begin_body(Response(int(status), reason.strip(), version, tuple(headers)))

    def _begin_body(self, response: Response) -> bool:
        """Return whether the body is to be read, or thrown away; raise Failure if it cannot be read."""
        self._exchange.response = response
        if response.status == 101 or not self._request.wants_body(response):
            response.truncated = "unspecified"
            self._saved_s = max(0.0, self.deadline - time.monotonic() - _MAX_DISCARD_S)
            self.deadline -= self._saved_s
            # Without a length, it ends with the connection, which some servers keep open.
            return response.status in (204, 304) or (response.status != 101 and response.has_end)
        if not self._decode:
            response.coding = content_coding(response.header("content-encoding"))
        length = body_length(response)
        if not self._request.truncate and length is not None and length > self._request.max_bytes:
            raise Failure("too_large", f"Content-Length: {length}")
        self._body = storage.temporary_file(_BODY_BYTES_IN_MEMORY)
        return True

    def _read_body(self, data: bytes) -> bool:
        self._body_bytes += len(data)
        if self._body is None or self._exchange.response is None:
            return self._body_bytes <= _MAX_DISCARDED_BYTES
        self._body.write(data)
        if self._body_bytes <= self._request.max_bytes:
            return True
        if not self._request.truncate:
            raise self._too_large()
        self._exchange.response.truncated = "length"
        return False

    def _too_large(self) -> Failure:
        return Failure("too_large", f"more than {self._request.max_bytes} bytes")


def set_options(curl: pycurl.Curl, options: Mapping[int, Any]) -> pycurl.Curl:
    """Set options of a handle and return it."""
    for option, value in options.items():
        curl.setopt(option, value)
    return curl


def _is_readable(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))


def _received_bytes(fd: int) -> int:
    """Return how many bytes a TCP connection has received."""
    opened = socket.socket(fileno=fd)
    try:
        return int(struct.unpack_from("=Q", opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 136), 128)[0])
    finally:
        opened.detach()
