"""The exact scan: n-grams of any length, in files of any kind, without an index."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from small_index import TEXTS

from pipelines.engine.executor import make_executor
from pipelines.engine.run import RunOptions
from pipelines.errors import UsageError
from pipelines.records.document_options import DocumentConfig
from pipelines.search.exact import search_exactly


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    paths = [tmp_path / f"{name}.jsonl" for name in "ab"]
    for path, texts in zip(paths, (TEXTS[:3], TEXTS[3:]), strict=True):
        rows = [{"id": text[:5], "url": "http://a.org/b", "text": text} for text in texts]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return [str(path) for path in paths]


@pytest.mark.parametrize(
    ("phrase", "found"),
    [
        ("FOX", {"fox f": 50.0, "The q": 2.0}),
        ("lazy dog the", {"The q": 1.0}),
        ("don't stop naïve CAFÉ owners in istanbul say e mc² works привет", {"Don't": 1.0}),
        (" ".join(["fox"] * 50) + " and a hound", {"fox f": 1.0}),
        ("dog lazy", {}),
    ],
)
def test_phrases_of_any_length(files: list[str], phrase: str, found: dict[str, float]) -> None:
    matches = search_exactly(files, DocumentConfig(), phrase, RunOptions())
    assert {row.id: row.score for row in matches.rows} == found
    assert matches.count == len(found)
    assert all(any(is_match for _, is_match in row.snippet) for row in matches.rows)


def test_workers_find_the_same(files: list[str]) -> None:
    one = search_exactly(files, DocumentConfig(), "quick", RunOptions(), limit=2)
    two = search_exactly(
        files, DocumentConfig(), "quick", RunOptions(executor=make_executor(2, "local", None)), limit=2
    )
    assert one == two
    assert (one.count, [row.id for row in one.rows], one.rows[0].domain) == (3, ["The q", "A laz"], "a.org")


def test_a_phrase_without_words_is_refused(files: list[str]) -> None:
    with pytest.raises(UsageError, match="has no words to search for"):
        search_exactly(files, DocumentConfig(), "...", RunOptions())
