"""`webtext explain`, `show` and `stats` on documents from elsewhere, and on corpora of few stages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.corpus.export import last_documents
from pipelines.engine.manifest import Identity, Manifest, ShardEntry, write_manifest
from pipelines.engine.run import RunOptions
from pipelines.records import shards
from pipelines.records.schemas import PAGE_SCHEMA
from pipelines.stages.dedup.config import DedupConfig
from pipelines.stages.dedup.stage import dedup
from pipelines.stages.remove_wikipedia.config import RemoveWikipediaConfig
from pipelines.stages.remove_wikipedia.stage import remove_wikipedia
from pipelines.stages.train_bpe.config import TrainBpeConfig
from pipelines.stages.train_bpe.stage import train_bpe
from webtext_cli.main import main


def _dedup(corpus: Path, rows: list[dict[str, Any]], name: str = "own.jsonl") -> None:
    own = corpus / name
    if name.endswith(".parquet"):
        pq.write_table(pa.Table.from_pylist(rows), own)
    else:
        own.write_text("".join(json.dumps(row) + "\n" for row in rows))
    dedup(DedupConfig(), documents=str(own), output=str(corpus / "dedup"), options=RunOptions())


def _run(corpus: Path, capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert main([*arguments, "--corpus", str(corpus)]) == code
    captured = capsys.readouterr()
    return captured.out or captured.err


def _shown(corpus: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in _run(corpus, capsys, "show", "--json", *arguments).split("\n")[:-1]]


def _explained(corpus: Path, capsys: pytest.CaptureFixture[str], target: str, code: int = 0) -> dict[str, Any]:
    history: dict[str, Any] = json.loads(_run(corpus, capsys, "explain", target, "--json", code=code))
    return history


def test_documents_may_have_no_urls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"id": f"d{number}", "text": f"text {number}", "stars": number} for number in range(3)]
    _dedup(tmp_path, [*rows, {"id": "d3", "text": "text 2", "stars": 3}], "own.parquet")
    assert _explained(tmp_path, capsys, "d1")["is_present"]
    duplicate = _explained(tmp_path, capsys, "d3", code=1)
    assert duplicate["steps"][0]["fields"]["kept_document"] == "d2"
    assert len(_shown(tmp_path, capsys, "--random", "2")) == 2
    assert [row["id"] for row in _shown(tmp_path, capsys, "--where", "stars > 0")] == ["d1", "d2"]
    assert "no document has the url http://a.org/" in _run(tmp_path, capsys, "show", "http://a.org/", code=1)
    [dropped] = _shown(tmp_path, capsys, "--dropped", "exact_duplicate")
    assert dropped["id"] == "d3"


def test_own_documents_are_known_by_their_urls_as_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    urls = ["http://a.org:80/1", "http://a.org/1", "HTTP://A.org/2#part", "http://a.org/3?utm_source=x"]
    rows = [{"id": f"d{number}", "url": url, "text": f"text {number}"} for number, url in enumerate(urls)]
    _dedup(tmp_path, [*rows, {"id": "e", "url": "http://b.org:80/", "text": "text 0"}])
    for number, url in enumerate(urls):
        history = _explained(tmp_path, capsys, url)
        assert (history["id"], history["url"], history["is_present"]) == (f"d{number}", url, True)
        assert [row["id"] for row in _shown(tmp_path, capsys, url)] == [f"d{number}"]
    history = _explained(tmp_path, capsys, "http://b.org:80/", code=1)
    assert (history["id"], history["steps"][-1]["reason"]) == ("e", "exact_duplicate")
    # Another spelling of a URL that was stored in canonical form.
    assert _explained(tmp_path, capsys, "http://a.org:80/1?utm_medium=x")["id"] == "d1"


def test_fetched_pages_of_own_links_are_known_by_their_urls_as_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = "http://a.org:80/1#part"
    page = {"url": url, "outcome": "ok", "source": "live", "fetched_at": 0, "bytes": 7}
    with shards.write_shard(str(tmp_path / "fetch"), "pages-00000.parquet", PAGE_SCHEMA) as shard:
        shard.write_batch(pa.RecordBatch.from_pylist([page], schema=PAGE_SCHEMA))
    entry = ShardEntry("pages", "pages-00000", 1, 1, files=(shard.entry,))
    write_manifest(str(tmp_path / "fetch"), Manifest(Identity("fetch", 1, {}, {}), (entry,)))
    [step] = _explained(tmp_path, capsys, url)["steps"]
    assert (step["stage"], step["outcome"], step["fields"]["bytes"]) == ("fetch", "kept", 7)
    history = _explained(tmp_path, capsys, "http://a.org/1", code=1)
    assert (history["url"], history["steps"][0]["reason"]) == ("http://a.org/1", "no page has this URL")


def test_documents_with_the_same_id_are_all_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = [f"text number {number}" for number in range(4)]
    _dedup(tmp_path, [{"id": "same", "url": "http://a.org/", "text": text} for text in texts])
    assert [row["text"] for row in _shown(tmp_path, capsys)] == texts
    assert sorted(row["text"] for row in _shown(tmp_path, capsys, "--random", "4")) == texts


def test_a_corpus_without_links_pages_and_documents_explains_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own.txt").write_text("some words of a text, and some more of these words")
    train_bpe(
        TrainBpeConfig(vocab_size=260),
        documents=str(tmp_path / "own.txt"),
        output=str(tmp_path / "train-bpe"),
        options=RunOptions(),
    )
    message = _run(tmp_path, capsys, "explain", "http://a.org/", code=1)
    assert "no finished stage has links, pages, documents or tokens" in message


def test_words_of_own_documents_are_counted_as_python_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    space = "\t\n\x0b\x0c\r\x1c\x1d\x1e\x1f \x85\xa0\u1680\u2000\u2003\u2009\u200a\u2028\u2029\u202f\u205f\u3000"
    texts = ["\n\ttwo words\n", "naïve 日本 \U0001f600", *(f"a{ord(mark)}{mark}b{mark}" for mark in space)]
    _dedup(tmp_path, [{"id": str(number), "text": text} for number, text in enumerate(texts)])
    statistics = json.loads(_run(tmp_path, capsys, "stats", "--by", "id", "--by", "length", "--limit", "99", "--json"))
    documents = {row["id"]: row["text"] for row in _shown(tmp_path, capsys, "--limit", "99")}
    assert {group["value"]: group["words"] for group in statistics["groups"]["id"]} == {
        id: len(text.split()) for id, text in documents.items()
    }
    assert {group["value"] for group in statistics["groups"]["length"]} == {2}


def test_a_stage_that_the_build_skips_is_out_of_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"id": f"d{number}", "url": f"http://{number}.org/", "text": f"text {number}"} for number in range(3)]
    _dedup(tmp_path, rows)
    remove_wikipedia(
        RemoveWikipediaConfig(extra_domain=("2.org",)),
        documents=str(tmp_path / "dedup"),
        output=str(tmp_path / "remove-wikipedia"),
        options=RunOptions(),
    )
    assert not _explained(tmp_path, capsys, "d2", code=1)["is_present"]
    (tmp_path / "webtext.toml").write_text('[build]\nskip = ["remove-wikipedia"]\n')
    assert [step["stage"] for step in _explained(tmp_path, capsys, "d2")["steps"]] == ["dedup"]
    assert len(_shown(tmp_path, capsys)) == 3
    assert json.loads(_run(tmp_path, capsys, "stats", "--json"))["total"]["documents"] == 3
    assert last_documents(str(tmp_path)) == str(tmp_path / "dedup")
    message = _run(tmp_path, capsys, "sql", "FROM remove_wikipedia_documents", code=2)
    assert "no table remove_wikipedia_documents; the tables of dedup are" in message
