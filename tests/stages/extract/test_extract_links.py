"""How the pages of a fetch get the scores and submissions of their links."""

from __future__ import annotations

import json
import shutil
import tracemalloc

import pytest
from click.testing import CliRunner
from extract_run import (
    HTML_HEADERS,
    fingerprint,
    html_page,
    notes_of,
    page_row,
    rows,
    run,
    set_inputs,
    write_corpus,
    write_links,
    write_pages,
)
from quick_extractor import first_paragraph

from pipelines.errors import InputError
from pipelines.records import shards
from pipelines.records.inputs import InputFile
from pipelines.records.schemas import PAGE_SCHEMA
from pipelines.stages.extract.extractors import EXTRACTORS
from pipelines.stages.extract.pages import FetchedShard, rows_with_links
from webtext_cli.commands.extract import command

pytestmark = pytest.mark.usefixtures("warm_processes")


@pytest.fixture(autouse=True)
def quick_extractor(monkeypatch):
    monkeypatch.setitem(EXTRACTORS, "fast", first_paragraph)


@pytest.fixture
def corpus(tmp_path):
    return write_corpus(tmp_path)


def test_a_page_without_a_link_keeps_its_domain_and_is_counted(corpus):
    pages, _, tmp_path = corpus
    fewer = write_links(tmp_path / "fewer", [["http://example.org/0/0"], []])
    summary = run(pages, tmp_path / "out", fewer)
    assert summary.extra["pages_without_link"] == 3
    document = rows(tmp_path / "out", "documents")[1]
    assert (document["domain"], document["score"], document["submission_ids"]) == ("example.org", None, None)
    summary = run(pages, tmp_path / "none", None)
    assert "pages_without_link" not in summary.extra
    assert rows(tmp_path / "none", "documents")[0]["score"] is None


def test_links_that_the_fetch_did_not_read_are_noted(tmp_path):
    url = "http://example.org/"
    links = write_links(tmp_path / "scrape", [[url, "http://gone.example/0"]])
    pages = write_pages(tmp_path / "fetch", [[(url, html_page("x").encode(), HTML_HEADERS)]])
    assert notes_of(pages, None, tmp_path / "unknown") == []
    set_inputs(pages, links=fingerprint(links))
    assert notes_of(pages, links, tmp_path / "same") == []
    [note] = notes_of(pages, None, tmp_path / "none")
    assert "documents have no score" in note
    set_inputs(pages, links="others")
    [note] = notes_of(pages, links, tmp_path / "others")
    assert "the pages were fetched from other links" in note
    set_inputs(pages, urls="a list")
    assert notes_of(pages, links, tmp_path / "list") == []


def test_pages_of_the_corpus_are_joined_row_by_row(corpus):
    pages, _, tmp_path = corpus
    urls = [[f"http://example.org/{shard}/{page}" for page in range(2)] for shard in range(2)]
    links = write_links(tmp_path / "links", [[*part, f"http://gone.example/{at}"] for at, part in enumerate(urls)])
    set_inputs(pages, links=fingerprint(links))
    assert run(pages, tmp_path / "out", links).extra["pages_without_link"] == 0
    assert [row["score"] for row in rows(tmp_path / "out", "documents")] == [3, 4, 13, 14]
    for name, broken in {
        "swapped": [[urls[0][0], "http://gone.example/0", urls[0][1]], urls[1]],
        "shorter": [urls[0], urls[1]],
    }.items():
        links = write_links(tmp_path / name, broken)
        set_inputs(pages, links=fingerprint(links))
        with pytest.raises(InputError, match=r"pages-00000\.parquet: row \d is http://\S+, but in .*links-00000"):
            run(pages, tmp_path / f"out-{name}", links)


def test_pages_of_a_list_are_joined_by_url_over_all_shards_of_links(tmp_path):
    urls = [f"http://example.org/{number}" for number in range(4)]
    links = write_links(tmp_path / "scrape", [urls[:1], urls[1:2], urls[2:]])
    pages = [(url, html_page(url[-1]).encode(), HTML_HEADERS) for url in reversed(urls)]
    fetched = write_pages(tmp_path / "again", [pages])
    set_inputs(fetched, urls="a list")
    assert run(fetched, tmp_path / "out", links).extra["pages_without_link"] == 0
    scores = {row["url"]: row["score"] for row in rows(tmp_path / "out", "documents")}
    assert scores == dict(zip(urls, [3, 13, 23, 24], strict=True))


@pytest.mark.parametrize("in_order", [True, False])
def test_the_join_loads_only_the_links_that_it_needs(tmp_path, in_order):
    urls = [f"http://example.org/{number}" for number in range(15_000)]
    links = write_links(tmp_path / "scrape", [urls])
    with shards.write_shard(str(tmp_path), "pages-00000.parquet", PAGE_SCHEMA) as shard:
        for number, url in enumerate(urls):
            shard.write(page_row(url, "ok" if in_order or number < 9 else "dropped.dns", 1, None, None))
    path = str(links / "links-00000.parquet")
    files = [InputFile(name, 0) for name in (str(tmp_path / "pages-00000.parquet"), path)]
    tracemalloc.start()
    joined = sum(link is not None for _, link in rows_with_links(FetchedShard("", files[0], (), (files[1],), in_order)))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert joined == (15_000 if in_order else 9)
    assert peak < 8 << 20


def test_the_command_reads_the_corpus(corpus):
    _, _, tmp_path = corpus
    arguments = ["--json", "--quiet", "--workers", "1"]
    result = CliRunner().invoke(command, ["--corpus", str(tmp_path), *arguments])
    assert result.exit_code == 0, result.output
    summary = json.loads(result.output)
    assert (summary["stage"], summary["records_out"], summary["pages_without_link"]) == ("extract", 4, 0)
    again = CliRunner().invoke(
        command,
        [*arguments, "-i", str(tmp_path / "fetch"), "--links", str(tmp_path / "scrape"), "-o", str(tmp_path / "o")],
    )
    assert again.exit_code == 0, again.output
    assert json.loads(again.output)["pages_without_link"] == 0


def test_the_command_refuses_links_that_are_missing_or_unfinished(corpus):
    pages, links, tmp_path = corpus
    arguments = ["--corpus", str(tmp_path), "--quiet", "--workers", "1"]
    set_inputs(pages, links=fingerprint(links))

    def refusal() -> str:
        with pytest.raises(InputError) as refused:
            CliRunner().invoke(command, arguments, catch_exceptions=False)
        return str(refused.value)

    (links / "manifest.json").unlink()
    assert "scrape: has no manifest" in refusal()
    (links / "_journal").mkdir()
    assert "scrape has not finished" in refusal()
    shutil.rmtree(links)
    assert "scrape: no such folder; run `webtext scrape`" in refusal()
    set_inputs(pages, urls="a list")
    result = CliRunner().invoke(command, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    assert "pages_without_link" not in json.loads(result.output)
