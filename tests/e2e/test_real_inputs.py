"""Real inputs through the stages: dumps of 2005 and 2013, a hundred pages, technical documents, WikiText-2."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import small_web

from benchmarks.extractor.pages import read_benchmark, word_f1
from pipelines.storage.compression import open_decompressed
from webtext_cli.main import main

Command = Callable[..., dict[str, Any]]


@pytest.fixture
def webtext(capsys: pytest.CaptureFixture[str]) -> Command:
    """Run a command in this process, which has imported much of what it needs, and return its summary."""

    def run(*arguments: str | Path) -> dict[str, Any]:
        code = main([*map(str, arguments), "--workers", "1", "--json"])
        printed = capsys.readouterr()
        assert code == 0, printed.err
        summary: dict[str, Any] = json.loads(printed.out)
        assert summary["records_in"] == summary["records_out"] + sum(summary["dropped"].values())
        return summary

    return run


def test_the_dumps_of_2005_give_the_known_links(shared_data: Path, tmp_path: Path, webtext: Command) -> None:
    dumps = [shared_data / "reddit" / f"RS_v2_2005-{month}.xz" for month in ("06", "07")]
    summary = webtext("scrape", *dumps, "--min-score", "3", "--profile", "none", "-o", tmp_path / "links")
    assert summary["records_in"] == 103 + 1079
    submissions = 83 + 757
    assert summary["records_out"] == submissions - summary["dropped"].get("merged_into_link", 0)
    rows = pq.read_table(sorted((tmp_path / "links").glob("links-*.parquet"))).to_pylist()
    assert len({row["url"] for row in rows}) == len(rows) == summary["records_out"]
    assert sum(len(row["submission_ids"]) for row in rows) == submissions


@pytest.mark.slow  # test_scrape_real counts a fifth of them
def test_the_real_submissions_of_2013_pass_the_default_profile(
    shared_data: Path, tmp_path: Path, webtext: Command
) -> None:
    dump = shared_data / "reddit" / "submissions-2013.ndjson.zst"
    summary = webtext("scrape", dump, "-o", tmp_path / "links")
    assert summary["records_in"] == 97_888
    assert summary["records_out"] > 10_000
    assert {"self_post", "low_score"} <= set(summary["dropped"])


@pytest.mark.usefixtures("warm_processes")
def test_sixty_real_pages_pass_fetch_and_extract(
    shared_data: Path, tmp_path: Path, webtext: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages, texts = _real_pages(shared_data, 60)
    (tmp_path / "urls.txt").write_text("".join(f"{url}\n" for url in pages))
    with small_web.served(pages, tmp_path, "text/html") as environment:
        for variable, value in environment.items():
            monkeypatch.setenv(variable, value)
        fetched = webtext("fetch", "-i", tmp_path / "urls.txt", "-o", tmp_path / "fetch", "--per-host-delay", "0")
    assert (fetched["records_in"], fetched["records_out"]) == (60, 60)
    extracted = webtext("extract", "-i", tmp_path / "fetch", "-o", tmp_path / "extract")
    assert extracted["records_in"] == 60
    assert extracted["records_out"] >= 57
    rows = pq.read_table(sorted((tmp_path / "extract").glob("documents-*.parquet"))).to_pylist()
    assert {row["url"] for row in rows} <= set(pages)
    scores = [word_f1(row["text"], texts[row["url"]]) for row in rows]
    # Trafilatura's mean over all pages of this dataset is 0.79; far below it, the pages must be broken.
    assert sum(scores) / len(pages) > 0.7


def test_real_documents_pass_dedup_the_tokenizer_and_the_overlap_report(
    shared_data: Path, tmp_path: Path, webtext: Command
) -> None:
    documents = tmp_path / "docs.jsonl"
    with open_decompressed(str(shared_data / "text" / "docs.jsonl.zst")) as stream:
        documents.write_bytes(b"".join(itertools.islice(stream, 0, None, 6)))
    deduplicated = webtext("dedup", "-i", documents, "-o", tmp_path / "dedup")
    # Seven versions of one documentation are in it: many near-duplicates, also in every sixth document.
    assert deduplicated["dropped"]["near_duplicate"] > 80
    trained = webtext("train-bpe", "-i", tmp_path / "dedup", "-o", tmp_path / "bpe", "--vocab-size", "8192")
    assert trained["records_out"] == deduplicated["records_out"]
    tokens = webtext(
        "tokenize", "-i", tmp_path / "dedup", "--tokenizer", tmp_path / "bpe", "-o", tmp_path / "tokens",
    )  # fmt: skip
    assert tokens["records_out"] == deduplicated["records_out"]
    described = json.loads((tmp_path / "tokens" / "tokens.json").read_text())
    size_bytes = sum((tmp_path / "tokens" / shard["name"]).stat().st_size for shard in described["splits"]["train"])
    assert size_bytes == 2 * sum(shard["tokens"] for shard in described["splits"]["train"])
    benchmark = f"wikitext2={shared_data / 'benchmarks' / 'wikitext2-test.txt'}"
    webtext("overlap-report", "-i", tmp_path / "dedup", "--benchmark", benchmark, "-o", tmp_path / "overlap")
    report = json.loads((tmp_path / "overlap" / "report.json").read_text())
    (benchmark,) = report["benchmarks"]
    assert benchmark["ngrams"] > 150_000
    assert 0 <= benchmark["percent_positions"] < 5


def _real_pages(shared_data: Path, count: int) -> tuple[dict[str, bytes], dict[str, str]]:
    """Return real pages, and their reviewed main texts, by URL."""
    # Fetch requests canonical URLs; the server would not know a page under another spelling of its URL.
    canonical = re.compile(r"https?://[a-z0-9.-]+/[A-Za-z0-9./_-]*")
    reviewed = (page for page in read_benchmark(shared_data / "pages" / "wcxb-dev") if page.content)
    pages = list(itertools.islice((page for page in reviewed if canonical.fullmatch(page.url or "")), count))
    return {str(page.url): page.html for page in pages}, {str(page.url): page.content for page in pages}


def test_a_truncated_dump_is_named(shared_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dump = (shared_data / "reddit" / "RS_v2_2005-06.xz").read_bytes()
    (tmp_path / "RS_cut.xz").write_bytes(dump[: len(dump) // 2])
    assert main(["scrape", str(tmp_path / "RS_cut.xz"), "-o", str(tmp_path / "out")]) == 1
    assert "RS_cut.xz: is truncated or corrupt near compressed byte" in capsys.readouterr().err
