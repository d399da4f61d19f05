"""Who may use the server of `webtext browse`."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("starlette")
import anyio
from browser_client import TOKEN, open_client
from starlette.requests import Request

from pipelines.browse.site import Site
from pipelines.engine.run import RunOptions
from pipelines.errors import UsageError
from pipelines.records.document_options import DocumentConfig


@pytest.fixture
def documents(tmp_path: Path) -> list[str]:
    path = tmp_path / "documents.parquet"
    pq.write_table(pa.table({"id": ["a"], "text": ["one two"]}), path)
    return [str(path)]


def test_the_token_moves_from_the_url_to_a_cookie_of_this_site(documents: list[str]) -> None:
    answer = open_client(documents, with_token=False).get(f"/?sort=words&token={TOKEN}")
    assert answer.status_code == 303
    assert answer.headers["location"] == "/?sort=words"
    cookie = answer.headers["set-cookie"].lower()
    assert TOKEN in cookie
    assert "httponly" in cookie
    assert "samesite=strict" in cookie


@pytest.mark.parametrize("address", ["/", "/?token=other", "/style.css", "/no-page"])
def test_without_the_token_nothing_is_served(documents: list[str], address: str) -> None:
    client = open_client(documents, with_token=False)
    client.cookies.set("webtext-8765", "other")
    answer = client.get(address)
    assert answer.status_code == 403
    assert "webtext browse" in answer.text


def test_another_host_is_refused_with_the_token_as_well(documents: list[str]) -> None:
    answer = open_client(documents).get("/", headers={"host": "evil.example:8765"})
    assert answer.status_code == 400


@pytest.mark.parametrize("headers", [{}, {"origin": "http://evil.example"}, {"origin": "null"}])
def test_forms_of_other_sites_are_refused(documents: list[str], headers: dict[str, str]) -> None:
    assert open_client(documents).post("/", headers=headers).status_code == 403


def test_every_response_has_the_headers_that_restrict_it(documents: list[str]) -> None:
    client = open_client(documents)
    for address in ("/", "/style.css", "/no-page"):
        headers = client.get(address).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "same-origin"
    page = client.get("/").text
    assert "<style" not in page
    assert " style=" not in page
    assert "<script src=" in page


def test_an_unknown_page_is_named(documents: list[str]) -> None:
    answer = open_client(documents).get("/<b>x")
    assert answer.status_code == 404
    assert "<b>x" not in answer.text
    assert "no such page" in answer.text


def test_the_address_without_the_token_is_of_this_server(documents: list[str]) -> None:
    answer = open_client(documents, with_token=False).get(f"http://127.0.0.1:8765//evil.example/?token={TOKEN}")
    assert answer.headers["location"] == "/evil.example/"


def test_a_report_cannot_leave_its_sandbox(tmp_path: Path) -> None:
    (tmp_path / "webtext.toml").touch()
    (tmp_path / "dedup").mkdir()
    report, client = tmp_path / "dedup" / "report.html", open_client(str(tmp_path))
    tag = '<meta http-equiv="Content-Security-Policy" content="%s">'
    report.write_text(tag % "sandbox allow-same-origin allow-scripts")
    policy = client.get("/reports/dedup/report.html").headers["content-security-policy"]
    assert policy.startswith("sandbox allow-scripts allow-popups;")  # a second one is ignored
    for value in ("default-src *\r\nset-cookie: planted=1", "default-src \u20ac"):
        report.write_text(tag % value)
        assert client.get("/reports/dedup/report.html").status_code == 404


def test_a_page_that_was_left_is_not_read(documents: list[str]) -> None:
    site = Site(documents, DocumentConfig(), RunOptions())

    async def receive() -> dict[str, str]:
        return {"type": "http.disconnect"}

    def read() -> None:
        with site.tables(Request({"type": "http"}, receive)):
            raise AssertionError

    # In a thread: that of the tests has the event loop of the web browser, once another test has started it.
    with ThreadPoolExecutor(1) as thread, pytest.raises(UsageError, match="was left"):
        thread.submit(anyio.run, anyio.to_thread.run_sync, read).result()
