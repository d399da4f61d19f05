"""The client of pages on its own: connections, names, cookies, memory."""

from __future__ import annotations

import contextlib
import resource
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from local_web import HTML, Answer, LocalWeb
from warm_processes import start_process

from pipelines.engine.machine import peak_bytes, resident_bytes
from pipelines.errors import StorageError, UsageError
from pipelines.stages.fetch import addresses, transfer
from pipelines.stages.fetch.exchange import Exchange
from pipelines.stages.fetch.transfer import Request
from pipelines.stages.fetch.transport import Client
from pipelines.stages.fetch.warc import exchange_records

_PAGE = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 4\r\n\r\n"


def _request(url: str, timeout_s: float = 5.0, **options: Any) -> Request:
    return Request(url, timeout_s, 1 << 20, lambda response: response.status == 200, **options)


@contextlib.contextmanager
def _client(concurrency: int = 8, public_only: bool = False) -> Iterator[Client[str]]:
    with contextlib.closing(Client[str]({"User-Agent": "a"}, concurrency, not public_only)) as client:
        yield client


def _exchanges(client: Client[str], urls: list[str], timeout_s: float = 5.0) -> dict[str, Exchange]:
    """Request URLs at the same time; return their exchanges, in the order in which they ended."""
    for url in urls:
        client.start(_request(url, timeout_s), url)
    ended: dict[str, Exchange] = {}
    while len(ended) < len(urls):
        if (entry := client.next_exchange(1.0)) is not None:
            ended[entry[0]] = entry[1]
    return ended


def _trusted_tls(folder: Path, monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext:
    """Return the context of a server whose certificate requests trust during a test."""
    trusted, context = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trusted.issue_cert("127.0.0.1").configure_cert(context)
    trusted.cert_pem.write_to_path(str(folder / "authority.pem"))
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(folder / "authority.pem"))
    return context


@contextlib.contextmanager
def _server(handle: Callable[[socket.socket, int], None], context: ssl.SSLContext | None = None) -> Iterator[int]:
    """Yield the port of a server that handles each connection, and its number, in a thread."""

    def accept() -> None:
        with contextlib.suppress(OSError):  # closed
            for number in range(1000):
                connection = listening.accept()[0]
                if context is not None:
                    connection = context.wrap_socket(connection, server_side=True)
                threading.Thread(target=serve, args=(connection, number), daemon=True).start()

    def serve(connection: socket.socket, number: int) -> None:
        with connection, contextlib.suppress(OSError):
            handle(connection, number)

    with socket.create_server(("127.0.0.1", 0), backlog=256) as listening:
        threading.Thread(target=accept, daemon=True).start()
        yield listening.getsockname()[1]


def _resolve_with(monkeypatch: pytest.MonkeyPatch, answer: Callable[[str], list[str]]) -> None:
    def resolve(host: str, port: int, *_: object) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in answer(host)]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)


@pytest.mark.parametrize("second", [_PAGE + b"2nd!", b"and more text"], ids=["second answer", "longer body"])
@pytest.mark.parametrize("pause_s", [0.0, 0.05], ids=["at once", "late"])
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_what_was_sent_before_a_request_is_not_its_answer(
    scheme: str, pause_s: float, second: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = _trusted_tls(tmp_path, monkeypatch)

    def handle(connection: socket.socket, number: int) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, not pause_s)
        while path := connection.recv(1 << 16)[4:6].decode():
            time.sleep(0.01)
            connection.sendall(_PAGE + f"{number}{path}.".encode())
            if path == "/a":  # in a TLS record of its own
                time.sleep(pause_s)
                connection.sendall(second)

    with _server(handle, context if scheme == "https" else None) as port, _client() as client:
        bodies = []
        for path in "abc":
            exchange = client.perform(_request(f"{scheme}://127.0.0.1:{port}/{path}"), "")
            assert exchange.response is not None, exchange.failure
            bodies.append(exchange.response.body)
            time.sleep(0.1)
    assert bodies == [b"0/a.", b"1/b.", b"1/c."]


def test_cookies_of_another_request_are_never_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(host: str) -> list[str]:
        raise socket.gaierror(socket.EAI_AGAIN, host)

    _resolve_with(monkeypatch, resolve)
    cookie = Answer(b"text", 200, {"Content-Type": HTML, "Set-Cookie": "a=1; Domain=127.0.0.1"})
    with LocalWeb({"/": cookie}) as web, _client(1) as client:
        first = client.perform(_request(web.url("/")), "")
        assert len(first.cookies) == 1
        assert client.perform(_request("http://a.example/"), "").cookies == ()
        assert client.perform(_request("http://a.example/", cookies=first.cookies), "").cookies == first.cookies
        client.perform(_request(web.url("/")), "")
        client.perform(_request(web.url("/"), cookies=first.cookies), "")
        assert [request.headers.get("Cookie") for request in web.requests] == [None, None, "a=1"]


def test_a_proxy_is_used_as_requests_reads_the_environment() -> None:
    with LocalWeb({"http://a.example/": b"text"}) as web, web.as_proxy(), pytest.MonkeyPatch.context() as patch:
        patch.setenv("http_proxy", web.url("").replace("//", "//user:secret@"))
        patch.setenv("no_proxy", "a.example b.example")  # libcurl would split this at the space
        with _client(public_only=True) as client:
            exchange = client.perform(_request("http://a.example/"), "")
            refused = client.perform(_request("https://a.example/"), "")
        assert "Proxy-Authorization" in web.requests[0].headers
    assert exchange.response is not None
    assert exchange.peer is None
    assert exchange.request.startswith(b"GET / HTTP/1.1\r\nHost: a.example\r\n")
    assert b"Proxy" not in exchange.request
    assert exchange_records(exchange)
    assert refused.failure is not None
    assert (refused.failure.reason, refused.request) == ("connection", b"")


def test_the_request_is_recorded_whole_and_once() -> None:
    def handle(connection: socket.socket, number: int) -> None:
        if number == 1:
            time.sleep(0.3)  # while the rest of the request does not fit into buffers
        request = b""
        while not request.endswith(b"\r\n\r\n"):
            request += connection.recv(1 << 10)
        requests.append(request)
        connection.sendall(_PAGE + b"text")
        time.sleep(0.2)  # then the idle connection ends

    requests: list[bytes] = []
    cookies = [f"127.0.0.1\tFALSE\t/\tFALSE\t0\tname{number}\t{'v' * 4000}".encode() for number in range(3)]
    with _server(handle) as port, _client() as client:
        for _ in range(2):
            exchange = client.perform(_request(f"http://127.0.0.1:{port}/{'p' * 15_000}", cookies=cookies), "")
            assert exchange.request == requests[-1]
            assert len(exchange.request) > 23_000
            time.sleep(0.3)


def test_a_dead_public_address_is_no_private_one(monkeypatch: pytest.MonkeyPatch) -> None:
    _resolve_with(monkeypatch, lambda host: ["10.0.0.1", "127.0.0.2"] if "both" in host else ["10.0.0.1"])
    monkeypatch.setattr(addresses, "is_public", lambda address: address.startswith("127."))
    with socket.create_server(("127.0.0.1", 0)) as listening, _client(public_only=True) as client:
        port = listening.getsockname()[1]  # that nobody listens to at 127.0.0.2
        urls = [f"http://{name}.example:{port}/" for name in ("both", "private")]
        reasons = {
            url: exchange.failure and exchange.failure.reason for url, exchange in _exchanges(client, urls).items()
        }
    assert reasons == dict(zip(urls, ["connection", "private_address"], strict=True))


def test_slow_names_hold_up_no_other_host_and_count_for_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(host: str) -> list[str]:
        if "slow" in host:
            released.wait(20)
        return ["127.0.0.1"]

    released = threading.Event()
    _resolve_with(monkeypatch, resolve)
    with LocalWeb({"/": b"text"}) as web, _client(64) as client:
        urls = [f"http://slow{number}.example:{web.port}/" for number in range(40)]
        started = time.monotonic()
        ended = _exchanges(client, [*urls, f"http://fast.example:{web.port}/"], 2.0)
        seconds = time.monotonic() - started
        released.set()
    first, *others = ended.values()
    assert first.response is not None
    assert first.seconds < 1.5
    assert {(other.failure and (other.failure.reason, other.failure.retryable)) for other in others} == {
        ("timeout", True)
    }
    assert 2.0 <= seconds < 6.0


def test_a_body_that_cannot_be_stored_is_no_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> bool:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(transfer.Transfer, "_read_body", refuse)
    with LocalWeb({"/": b"text"}) as web, _client() as client, pytest.raises(StorageError, match="free some space"):
        client.perform(_request(web.url("/")), "")


def test_more_requests_than_files_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 1024))
    with pytest.raises(UsageError, match="--concurrency 512 needs 1792 open files; the limit of this system is 1024"):
        Client[str]({}, 512, allow_private_addresses=False)


_BODY_BYTES, _REQUESTS = 1 << 20, 200


def _receive_large_bodies(folder: Path, port: int) -> None:
    with _client(_REQUESTS) as client:
        idle_bytes = resident_bytes() or 0
        ended = 0
        for number in range(_REQUESTS):
            client.start(_request(f"http://127.0.0.1:{port}/{number}", 60.0), "")
        while ended < _REQUESTS:
            if (entry := client.next_exchange(1.0)) is not None:
                ended += 1
                assert entry[1].response is not None, entry[1].failure
                assert len(entry[1].response.body or b"") == _BODY_BYTES
        (folder / "bytes").write_text(str(peak_bytes()["peak_bytes"] - idle_bytes))


def test_large_bodies_that_end_at_the_same_time_are_not_all_in_memory(tmp_path: Path) -> None:
    def handle(connection: socket.socket, _: int) -> None:
        connection.recv(1 << 16)
        connection.sendall(_PAGE.replace(b"4", b"%d" % _BODY_BYTES) + b"x" * (_BODY_BYTES - 10))
        all_sent.wait(60)
        connection.sendall(b"x" * 10)

    all_sent = threading.Barrier(_REQUESTS)
    with _server(handle) as port:
        process = start_process(_receive_large_bodies, tmp_path, port)
        process.join(90)
    assert process.exitcode == 0
    assert int((tmp_path / "bytes").read_text()) < (_REQUESTS << 18) + (30 << 20)


def test_a_host_that_resets_connections_was_reached() -> None:
    def handle(connection: socket.socket, _: int) -> None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    with _server(handle) as port, _client() as client:
        reset = client.perform(_request(f"http://127.0.0.1:{port}/"), "")
    with socket.socket() as unheard, _client() as client:
        unheard.bind(("127.0.0.1", 0))
        refused = client.perform(_request(f"http://127.0.0.1:{unheard.getsockname()[1]}/"), "")
    assert [(entry.failure and entry.failure.reason, entry.reached) for entry in (reset, refused)] == [
        ("connection", True), ("connection", False),
    ]  # fmt: skip


@pytest.mark.parametrize(("body_bytes", "connections"), [(10_000, 1), (30_000, 2)])
def test_a_connection_is_used_again_after_a_short_body_that_nobody_wants(body_bytes: int, connections: int) -> None:
    def handle(connection: socket.socket, number: int) -> None:
        numbers.add(number)
        while connection.recv(1 << 16):
            head = b"HTTP/1.1 404 Not Found\r\nContent-Length: %d\r\n\r\n" % body_bytes
            connection.sendall(head + b"x" * body_bytes)

    numbers: set[int] = set()
    with _server(handle) as port, _client() as client:
        for _ in range(2):
            exchange = client.perform(_request(f"http://127.0.0.1:{port}/"), "")
            assert exchange.response is not None
            assert (exchange.failure, exchange.response.status, exchange.response.body) == (None, 404, None)
            assert exchange.response.truncated == "unspecified"
    assert len(numbers) == connections


@pytest.mark.parametrize(("length", "longest_s"), [("Content-Length: 9\r\n", 2.0), ("", 0.5)])
def test_a_body_that_nobody_wants_and_that_never_ends_is_no_timeout(length: str, longest_s: float) -> None:
    def handle(connection: socket.socket, _: int) -> None:
        connection.recv(1 << 16)
        connection.sendall(f"HTTP/1.1 302 Found\r\nLocation: /other\r\n{length}\r\n".encode())
        time.sleep(5)

    with _server(handle) as port, _client() as client:
        exchange = client.perform(_request(f"http://127.0.0.1:{port}/", 30), "")
    assert (exchange.failure, exchange.status) == (None, 302)
    assert exchange.seconds < longest_s  # the redirected page has the rest of the time


def test_a_tls_connection_that_ends_when_it_is_used_again_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = _trusted_tls(tmp_path, monkeypatch)

    def handle(connection: socket.socket, number: int) -> None:
        connection.recv(1 << 16)
        connection.sendall(_PAGE + f"{number}...".encode())
        connection.recv(1 << 16)  # and closes the connection

    with _server(handle, context) as port, _client() as client:
        bodies = []
        for _ in range(3):
            exchange = client.perform(_request(f"https://127.0.0.1:{port}/"), "")
            assert exchange.response is not None, exchange.failure
            bodies.append(exchange.response.body)
    assert bodies == [b"0...", b"1...", b"2..."]
