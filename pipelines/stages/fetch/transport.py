"""Connections: to public addresses only, TLS verified, and never longer than the deadline of their request.

A socket timeout limits one read, so a server that sends one byte per second would block a client forever. Each request
is therefore an `Attempt` that knows its socket; a thread of the client shuts it down after the deadline.
"""

from __future__ import annotations

import contextlib
import functools
import http.client
import io
import ipaddress
import logging
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import requests
from requests.adapters import HTTPAdapter
from requests.cookies import RequestsCookieJar, extract_cookies_to_jar
from requests.utils import DEFAULT_CA_BUNDLE_PATH, select_proxy
from urllib3 import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import ConnectTimeoutError, NameResolutionError, NewConnectionError
from urllib3.util.connection import allowed_gai_family, create_connection
from urllib3.util.ssl_ import create_urllib3_context

from pipelines import storage
from pipelines.errors import InputError

_CONNECT_TIMEOUT_S = 10.0
_TICK_S = 0.25
_POOLS_PER_THREAD = 8
# Of all headers of a response, and the framing of its body.
_MAX_LINES_BYTES = 1 << 18
# Visits wait with their cookies in the queue of the host that they were redirected to.
_MAX_COOKIE_BYTES = 1 << 14

# urllib3 otherwise reports malformed headers and discarded connections on standard error.
logging.getLogger("urllib3").setLevel(logging.ERROR)


# Blocks without public hosts, from IANA's IPv4 and IPv6 Special-Purpose Address Registries and multicast. The table is
# explicit because `ipaddress` changes between releases of Python: 3.11.7 counts 192.0.0.8 as global. 192.0.0.0/24
# (with Oracle Cloud's metadata, 192.0.0.192) and 2001::/23 are listed whole: their few public addresses are anycast
# addresses of protocols other than HTTP.
_IPV4_SPECIAL = tuple(
    ipaddress.IPv4Network(block)
    for block in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",  # shared; Alibaba Cloud's metadata (100.100.100.200)
        "127.0.0.0/8",
        "168.63.129.16/32",  # Azure's platform services: in no registry, reachable from every virtual machine
        "169.254.0.0/16",  # link-local; metadata of most clouds (169.254.169.254)
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.88.99.0/24",
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
    )
)
# All public IPv6 hosts are in 2000::/3. 2001::/23 includes Teredo, which embeds an obfuscated IPv4 address.
_IPV6_UNICAST = ipaddress.IPv6Network("2000::/3")
_IPV6_SPECIAL = tuple(map(ipaddress.IPv6Network, ("2001::/23", "2001:db8::/32", "3fff::/20")))
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


class PrivateAddressError(Exception):
    """A request was about to go to an address outside the public internet."""


def is_public(address: str) -> bool:
    """Return whether an IP address, as the operating system formats it, belongs to the public internet.

    IPv4 addresses embedded in IPv6 (mapped, NAT64, 6to4) are classified as the IPv4 address.
    """
    ip = ipaddress.ip_address(address.split("%", 1)[0])
    if isinstance(ip, ipaddress.IPv4Address):
        return not any(ip in block for block in _IPV4_SPECIAL)
    nat64 = ipaddress.IPv4Address(ip.packed[-4:]) if ip in _NAT64 else None
    embedded = ip.ipv4_mapped or ip.sixtofour or nat64
    if embedded is not None:
        return is_public(str(embedded))
    return ip in _IPV6_UNICAST and not any(ip in block for block in _IPV6_SPECIAL)


def literal_address(host: str) -> str | None:
    """Return the IP address that a host name spells out, also as `0x7f.1` or `2130706433`; None for a DNS name.

    A final dot, which marks a DNS name as complete, is ignored.
    """
    host = host.removesuffix(".")
    if host == "localhost" or host.endswith(".localhost"):
        return "127.0.0.1"
    with contextlib.suppress(ValueError):
        return str(ipaddress.ip_address(host.strip("[]").split("%", 1)[0]))
    with contextlib.suppress(OSError, ValueError):
        return socket.inet_ntoa(socket.inet_aton(host))
    return None


class Attempt:
    """One request: its deadline on the monotonic clock and its socket; `reused` if an earlier request opened that."""

    def __init__(self, timeout_s: float, public_only: bool) -> None:
        self.deadline = time.monotonic() + timeout_s
        self.public_only = public_only
        self.connected = False
        self.reused = False
        self.peer: str | None = None
        self._aborted = False
        self._socket: socket.socket | None = None

    @property
    def remaining_s(self) -> float:
        """Seconds left; at least a little, since sockets take 0 for "no timeout"."""
        return max(0.01, self.deadline - time.monotonic())

    @property
    def is_overdue(self) -> bool:
        """Whether the deadline has passed, or the attempt was aborted."""
        return self._aborted or time.monotonic() >= self.deadline

    def watch(self, connecting: socket.socket) -> None:
        """Set the socket that `abort` shuts down."""
        self._socket = connecting
        if self._aborted:
            self.abort()

    def require_close_notify(self) -> None:
        """Make a read raise SSLEOFError if the TLS connection ends without the message that says so.

        Otherwise, whoever can break the connection can cut a body without a length.
        """
        if isinstance(self._socket, ssl.SSLSocket):
            self._socket.suppress_ragged_eofs = False  # type: ignore[attr-defined]

    def abort(self) -> None:
        """Make every read from the socket return at once."""
        self._aborted = True
        if self._socket is not None:
            # Not SSLSocket.shutdown, which would remove the TLS layer under the thread that reads.
            with contextlib.suppress(OSError):
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)


class Client:
    """Sends GET requests from many threads, each with its own attempt; `close` ends them."""

    def __init__(self, headers: Mapping[str, str], threads: int, allow_private_addresses: bool) -> None:
        self._headers = dict(headers)
        self._public_only = not allow_private_addresses
        # Only used to read proxies and certificates from the environment; it sends nothing.
        self._environment = requests.Session()
        settings = self._environment.merge_environment_settings(
            "https://example.org/", proxies={}, stream=True, verify=None, cert=None
        )
        self._adapter = _Adapter(threads, _tls_context(settings["verify"]))
        self._attempts: set[Attempt] = set()  # copied by `list` in one step, while other threads change it
        self._closed = threading.Event()
        threading.Thread(target=self._abort_overdue, daemon=True).start()

    @contextlib.contextmanager
    def attempt(self, timeout_s: float) -> Iterator[Attempt]:
        """Yield an attempt that ends at its deadline; `open` in the same thread uses it."""
        attempt = Attempt(timeout_s, self._public_only)
        self._attempts.add(attempt)
        _thread.attempt = attempt
        try:
            yield attempt
        finally:
            _thread.attempt = None
            self._attempts.discard(attempt)

    def open(self, url: str, cookies: RequestsCookieJar, attempt: Attempt) -> requests.Response:
        """Send a request and return the response with its body unread; redirects are not followed.

        Raises what requests, urllib3 and sockets raise, and PrivateAddressError.
        """
        prepared = requests.PreparedRequest()
        # The auth callable keeps requests from sending the credentials of ~/.netrc or of the URL.
        prepared.prepare("GET", url, headers=self._headers, cookies=cookies, auth=lambda request: request)
        settings = self._environment.merge_environment_settings(url, proxies={}, stream=True, verify=None, cert=None)
        proxies = settings["proxies"]
        if self._public_only and select_proxy(url, proxies):
            # The proxy resolves all other names.
            host = urlsplit(url).hostname or ""
            if (address := literal_address(host)) is not None and not is_public(address):
                raise PrivateAddressError(f"{host} is {address}")
        timeouts = (min(_CONNECT_TIMEOUT_S, attempt.remaining_s), attempt.remaining_s)
        while True:
            attempt.reused = False
            try:
                # The adapter, not the session: a session reads the bodies of redirects, however long they are.
                response = self._adapter.send(prepared, stream=True, timeout=timeouts, proxies=proxies)
                break
            except requests.ConnectionError:
                # A server may close an idle connection at any time, even while we write to it (RFC 9112, 9.3.1), which
                # says nothing about the page. The pool has dropped that connection, so the last try uses a new one.
                if not attempt.reused or attempt.is_overdue:
                    raise
        if sum(map(len, response.raw.headers.getlist("Set-Cookie"))) <= _MAX_COOKIE_BYTES:
            extract_cookies_to_jar(cookies, prepared, response.raw)  # type: ignore[no-untyped-call]
        return response

    def close(self) -> None:
        """Abort every attempt and close all connections."""
        self._closed.set()
        for attempt in list(self._attempts):
            attempt.abort()
        self._adapter.close()

    def _abort_overdue(self) -> None:
        while not self._closed.wait(_TICK_S):
            for attempt in list(self._attempts):
                if attempt.is_overdue:
                    attempt.abort()


class _Thread(threading.local):
    """The attempt of a thread: requests and urllib3 cannot pass it to the connection that they choose."""

    attempt: Attempt | None = None


_thread = _Thread()


class _LimitedReader(io.BufferedReader):
    """Limits the lines of a response, all together: headers, also of interim responses, sizes of chunks, trailers."""

    _left = _MAX_LINES_BYTES

    def readline(self, size: int | None = -1) -> bytes:
        line = super().readline(size)
        self._left -= len(line)
        if self._left < 0:
            raise http.client.HTTPException(f"more than {_MAX_LINES_BYTES:,} bytes of headers and sizes of chunks")
        return line


class _HttpResponse(http.client.HTTPResponse):
    """Refuses negative sizes of chunks, and sizes that are not even plausible; skips every interim response."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.fp = _LimitedReader(self.fp.detach())

    def _read_status(self) -> tuple[str, int, str]:
        version, status, reason = super()._read_status()  # type: ignore[misc]
        # http.client skips only the first of these, but any may precede a response (RFC 9110, 15.2).
        return version, 100 if status in range(102, 200) else status, reason

    def _read_next_chunk_size(self) -> int:
        size = int(super()._read_next_chunk_size())  # type: ignore[misc]
        if not 0 <= size < 1 << 60:
            raise http.client.HTTPException(f"chunk size {hex(size)[:40]}")
        return size


class _TlsSocket(ssl.SSLSocket):
    """Can be aborted in the handshake: OpenSSL does not return from it while it reads messages that mean nothing."""

    def do_handshake(self, block: bool = False) -> None:
        if _thread.attempt is not None:
            _thread.attempt.watch(self)
        super().do_handshake(block)


class _Connection(HTTPConnection):
    """Reports its socket to the thread's attempt, and connects to public addresses only if the attempt requires it.

    It resolves the name itself, so that the address that was checked is the one that is connected to. Connections to a
    proxy are not checked, because the user has named the proxy.
    """

    response_class = _HttpResponse
    _used = False

    @property
    def is_connected(self) -> bool:
        """Whether the connection can be reused: whatever is readable now, also in the TLS layer, answers no request."""
        pending = getattr(self.sock, "pending", None)
        return super().is_connected and not (pending is not None and pending())

    def connect(self) -> None:
        super().connect()
        self._used = False
        self._report_socket()

    def request(self, *arguments: Any, **options: Any) -> None:
        if self.sock is not None:  # urllib3 connects before the first request with TLS, and with the request without
            self._report_socket(reused=self._used)
        super().request(*arguments, **options)
        self._used = True

    def _report_socket(self, reused: bool = False) -> None:
        attempt = _thread.attempt
        if attempt is not None:
            attempt.reused = reused
            with contextlib.suppress(OSError):
                attempt.peer = None if self.proxy else self.sock.getpeername()[0]
                attempt.connected = True
                attempt.watch(self.sock)

    def _new_conn(self) -> socket.socket:
        attempt = _thread.attempt
        if self.proxy or attempt is None or not attempt.public_only:
            return super()._new_conn()
        try:
            resolved = socket.getaddrinfo(self.host, self.port, allowed_gai_family(), socket.SOCK_STREAM)
        except socket.gaierror as error:
            raise NameResolutionError(self.host, self, error) from error
        public = [entry for entry in resolved if is_public(str(entry[4][0]))]
        if not public:
            raise PrivateAddressError(f"{self.host} is {resolved[0][4][0]}")
        deadline = time.monotonic() + (self.timeout if isinstance(self.timeout, int | float) else _CONNECT_TIMEOUT_S)
        for index, entry in enumerate(public):
            share_s = max(0.01, deadline - time.monotonic()) / (len(public) - index)
            try:
                connection = create_connection(
                    (str(entry[4][0]), self.port or 0), share_s, socket_options=self.socket_options
                )
                connection.settimeout(self.timeout)
                return connection
            except OSError as error:
                cause = error
        if isinstance(cause, TimeoutError):
            raise ConnectTimeoutError(self, f"no connection to {entry[4][0]} in time") from cause
        raise NewConnectionError(self, str(cause)) from cause


class _TlsConnection(_Connection, HTTPSConnection):
    pass


class _Pool(HTTPConnectionPool):
    ConnectionCls = _Connection


class _TlsPool(HTTPSConnectionPool):
    ConnectionCls = _TlsConnection


_POOLS = {"http": _Pool, "https": _TlsPool}


class _Adapter(HTTPAdapter):
    """Makes requests use our connection classes and one shared TLS context."""

    def __init__(self, threads: int, context: ssl.SSLContext) -> None:
        self._context = context
        super().__init__(pool_connections=threads * _POOLS_PER_THREAD, pool_maxsize=threads)

    def init_poolmanager(self, *arguments: Any, **options: Any) -> None:
        super().init_poolmanager(*arguments, **options, ssl_context=self._context)
        self.poolmanager.pool_classes_by_scheme = _POOLS

    def proxy_manager_for(self, proxy: str, **options: Any) -> Any:
        manager = super().proxy_manager_for(proxy, **options, ssl_context=self._context)
        if not proxy.lower().startswith("socks"):
            manager.pool_classes_by_scheme = _POOLS
        return manager

    def cert_verify(self, *arguments: Any) -> None:
        """Leave verification to the shared context; requests would load all CA certificates for each connection."""


@functools.lru_cache(maxsize=4)
def _tls_context(bundle: str | bool | None) -> ssl.SSLContext:
    """Return the context of every TLS connection, which requires a valid certificate for the host.

    There is one context per process because loading the CA certificates takes longer than fetching a page.
    """
    path = bundle if isinstance(bundle, str) else DEFAULT_CA_BUNDLE_PATH
    context = create_urllib3_context(cert_reqs=ssl.CERT_REQUIRED)
    context.sslsocket_class = _TlsSocket
    try:
        if storage.is_folder(path):
            context.load_verify_locations(capath=path)
        else:
            context.load_verify_locations(cafile=path)
    except (OSError, ssl.SSLError) as error:
        raise InputError(f"{path}: cannot be read as certificates ({error}); see REQUESTS_CA_BUNDLE") from error
    return context
