"""Who may use the server of `webtext browse`."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("starlette")
from browser_client import TOKEN, open_client


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
        assert headers["referrer-policy"] == "no-referrer"
    page = client.get("/").text
    assert "<style" not in page
    assert " style=" not in page
    assert "<script src=" in page


def test_an_unknown_page_is_named(documents: list[str]) -> None:
    answer = open_client(documents).get("/<b>x")
    assert answer.status_code == 404
    assert "<b>x" not in answer.text
    assert "no such page" in answer.text
