"""The stage `search`: which segments it writes, and which it takes from an earlier index."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small_index import TEXTS, build_index, document, write_documents

from pipelines.corpus.removal import remove
from pipelines.engine.run import RunOptions
from pipelines.search.query import SearchIndex
from pipelines.stages.search import segments, stage
from pipelines.stages.search.config import SearchConfig


def _contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.name[0] != "."
            and path.is_file()}  # fmt: skip


def _inodes(folder: Path) -> set[int]:
    return {os.stat(path).st_ino for path in (folder / "search/index").iterdir()}


def test_an_update_indexes_only_what_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus, rows = tmp_path / "corpus", [document(number, text) for number, text in enumerate(TEXTS)]
    write_documents(corpus, [rows[:2], rows[2:3]])
    build_index(corpus)
    kept = _inodes(corpus)
    write_documents(corpus, [rows[:2], rows[3:], [document(9, "a further document")]])
    indexed: list[int] = []
    write = segments.write_segments
    monkeypatch.setattr(stage, "write_segments", lambda *call: indexed.append(1) or write(*call))
    build_index(corpus)
    assert len(indexed) == 2
    assert len(kept & _inodes(corpus)) == 7  # the files of a segment
    build_index(corpus, tmp_path / "whole" / "search")
    assert _contents(corpus / "search") == _contents(tmp_path / "whole/search")
    index = SearchIndex.open(str(corpus))
    assert not index.is_stale
    assert {row.id for row in index.search("fox OR document OR café").rows} == {"id0", "id3", "id9"}


def test_a_damaged_segment_is_not_taken_over(tmp_path: Path) -> None:
    corpus, rows = tmp_path / "corpus", [document(number, text) for number, text in enumerate(TEXTS)]
    write_documents(corpus, [rows])
    build_index(corpus)
    path = next((corpus / "search/index").glob("*.pos"))
    path.write_bytes(bytes(byte ^ 255 for byte in path.read_bytes()))
    write_documents(corpus, [rows, [document(9, "a further document")]])
    build_index(corpus)
    build_index(corpus, tmp_path / "whole" / "search")
    assert _contents(corpus / "search") == _contents(tmp_path / "whole/search")


def test_segments_of_many_words_have_equal_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "_HEAP_BYTES", 15_000_000)
    texts = (" ".join(f"{number * 400 + word:x}" for word in range(400)) for number in range(200))
    corpus = tmp_path / "corpus"
    write_documents(corpus, [[document(number, text) for number, text in enumerate(texts)]])
    for name in "abc":
        build_index(corpus, tmp_path / name)
    assert len(list((tmp_path / "a/index").glob("*.store"))) > 2
    assert _contents(tmp_path / "a") == _contents(tmp_path / "b") == _contents(tmp_path / "c")


def test_a_removal_deletes_a_stale_index(tmp_path: Path) -> None:
    """It may have a document that no other stage has any more."""
    corpus, rows = tmp_path / "corpus", [document(number, f"secret{number}") for number in range(2)]
    write_documents(corpus, [rows])
    build_index(corpus)
    request = {"kind": "url", "value": rows[1]["url"], "reason": "owner", "date": "2026-11-28"}
    (tmp_path / "requests.jsonl").write_text(json.dumps(request))
    options: dict[str, Any] = {"options": RunOptions(), "pages": False, "rebuild": False}
    write_documents(corpus, [rows[:1]])
    report = remove(str(corpus), str(tmp_path / "requests.jsonl"), **options)
    assert report["notes"][0].startswith("search: was deleted")
    assert not (corpus / "search").exists()


def test_the_ranking_does_not_depend_on_the_segments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = tmp_path / "corpus"
    rows = [document(number, f"{TEXTS[number % 5]} word{number}") for number in range(3000)]
    write_documents(corpus, [rows[:1500], rows[1500:]])
    build_index(corpus)
    monkeypatch.setattr(stage, "_SEGMENT_BYTES", 50_000)
    build_index(corpus, tmp_path / "small")
    one, many = (SearchIndex.open(str(folder)) for folder in (corpus, tmp_path / "small"))
    assert one._searcher.num_segments == 2 < many._searcher.num_segments
    for query in ("quick fox", "word17 OR word2017", '"lazy dog"'):
        found = [index.search(query, limit=1000) for index in (one, many)]
        assert found[0].count == found[1].count > 0
        assert {row.id: row.score for row in found[0].rows[:1]} == {row.id: row.score for row in found[1].rows[:1]}


def test_documents_of_any_file(tmp_path: Path) -> None:
    """Columns may be absent or of other types; what is not a document is listed as dropped."""
    rows: list[dict[str, Any]] = [
        {"id": "a", "text": "one two", "title": "Name", "url": "https://news.bbc.co.uk/x"},
        {"id": "b", "text": "   "},
        {"text": "three"},
    ]
    lines = [*map(json.dumps, rows), "not json"]
    (tmp_path / "docs.jsonl.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    time = pa.array([2**60 + 1], pa.timestamp("ns"))
    odd = {"id": ["c"], "text": ["one"], "title": [5], "words": ["many"], "created_utc": time, "language": [b"x"]}
    pq.write_table(pa.table(odd), tmp_path / "odd.parquet")
    output = tmp_path / "index"
    summary = stage.search(SearchConfig(), documents=[str(tmp_path)], output=str(output), options=RunOptions())
    assert (summary.records_in, summary.records_out) == (5, 3)
    dropped = [row["reason"] for path in sorted(output.glob("dropped-*")) for row in pq.read_table(path).to_pylist()]
    assert sorted(dropped) == ["bad_json", "empty_text"]
    index = SearchIndex.open(str(output))
    found = {row.id: (row.title, row.domain, row.year, row.words) for row in index.search("one OR three").rows}
    assert found == {
        "a": ("Name", "bbc.co.uk", None, 2),
        "c": ("5", None, None, 1),
        "docs.jsonl.gz:3": (None, None, None, 1),
    }


def test_stored_documents_are_those_of_the_input(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    write_documents(corpus, [[document(number, text) for number, text in enumerate(TEXTS)]])
    build_index(corpus)
    index = SearchIndex.open(str(corpus))
    _, documents = index.find(index._index.parse_query("*"), 10)
    assert [document.text for _, document in documents] == list(TEXTS)
    assert msgspec.structs.asdict(documents[0][1])["url"] == "http://www.site0.com/page"
