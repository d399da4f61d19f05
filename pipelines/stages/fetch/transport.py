"""Connections: only to public addresses, verified by TLS, and never longer than their request's deadline.

A socket timeout bounds one read, so a server that sends a byte a second holds a client for ever. Each request is
therefore an `Attempt` that knows its socket; `Client.end_overdue`, called a few times a second, shuts that down.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any, cast
from urllib.parse import urlsplit

import requests
from requests.adapters import HTTPAdapter
from requests.cookies import RequestsCookieJar, extract_cookies_to_jar
from requests.utils import DEFAULT_CA_BUNDLE_PATH, select_proxy
from urllib3 import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import ConnectTimeoutError, NameResolutionError, NewConnectionError
from urllib3.util.connection import allowed_gai_family
from urllib3.util.ssl_ import create_urllib3_context

from pipelines.core import storage
from pipelines.core.errors import InputError
from pipelines.stages.fetch.addresses import PrivateAddressError, is_public, literal_address

_CONNECT_TIMEOUT_S = 10.0
_POOLS_PER_THREAD = 8

# urllib3 reports a server's odd headers, and connections that it does not keep, on standard error otherwise.
logging.getLogger("urllib3").setLevel(logging.ERROR)


class Attempt:
    """One request: its deadline on the monotonic clock, and the socket that it uses; `kept`: by an earlier one too."""

    def __init__(self, timeout_s: float) -> None:
        self.deadline = time.monotonic() + timeout_s
        self.connected = False
        self.kept = False
        self.peer: str | None = None
        self.ended = False
        self._socket: socket.socket | None = None

    @property
    def remaining_s(self) -> float:
        """Seconds left; at least a little, since 0 means "for ever" to sockets."""
        return max(0.01, self.deadline - time.monotonic())

    @property
    def overdue(self) -> bool:
        """Tell whether the deadline has passed, or somebody ended the attempt."""
        return self.ended or time.monotonic() >= self.deadline

    def hold(self, connected: socket.socket, peer: str | None) -> None:
        """Take the socket on which the request is about to go out."""
        self._socket, self.connected, self.peer = connected, True, peer
        if self.ended:
            self.end()

    def end(self) -> None:
        """Make whoever reads from the socket return at once."""
        self.ended = True
        held = self._socket
        if held is not None:
            # Not SSLSocket.shutdown: that one would drop the TLS layer under the thread that reads.
            with contextlib.suppress(OSError):
                socket.socket.shutdown(held, socket.SHUT_RDWR)


class Client:
    """Sends GET requests; safe for use by many threads, each with an attempt of its own."""

    def __init__(self, headers: Mapping[str, str], threads: int, allow_private_addresses: bool) -> None:
        self._headers = dict(headers)
        self._allow_private_addresses = allow_private_addresses
        # Only asked what the environment says of proxies and certificates; it sends nothing.
        self._environment = requests.Session()
        authorities = self._environment.merge_environment_settings("https://example.org/", {}, True, None, None)
        self._adapter = _Adapter(threads, not allow_private_addresses, _tls_context(authorities["verify"]))
        self._attempts: set[Attempt] = set()
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def attempt(self, timeout_s: float) -> Iterator[Attempt]:
        """Yield an attempt that ends at its deadline; `open` in the same thread uses it."""
        attempt = Attempt(timeout_s)
        with self._lock:
            self._attempts.add(attempt)
        _current.attempt = attempt
        try:
            yield attempt
        finally:
            _current.attempt = None
            with self._lock:
                self._attempts.discard(attempt)

    def open(self, url: str, cookies: RequestsCookieJar, attempt: Attempt) -> requests.Response:
        """Send a request and return the response with its body unread; redirects are not followed.

        Raises what requests, urllib3 and sockets raise, and PrivateAddressError.
        """
        prepared = requests.PreparedRequest()
        # The auth callable keeps requests from sending what ~/.netrc or the URL hold.
        prepared.prepare("GET", url, headers=self._headers, cookies=cookies, auth=lambda request: request)
        settings = self._environment.merge_environment_settings(url, {}, True, None, None)
        if not self._allow_private_addresses and select_proxy(url, settings["proxies"]):
            _refuse_private_literal(url)
        timeouts = (min(_CONNECT_TIMEOUT_S, attempt.remaining_s), attempt.remaining_s)
        while True:
            attempt.kept = False
            try:
                # The adapter, not the session: a session reads the bodies of redirects, however long they are.
                response = self._adapter.send(prepared, stream=True, timeout=timeouts, proxies=settings["proxies"])
                break
            except requests.ConnectionError:
                # A server may close a kept connection at any time, also just as we write to it (RFC 9112, 9.3.1),
                # which says nothing of the page. The pool has lost that connection, so the last try is on a new one.
                if not attempt.kept or attempt.overdue:
                    raise
        extract_cookies_to_jar(cookies, prepared, response.raw)  # type: ignore[no-untyped-call]
        return response

    def end_overdue(self) -> None:
        """End every attempt whose deadline has passed."""
        now = time.monotonic()
        for attempt in self._open_attempts():
            if now >= attempt.deadline:
                attempt.end()

    def close(self) -> None:
        """End every attempt and close all connections."""
        for attempt in self._open_attempts():
            attempt.end()
        self._adapter.close()

    def _open_attempts(self) -> list[Attempt]:
        with self._lock:
            return list(self._attempts)


# requests and urllib3 hand nothing of ours down to the connection that they choose.
_current = threading.local()


def _attempt() -> Attempt | None:
    return cast(Attempt | None, getattr(_current, "attempt", None))


class _Watched(HTTPConnection):
    """Tells the thread's attempt which socket its request uses, be it new or kept from an earlier request."""

    def connect(self) -> None:
        super().connect()
        self._tell_attempt()

    def request(self, *arguments: Any, **options: Any) -> None:
        if self.sock is not None:
            self._tell_attempt(kept=True)
        super().request(*arguments, **options)

    def _tell_attempt(self, kept: bool = False) -> None:
        attempt = _attempt()
        if attempt is not None:
            attempt.kept = kept
            with contextlib.suppress(OSError):
                attempt.hold(self.sock, None if self.proxy else self.sock.getpeername()[0])


class _Guarded(_Watched):
    """Connects to public addresses only: those that it has looked up itself, so no later answer can differ."""

    def _new_conn(self) -> socket.socket:
        try:
            found = socket.getaddrinfo(self.host, self.port, allowed_gai_family(), socket.SOCK_STREAM)
        except socket.gaierror as error:
            raise NameResolutionError(self.host, self, error) from error
        public = [entry for entry in found if is_public(str(entry[4][0]))]
        if not public:
            raise PrivateAddressError(f"{self.host} is {found[0][4][0]}")
        deadline = time.monotonic() + (self.timeout if isinstance(self.timeout, int | float) else _CONNECT_TIMEOUT_S)
        for number, (family, kind, protocol, _, address) in enumerate(public):
            share_s = max(0.01, deadline - time.monotonic()) / (len(public) - number)
            try:
                return _connected(family, kind, protocol, address, share_s, self.timeout)
            except TimeoutError as error:
                problem: Exception = ConnectTimeoutError(self, f"no connection to {address[0]} in time")
                problem.__cause__ = error
            except OSError as error:
                problem = NewConnectionError(self, str(error))
                problem.__cause__ = error
        raise problem


def _connected(family: int, kind: int, protocol: int, address: Any, connect_s: float, timeout_s: Any) -> socket.socket:
    opened = socket.socket(family, kind, protocol)
    try:
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        opened.settimeout(connect_s)
        opened.connect(address)
        opened.settimeout(timeout_s)
    except OSError:
        opened.close()
        raise
    return opened


class _WatchedTls(_Watched, HTTPSConnection):
    pass


class _GuardedTls(_Guarded, HTTPSConnection):
    pass


class _WatchedPool(HTTPConnectionPool):
    ConnectionCls = _Watched


class _WatchedTlsPool(HTTPSConnectionPool):
    ConnectionCls = _WatchedTls


class _GuardedPool(HTTPConnectionPool):
    ConnectionCls = _Guarded


class _GuardedTlsPool(HTTPSConnectionPool):
    ConnectionCls = _GuardedTls


_WATCHED = {"http": _WatchedPool, "https": _WatchedTlsPool}
_GUARDED = {"http": _GuardedPool, "https": _GuardedTlsPool}


class _Adapter(HTTPAdapter):
    """Makes requests use our connections; those to a proxy are not guarded, for the user has named it."""

    def __init__(self, threads: int, guarded: bool, context: ssl.SSLContext) -> None:
        self._pool_classes = _GUARDED if guarded else _WATCHED
        self._context = context
        super().__init__(pool_connections=threads * _POOLS_PER_THREAD, pool_maxsize=threads)

    def init_poolmanager(self, *arguments: Any, **options: Any) -> None:
        super().init_poolmanager(*arguments, **options, ssl_context=self._context)
        self.poolmanager.pool_classes_by_scheme = self._pool_classes

    def proxy_manager_for(self, proxy: str, **options: Any) -> Any:
        manager = super().proxy_manager_for(proxy, **options, ssl_context=self._context)
        if not proxy.lower().startswith("socks"):
            manager.pool_classes_by_scheme = _WATCHED
        return manager

    def cert_verify(self, *arguments: Any) -> None:
        """Leave the connection to the shared context; requests would read all authorities again for each one."""


def _tls_context(authorities: str | bool | None) -> ssl.SSLContext:
    """Return the context of every TLS connection: certificates are required, and must be for the host.

    It is made once because reading the authorities takes longer than a page does.
    """
    bundle = authorities if isinstance(authorities, str) else DEFAULT_CA_BUNDLE_PATH
    context = create_urllib3_context(cert_reqs=ssl.CERT_REQUIRED)
    try:
        if storage.is_folder(bundle):
            context.load_verify_locations(capath=bundle)
        else:
            context.load_verify_locations(cafile=bundle)
    except (OSError, ssl.SSLError) as error:
        raise InputError(f"{bundle}: cannot be read as certificates ({error}); see REQUESTS_CA_BUNDLE") from error
    return context


def _refuse_private_literal(url: str) -> None:
    """Check a host that spells out an address; a name is resolved by the proxy, out of our sight."""
    host = urlsplit(url).hostname or ""
    address = literal_address(host)
    if address is not None and not is_public(address):
        raise PrivateAddressError(f"{host} is {address}")
