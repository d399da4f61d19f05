"""What becomes of each kind of page, from real servers on loopback."""

from __future__ import annotations

import contextlib
import gzip
import http.server
import socket
import ssl
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trustme
from fetch_run import Fetched, read_rows, run_fetch
from local_web import HTML, PROXY_VARIABLES, Answer, LocalWeb

from pipelines.core.errors import InputError, UsageError, WebtextError
from pipelines.stages.fetch import crawl, visit
from pipelines.stages.fetch.outcomes import REASONS

_MAX_BYTES = 100_000
_TEXT = b"<p>" + b"some words " * 50 + b"</p>"
_CYRILLIC = "<p>Привет, мир</p>".encode("cp1251")


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*PROXY_VARIABLES, "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)


def _typed(content_type: str | None, body: bytes, **headers: str) -> Answer:
    kind = {} if content_type is None else {"Content-Type": content_type}
    return Answer(body, 200, {**kind, **{name.replace("_", "-"): value for name, value in headers.items()}})


def _redirect(location: str | None, status: int = 302) -> Answer:
    return Answer(b"moved", status, {} if location is None else {"Location": location})


def _raw(data: bytes) -> Callable[[http.server.BaseHTTPRequestHandler], None]:
    """Answer with bytes of one's own, then close."""

    def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.close_connection = True
        handler.wfile.write(data)
        handler.connection.shutdown(socket.SHUT_WR)

    return answer


def _chunked(pieces: Iterator[bytes]) -> Callable[[http.server.BaseHTTPRequestHandler], None]:
    def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", HTML)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        for piece in pieces:
            handler.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        handler.wfile.write(b"0\r\n\r\n")

    return answer


def _drip(head: bytes, drop: bytes) -> Callable[[http.server.BaseHTTPRequestHandler], None]:
    """Send a byte now and then for half a minute: each read is quick, the whole never ends."""

    def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.close_connection = True
        handler.wfile.write(head)
        for _ in range(600):
            handler.wfile.write(drop)
            time.sleep(0.05)

    return answer


def _hang(handler: http.server.BaseHTTPRequestHandler) -> None:
    handler.close_connection = True
    time.sleep(4)


def _cookie_wall(handler: http.server.BaseHTTPRequestHandler) -> None:
    if "seen=1" in handler.headers.get("Cookie", ""):
        handler.send_response(200)
        handler.send_header("Content-Type", HTML)
    else:
        handler.send_response(302)
        handler.send_header("Set-Cookie", "seen=1")
        handler.send_header("Location", "/cookie-wall")
    handler.send_header("Content-Length", "0")
    handler.end_headers()


def _deflate(data: bytes) -> bytes:
    compress = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return compress.compress(data) + compress.flush()


# path -> the page, and the outcome that it must have.
_PAGES = {
    "/html": (Answer(_TEXT), "ok"),
    "/xhtml": (_typed("application/xhtml+xml", _TEXT), "ok"),
    "/plain": (_typed("text/plain", b"just text"), "ok"),
    "/markdown": (_typed("text/markdown; charset=utf-8", b"# text"), "ok"),
    "/typed-twice": (_typed("text/html; charset=utf-8, text/html", _TEXT), "ok"),
    "/status-203": (Answer(_TEXT, 203), "ok"),
    "/cp1251": (_typed("text/html; charset=windows-1251", _CYRILLIC), "ok"),
    "/untyped": (_typed(None, _TEXT), "ok"),
    "/untyped-binary": (_typed(None, b"\x89PNG\r\n\x1a\n\x00\x00"), "unsupported_content_type"),
    "/plain-binary": (_typed("text/plain", b"PK\x03\x04\x00\x00"), "unsupported_content_type"),
    "/pdf": (_typed("application/pdf", b"%PDF-1.4"), "unsupported_content_type"),
    "/image": (_typed("image/png", b"\x89PNG"), "unsupported_content_type"),
    "/empty": (Answer(b""), "ok"),
    "/empty-gzip": (_typed(HTML, b"", Content_Encoding="gzip"), "ok"),
    "/gzip": (_typed(HTML, gzip.compress(_TEXT), Content_Encoding="gzip"), "ok"),
    "/x-gzip": (_typed(HTML, gzip.compress(_TEXT), Content_Encoding="x-gzip"), "ok"),
    "/deflate": (_typed(HTML, zlib.compress(_TEXT), Content_Encoding="deflate"), "ok"),
    "/raw-deflate": (_typed(HTML, _deflate(_TEXT), Content_Encoding="deflate"), "ok"),
    "/odd-encoding": (_typed(HTML, _TEXT, Content_Encoding="utf-8"), "ok"),
    "/brotli": (_typed(HTML, b"\x8b\x02\x80", Content_Encoding="br"), "unsupported_encoding"),
    "/not-gzip": (_typed(HTML, _TEXT, Content_Encoding="gzip"), "bad_encoding"),
    "/cut-gzip": (_typed(HTML, gzip.compress(_TEXT)[:-9], Content_Encoding="gzip"), "incomplete"),
    "/bomb": (_typed(HTML, gzip.compress(bytes(30_000_000)), Content_Encoding="gzip"), "too_large"),
    "/large": (Answer(b"x" * (_MAX_BYTES + 1)), "too_large"),
    "/largest": (Answer(b"x" * _MAX_BYTES), "ok"),
    "/chunked": (_chunked(iter([_TEXT, _TEXT])), "ok"),
    "/endless": (_chunked(iter(lambda: b"y" * 10_000, None)), "too_large"),
    "/short": (_raw(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 99\r\n\r\nabc"), "incomplete"),
    "/cut-chunk": (
        _raw(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nTransfer-Encoding: chunked\r\n\r\n40\r\nabc"),
        "incomplete",
    ),
    "/until-close": (_raw(b"HTTP/1.0 200 OK\r\nContent-Type: text/html\r\n\r\nabc"), "ok"),
    "/not-http": (_raw(b"220 mail.example ESMTP ready\r\n"), "bad_response"),
    "/closed": (_raw(b""), "connection"),
    "/404": (Answer(b"no", 404), "http_not_found"),
    "/410": (Answer(b"no", 410), "http_not_found"),
    "/401": (Answer(b"no", 401), "http_forbidden"),
    "/403": (Answer(b"no", 403), "http_forbidden"),
    "/451": (Answer(b"no", 451), "http_forbidden"),
    "/418": (Answer(b"no", 418), "http_client_error"),
    "/429": (Answer(b"no", 429), "http_rate_limited"),
    "/500": (Answer(b"no", 500), "http_server_error"),
    "/503": (Answer(b"no", 503), "http_server_error"),
    "/204": (Answer(b"", 204), "http_unexpected"),
    "/206": (Answer(b"part", 206), "http_unexpected"),
    "/304": (Answer(b"", 304), "http_unexpected"),
    "/moved": (_redirect("/html", 301), "ok"),
    "/moved-308": (_redirect("html#part", 308), "ok"),
    "/to-404": (_redirect("/404", 307), "http_not_found"),
    "/cookie-wall": (_cookie_wall, "ok"),
    "/circle": (_redirect("/circle-2"), "too_many_redirects"),
    "/circle-2": (_redirect("/circle"), "too_many_redirects"),
    "/to-nowhere": (_redirect(None), "bad_redirect"),
    "/to-ftp": (_redirect("ftp://example.org/"), "bad_redirect"),
    "/to-nonsense": (_redirect("http://[::1"), "bad_redirect"),
    "/odd-headers": (
        _raw(
            b"HTTP/1.1 200 Sch\xf6n\r\nContent-Type: text/html\r\nX-Note: caf\xe9 \xc3\xa9; a=\"\xff\"\r\n"
            b"Content-Length: 3\r\nX-\xe9: 1\r\n\r\nabc"
        ), "ok",
    ),
}  # fmt: skip
_CHAIN = {f"/chain-{number}": _redirect(f"/chain-{number + 1}") for number in range(14)} | {"/chain-14": Answer(_TEXT)}
_SLOW = {
    "/drip-body": _drip(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n", b"a"),
    "/drip-headers": _drip(b"HTTP/1.1 200 OK\r\n", b"X-Header: 1\r\n"),
    "/hang": _hang,
}
_NOT_REQUESTED = ["ftp://example.org/", "no url at all", "http://", "http://[::1", "mailto:a@example.org"]


@pytest.fixture(scope="module")
def web() -> Iterator[LocalWeb]:
    with LocalWeb({path: page for path, (page, _) in _PAGES.items()} | _CHAIN) as started:
        yield started


@pytest.fixture(scope="module")
def fetched(web: LocalWeb, tmp_path_factory: pytest.TempPathFactory) -> Fetched:
    urls = [web.url(path) for path in (*_PAGES, "/chain-0", "/chain-4")] + _NOT_REQUESTED + [web.url("/html")]
    with pytest.MonkeyPatch.context() as patch:
        for name in PROXY_VARIABLES:
            patch.delenv(name, raising=False)
        return run_fetch(tmp_path_factory.mktemp("outcomes"), urls, max_bytes=_MAX_BYTES)


@pytest.mark.parametrize("path", _PAGES)
def test_outcome(fetched: Fetched, web: LocalWeb, path: str) -> None:
    assert fetched.outcomes[web.url(path)] == _PAGES[path][1] or path == "/html"


def test_one_row_a_link_in_the_order_of_the_links(fetched: Fetched, web: LocalWeb) -> None:
    asked = [web.url(path) for path in (*_PAGES, "/chain-0", "/chain-4")] + _NOT_REQUESTED + [web.url("/html")]
    assert [row["url"] for row in fetched.rows] == asked
    assert {row["source"] for row in fetched.rows} == {"live"}


def test_urls_that_are_none_and_those_named_twice_are_not_requested(fetched: Fetched, web: LocalWeb) -> None:
    assert {fetched.outcomes[url] for url in _NOT_REQUESTED} == {"bad_url"}
    rows = [row for row in fetched.rows if row["url"] == web.url("/html")]
    assert [row["outcome"] for row in rows] == ["ok", "dropped.duplicate_url"]
    # /html itself, and two redirects to it
    assert web.paths().count("/html") == 3


def test_the_funnel_adds_up_and_lists_every_drop(fetched: Fetched) -> None:
    summary = fetched.summary
    assert summary is not None
    assert summary.records_in == len(fetched.rows)
    assert summary.records_out == sum(row["outcome"] == "ok" for row in fetched.rows)
    assert summary.records_in == summary.records_out + sum(summary.dropped.values())
    assert set(summary.dropped) <= set(REASONS)
    dropped = read_rows(fetched.folder, "dropped")
    assert [(row["url"], f"dropped.{row['reason']}") for row in dropped] == [
        (row["url"], row["outcome"]) for row in fetched.rows if row["outcome"] != "ok"
    ]
    assert all(row["detail"] for row in dropped)


def test_status_final_url_and_bytes(fetched: Fetched, web: LocalWeb) -> None:
    row = fetched.row(web.url("/moved-308"))
    assert (row["final_url"], row["status"], row["bytes"]) == (web.url("/html"), 200, len(_TEXT))
    row = fetched.row(web.url("/to-404"))
    assert (row["final_url"], row["status"], row["bytes"]) == (web.url("/404"), 404, 0)
    assert (row["warc_file"], row["warc_offset"]) == (None, None)
    assert fetched.row(web.url("/gzip"))["bytes"] == len(_TEXT)
    assert fetched.row(web.url("/large"))["status"] == 200
    assert fetched.row("http://")["final_url"] is None


def test_redirects_are_followed_up_to_the_limit(fetched: Fetched, web: LocalWeb) -> None:
    assert fetched.outcomes[web.url("/chain-0")] == "too_many_redirects"
    assert fetched.outcomes[web.url("/chain-4")] == "ok"  # ten redirects
    assert fetched.row(web.url("/chain-4"))["final_url"] == web.url("/chain-14")


@pytest.mark.parametrize("path", ["/gzip", "/x-gzip", "/deflate", "/raw-deflate", "/html", "/moved"])
def test_the_stored_page_decodes_to_the_text(fetched: Fetched, web: LocalWeb, path: str) -> None:
    assert fetched.record(web.url(path)).content_stream().read() == _TEXT


def test_the_stored_page_is_what_was_sent(fetched: Fetched, web: LocalWeb) -> None:
    assert fetched.record(web.url("/gzip")).raw_stream.read() == _PAGES["/gzip"][0].body
    record = fetched.record(web.url("/cp1251"))
    assert record.content_stream().read() == _CYRILLIC
    assert record.http_headers.get_header("Content-Type") == "text/html; charset=windows-1251"
    chunked = fetched.record(web.url("/chunked"))
    assert chunked.content_stream().read() == _TEXT * 2
    assert chunked.http_headers.get_header("Transfer-Encoding") is None
    assert chunked.http_headers.get_header("X-Archive-Orig-Transfer-Encoding") == "chunked"
    odd = fetched.record(web.url("/odd-headers"))
    assert odd.http_headers.statusline == "200 Sch%F6n"
    assert odd.http_headers.get_header("X-Note") == 'caf%E9 %C3%A9; a="%FF"'


def test_slow_servers_end_at_the_deadline(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        webs = [stack.enter_context(LocalWeb({path: page, "/ok": _TEXT})) for path, page in _SLOW.items()]
        urls = [web.url(path) for web, path in zip(webs, _SLOW, strict=True)]
        started = time.monotonic()
        fetched = run_fetch(tmp_path, [*urls, webs[0].url("/ok")], timeout_s=1.0)
        assert time.monotonic() - started < 3
    assert [fetched.outcomes[url] for url in urls] == ["timeout"] * 3


def test_the_deadline_holds_for_all_redirects_together(tmp_path: Path) -> None:
    def slow_redirect(handler: http.server.BaseHTTPRequestHandler) -> None:
        time.sleep(0.4)
        handler.send_response(302)
        number = int(handler.path.removeprefix("/slow-"))
        handler.send_header("Location", f"/slow-{number + 1}")
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    with LocalWeb({f"/slow-{number}": slow_redirect for number in range(9)} | {"/ok": _TEXT}) as web:
        fetched = run_fetch(tmp_path, [web.url("/slow-0"), web.url("/ok")], timeout_s=1.0)
        assert fetched.outcomes == {web.url("/slow-0"): "timeout", web.url("/ok"): "ok"}
        assert len([path for path in web.paths() if path.startswith("/slow")]) == 3


def test_the_body_of_a_redirect_is_not_read(tmp_path: Path) -> None:
    endless = _drip(b"HTTP/1.1 302 Found\r\nLocation: /ok\r\n\r\n", b"a" * 1000)
    with LocalWeb({"/endless": endless, "/ok": _TEXT}) as web:
        started = time.monotonic()
        assert run_fetch(tmp_path, [web.url("/endless")]).outcomes == {web.url("/endless"): "ok"}
        assert time.monotonic() - started < 3


def test_a_dead_port_and_a_dead_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resolve = socket.getaddrinfo

    def no_such_name(host: str, *arguments: object, **options: object) -> object:
        if host == "gone.example":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return resolve(host, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", no_such_name)
    with socket.socket() as bound, LocalWeb({"/ok": _TEXT}) as web:
        bound.bind(("127.0.0.1", 0))  # bound, but nobody listens
        dead = f"http://127.0.0.1:{bound.getsockname()[1]}/"
        for private in (True, False):
            folder = tmp_path / str(private)
            folder.mkdir()
            urls = [dead, "http://gone.example/a", "http://gone.example/b", "http://a..b/", web.url("/ok")]
            if private:
                outcomes = run_fetch(folder, urls).outcomes
                assert list(outcomes.values()) == ["connection", "dns", "dns", "bad_url", "ok"]
            else:
                with pytest.raises(WebtextError, match="all 5 records were dropped"):
                    run_fetch(folder, urls, allow_private_addresses=False)
                outcomes = Fetched(folder / "fetch", None).outcomes
                assert list(outcomes.values()) == ["private_address", "dns", "dns", "bad_url", "private_address"]


class _TlsServer:
    def __init__(self, context: ssl.SSLContext) -> None:
        class _Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = b"" if self.path == "/robots.txt" else _TEXT
                self.send_response(404 if self.path == "/robots.txt" else 200)
                self.send_header("Content-Type", HTML)
                self.end_headers()
                self.wfile.write(body)

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


@pytest.mark.parametrize("guarded", [False, True])
def test_certificates_are_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, guarded: bool) -> None:
    monkeypatch.setattr("pipelines.stages.fetch.transport.is_public", lambda address: True)
    trusted, unknown = trustme.CA(), trustme.CA()
    trusted.cert_pem.write_to_path(str(tmp_path / "authority.pem"))
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "authority.pem"))
    with (
        _TlsServer(_tls_context(trusted, "127.0.0.1")) as good,
        _TlsServer(_tls_context(unknown, "127.0.0.1")) as self_signed,
        _TlsServer(_tls_context(trusted, "elsewhere.example")) as wrong_name,
        LocalWeb({"/": _TEXT}) as plain,
    ):
        no_tls = plain.url("/").replace("http:", "https:")
        outcomes = run_fetch(
            tmp_path, [good, self_signed, wrong_name, no_tls], allow_private_addresses=not guarded
        ).outcomes
    assert outcomes == {good: "ok", self_signed: "tls", wrong_name: "tls", no_tls: "tls"}


def test_without_a_bundle_of_our_own_the_public_authorities_decide(tmp_path: Path) -> None:
    with _TlsServer(_tls_context(trustme.CA(), "127.0.0.1")) as unknown, LocalWeb({"/": _TEXT}) as plain:
        assert list(run_fetch(tmp_path, [unknown, plain.url("/")]).outcomes.values()) == ["tls", "ok"]


def test_a_bundle_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "authority.pem").write_text("nothing")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "authority.pem"))
    with pytest.raises(InputError, match=r"authority.pem: cannot be read as certificates .* see REQUESTS_CA_BUNDLE"):
        run_fetch(tmp_path, ["http://127.0.0.1/"])


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
            f"http://2130706433:{web.port}/",
            f"http://[::ffff:127.0.0.1]:{web.port}/",
            f"https://127.0.0.1:{web.port}/",
        ]
        with pytest.raises(WebtextError, match="all 6 records were dropped"):
            run_fetch(tmp_path, urls, allow_private_addresses=False)
        assert web.requests == []
    assert list(Fetched(tmp_path / "fetch", None).outcomes.values()) == ["private_address"] * 6


def test_a_redirect_into_a_private_network_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # One of the two servers counts as public here, so that a true redirect can be followed up to the guard.
    with LocalWeb({"/ok": _TEXT}) as public, LocalWeb({"/secret": _TEXT}) as private:
        public.pages["/in"] = _redirect(private.url("/secret").replace("127.0.0.1", "127.0.0.2"))
        public.pages["/by-name"] = _redirect(f"http://localhost:{private.port}/secret")
        resolve = socket.getaddrinfo
        monkeypatch.setattr(
            socket, "getaddrinfo", lambda host, *rest: resolve("127.0.0.2" if host == "localhost" else host, *rest)
        )
        monkeypatch.setattr("pipelines.stages.fetch.transport.is_public", lambda address: address == "127.0.0.1")
        urls = [public.url(path) for path in ("/ok", "/in", "/by-name")]
        fetched = run_fetch(tmp_path, urls, allow_private_addresses=False)
        assert list(fetched.outcomes.values()) == ["ok", "private_address", "private_address"]
        assert private.requests == []


def test_behind_a_proxy_hosts_that_spell_out_a_private_address_are_refused(tmp_path: Path) -> None:
    pages = {"http://example.org/": _TEXT, "http://127.0.0.1/": _TEXT, "http://10.0.0.1/": _TEXT}
    with LocalWeb(pages) as web, web.as_proxy():
        urls = [*pages, "http://0x7f.1/", "http://localhost/"]
        fetched = run_fetch(tmp_path, urls, allow_private_addresses=False)
        assert set(web.paths()) == {"http://example.org/"}
    assert list(fetched.outcomes.values()) == ["ok"] + ["private_address"] * 4


def test_netrc_and_credentials_in_urls_are_not_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password secret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    with LocalWeb({"/a": _TEXT, "/b": _TEXT}) as web:
        run_fetch(tmp_path, [web.url("/a"), web.url("/b").replace("127", "user:secret@127")])
        assert len(web.paths()) == 2
        assert not any("Authorization" in request.headers for request in web.requests)


def test_cookies_do_not_pass_from_page_to_page(tmp_path: Path) -> None:
    cookie = Answer(_TEXT, 200, {"Content-Type": HTML, "Set-Cookie": "a=1"})
    with LocalWeb({"/1": cookie, "/2": cookie, "/3": cookie}) as web:
        run_fetch(tmp_path, [web.url(path) for path in web.pages])
        assert not any("Cookie" in request.headers for request in web.requests)


def test_the_user_agent_names_the_tool_and_the_contact(tmp_path: Path) -> None:
    with LocalWeb({"/": _TEXT}) as web:
        run_fetch(tmp_path, [web.url("/")], contact="mailto:me@example.org")
        assert {request.headers["User-Agent"] for request in web.requests} == {"webtext/0.1 (+mailto:me@example.org)"}
    with pytest.raises(UsageError, match="--user-agent and --contact must be printable ASCII"):
        run_fetch(tmp_path, contact="a\nb: c")


def test_a_failing_page_is_asked_again_a_bounded_number_of_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(visit, "_BACKOFF_S", 0.05)
    pages = {
        "/recovers": [Answer(b"", 500), Answer(b"", 503), Answer(_TEXT)],
        "/stays-broken": Answer(b"", 500),
        "/closed-once": [_raw(b""), Answer(_TEXT)],
        "/not-implemented": Answer(b"", 501),
        "/gone": Answer(b"", 404),
    }
    with LocalWeb(pages) as web:
        fetched = run_fetch(tmp_path, [web.url(path) for path in pages], retries=2)
        asked = web.paths()
    assert list(fetched.outcomes.values()) == ["ok", "http_server_error", "ok", "http_server_error", "http_not_found"]
    assert [asked.count(path) for path in pages] == [3, 3, 2, 1, 1]


def test_a_host_that_fails_page_after_page_is_given_up(tmp_path: Path) -> None:
    pages = {f"/{number}": Answer(b"", 429) for number in range(50)} | {"/ok": Answer(_TEXT)}
    with LocalWeb({"/ok": _TEXT}) as alive, LocalWeb(pages) as web:
        fetched = run_fetch(tmp_path, [*(web.url(path) for path in pages), alive.url("/ok")])
        assert len(web.paths()) == crawl._GIVE_UP_AFTER
    rows = [row for row in fetched.rows if row["url"] != alive.url("/ok")]
    assert {(row["outcome"], row["status"]) for row in rows} == {("dropped.http_rate_limited", 429)}


def test_a_network_that_is_down_ends_the_run_and_records_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    up = False

    def resolve(host: str, port: int, *rest: object, **options: object) -> list[object]:
        if not up:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", web.port))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    urls = [f"http://site-{number}.example/" for number in range(150)]
    with LocalWeb({"/": _TEXT}) as web:
        with pytest.raises(WebtextError, match=r"none of the last 100 sites could be reached .*it goes on"):
            run_fetch(tmp_path, urls)
        up = True
        assert set(run_fetch(tmp_path).outcomes.values()) == {"ok"}


def test_every_reason_has_its_line_in_the_docs() -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "fetch.md"
    text = page.read_text(encoding="utf-8")
    assert [reason for reason in REASONS if f"`{reason}`" not in text] == []
