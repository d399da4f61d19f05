"""Queries of an index: what matches, in which order, with which snippets, and what is refused."""

from __future__ import annotations

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import pytest
from small_index import TEXTS, build_index, document, write_documents

from pipelines import storage
from pipelines.engine.run import RunOptions
from pipelines.errors import InputError, UsageError
from pipelines.search.query import Matches, SearchIndex
from pipelines.search.snippets import compile_phrases, make_snippet
from pipelines.stages.search.config import SearchConfig
from pipelines.stages.search.stage import search


@pytest.fixture(scope="module")
def index(indexed: Path) -> SearchIndex:
    return SearchIndex.open(str(indexed))


def _numbers(matches: Matches) -> set[int]:
    return {int(row.id.removeprefix("id")) for row in matches.rows}


@pytest.mark.parametrize(
    ("query", "numbers"),
    [
        ("quick", {0, 1, 4}),
        ("QUICK Fox", {0}),
        ("quick OR hound", {0, 1, 3, 4}),
        ("quick -fox", {1, 4}),
        ("quick NOT fox", {1, 4}),
        ("quick AND NOT (fox OR evil)", {1}),
        ('"quick AND NOT" OR "dog slept and"', {1}),
        ('"quick brown fox"', {0}),
        ('"fox brown"', set()),
        ('"brown dog"~6', {0}),
        ('"lazy dog the fox"', {0}),  # as n-grams of the audit, a phrase crosses signs
        ("don't", {2}),
        ('"don\'t stop"', {2}),
        ("naïve istanbul e mc²", {2}),
        ("мир", {2}),
        ("東京都", {2}),
        ("title:3", {3}),
        ("url:site1", {1}),
        ("domain:site2.com", {2}),
        ("domain:site2", set()),
        ("subreddit:animals", {0, 1}),
        ("language:FR", {2}),
        ("year:1970", {0}),
        ("year:[2011 TO 2014]", {1, 2, 3}),
        ("words:>20 fox", {3}),
        ("*", {0, 1, 2, 3, 4}),
        ("page", {0, 1, 2, 3, 4}),  # of the titles
        ("", set()),
        ("absent", set()),
    ],
)
def test_what_matches(index: SearchIndex, query: str, numbers: set[int]) -> None:
    matches = index.search(query)
    assert _numbers(matches) == numbers
    assert matches.count == len(numbers)


def test_fields_do_not_change_the_ranking(index: SearchIndex) -> None:
    whole = index.search("fox OR quick")
    assert [row.id for row in whole.rows][:2] == ["id0", "id3"]
    assert [row.score for row in whole.rows] == sorted((row.score for row in whole.rows), reverse=True)
    fields = index.search("(fox OR quick) language:EN words:>0")
    assert [row.id for row in fields.rows] == [row.id for row in whole.rows if row.id not in ("id2", "id4")]
    assert [row.id for row in index.search("(fox OR quick) domain:SITE0.com language:en year:1970").rows] == ["id0"]
    assert index.search("fox domain:site4.com").count == 0


def test_pages_of_results(index: SearchIndex) -> None:
    whole = index.search("*", limit=10)
    pages = [index.search("*", limit=2, offset=offset) for offset in (0, 2, 4, 6)]
    assert [row for page in pages for row in page.rows] == whole.rows
    assert {page.count for page in pages} == {5}


def test_a_match_has_the_fields_and_a_snippet_of_the_document(index: SearchIndex) -> None:
    [match] = index.search('"brown FOX" lazy').rows
    assert (match.url, match.domain, match.year, match.words) == ("http://www.site0.com/page", "site0.com", 1970, 13)
    assert match.title == "Title 0 of a <i>page</i>"
    assert "".join(part for part, _ in match.snippet) == TEXTS[0]
    assert [part for part, is_match in match.snippet if is_match] == ["brown fox", "lazy"]


def test_markup_and_controls_are_plain_text(index: SearchIndex) -> None:
    [match] = index.search("markup").rows
    assert match.snippet == [("An evil\x1b[31m text \u202e with <b>quick</b> ", False), ("markup", True),
                             (" & entities", False)]  # fmt: skip


def test_a_snippet_is_where_the_most_matches_are() -> None:
    text = "one " + "filler " * 200 + "one two\n three " + "filler " * 200
    (start, end), parts = make_snippet(text, compile_phrases(["one", "two three"]))
    assert text[start:end] == "one two\n three"
    assert [part for part in parts if part[1]] == [("one", True), ("two three", True)]
    assert (parts[0], parts[-1]) == (("…", False), ("…", False))
    assert sum(len(part) for part, _ in parts) < 250
    assert make_snippet("nothing here", compile_phrases(["..."])) == ((0, 0), [("nothing here", False)])
    assert make_snippet("", compile_phrases(["a"])) == ((0, 0), [])
    # Neither a part of a word, nor an expression.
    assert make_snippet("cats c.t cat", compile_phrases(["c.t", "cat"]))[1][1:] == [("c.t", True), (" ", False),
                                                                                 ("cat", True)]  # fmt: skip


@pytest.mark.parametrize(
    "query",
    [
        '"open',
        "(a",
        "a AND",
        "nofield:a",
        "http://a.com/",
        "year:abc",
        "-only",
        "^",
        "a^b",
        "(" * 900,
        "a" * 1001,
        "title:*",
        "document:*",
        '"a b"~11',
        "'a b'~99",
    ],
)
def test_a_bad_query_is_named(index: SearchIndex, query: str) -> None:
    with pytest.raises(
        UsageError, match=r"the fields are text, title, url|at most 1,000 characters|at most 10 further"
    ):
        index.search(query)


def test_words_of_queries_are_those_of_texts(tmp_path: Path) -> None:
    write_documents(tmp_path, [[document(0, "İstanbul’da ΜΕΓΑΣ ΟΔΟΣ, e\u0301te\u0301"), document(1, "ſtraẞe")]])
    build_index(tmp_path)
    index = SearchIndex.open(str(tmp_path))
    queries = (
        "İSTANBUL",
        '"İstanbul da"',
        "ΜΕΓΑΣ\u3000οδοσ OR ΟΔΟΣ",
        "text:ΜΕΓΑΣ AND da",
        '"ΜΕΓΑΣ ΟΔΟΣ"',
        '"e\u0301te"',
    )
    assert [_numbers(index.search(query)) for query in queries] == [{0}] * len(queries)
    assert _numbers(index.search("ſtraßE\u00a0NOT οδος")) == {1}


def test_a_snippet_does_not_show_what_is_between_words_that_are_far_apart(tmp_path: Path) -> None:
    write_documents(tmp_path, [[document(0, "one " + "- " * 100_000 + "two")]])
    build_index(tmp_path)
    [match] = SearchIndex.open(str(tmp_path)).search('"one two"').rows
    assert sum(len(part) for part, _ in match.snippet) < 250


def test_threads_share_an_index(index: SearchIndex) -> None:
    with ThreadPoolExecutor(4) as threads:
        counts = list(threads.map(lambda _: index.search("quick").count, range(40)))
    assert counts == [3] * 40


def test_the_corpus_may_be_read_only(indexed: Path, tmp_path: Path) -> None:
    shutil.copytree(indexed, tmp_path / "corpus")
    folder = tmp_path / "corpus/search/index"
    os.chmod(folder, 0o555)
    before = sorted(os.listdir(folder))
    assert SearchIndex.open(str(tmp_path / "corpus")).search("quick").count == 3
    assert sorted(os.listdir(folder)) == before
    os.chmod(folder, 0o755)


def test_without_an_index_the_command_that_builds_it_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a corpus"):
        SearchIndex.open(str(tmp_path / "nowhere"))
    corpus = tmp_path / "corpus"
    write_documents(corpus, [[document(0, "text")]])
    with pytest.raises(InputError, match="has no index; run `webtext search --build`"):
        SearchIndex.open(str(corpus))
    (corpus / "removals").mkdir()
    (corpus / "removals/pending.json").write_text("{}")
    with pytest.raises(InputError, match="a removal of documents was interrupted"):
        SearchIndex.open(str(corpus))


def test_an_index_is_stale_once_the_documents_have_changed(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    write_documents(corpus, [[document(0, "one text")]])
    build_index(corpus)
    assert not SearchIndex.open(str(corpus)).is_stale
    assert not SearchIndex.open(str(corpus / "search")).is_stale
    write_documents(corpus, [[document(0, "other text")]])
    assert SearchIndex.open(str(corpus)).is_stale


def test_a_damaged_index_is_named(indexed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    panic = type("PanicException", (BaseException,), {})("index out of bounds")
    index = SearchIndex.open(str(indexed))
    monkeypatch.setattr(index, "_searcher", Mock(search=Mock(side_effect=panic)))
    with pytest.raises(
        InputError, match=r"search: is damaged \(index out of bounds\); re-run `webtext search --build`"
    ):
        index.search("quick")
    shutil.copytree(indexed, tmp_path / "corpus")
    path = next((tmp_path / "corpus/search/index").glob("*.store"))
    for damage in (lambda: path.write_bytes(path.read_bytes()[:-1]), path.unlink):
        damage()
        with pytest.raises(InputError, match=r"search/index/\w+\.store: is missing or damaged; re-run `webtext search"):
            SearchIndex.open(str(tmp_path / "corpus"))


def test_an_index_in_an_object_store(bucket: str, tmp_path: Path) -> None:
    write_documents(tmp_path, [[document(0, "one text")], [document(1, "other text")]])
    corpus, files = f"{bucket}/corpus", [path for path in tmp_path.rglob("*") if path.is_file()]
    for path in files:
        storage.write_bytes(f"{corpus}/{path.relative_to(tmp_path)}", path.read_bytes())
    search(
        SearchConfig(),
        documents=f"{corpus}/remove-wikipedia",
        output=f"{corpus}/search",
        options=RunOptions(),
    )
    index = SearchIndex.open(corpus)
    assert not index.is_stale
    assert _numbers(index.search("text")) == {0, 1}
