"""The pages of the tokenizer: entries with their counts, and documents in which an entry occurs."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("starlette")
from browser_client import open_client
from starlette.testclient import TestClient

from pipelines.browse import tokenizer as page_of_tokenizer
from pipelines.engine.run import RunOptions
from pipelines.stages.tokenize.config import TokenizeConfig
from pipelines.stages.tokenize.stage import tokenize
from pipelines.stages.train_bpe.config import TrainBpeConfig
from pipelines.stages.train_bpe.stage import train_bpe
from pipelines.tokenizers.formats import tokenizer_files

_TEXTS = {"d0": "the the the bath", "d1": "then <script>alert(1)</script>", "d2": "a \x1b[31m\u202eno"}
_TH, _THE = 256, 257


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokens")
    rows = [{"id": id, "url": f"http://example.com/{id}", "text": text} for id, text in _TEXTS.items()]
    pq.write_table(pa.Table.from_pylist(rows), folder / "documents.parquet")
    t, h, e = (_byte_id(letter) for letter in "the")
    (folder / "tokenizer.json").write_bytes(tokenizer_files([(t, h), (_TH, e)])["tokenizer.json"])
    tokenize(
        TokenizeConfig(held_out=0.0),
        documents=str(folder / "documents.parquet"),
        tokenizer=str(folder / "tokenizer.json"),
        output=str(folder / "corpus" / "tokenize"),
        options=RunOptions(),
    )
    return folder / "corpus"


@pytest.fixture(scope="module")
def client(corpus: Path) -> TestClient:
    return open_client(str(corpus))


def _byte_id(letter: str) -> int:
    return ord(letter) - 33  # GPT-2's order: the printable characters first


def _rows(page: str) -> dict[str, list[str]]:
    """Return the cells of the table by the text of the entry."""
    found = {}
    for row in re.findall(r"<tr><th scope=\"row\">(.*?)</tr>", page):
        entry, *cells = (html.unescape(re.sub(r"<.*?>", "", cell)).strip() for cell in re.split(r"</t[hd]>", row))
        found[entry] = cells[:-1]
    return found


def test_entries_have_their_counts_and_the_parts_of_their_merge(client: TestClient, corpus: Path) -> None:
    page = client.get("/tokenizer?contains=th").text
    assert _rows(page) == {"th": ["256", "2", "0", "t h", "1"], "the": ["257", "3", "1", "th e", "4"]}
    tokens = json.loads((corpus / "tokenize" / "tokens.json").read_text())["totals"]["train"]["tokens"]
    assert f"Counts are those in all {tokens} tokens" in page


def test_orders_and_pages_are_in_the_url(client: TestClient) -> None:
    assert next(iter(_rows(client.get("/tokenizer?sort=most+frequent").text))) in ("␣", "the")
    assert [*_rows(client.get("/tokenizer?sort=longest").text)][:2] == ["<|endoftext|>", "the"]
    first, third = client.get("/tokenizer?sort=rarest").text, client.get("/tokenizer?sort=rarest&offset=200").text
    assert 'rel="next" href="/tokenizer?sort=rarest&amp;offset=100"' in first
    assert 'rel="prev"' not in first
    assert len(_rows(first)) == 100
    assert len(_rows(third)) == 59
    assert 'rel="prev" href="/tokenizer?sort=rarest&amp;offset=100"' in third
    assert 'rel="next"' not in third


def test_spaces_and_bytes_of_entries_are_visible(client: TestClient) -> None:
    assert "␣" in _rows(client.get("/tokenizer?contains=+").text)
    assert r"\x9F" in _rows(client.get(r"/tokenizer?contains=\x9").text)
    page = client.get("/tokenizer?contains=<b>x").text
    assert "0 entries" in page
    assert "<b>x" not in page


def test_an_entry_leads_to_the_documents_in_which_it_occurs(client: TestClient) -> None:
    page = client.get(f"/tokenizer?entry={_THE}").text
    assert sorted(re.findall(r'class="row" href="/document\?id=(\w+)"', page)) == ["d0", "d1"]
    assert "Made by merge 1 " in page
    assert "<mark>the</mark>n &lt;script&gt;alert" in page
    assert f'href="/tokenizer?entry={_THE}&amp;seed=1"' in page
    page = client.get(f"/tokenizer?entry={_byte_id('[')}").text
    assert r"\x1b<mark>[</mark>31m" in page
    assert "\u202e" not in page


def test_a_search_that_takes_too_long_says_how_far_it_came(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_of_tokenizer, "_SEARCH_S", 0.0)
    monkeypatch.setattr(page_of_tokenizer, "_CHUNK_TOKENS", 5)
    page = client.get(f"/tokenizer?entry={_byte_id('~')}").text
    assert "0 documents, found by reading 5 of 5" in page


def test_a_large_corpus_is_counted_in_a_sample(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page_of_tokenizer.read_vocabulary.cache_clear()
    monkeypatch.setattr(page_of_tokenizer, "_COUNTED_CHUNKS", 2)
    monkeypatch.setattr(page_of_tokenizer, "_CHUNK_TOKENS", 5)
    assert "a random sample of 10 of the" in open_client(str(corpus)).get("/tokenizer").text


@pytest.mark.parametrize("query", ["entry=259", "entry=x", "entry=-1", "sort=words", "offset=1e3"])
def test_bad_parameters_are_named(client: TestClient, query: str) -> None:
    answer = client.get(f"/tokenizer?{query}")
    assert answer.status_code == 400
    assert query in answer.text


def test_a_tokenizer_without_token_shards_has_no_counts(corpus: Path, tmp_path: Path) -> None:
    train_bpe(
        TrainBpeConfig(vocab_size=258),
        documents=str(corpus.parent / "documents.parquet"),
        output=str(tmp_path / "train-bpe"),
        options=RunOptions(),
    )
    client = open_client(str(tmp_path))
    page = client.get("/tokenizer?sort=longest").text
    assert "Counts need token shards" in page
    assert "/reports/train-bpe/report.html" in page
    assert _rows(page)["th"][-1] == "–"
    assert "Documents in which it occurs" not in client.get("/tokenizer?entry=256").text


def test_without_a_tokenizer_the_page_says_what_writes_one(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": ["a"], "text": ["one two"]}), tmp_path / "documents.parquet")
    answer = open_client([str(tmp_path / "documents.parquet")]).get("/tokenizer")
    assert answer.status_code == 400
    assert "webtext train-bpe" in answer.text
