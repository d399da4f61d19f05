"""Certificates, private addresses, credentials."""

from __future__ import annotations

import http.server
import socket
import ssl
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import trustme
from fetch_run import Fetched, run_fetch
from local_web import HTML, PROXY_VARIABLES, Answer, LocalWeb

from pipelines.errors import InputError, UsageError, WebtextError

_TEXT = b"<p>" + b"some words " * 50 + b"</p>"


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*PROXY_VARIABLES, "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)


class _TlsServer:
    def __init__(self, context: ssl.SSLContext) -> None:
        class _Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = b"" if self.path == "/robots.txt" else _TEXT
                self.send_response(404 if self.path == "/robots.txt" else 200)
                self.send_header("Content-Type", HTML)
                if self.path not in ("/cut", "/closed"):
                    self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
                if self.path == "/closed":
                    self.connection.unwrap()  # sends close_notify, which the server itself does not

            def log_message(self, format: str, *args: object) -> None:
                pass

        class _Server(http.server.ThreadingHTTPServer):
            def handle_error(self, request: object, address: object) -> None:
                pass  # clients that refuse the certificate

        self.server = _Server(("127.0.0.1", 0), _Handler)
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)

    def __enter__(self) -> str:
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()
        return f"https://127.0.0.1:{self.server.server_port}/"

    def __exit__(self, *error: object) -> None:
        self.server.shutdown()
        self.server.server_close()


def _tls_context(authority: trustme.CA, *names: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*names).configure_cert(context)
    return context


def test_tls_bodies_without_a_length_end_with_close_notify(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trusted = trustme.CA()
    trusted.cert_pem.write_to_path(str(tmp_path / "authority.pem"))
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "authority.pem"))
    with _TlsServer(_tls_context(trusted, "127.0.0.1")) as server:
        fetched = run_fetch(tmp_path, [f"{server}cut", f"{server}closed", f"{server}length"])
    assert list(fetched.outcomes.values()) == ["incomplete", "ok", "ok"]


def test_public_certificate_authorities_are_the_default(tmp_path: Path) -> None:
    with _TlsServer(_tls_context(trustme.CA(), "127.0.0.1")) as unknown, LocalWeb({"/": _TEXT}) as plain:
        assert list(run_fetch(tmp_path, [unknown, plain.url("/")]).outcomes.values()) == ["tls", "ok"]


def test_an_unreadable_bundle_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "authority.pem").write_text("nothing")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "authority.pem"))
    error = pytest.raises(InputError, match=r"authority.pem; see REQUESTS_CA_BUNDLE")
    with _TlsServer(_tls_context(trustme.CA(), "127.0.0.1")) as server, error:
        run_fetch(tmp_path, [server])


def test_private_addresses_are_refused_before_a_byte_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resolve = socket.getaddrinfo
    answers = {"inside.example": "127.0.0.1", "both.example": "127.0.0.1"}

    def rebinding(host: str, *arguments: object, **options: object) -> object:
        return resolve(answers.get(host, host), *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", rebinding)
    with LocalWeb({"/": _TEXT}) as web:
        urls = [
            web.url("/"),
            f"http://inside.example:{web.port}/",
            f"http://localhost:{web.port}/",
            f"http://a.LocalHost.:{web.port}/",
            f"http://2130706433:{web.port}/",
            f"http://[::ffff:127.0.0.1]:{web.port}/",
            f"https://127.0.0.1:{web.port}/",
        ]
        with pytest.raises(WebtextError) as raised:
            run_fetch(tmp_path, urls, allow_private_addresses=False)
        assert str(raised.value) == (
            "fetch: no pages left: all 7 records were dropped (private_address 7), such as "
            f"{urls[0]} (127.0.0.1 is 127.0.0.1; see --allow-private-addresses), "
            f"{urls[1]} (inside.example is 127.0.0.1; see --allow-private-addresses), "
            f"{urls[2]} (localhost is 127.0.0.1; see --allow-private-addresses); docs/fetch.md explains the reasons; "
            "relax the options, or retry if the cause was temporary"
        )
        assert web.requests == []
    assert list(Fetched(tmp_path / "fetch", None).outcomes.values()) == ["private_address"] * 7


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has all of 127/8 without setting it up")
def test_only_public_addresses_of_a_host_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resolved = []

    def resolve(host: str, port: int, *rest: Any, **options: Any) -> list[Any]:
        if host.startswith("127."):
            return original(host, port, *rest, **options)
        resolved.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"127.0.0.{number}", port)) for number in (3, 2, 1)]

    original = socket.getaddrinfo

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    # 127.0.0.3 is private and has a server; nobody listens at 127.0.0.2, so the third address is the one to use.
    monkeypatch.setattr("pipelines.stages.fetch.addresses.is_public", lambda address: address != "127.0.0.3")
    with socket.socket() as private, LocalWeb({"/": _TEXT}) as web:
        private.bind(("127.0.0.3", web.port))
        private.listen()
        private.settimeout(0.1)
        url = f"http://both.example:{web.port}/"
        fetched = run_fetch(tmp_path, [url], allow_private_addresses=False)
        with pytest.raises(TimeoutError):
            private.accept()
    assert fetched.record(url).rec_headers.get_header("WARC-IP-Address") == "127.0.0.1"
    # One look-up a connection: the address that was checked is the address that was used.
    assert resolved == ["both.example"] * len(resolved)
    assert len(resolved) <= 2


def test_literal_private_addresses_are_refused_behind_a_proxy(tmp_path: Path) -> None:
    pages = {"http://example.org/": _TEXT, "http://127.0.0.1/": _TEXT, "http://10.0.0.1/": _TEXT}
    with LocalWeb(pages) as web, web.as_proxy():
        urls = [*pages, "http://0x7f.1/", "http://localhost/", "http://localhost./", "http://127.0.0.1./"]
        fetched = run_fetch(tmp_path, urls, allow_private_addresses=False)
        assert set(web.paths()) == {"http://example.org/"}
    assert list(fetched.outcomes.values()) == ["ok"] + ["private_address"] * 6


def test_netrc_and_credentials_in_urls_are_not_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password secret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    with LocalWeb({"/a": _TEXT, "/b": _TEXT}) as web:
        run_fetch(tmp_path, [web.url("/a"), web.url("/b").replace("//", "//user:secret@")])
        assert len(web.paths()) == 2
        assert not any("Authorization" in request.headers for request in web.requests)


def test_cookies_do_not_pass_from_page_to_page(tmp_path: Path) -> None:
    cookie = Answer(_TEXT, 200, {"Content-Type": HTML, "Set-Cookie": "a=1"})
    with LocalWeb({"/1": cookie, "/2": cookie, "/3": cookie}) as web:
        run_fetch(tmp_path, [web.url(path) for path in web.pages])
        assert not any("Cookie" in request.headers for request in web.requests)


def test_the_user_agent_contains_the_name_and_the_contact(tmp_path: Path) -> None:
    with LocalWeb({"/": _TEXT}) as web:
        run_fetch(tmp_path, [web.url("/")], contact="mailto:me@example.org")
        assert {request.headers["User-Agent"] for request in web.requests} == {"webtext/0.1 (+mailto:me@example.org)"}
    with pytest.raises(UsageError, match="it and --contact must be printable ASCII"):
        run_fetch(tmp_path, contact="a\nb: c")


def test_a_proxy_variable_that_is_no_address_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://proxy:port")
    with pytest.raises(UsageError, match=r"^http_proxy: is not the address of a proxy"):
        run_fetch(tmp_path, ["http://a.example/"])
