"""The pages that search a corpus, and trace the passages of a text to its documents."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("starlette")
from browser_client import open_client
from starlette.testclient import TestClient

from pipelines.browse.reading import mark_parts
from pipelines.engine.run import RunOptions
from pipelines.stages.search.config import SearchConfig
from pipelines.stages.search.stage import search

_SENTENCE = "the quick brown fox jumps over the lazy dog and sleeps"
_HOSTILE = "<img src=x onerror=alert(1)> \u202e"


def _document(number: int, text: str, **changed: Any) -> dict[str, Any]:
    url = f"http://site{number % 2}.example/{number}"
    row = {"id": f"d{number}", "url": url, "domain": f"site{number % 2}.example", "title": f"Page {number}"}
    return row | {"language": "en", "text": text} | changed


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("tantivy")
    folder = tmp_path_factory.mktemp("search") / "corpus"
    folder.mkdir()
    rows = [_document(number, f"A whale is no fish, number {number}.") for number in range(12)]
    rows += [_document(12, f"It says: {_SENTENCE.title()}.", language="fr"), _document(13, f"badger {_HOSTILE}")]
    pq.write_table(pa.Table.from_pylist(rows), folder / "documents.parquet")
    search(
        SearchConfig(),
        documents=str(folder / "documents.parquet"),
        output=str(folder / "search"),
        options=RunOptions(),
    )
    return folder


@pytest.fixture(scope="module")
def client(corpus: Path) -> TestClient:
    return open_client(str(corpus))


def _found(page: str) -> list[str]:
    return re.findall(r'class="row" href="/document\?id=(\w+)&', page)


def test_matches_are_counted_marked_and_paged(client: TestClient) -> None:
    first, last = client.get("/search?q=whale").text, client.get("/search?q=whale&offset=10").text
    assert "12 documents." in first
    assert 'A <mark id="passage">whale</mark> is no fish' in first
    assert sorted(_found(first) + _found(last)) == sorted(f"d{number}" for number in range(12))
    assert 'rel="next" href="/search?q=whale&amp;offset=10"' in first
    assert 'rel="prev" href="/search?q=whale&amp;offset=0"' in last
    assert 'rel="next"' not in last
    assert 'value="whale"' in first


def test_phrases_and_filters(client: TestClient) -> None:
    assert _found(client.get("/search?q=%22brown+fox%22").text) == ["d12"]
    assert _found(client.get("/search?q=%22fox+brown%22").text) == []
    assert len(_found(client.get("/search?q=whale+domain:site1.example").text)) == 6
    assert _found(client.get("/search?q=(whale+OR+fox)+language:fr").text) == ["d12"]


def test_hostile_texts_and_queries_are_shown_as_text(client: TestClient) -> None:
    page = client.get("/search?q=badger").text
    assert ">badger</mark> &lt;img src=x" in page
    assert r"\u202e" in page
    page = client.get("/search", params={"q": '"><script>x'}).text
    assert "<script>x" not in page


@pytest.mark.parametrize("query", ["q=%22open", "q=year:soon", "q=a&offset=-1"])
def test_bad_queries_are_named(client: TestClient, query: str) -> None:
    answer = client.get(f"/search?{query}")
    assert answer.status_code == 400
    assert "warning bad" in answer.text


def test_a_traced_text_is_marked_and_leads_to_its_documents(client: TestClient) -> None:
    page = client.get("/trace", params={"text": f"As they say, {_SENTENCE}, or not {_HOSTILE}"}).text
    assert "1 passage<" in page
    assert f'As they say, <mark id="passage">{_SENTENCE}</mark>, or not &lt;img' in page
    assert "<b>11 words</b> · in 1 document" in page
    assert _found(page) == ["d12"]
    assert "\u202e" not in page
    assert "0 passages<" in client.get("/trace", params={"text": "one two three four five six seven eight nine"}).text


def test_a_text_that_is_too_long_is_refused(client: TestClient) -> None:
    for text, status in ("märchen " * 2_500, 200), ("a " * 10_001, 400):
        answer = client.get("/trace", params={"text": text})
        assert answer.status_code == status
        assert ("at most 20,000 can be traced" in answer.text) == (status == 400)


def test_a_trace_ends_after_its_time(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.browse.searching._TRACE_S", -1.0)
    page = client.get("/trace", params={"text": _SENTENCE}).text
    assert f"Only the first 39 of {len(_SENTENCE)} characters were traced" in page
    assert "<b>8 words</b> · in 1 document" in page


@pytest.mark.parametrize(("path", "text"), [("/search?q=%22brown+fox%22", "Brown Fox"), ("/trace", _SENTENCE.title())])
def test_a_hit_opens_the_document_at_its_passage(corpus: Path, path: str, text: str) -> None:
    client = open_client(str(corpus))
    page = client.get(path, params={"text": _SENTENCE} if path == "/trace" else None).text
    [link] = re.findall(r'class="row" href="([^"]*)"', page)
    assert link.endswith("#passage")
    documents = open_client([str(corpus / "documents.parquet")])
    assert f'<mark id="passage">{text}</mark>' in documents.get(html.unescape(link)).text


def test_passages_may_overlap() -> None:
    parts = mark_parts("0123456789", [(1, 5), (4, 8), (5, 6)])
    assert "".join(text for text, is_marked in parts if is_marked) == "1234567"
    assert "".join(text for text, _ in parts) == "0123456789"


def test_without_an_index_the_page_gives_the_command_that_builds_it(tmp_path: Path) -> None:
    pytest.importorskip("tantivy")
    (tmp_path / "webtext.toml").touch()
    for path in ("/search", "/trace"):
        assert "webtext search --build" in open_client(str(tmp_path)).get(path).text
    path = tmp_path / "documents.jsonl"
    path.write_text('{"text": "one"}\n')
    assert "--corpus" in open_client([str(path)]).get("/search").text


def test_without_tantivy_it_gives_the_command_that_installs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.extras.find_spec", lambda name: None)
    monkeypatch.setattr("pipelines.browse.site.find_spec", lambda name: None)
    (tmp_path / "webtext.toml").touch()
    client = open_client(str(tmp_path))
    page = client.get("/search").text
    assert "webtext-kit[search]" in page
    assert 'role="search"' not in page


def test_every_page_has_a_search_box_if_the_corpus_can_be_searched(client: TestClient) -> None:
    assert '<form action="/search" role="search">' in client.get("/trace").text
