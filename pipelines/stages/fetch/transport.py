"""Requests by libcurl's multi interface: one loop in the calling thread, however many are open.

libcurl reuses connections, verifies TLS and the framing of bodies. An address is checked where its socket
is made, so that no name can lead elsewhere afterwards. Redirects are not followed; nothing else than HTTP is spoken.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import errno
import os
import re
import resource
import select
import selectors
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Generic, TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies

import pycurl
from requests.utils import DEFAULT_CA_BUNDLE_PATH, get_environ_proxies, select_proxy

from pipelines import storage
from pipelines.engine.retry import check_proxies
from pipelines.errors import InputError, UsageError
from pipelines.stages.fetch import addresses
from pipelines.stages.fetch.exchange import BodyDecoder, BodyError, Exchange, Response, body_length, content_coding
from pipelines.stages.fetch.outcomes import Failure, unexpected_failure

_CONNECT_TIMEOUT_MS = 10_000
_TICK_S = 0.25
# For how long messages in a TLS handshake may keep libcurl from returning, while all other requests wait.
_MAX_CALL_S = 2.0
# Of all headers of a response, also of interim ones.
_MAX_HEADER_BYTES = 1 << 18
# Visits wait with their cookies in the queue of the host that they were redirected to.
_MAX_COOKIE_BYTES = 1 << 14
# Of a body, before it is in a temporary file.
_BODY_BYTES_IN_MEMORY = 1 << 18
_IDLE_CONNECTIONS, _OTHER_FILES = 4, 256
_KNOWN_SOCKETS = 10_000
# Elsewhere, TLS connections are not reused.
_SHOWS_BYTES = hasattr(socket, "TCP_INFO")
# What a request has for the proxy alone, such as its password.
_FOR_PROXY = re.compile(rb"(?<=\AGET )http://[^/ ]*|^Proxy-.*\n", re.IGNORECASE | re.MULTILINE)
# Missing in pycurl: headers of a proxy's answer to CONNECT are not those of a response; CURLE_TOO_LARGE.
_SUPPRESS_CONNECT_HEADERS, _E_TOO_LARGE = 265, 100

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


class Client(Generic[Token]):
    """Sends requests, each with a token of the caller, up to `concurrency` at a time; `close` ends them.

    With `decode`, bodies in all codings that libcurl knows are accepted and decoded; otherwise they stay as received.
    """

    def __init__(
        self, headers: Mapping[str, str], concurrency: int, allow_private_addresses: bool, decode: bool = False
    ) -> None:
        self.idle = concurrency
        self.decode = decode
        self.public_only = not allow_private_addresses
        check_proxies()
        self._proxies = getproxies()
        # As requests finds it.
        path = os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE") or DEFAULT_CA_BUNDLE_PATH
        is_folder = storage.is_folder(path)
        self._options: dict[int, Any] = {
            pycurl.HTTPHEADER: [f"{name}: {value}" for name, value in headers.items()],
            pycurl.HTTP_VERSION: pycurl.CURL_HTTP_VERSION_1_1,
            pycurl.PROTOCOLS: pycurl.PROTO_HTTP | pycurl.PROTO_HTTPS,
            pycurl.PATH_AS_IS: 1,
            pycurl.NOSIGNAL: 1,
            pycurl.NOPROXY: "",  # libcurl would read no_proxy otherwise than requests, which chose the proxy
            pycurl.COOKIEFILE: "",  # cookies are kept, in memory
            pycurl.HTTP_CONTENT_DECODING: int(decode),
            pycurl.CONNECTTIMEOUT_MS: _CONNECT_TIMEOUT_MS,
            _SUPPRESS_CONNECT_HEADERS: 1,
            pycurl.CAINFO: None if is_folder else path,
            pycurl.PROXY_CAINFO: None if is_folder else path,
        }
        self._options |= {pycurl.CAPATH: path, pycurl.PROXY_CAPATH: path} if is_folder else {}
        self._options |= {pycurl.ACCEPT_ENCODING: ""} if decode else {}
        self._multi = pycurl.CurlMulti()
        self._multi.setopt(pycurl.M_SOCKETFUNCTION, self._watch_socket)
        self._multi.setopt(pycurl.M_TIMERFUNCTION, self._set_timer)
        self._multi.setopt(pycurl.M_MAXCONNECTS, concurrency + _allow_files(concurrency))
        # Of the connections of earlier requests, by both of their addresses; some may be closed.
        self.sockets: dict[tuple[Any, ...], int] = {}
        self._timer_at: float | None = None
        self._looked_at = self._checked_at = time.monotonic()
        self._call: tuple[int, float] | None = None  # of libcurl under way: the descriptor, and since when
        self._names = addresses.Names()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._names.bell, selectors.EVENT_READ)
        self._open: dict[pycurl.Curl, _Transfer[Token]] = {}
        self._resolving: dict[pycurl.Curl, Future[list[str]]] = {}
        self._free: list[pycurl.Curl] = []
        self._done: deque[_Transfer[Token]] = deque()
        self._closed = threading.Event()
        threading.Thread(target=self._cut_handshakes, daemon=True).start()

    def start(self, request: Request, token: Token) -> None:
        """Begin a request; `next_exchange` returns its end."""
        curl = self._free.pop() if self._free else _set_options(pycurl.Curl(), self._options)
        # As requests chooses it.
        proxy = (select_proxy(request.url, get_environ_proxies(request.url)) or "") if self._proxies else ""
        transfer = self._open[curl] = _Transfer(curl, request, token, proxy, self)
        self.idle -= 1
        literal = addresses.literal_address(transfer.host)
        if literal is None and not proxy:  # a proxy resolves names itself
            self._resolving[curl] = self._names.ask(transfer.host)
            self._send_resolved()
        elif literal is not None and self.public_only and not addresses.is_public(literal):
            self._end(transfer, Failure("private_address", f"{transfer.host} is {literal}"))
        else:
            self._send(transfer, ())

    def next_exchange(self, timeout_s: float) -> tuple[Token, Exchange] | None:
        """Wait for the end of a request and return it with its token; None after the timeout."""
        until = time.monotonic() + timeout_s
        while not self._done:
            now = time.monotonic()
            self._excuse()
            wait_s = min(until, now + _TICK_S, now + _TICK_S if self._timer_at is None else self._timer_at) - now
            events = self._selector.select(max(0.0, wait_s))
            self._looked_at = time.monotonic()
            for key, mask in events:
                if key.fileobj is self._names.bell:
                    self._names.bell.recv(1 << 12)
                else:
                    self._advance(key.fd, mask)
            self._send_resolved()
            self._end_overdue()
            if self._timer_at is not None and time.monotonic() >= self._timer_at:
                self._timer_at = None
                self._advance(pycurl.SOCKET_TIMEOUT, 0)
            _, succeeded, failed = self._multi.info_read()
            for curl, code, message in [*((curl, 0, "") for curl in succeeded), *failed]:
                transfer = self._open[curl]
                if transfer.is_unanswered(code):
                    self._remove(curl)
                    transfer.is_early = False
                    self._add(curl, {pycurl.FRESH_CONNECT: 1})
                else:
                    self._end(transfer, transfer.failure_of(code, message))
            if not self._done and time.monotonic() >= until:
                return None
        self.idle += 1
        transfer = self._done.popleft()
        self._free.append(transfer.curl)
        return transfer.token, transfer.exchange()

    def perform(self, request: Request, token: Token) -> Exchange:
        """Send a request and wait for its end, while no other is open."""
        self.start(request, token)
        while (ended := self.next_exchange(_TICK_S)) is None:
            pass
        return ended[1]

    def close(self) -> None:
        """Close all connections."""
        self._closed.set()
        for transfer in list(self._open.values()):
            self._end(transfer, None)
        for transfer in self._done:
            transfer.body.close()
        self._multi.close()
        self._selector.close()
        self._names.close()

    def _send_resolved(self) -> None:
        """Send the requests whose names are resolved."""
        for curl, lookup in [entry for entry in self._resolving.items() if entry[1].done()]:
            transfer = self._open[curl]
            if error := lookup.exception():
                is_temporary = isinstance(error, socket.gaierror) and error.errno == socket.EAI_AGAIN
                self._end(transfer, Failure("dns", str(error), is_temporary))
            elif self.public_only and not any(map(addresses.is_public, lookup.result())):
                self._end(transfer, Failure("private_address", f"{transfer.host} is {lookup.result()[0]}"))
            else:
                del self._resolving[curl]
                self._send(transfer, lookup.result())

    def _end_overdue(self) -> None:
        now = time.monotonic()
        if now >= self._checked_at + _TICK_S:
            self._checked_at = now
            for transfer in [transfer for transfer in self._open.values() if now >= transfer.deadline]:
                self._end(transfer, Failure("timeout", "no complete response in time", not transfer.connection))

    def _send(self, transfer: _Transfer[Token], resolved: Sequence[str]) -> None:
        listed = ",".join(f"[{address}]" if ":" in address else address for address in resolved)
        known = [f"+{transfer.host.removesuffix('.')}:{transfer.port}:{listed}"] if resolved else []
        self._add(transfer.curl, {pycurl.RESOLVE: known, pycurl.FRESH_CONNECT: 0})

    def _add(self, curl: pycurl.Curl, options: Mapping[int, Any]) -> None:
        _set_options(curl, {**options, pycurl.VERBOSE: 1})
        self._multi.add_handle(curl)

    def _remove(self, curl: pycurl.Curl) -> None:
        curl.setopt(pycurl.VERBOSE, 0)  # pycurl cannot pass on what libcurl says outside of its loop
        with contextlib.suppress(pycurl.error):  # it was not added
            self._multi.remove_handle(curl)

    def _advance(self, fd: int, flags: int) -> None:
        self._call = fd, time.monotonic()
        self._multi.socket_action(fd, flags)
        self._call = None
        self._excuse()

    def _excuse(self) -> None:
        """Extend the deadlines by a long time in which this process did not look, which is no server's fault."""
        lost_s = time.monotonic() - self._looked_at
        if lost_s > _TICK_S:
            for transfer in self._open.values():
                transfer.deadline += lost_s
        self._looked_at += lost_s

    def _end(self, transfer: _Transfer[Token], failure: Failure | None) -> None:
        if transfer.connection:
            self.sockets[transfer.connection] = transfer.curl.getinfo(pycurl.ACTIVESOCKET)
            if len(self.sockets) > _KNOWN_SOCKETS:
                del self.sockets[next(iter(self.sockets))]
        self._remove(transfer.curl)
        self._resolving.pop(transfer.curl, None)
        del self._open[transfer.curl]
        transfer.end(failure)
        self._done.append(transfer)

    def _watch_socket(self, event: int, fd: int, *_: object) -> None:
        if fd in self._selector.get_map():
            self._selector.unregister(fd)
        if event != pycurl.POLL_REMOVE:  # POLL_IN and CSELECT_IN are EVENT_READ, POLL_OUT and CSELECT_OUT EVENT_WRITE
            self._selector.register(fd, event)

    def _set_timer(self, timeout_ms: int) -> None:
        self._timer_at = None if timeout_ms < 0 else time.monotonic() + timeout_ms / 1000

    def _cut_handshakes(self) -> None:
        """Shut down the connection in whose handshake libcurl does not return.

        OpenSSL reads on, without a look at the time, while a server sends messages that mean nothing.
        """
        while not self._closed.wait(_TICK_S):
            if (call := self._call) is not None and time.monotonic() > call[1] + _MAX_CALL_S:
                for transfer in list(self._open.values()):
                    transfer.cut(call[0])


class _Transfer(Generic[Token]):
    """A request on its way, with the handle of libcurl that performs it, and what it received so far."""

    def __init__(self, curl: pycurl.Curl, request: Request, token: Token, proxy: str, client: Client[Token]) -> None:
        self.curl, self.token = curl, token
        self._client, self._request, self._proxy = client, request, proxy
        self._checks_addresses = client.public_only and not proxy
        self._started_at = dt.datetime.now(dt.UTC)
        self.deadline = time.monotonic() + request.timeout_s
        self._seconds = 0.0
        parts = urlsplit(request.url)
        self.host, self.port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        self._sockets: list[socket.socket] = []
        self._opened_at = 0.0
        self.sent = b""
        self._is_tls = parts.scheme == "https"
        self._reused: tuple[int, int] | None = None  # a descriptor, and the bytes that it had received
        self.is_early = False
        self.connection: tuple[Any, ...] = ()
        self._refused = ""
        self._is_cut = self._is_reset = False
        self._header_bytes = 0
        self._head: list[str] = []
        self._response: Response | None = None
        # Hundreds of requests are open at a time.
        self.body: Any = storage.temporary_file(_BODY_BYTES_IN_MEMORY)
        self._has_body, self._decoder = False, BodyDecoder(None)
        self._truncated: str | None = None
        self._failure: Failure | None = None
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
        _set_options(curl, options)
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
        if self._failure is not None or self._truncated is not None or (code == 0 and self._response is not None):
            return self._failure
        if code == pycurl.E_SSL_CACERT_BADFILE:
            raise InputError(f"{message}; see REQUESTS_CA_BUNDLE and CURL_CA_BUNDLE")
        if self._refused and not self._sockets:
            return Failure("private_address", f"{self.host} is {self._refused}")
        reason = "timeout" if self._is_cut else _REASONS.get(code, "connection")
        # A host that is not there refuses a connection; this one accepted it before.
        is_reset = self.curl.getinfo(pycurl.OS_ERRNO) in _RESETS
        self._is_reset = is_reset and code == pycurl.E_COULDNT_CONNECT and not self._is_tls
        if code == pycurl.E_OK:
            reason, message = "bad_response", "the headers have no end"
        elif reason == "tls" and is_reset:
            reason = "connection"
        elif code == pycurl.E_BAD_CONTENT_ENCODING and not self._client.decode:
            reason = "unsupported_encoding"  # of the transfer
        elif code == pycurl.E_RECV_ERROR and ("chunk" in message or "header" in message):
            reason = "bad_response"
        elif code == pycurl.E_RECV_ERROR and self._response is not None and "eof" in message:
            reason, message = "incomplete", "TLS connection closed without close_notify"
        elif reason == "timeout":
            message = "no connection in time"
        return Failure(
            reason, _DURATION.sub("", message), reason in _RETRYABLE or (not self.connection and reason == "timeout")
        )

    def end(self, failure: Failure | None) -> None:
        """Set what the request ended with."""
        self._seconds = self._request.timeout_s - (self.deadline - time.monotonic())
        self._failure = failure
        for opened in self._sockets:
            opened.close()

    def exchange(self) -> Exchange:
        """Return the request with its response; the body is in memory only from now on."""
        response, failure, coding, body = self._response, self._failure, None, None
        with self.body:
            if response is not None and self._has_body and failure is None:
                try:
                    if self._truncated is None:
                        self._decoder.finish()
                    self.body.seek(0)
                    coding, body = self._decoder.coding, self.body.read()
                except BodyError as error:
                    failure = error.failure
        if response is not None:
            truncated = self._truncated if failure is None else _TRUNCATIONS.get(failure.reason, "unspecified")
            size = min(self._decoder.decoded_bytes, self._request.max_bytes)
            response = dataclasses.replace(response, coding=coding, body=body, decoded_bytes=size, truncated=truncated)
        cookies = tuple(self.curl.getinfo_raw(pycurl.INFO_COOKIELIST))
        return Exchange(
            self._request.url,
            self._started_at,
            self._seconds,
            self.sent,
            peer=self.connection[0] if self.connection and not self._proxy else None,
            reached=bool(self.connection) or self._is_reset,
            response=response,
            failure=failure,
            cookies=cookies if sum(map(len, cookies)) <= _MAX_COOKIE_BYTES else tuple(self._request.cookies),
        )

    def cut(self, fd: int) -> None:
        """Shut down the socket of a descriptor, or any if it is none, that is not new, unless it is connected."""
        is_old = self._opened_at + _MAX_CALL_S < time.monotonic()
        for opened in list(self._sockets) if is_old and not self.connection else ():
            with contextlib.suppress(OSError):
                # libcurl has a descriptor of its own for the same socket.
                if fd < 0 or os.fstat(fd).st_ino == os.fstat(opened.fileno()).st_ino:
                    self._is_cut = True
                    opened.shutdown(socket.SHUT_RDWR)

    def _open_socket(self, _purpose: int, address: Any) -> Any:
        family, kind, protocol, name = address
        if self._checks_addresses and not addresses.is_public(str(name[0])):
            self._refused = str(name[0])
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
            fd = self._client.sockets.get(connection, -1)
            self.is_early = fd < 0 or (self._is_tls and not _SHOWS_BYTES) or _is_readable(fd)
            self._reused = (fd, _received_bytes(fd) if self._is_tls else 0) if not self.is_early else None
        return pycurl.PREREQFUNC_ABORT if self.is_early else pycurl.PREREQFUNC_OK

    def _record_request(self, kind: int, data: bytes) -> None:
        # It comes in parts if the connection is slow, and again if a connection was stale. CONNECT is the proxy's.
        if kind == pycurl.INFOTYPE_HEADER_OUT and (self.sent or data.startswith(b"GET ")):
            self.sent = _FOR_PROXY.sub(b"", data if data.startswith(b"GET ") else self.sent + data)

    def _guard(self, function: Callable[[bytes], bool]) -> Callable[[bytes], int]:
        """Return a callback that ends the transfer, by another number than that of its bytes, on an error or False."""

        def callback(data: bytes) -> int:
            try:
                return len(data) if function(data) else -1
            except BodyError as error:
                self._failure = error.failure
            except Exception as error:  # noqa: BLE001 - pycurl would print it; see `failure_of`
                self._error = error
            return -1

        return callback

    def _read_header(self, line: bytes) -> bool:
        self._header_bytes += len(line)
        if self._header_bytes > _MAX_HEADER_BYTES:
            raise BodyError(Failure("bad_response", f"more than {_MAX_HEADER_BYTES:,} bytes of headers"))
        if self._response is not None:
            return True  # a trailer
        if not self._head and self._reused and self._is_tls and _received_bytes(self._reused[0]) == self._reused[1]:
            self.is_early = True  # it was in OpenSSL's buffer
            return False
        if line.startswith(b"HTTP/"):  # also after interim responses
            self._head = []
        if text := line.decode("latin-1").rstrip("\r\n"):
            self._head.append(text)
            return True
        version, status, reason = [*"".join(self._head[:1]).split(None, 2), "", "", ""][:3]
        if not (version.startswith("HTTP/") and _STATUS.fullmatch(status)):  # libcurl reads the first digits
            raise BodyError(Failure("bad_response", f"status {status[:20]}"))
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
        """Return whether the body is to be read; raise BodyError if it cannot be."""
        self._response = response
        if response.status == 101 or not self._request.wants_body(response):
            self._truncated = "unspecified"
            return False
        if not self._client.decode:
            self._decoder = BodyDecoder(content_coding(response.header("content-encoding")))
        length = body_length(response)
        if not self._request.truncate and length is not None and length > self._request.max_bytes:
            raise BodyError(Failure("too_large", f"Content-Length: {length}"))
        self._has_body = True
        return True

    def _read_body(self, data: bytes) -> bool:
        limit = self._request.max_bytes
        self.body.write(data)
        self._decoder.feed(data, limit + 1 - self._decoder.decoded_bytes)
        if max(self.body.tell(), self._decoder.decoded_bytes) <= limit:
            return True
        if not self._request.truncate:
            raise BodyError(Failure("too_large", f"more than {limit} bytes"))
        self._truncated = "length"
        return False


def _set_options(curl: pycurl.Curl, options: Mapping[int, Any]) -> pycurl.Curl:
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


def _allow_files(concurrency: int) -> int:
    """Raise the limit of open files for some requests, and return for how many idle connections there is room.

    Every request has a connection, by two descriptors, and a temporary file.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed, idle = 3 * concurrency + _OTHER_FILES, _IDLE_CONNECTIONS * concurrency
    limit = needed + idle if hard == resource.RLIM_INFINITY else min(needed + idle, hard)
    if limit < needed:
        raise UsageError(f"--concurrency {concurrency} needs {needed} open files; the limit of this system is {hard}")
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    return limit - needed
