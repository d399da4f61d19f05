"""Requests by libcurl's multi interface: one loop in the calling thread, however many are open.

libcurl reuses connections, verifies TLS and the framing of bodies. Redirects are not followed; nothing else than HTTP
is spoken.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Generic
from urllib.request import getproxies

import pycurl
from requests.utils import DEFAULT_CA_BUNDLE_PATH, get_environ_proxies, select_proxy

from pipelines import storage
from pipelines.engine.machine import raise_file_limit
from pipelines.engine.retry import check_proxies
from pipelines.errors import UsageError
from pipelines.stages.fetch import addresses
from pipelines.stages.fetch.exchange import Exchange
from pipelines.stages.fetch.outcomes import Failure
from pipelines.stages.fetch.transfer import MAX_CALL_S, Request, Token, Transfer, set_options

_CONNECT_TIMEOUT_MS = 10_000
# At a time, which most pages fit into.
_RECEIVED_BYTES = 1 << 16
_TICK_S, _LOOKUP_TICK_S = 0.25, 0.01
_IDLE_CONNECTIONS, _OTHER_FILES = 4, 256
_KNOWN_SOCKETS = 10_000
# Missing in pycurl: headers of a proxy's answer to CONNECT are not those of a response.
_SUPPRESS_CONNECT_HEADERS = 265


class Client(Generic[Token]):
    """Sends requests, each with a token of the caller, up to `concurrency` at a time; `close` ends them.

    With `decode`, bodies in all codings that libcurl knows are accepted and decoded; otherwise they stay as received.
    """

    def __init__(
        self, headers: Mapping[str, str], concurrency: int, allow_private_addresses: bool, decode: bool = False
    ) -> None:
        self.idle = concurrency
        check_proxies()
        self._decode = decode
        self._public_only = not allow_private_addresses
        self._proxies = getproxies()
        # As requests finds it.
        path = os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE") or DEFAULT_CA_BUNDLE_PATH
        file, folder = (None, path) if storage.is_folder(path) else (path, None)
        self._options: dict[int, Any] = {
            pycurl.HTTPHEADER: [f"{name}: {value}" for name, value in headers.items()],
            pycurl.HTTP_VERSION: pycurl.CURL_HTTP_VERSION_1_1,
            pycurl.PROTOCOLS: pycurl.PROTO_HTTP | pycurl.PROTO_HTTPS,
            pycurl.BUFFERSIZE: _RECEIVED_BYTES,
            pycurl.PATH_AS_IS: 1,
            pycurl.NOSIGNAL: 1,
            pycurl.NOPROXY: "",  # libcurl would read no_proxy otherwise than requests, which chose the proxy
            pycurl.COOKIEFILE: "",  # cookies are kept, in memory
            pycurl.HTTP_CONTENT_DECODING: int(decode),
            pycurl.CONNECTTIMEOUT_MS: _CONNECT_TIMEOUT_MS,
            _SUPPRESS_CONNECT_HEADERS: 1,
            pycurl.ACCEPT_ENCODING: "" if decode else None,
            **dict.fromkeys((pycurl.CAINFO, pycurl.PROXY_CAINFO), file),
            **dict.fromkeys((pycurl.CAPATH, pycurl.PROXY_CAPATH), folder),
        }
        self._multi = pycurl.CurlMulti()
        self._multi.setopt(pycurl.M_SOCKETFUNCTION, self._watch_socket)
        self._multi.setopt(pycurl.M_TIMERFUNCTION, self._set_timer)
        self._multi.setopt(pycurl.M_MAXCONNECTS, concurrency + _allow_files(concurrency))
        # Of the connections of earlier requests, by both of their addresses; some may be closed.
        self._sockets: dict[tuple[Any, ...], int] = {}
        self._sent: list[pycurl.Curl] = []  # those whose request was sent, and is recorded
        self._timer_at: float | None = None
        self._looked_at = self._checked_at = time.monotonic()
        self._call: tuple[int, float] | None = None  # of libcurl under way: the descriptor, and since when
        self._names = addresses.Names()
        self._selector = selectors.DefaultSelector()
        self._open: dict[pycurl.Curl, Transfer[Token]] = {}
        self._resolving: dict[pycurl.Curl, Future[list[str]]] = {}
        self._free: list[pycurl.Curl] = []
        self._done: deque[Transfer[Token]] = deque()
        self._closed = threading.Event()
        threading.Thread(target=self._cut_handshakes, daemon=True).start()

    def start(self, request: Request, token: Token) -> None:
        """Begin a request; `next_exchange` returns its end."""
        curl = self._free.pop() if self._free else set_options(pycurl.Curl(), self._options)
        # As requests chooses it.
        proxy = (select_proxy(request.url, get_environ_proxies(request.url)) or "") if self._proxies else ""
        transfer = Transfer(curl, request, token, proxy, self._public_only, self._decode, self._sockets, self._sent)
        self._open[curl] = transfer
        self.idle -= 1
        literal = addresses.literal_address(transfer.host)
        if literal is None and not proxy:  # a proxy resolves names itself
            self._resolving[curl] = self._names.ask(transfer.host)
            self._send_resolved()
        elif literal is not None and self._public_only and not addresses.is_public(literal):
            self._end(transfer, transfer.private_address(literal))
        else:
            self._send(transfer, ())

    def next_exchange(self, timeout_s: float) -> tuple[Token, Exchange] | None:
        """Wait for the end of a request and return it with its token; None after the timeout."""
        until = time.monotonic() + timeout_s
        while not self._done:
            self._end_overdue()
            tick_s, timer_at = _LOOKUP_TICK_S if self._resolving else _TICK_S, self._timer_at
            wait_s = min(until, time.monotonic() + tick_s, until if timer_at is None else timer_at) - time.monotonic()
            events = self._selector.select(0 if self._done else max(0.0, wait_s))
            self._looked_at = time.monotonic()
            for key, mask in events:
                self._advance(key.fd, mask)
            self._send_resolved()
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
        return transfer.token, transfer.close()

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
            transfer.close()
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
            else:
                del self._resolving[curl]
                self._send(transfer, lookup.result())

    def _end_overdue(self) -> None:
        """End the requests whose time is over, not counting a long time in which this process did not look."""
        now = time.monotonic()
        if now < self._checked_at + _TICK_S:
            return
        lost_s, self._checked_at = now - self._looked_at, now
        for transfer in list(self._open.values()):
            if lost_s > _TICK_S:
                transfer.deadline += lost_s  # no server's fault
            if now >= transfer.deadline:
                self._end(transfer, Failure("timeout", "no complete response in time", not transfer.connection))

    def _send(self, transfer: Transfer[Token], resolved: Sequence[str]) -> None:
        listed = ",".join(f"[{address}]" if ":" in address else address for address in resolved)
        known = [f"+{transfer.host.removesuffix('.')}:{transfer.port}:{listed}"] if resolved else []
        self._add(transfer.curl, {pycurl.RESOLVE: known, pycurl.FRESH_CONNECT: 0})

    def _add(self, curl: pycurl.Curl, options: Mapping[int, Any]) -> None:
        set_options(curl, {**options, pycurl.VERBOSE: 1})
        self._multi.add_handle(curl)

    def _remove(self, curl: pycurl.Curl) -> None:
        curl.setopt(pycurl.VERBOSE, 0)  # pycurl cannot pass on what libcurl says outside of its loop
        with contextlib.suppress(pycurl.error):  # it was not added
            self._multi.remove_handle(curl)

    def _advance(self, fd: int, flags: int) -> None:
        self._call = fd, time.monotonic()
        self._multi.socket_action(fd, flags)
        self._call = None
        while self._sent:  # libcurl would also pass on every byte of the response
            self._sent.pop().setopt(pycurl.VERBOSE, 0)

    def _end(self, transfer: Transfer[Token], failure: Failure | None) -> None:
        if transfer.connection:
            self._sockets[transfer.connection] = transfer.curl.getinfo(pycurl.ACTIVESOCKET)
            if len(self._sockets) > _KNOWN_SOCKETS:
                del self._sockets[next(iter(self._sockets))]
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
            if (call := self._call) is not None and time.monotonic() > call[1] + MAX_CALL_S:
                for transfer in list(self._open.values()):
                    transfer.cut(call[0])


def _allow_files(concurrency: int) -> int:
    """Raise the limit of open files for some requests, and return for how many idle connections there is room.

    Every request has a connection, by two descriptors, and a temporary file.
    """
    needed, idle = 3 * concurrency + _OTHER_FILES, _IDLE_CONNECTIONS * concurrency
    if (limit := raise_file_limit(needed + idle)) < needed:
        raise UsageError(f"--concurrency {concurrency} needs {needed} open files; the limit of this system is {limit}")
    return limit - needed
