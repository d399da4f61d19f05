"""Requests for removal: what is valid, and what each kind names."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.algorithms.web.urls import id_of_url
from pipelines.corpus.removal import remove
from pipelines.engine.run import RunOptions
from pipelines.errors import InputError
from pipelines.records.removals import Removals, Request, read_removals, read_requests
from webtext_cli.main import main

_FIELDS = {"reason": "the owner asks", "date": "2026-11-28"}


def _removals(*named: tuple[str, str]) -> Removals:
    import datetime as dt

    return Removals([Request(kind, value, "the owner asks", dt.date(2026, 11, 28)) for kind, value in named])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "value", "row", "is_named"),
    [
        ("url", "https://Example.com/a?utm_source=x", {"url": "http://example.com/a"}, True),
        ("url", "http://example.com/a", {"url": "http://example.com/ab"}, False),
        ("url", "http://example.com/a", {"url": "http://short.example/", "final_url": "https://example.com/a"}, True),
        ("url_prefix", "https://example.com/a/", {"url": "http://example.com/a/b?c=1"}, True),
        ("url_prefix", "https://example.com/a/", {"url": "http://example.com/a"}, False),
        ("url_prefix", "https://example.com", {"url": "http://example.com.evil.org/"}, False),
        ("domain", "Example.com", {"url": "http://www.example.com/a"}, True),
        ("domain", "blog.example.com", {"url": "http://example.com/a"}, False),
        ("domain", "example.com", {"url": "http://notexample.com/"}, False),
        ("domain", "bücher.example.com", {"url": "http://xn--bcher-kva.example.com/"}, True),
        ("id", "doc-1", {"id": "doc-1"}, True),
        ("id", "doc-1", {"id": "DOC-1", "url": None}, False),
        ("text_sha256", hashlib.sha256(b"a text").hexdigest().upper(), {"text": "a text"}, True),
        ("text_sha256", hashlib.sha256(b"a text").hexdigest(), {"text": "a text ", "url": "http://a.com/"}, False),
        ("author", "u/Someone", {"authors": ["other", "SOMEONE"]}, True),
        ("author", "someone", {"authors": ["u/someone"]}, True),
        ("author", "someone", {"authors": None, "url": "http://a.com/"}, False),
        ("subreddit", "r/News", {"subreddits": ["news"]}, True),
        ("subreddit", "news", {"subreddits": ["worldnews"]}, False),
        ("domain", "example.com", {"url": 7, "subreddits": "example.com", "id": None}, False),
    ],
)
def test_what_a_request_names(kind: str, value: str, row: dict[str, Any], is_named: bool) -> None:
    assert (_removals(("id", "other"), (kind, value)).find_row(row) == 1) == is_named


def test_many_prefixes_cost_no_more_than_few() -> None:
    removals = _removals(*(("url_prefix", f"http://host{number:06d}.com/a/") for number in range(20_000)))
    started = time.monotonic()
    assert removals.find_row({"url": "http://host019999.com/a/b"}) == 19_999
    assert [removals.find_row({"url": f"http://host{row:06d}.com/b"}) for row in range(2_000)] == [None] * 2_000
    assert time.monotonic() - started < 2  # 5 s if each prefix is compared


def test_rows_of_links_are_found_by_the_id_of_their_url() -> None:
    removals = _removals(("id", id_of_url("http://a.com/")), ("domain", "b.com"))
    batch = pa.record_batch({"url": ["http://a.com/", "http://b.com/", "http://c.com/"], "score": [1, 2, 3]})
    assert removals.find(batch, by_url=True) == [0, 1, None]
    assert removals.find(batch.append_column("id", pa.array(["x", "y", "z"]))) == [None, 1, None]
    kept, removed = removals.split(batch, by_url=True)
    assert (kept.column("score").to_pylist(), removed.column("score").to_pylist()) == ([3], [1, 2])


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        ({"kind": "url", "value": "http://a.com/", "reason": "x"}, "missing required field `date`"),
        ({"kind": "page", "value": "http://a.com/", **_FIELDS}, "Invalid enum value 'page'"),
        ({"kind": "url", "value": "ftp://a.com/", **_FIELDS}, "'ftp://a.com/' is not a valid url"),
        ({"kind": "url_prefix", "value": "a.com", **_FIELDS}, "'a.com' is not a valid url_prefix"),
        ({"kind": "domain", "value": "http://a.com/", **_FIELDS}, "'http://a.com/' is not a valid domain"),
        ({"kind": "domain", "value": "com", **_FIELDS}, "'com' is not a valid domain"),
        ({"kind": "id", "value": "", **_FIELDS}, "'' is not a valid id"),
        ({"kind": "text_sha256", "value": "abc", **_FIELDS}, "'abc' is not a valid text_sha256"),
        ({"kind": "author", "value": "[deleted]", **_FIELDS}, "'[deleted]' is not a valid author"),
        ({"kind": "url", "value": "http://a.com/", "reason": "", "date": "2026-11-28"}, "length >= 1"),
        ({"kind": "url", "value": "http://a.com/", "reason": "x", "date": "yesterday"}, "Invalid RFC3339 encoded date"),
        ({"kind": "url", "value": "http://a.com/", **_FIELDS, "more": 1}, "unknown field `more`"),
        ("http://a.com/", "Expected `object`, got `str`"),
    ],
)
def test_a_bad_request_names_its_line(tmp_path: Path, record: Any, problem: str) -> None:
    path = tmp_path / "requests.jsonl"
    good = {"kind": "id", "value": "a", **_FIELDS}
    path.write_text(json.dumps(good) + "\n" + json.dumps(record) + "\n")
    with pytest.raises(InputError) as error:
        read_requests(str(path))
    assert str(error.value).startswith(f"{path}:2: is not a request for removal (")
    assert problem in str(error.value)
    assert str(error.value).endswith("value (such as https://a.org/b), reason and date (YYYY-MM-DD)")


def test_requests_may_be_csv(tmp_path: Path) -> None:
    path = tmp_path / "requests.csv"
    path.write_text('kind,value,reason,date\nurl,http://a.com/,"the owner, by mail",2026-11-28\n')
    [request] = read_requests(str(path))
    assert (request.kind, request.reason, str(request.date)) == ("url", "the owner, by mail", "2026-11-28")
    path.write_text("kind,value,reason,date\n")
    assert read_requests(str(path)) == []
    (tmp_path / "webtext.toml").touch()
    with pytest.raises(InputError, match=r"requests\.csv: contains no requests"):
        remove(str(tmp_path), str(path), RunOptions(), pages=False, rebuild=False)
    path.write_text("kind,value\nurl,http://a.com/\n")
    with pytest.raises(InputError, match="no column 'reason'"):
        read_requests(str(path))


def test_the_last_line_of_a_list_may_be_deleted(tmp_path: Path) -> None:
    (tmp_path / "removals.jsonl").write_text("")
    assert not read_removals(str(tmp_path))


def test_own_documents_that_were_removed_are_dropped(tmp_path: Path) -> None:
    documents = [{"id": f"doc-{n}", "text": f"text number {n}", "url": f"http://site{n}.com/"} for n in range(5)]
    own = tmp_path / "own.jsonl"
    own.write_text("".join(json.dumps(document) + "\n" for document in documents))
    requests = [{"kind": "domain", "value": "site1.com"}, {"kind": "id", "value": "doc-3"}]
    requests.append({"kind": "text_sha256", "value": hashlib.sha256(b"text number 4").hexdigest()})
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    (corpus / "webtext.toml").write_text(f'[dedup]\ninput = ["{own}"]\n')
    (corpus / "removals.jsonl").write_text("".join(json.dumps({**row, **_FIELDS}) + "\n" for row in requests))
    assert read_removals(str(corpus))
    assert not read_removals(str(tmp_path))
    assert main(["dedup", "--corpus", str(corpus), "-q", "--workers", "1"]) == 0
    assert pq.read_table(corpus / "dedup/documents-00000.parquet")["id"].to_pylist() == ["doc-0", "doc-2"]
    dropped = pq.read_table(corpus / "dedup/dropped-00000.parquet").to_pylist()
    assert [(row["id"], row["url"], row["reason"]) for row in dropped] == [
        ("doc-1", None, "removed"), ("doc-3", None, "removed"), ("doc-4", None, "removed"),
    ]  # fmt: skip


def test_removal_from_a_corpus_of_own_documents(tmp_path: Path) -> None:
    documents = [{"id": f"doc-{n}", "text": f"text number {n}", "url": f"http://site{n}.com/"} for n in range(5)]
    (tmp_path / "own.jsonl").write_text("".join(json.dumps(document) + "\n" for document in documents))
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    (corpus / "webtext.toml").write_text(f'[dedup]\ninput = ["{tmp_path / "own.jsonl"}"]\n')
    run = ["--corpus", str(corpus), "-q", "--workers", "1"]
    assert main(["dedup", *run]) == 0
    assert main(["remove-wikipedia", *run]) == 0
    path = tmp_path / "requests.jsonl"
    path.write_text(json.dumps({"kind": "url", "value": "http://site2.com/", **_FIELDS}) + "\n")
    assert main(["remove", str(path), *run]) == 0
    counts = [json.loads((corpus / stage / "manifest.json").read_text()) for stage in ("dedup", "remove-wikipedia")]
    assert [(row["records_in"], row["records_out"], row["dropped"]) for row in counts] == [
        (5, 4, {"removed": 1}), (4, 4, {}),
    ]  # fmt: skip
    assert main(["remove-wikipedia", *run]) == 0
