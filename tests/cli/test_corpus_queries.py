"""`webtext explain`, `show`, `stats`, `sql` and `export-text` on a corpus that the stages built."""

from __future__ import annotations

import gzip
import io
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import small_web
import zstandard

from pipelines.algorithms.web.urls import id_of_url
from pipelines.build import build
from pipelines.corpus.tables import CorpusTables
from pipelines.engine.run import RunOptions
from pipelines.records.document_options import DocumentConfig
from pipelines.stages.dedup.config import DedupConfig
from pipelines.stages.dedup.stage import dedup
from webtext_cli.main import main

_STAGES = ["scrape", "fetch", "extract", "dedup", "remove-wikipedia", "train-bpe", "tokenize"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("queries")
    (folder / "dumps").mkdir()
    small_web.write_dumps(folder / "dumps")
    (folder / "webtext.toml").write_text(
        '[scrape]\ndumps = ["dumps/*"]\nshards = 3\n[fetch]\nper_host_delay = 0.0\n[train-bpe]\nvocab_size = 400\n'
        "[tokenize]\nheld_out = 0.3\n"
    )
    with small_web.served(small_web.pages(), tmp_path_factory.mktemp("web")) as environment:
        with pytest.MonkeyPatch.context() as patch:
            for variable, value in environment.items():
                patch.setenv(variable, value)
            build(str(folder), _STAGES, RunOptions())
        yield folder


def _tables(corpus: str) -> CorpusTables:
    return CorpusTables(corpus, DocumentConfig(), RunOptions())


def _rows(corpus: Path, stage: str, noun: str) -> list[dict[str, Any]]:
    return [
        row for path in sorted((corpus / stage).glob(f"{noun}*.parquet")) for row in pq.read_table(path).to_pylist()
    ]


def _run(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert main(arguments) == code
    captured = capsys.readouterr()
    return captured.err if code and not captured.out else captured.out


def _json(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> Any:
    return json.loads(_run(capsys, *arguments, "--json", code=code))


def test_a_document_is_explained_from_its_link_to_its_tokens(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for token in _rows(corpus, "tokenize", "*-documents")[:3]:
        # Any spelling of the URL, or the id.
        for target in (token["url"] + "?utm_source=mail", token["id"]):
            history = _json(capsys, "explain", target, "--corpus", str(corpus))
            assert (history["id"], history["url"], history["is_present"]) == (token["id"], token["url"], True)
            steps = {step["stage"]: step for step in history["steps"]}
            assert list(steps) == [stage for stage in _STAGES if stage != "train-bpe"]
            assert {step["outcome"] for step in history["steps"]} == {"kept"}
            [link] = [row for row in _rows(corpus, "scrape", "links") if row["url"] == token["url"]]
            assert steps["scrape"]["fields"]["submission_ids"] == link["submission_ids"]
            [page] = [row for row in _rows(corpus, "fetch", "pages") if row["url"] == token["url"]]
            assert steps["fetch"]["fields"]["warc_offset"] == page["warc_offset"]
            assert steps["tokenize"]["fields"]["offset"] == token["offset"]
            assert steps["tokenize"]["fields"]["tokens"] == token["tokens"]
    text = _run(capsys, "explain", token["url"], "--corpus", str(corpus))
    assert "The document is in the corpus (last stage: tokenize)." in text


def test_every_missing_document_is_explained_by_the_stage_that_dropped_it(
    corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    explained = 0
    for stage in ("fetch", "extract", "dedup", "remove-wikipedia"):
        for number, row in enumerate(_rows(corpus, stage, "dropped")):
            history = _json(capsys, "explain", row["url"], "--corpus", str(corpus), code=1)
            last = history["steps"][-1]
            assert (last["stage"], last["outcome"], last["reason"]) == (stage, "dropped", row["reason"])
            if stage == "fetch":
                assert last["fields"]["detail"] == row["detail"]
            if stage == "dedup":
                kept = next(kept for kept in _rows(corpus, "dedup", "documents") if kept["id"] == row["detail"])
                assert last["fields"]["kept_url"] == kept["url"]
            if not number:
                by_id = id_of_url(row["url"])
                assert _json(capsys, "explain", by_id, "--corpus", str(corpus), code=1) == history
            explained += 1
    assert explained > 10
    text = _run(capsys, "explain", row["url"], "--corpus", str(corpus), code=1)
    assert "The document is missing: remove-wikipedia dropped it." in text


def test_what_is_nowhere_is_said_with_similar_links(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    [url] = [row["url"] for row in _rows(corpus, "scrape", "links") if row["url"].endswith("alpha.com/page-3.html")]
    history = _json(capsys, "explain", url.replace("http:", "https:"), "--corpus", str(corpus), code=1)
    assert [(step["stage"], step["outcome"]) for step in history["steps"]] == [("scrape", "absent")]
    assert history["similar_urls"] == [url]
    for page in _rows(corpus, "fetch", "pages"):  # also of one that fetch dropped, of which only the URL is known
        if page["outcome"] != "ok":
            by_id = _json(capsys, "explain", id_of_url(page["url"]).upper(), "--corpus", str(corpus), code=1)
            assert by_id["url"] == page["url"]
    history = _json(capsys, "explain", "alpha.com/page-3.html", "--corpus", str(corpus), code=1)
    assert history["similar_urls"] == [url]
    assert "must not be empty" in _run(capsys, "explain", "", "--corpus", str(corpus), code=2)
    text = _run(capsys, "explain", "0" * 32, "--corpus", str(corpus), code=1)
    assert "no document with a URL has this id" in text
    assert "is not an http(s) URL" in _run(capsys, "explain", "ftp://x.org/a", "--corpus", str(corpus), code=2)


def test_documents_are_shown_by_name_condition_and_at_random(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    documents = {row["id"]: row for row in _rows(corpus, "remove-wikipedia", "documents")}
    one = next(iter(documents.values()))
    assert one["text"] in _run(capsys, "show", one["url"], "--corpus", str(corpus))

    def shown(*arguments: str) -> list[str]:
        rows = [
            json.loads(line)
            for line in _run(capsys, "show", "--json", "--corpus", str(corpus), *arguments).splitlines()
        ]
        assert all(row["text"] == documents[row["id"]]["text"] for row in rows)
        return [row["id"] for row in rows]

    assert shown(one["id"]) == [one["id"]]
    assert shown("--limit", "2") == list(documents)[:2]
    assert shown("--random", "3") == shown("--random", "3") != shown("--random", "3", "--seed", "2")
    assert shown("--random", "3", "--limit", "2") == shown("--random", "2") == shown("--random", "2", "--limit", "3")
    assert set(shown("--where", "domain = 'alpha.com'", "--limit", "99")) == {
        id for id, row in documents.items() if row["domain"] == "alpha.com"
    }
    assert set(shown("--where", "score >= 7", "--limit", "99")) == {
        id for id, row in documents.items() if row["score"] >= 7
    }
    message = _run(capsys, "show", "doc-0", "--random", "2", "--where", "true", "--corpus", str(corpus), code=2)
    assert "doc-0: a URL or id cannot be combined with --random, --where" in message
    assert "no document has the id nothing" in _run(capsys, "show", "nothing", "--corpus", str(corpus), code=1)
    assert "no document meets" in _run(capsys, "show", "--where", "false", "--corpus", str(corpus), code=1)
    assert 'column "nix" not found in FROM clause! Candidate bindings: ' in _run(
        capsys, "show", "--where", "nix = 1", "--corpus", str(corpus), code=2
    )


def test_dropped_documents_are_shown_as_the_stage_read_them(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    read = {row["id"]: row["text"] for row in _rows(corpus, "extract", "documents")}
    lines = _run(capsys, "show", "--dropped", "near_duplicate", "--json", "--corpus", str(corpus)).splitlines()
    rows = [json.loads(line) for line in lines]
    assert {row["id"] for row in rows} == {
        row["id"] for row in _rows(corpus, "dedup", "dropped") if row["reason"] == "near_duplicate"
    }
    assert all((row["stage"], row["text"]) == ("dedup", read[row["id"]]) for row in rows)
    text = _run(capsys, "show", "--dropped", "empty_text", "--corpus", str(corpus))
    assert "(text not available; if an earlier stage wrote it, add its folder with -i)" in text
    of_domain = ("--where", "domain_of(url) = 'wikipedia.org'", "--limit", "99")
    text = _run(capsys, "show", "--dropped", "wikipedia_domain", *of_domain, "--corpus", str(corpus))
    assert text.count("stage: remove-wikipedia") == len(_rows(corpus, "remove-wikipedia", "dropped"))
    message = _run(capsys, "show", "--dropped", "wikipedia_domain", "--where", "false", "--corpus", str(corpus), code=1)
    assert "no document that a stage dropped for wikipedia_domain meets these conditions" in message
    message = _run(capsys, "show", "--dropped", "near_dup", "--corpus", str(corpus), code=1)
    assert message.endswith("no document was dropped for near_dup; did you mean near_duplicate?\n")
    message = _run(capsys, "show", "--dropped", "boring", "--corpus", str(corpus), code=1)
    assert "no document was dropped for boring; the reasons are" in message


def test_counts_by_all_kinds_of_groups(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    documents = _rows(corpus, "remove-wikipedia", "documents")
    statistics = _json(capsys, "stats", "--corpus", str(corpus))
    assert statistics["total"] == {
        "value": None,
        "documents": len(documents),
        "words": sum(row["words"] for row in documents),
        "bytes": sum(len(row["text"].encode()) for row in documents),
    }
    assert list(statistics["groups"]) == ["domain", "language", "year", "subreddit", "length"]
    for kind, value in (
        ("domain", lambda row: [row["domain"]]),
        ("language", lambda row: [row["language"]]),
        ("year", lambda row: [2016]),
        ("subreddit", lambda row: set(row["subreddits"])),
        ("length", lambda row: [1 << (row["words"].bit_length() - 1)]),
    ):
        for group in statistics["groups"][kind]:
            members = [row for row in documents if group["value"] in value(row)]
            assert group["documents"] == len(members) > 0
            assert group["words"] == sum(row["words"] for row in members)
    lengths = [group["value"] for group in statistics["groups"]["length"]]
    assert lengths == sorted(lengths)
    assert "128 to 255 words" in _run(capsys, "stats", "--corpus", str(corpus))
    largest = _json(capsys, "stats", "--corpus", str(corpus), "--by", "extractor", "--by", "domain", "--limit", "1")
    assert largest["sizes"] == {"extractor": 1, "domain": len({row["domain"] for row in documents})}
    assert "more" in _run(capsys, "stats", "--corpus", str(corpus), "--by", "domain", "--limit", "1")
    for typed, meant in (("lenght", "length"), ("domian", "domain")):
        message = _run(capsys, "stats", "--corpus", str(corpus), "--by", typed, code=2)
        assert message == f"error: --by {typed}: unknown column; did you mean {meant}?\n"
    message = _run(capsys, "stats", "--corpus", str(corpus), "--by", "colour", code=2)
    assert "--by colour: unknown column; known: domain, language" in message


def test_queries_are_printed_in_three_formats(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    query = "SELECT stage, reason, count(*) AS n FROM dropped GROUP BY ALL ORDER BY ALL"
    expected = _tables(str(corpus)).rows(query)
    assert sum(row["n"] for row in expected) == sum(
        len(_rows(corpus, stage, "dropped")) for stage in _STAGES[1:] if stage != "train-bpe"
    ) + len(_rows(corpus, "train-bpe", "dropped"))
    table = _run(capsys, "sql", query, "--corpus", str(corpus))
    assert all(row["reason"] in table for row in expected)
    lines = _run(capsys, "sql", query, "--format", "jsonl", "--corpus", str(corpus)).splitlines()
    assert [json.loads(line) for line in lines] == expected
    text = _run(capsys, "sql", query, "--format", "csv", "--corpus", str(corpus))
    assert text.splitlines() == ["stage,reason,n", *(f"{row['stage']},{row['reason']},{row['n']}" for row in expected)]
    cells = _run(
        capsys,
        "sql",
        "SELECT fetched_at, subreddits FROM documents LIMIT 1",
        "--format",
        "csv",
        "--corpus",
        str(corpus),
    )
    assert "+00:00" in cells
    long = _run(capsys, "sql", "SELECT * FROM range(500)", "--corpus", str(corpus))
    assert "at most 200 rows" in long
    exact = _run(capsys, "sql", "SELECT * FROM range(200)", "--corpus", str(corpus))
    assert "at most" not in exact
    assert "199" in exact
    wide = _run(capsys, "sql", "SELECT repeat('ab ', 500) AS text", "--corpus", str(corpus))
    assert "80 characters of a cell" in wide
    assert max(map(len, wide.splitlines())) < 100


def test_a_wrong_query_names_the_tables_and_a_missing_stage(
    corpus: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    message = _run(capsys, "sql", "SELECT * FROM nothing", "--corpus", str(corpus), code=2)
    assert "fetch, extract, dedup, remove-wikipedia, train-bpe, tokenize are links, pages, clusters" in message
    (tmp_path / "part").mkdir()
    shutil.copytree(corpus / "scrape", tmp_path / "part" / "scrape")
    message = _run(capsys, "sql", "SELECT * FROM pages", "--corpus", str(tmp_path / "part"), code=2)
    assert "no table pages, which fetch writes; the tables of scrape are links" in message


@pytest.mark.parametrize(
    "query",
    [
        "/* nothing */",
        "SELECT 1; SELECT 2",
        "COPY (SELECT 1) TO 'x.csv'",
        "CREATE TABLE t AS SELECT 1",
        "DROP VIEW links",
    ],
)
def test_a_query_changes_nothing(corpus: Path, capsys: pytest.CaptureFixture[str], query: str) -> None:
    assert "is not a single SELECT" in _run(capsys, "sql", query, "--corpus", str(corpus), code=2)
    assert "is not a single SELECT" in _run(capsys, "sql", " ", "--corpus", str(corpus), code=2)
    assert "Parser Error" in _run(capsys, "sql", "SELECT FROM", "--corpus", str(corpus), code=2)
    assert (
        _run(capsys, "sql", "FROM links SELECT count(*) AS n", "--format", "csv", "--corpus", str(corpus))[:2] == "n\n"
    )


def test_documents_are_exported_whole_or_as_a_sample(
    corpus: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    documents = _rows(corpus, "remove-wikipedia", "documents")

    def exported(name: str, *arguments: str) -> bytes:
        _run(capsys, "export-text", "--corpus", str(corpus), "-o", str(tmp_path / name), "--overwrite", *arguments)
        data = (tmp_path / name).read_bytes()
        if name.endswith(".gz"):
            return gzip.decompress(data)
        return zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data)).read() if name.endswith(".zst") else data

    rows = [json.loads(line) for line in exported("all.jsonl").splitlines()]
    assert [(row["id"], row["text"], row["subreddits"]) for row in rows] == [
        (row["id"], row["text"], row["subreddits"]) for row in documents
    ]
    path = str(tmp_path / "all.jsonl")
    message = _run(capsys, "export-text", "--corpus", str(corpus), "--limit", "1", "-o", path, code=1)
    assert f"{path}: already exists; use --overwrite to replace it, or choose another --output" in message
    assert len(Path(path).read_bytes().splitlines()) == len(documents)
    assert exported("all.jsonl.zst") == exported("all.jsonl.gz") == exported("all.jsonl")
    texts = exported("all.txt").decode()
    assert texts == "\n<|endoftext|>\n".join(row["text"] for row in documents) + "\n"
    assert exported("two.txt", "--limit", "2").decode().count("<|endoftext|>") == 1
    assert json.loads(_run(capsys, "export-text", "--corpus", str(corpus), "--limit", "1"))["id"] == documents[0]["id"]
    assert "neither .jsonl nor .txt" in _run(
        capsys, "export-text", "--corpus", str(corpus), "-o", str(tmp_path / "x.csv"), code=2
    )
    (tmp_path / "own.csv").write_text("Title,Body\nOne,the first text\n")
    own = ("export-text", "--input", str(tmp_path / "own.csv"))
    assert json.loads(_run(capsys, *own, "--text-field", "Body"))["text"] == "the first text"
    assert "(--text-field chooses another" in _run(capsys, *own, code=1)


def test_the_corpus_may_be_in_an_object_store(corpus: Path) -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.put(str(corpus), "/queries", recursive=True)
    tables, local = _tables("memory://queries"), _tables(str(corpus))
    assert tables.rows("SELECT id FROM documents ORDER BY id") == local.rows("SELECT id FROM documents ORDER BY id")
    memory.rm("/queries", recursive=True)


def test_ids_are_those_of_urls(corpus: Path) -> None:
    assert all(row["id"] == id_of_url(row["url"]) for row in _rows(corpus, "extract", "documents"))


def test_another_record_of_an_id_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"id": "same", "text": "one text of these"}, {"id": "same", "text": "one text of these"}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    dedup(DedupConfig(), documents=str(tmp_path / "rows.jsonl"), output=str(tmp_path / "dedup"), options=RunOptions())
    [step] = _json(capsys, "explain", "same", "--corpus", str(tmp_path))["steps"]
    assert (step["outcome"], step["fields"]["another_of_this_id"]) == ("kept", "dropped, exact_duplicate")
    assert list(_json(capsys, "stats", "--corpus", str(tmp_path))["groups"]) == ["length"]
