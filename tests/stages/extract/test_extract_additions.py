"""Pages that were added are extracted alone; the bytes are those of an extraction of all pages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from extract_run import FETCHED_AT, HTML_HEADERS, html_page, run, write_links, write_pages, write_stage
from quick_extractor import paragraphs

from pipelines.engine.manifest import read_manifest
from pipelines.engine.run_record import RecordedProgress
from pipelines.errors import ChangedRunError
from pipelines.records import shards
from pipelines.records.schemas import LINK_SCHEMA, PAGE_SCHEMA
from pipelines.stages.extract import pages as pages_module
from pipelines.stages.extract import report
from pipelines.stages.extract.extractors import EXTRACTORS

pytestmark = pytest.mark.usefixtures("warm_processes")


@pytest.fixture(autouse=True)
def quick_extractor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EXTRACTORS, "fast", paragraphs)
    # The pages that the report may show are extracted again: here, these would be all.
    monkeypatch.setattr(report, "SAMPLES", 0)


@pytest.fixture
def extracted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The URLs of the pages whose records were read."""
    urls: list[str] = []
    read = pages_module._record

    def recorded(stream: Any, row: Any) -> Any:
        urls.append(row["url"])
        return read(stream, row)

    monkeypatch.setattr(pages_module, "_record", recorded)
    return urls


def _urls(chosen: range) -> list[list[str]]:
    return [[f"http://example.org/{shard}/{page:02d}" for page in chosen] for shard in range(2)]


def _all_urls(chosen: range) -> list[str]:
    return [url for part in _urls(chosen) for url in part]


def _documents(chosen: range) -> set[str]:
    """Return the URLs of the pages of `_write` that have text."""
    return {url for url in _all_urls(chosen) if int(url[-2:]) % 4}


def _write(folder: Path, chosen: range) -> tuple[Path, Path]:
    """Write pages, every fourth without text, and their links; return the two folders."""
    parts = _urls(chosen)
    pages = [
        [(url, html_page(url[-4:], sentences=6 * (int(url[-2:]) % 4 > 0)).encode(), HTML_HEADERS) for url in part]
        for part in parts
    ]
    return write_pages(folder / "fetch", pages), write_links(folder / "scrape", parts)


def _bytes(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name[0] != "."}


def test_added_pages_are_extracted_alone_with_the_bytes_of_all_at_once(tmp_path: Path, extracted: list[str]) -> None:
    few, all_pages = _write(tmp_path / "few", range(1, 20, 3)), _write(tmp_path / "all", range(20))
    run(all_pages[0], tmp_path / "at once")
    run(few[0], tmp_path / "out")
    assert read_manifest(str(tmp_path / "out")).dropped == {"empty_text": 4}
    extracted.clear()
    run(all_pages[0], tmp_path / "out")
    assert _bytes(tmp_path / "out") == _bytes(tmp_path / "at once")
    assert sorted(extracted) == sorted(set(_all_urls(range(20))) - _documents(range(1, 20, 3)))


def test_the_report_shows_blocks_of_known_pages_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "SAMPLES", 5)
    few, all_pages = _write(tmp_path / "few", range(1, 20, 3)), _write(tmp_path / "all", range(20))
    run(all_pages[0], tmp_path / "at once", all_pages[1])
    run(few[0], tmp_path / "out", few[1])
    run(all_pages[0], tmp_path / "out", all_pages[1])
    assert _bytes(tmp_path / "out") == _bytes(tmp_path / "at once")


def test_what_a_damaged_result_has_is_extracted_again(tmp_path: Path) -> None:
    few, all_pages = _write(tmp_path / "few", range(1, 20, 3)), _write(tmp_path / "all", range(20))
    run(all_pages[0], tmp_path / "at once")
    run(few[0], tmp_path / "out")
    path = tmp_path / "out" / "documents-00001.parquet"
    path.write_bytes(path.read_bytes()[:-9])
    run(all_pages[0], tmp_path / "out", follow_inputs=("pages",))
    assert _bytes(tmp_path / "out") == _bytes(tmp_path / "at once")


@pytest.mark.parametrize("is_damaged", [True, False])
def test_pages_are_not_added_to_a_result_without_its_documents(tmp_path: Path, is_damaged: bool) -> None:
    few, all_pages = _write(tmp_path / "few", range(1, 20, 3)), _write(tmp_path / "all", range(20))
    run(few[0], tmp_path / "out")
    path = tmp_path / "out" / "documents-00001.parquet"
    if is_damaged:
        path.write_bytes(path.read_bytes()[:-9])
    else:
        path.unlink()
    with pytest.raises(ChangedRunError, match="Use --overwrite"):
        run(all_pages[0], tmp_path / "out")
    assert not (tmp_path / "out" / "_next").exists()


def _with_equal_links(folder: Path) -> Path:
    """Write links that depend on their URL alone, except that of one page, which has got another submission."""
    files = []
    for index, part in enumerate(_urls(range(20))):
        with shards.write_shard(str(folder), shards.shard_name("links", index), LINK_SCHEMA) as shard:
            for url in part:
                row = {"url": url, "original_url": url, "domain": "example.org", "score": 3, "title": f"Title {url}"}
                row |= {"submission_ids": ["a"], "subreddits": ["b"], "created_utc": 1, "over_18": False}
                if folder.name == "more" and url.endswith("/0/13"):
                    row |= {"submission_ids": ["a", "c"], "subreddits": ["b", "b"], "score": 9, "title": "Another"}
                shard.write(row)
        files.append(shard.entry)
    write_stage(folder, "scrape", files, 40)
    return folder


def test_known_pages_are_extracted_again_only_if_their_link_has_changed(tmp_path: Path, extracted: list[str]) -> None:
    few, _ = _write(tmp_path / "few", range(1, 20, 3))
    all_pages, _ = _write(tmp_path / "all", range(20))
    before, more = _with_equal_links(tmp_path / "before"), _with_equal_links(tmp_path / "more")
    run(all_pages, tmp_path / "at once", more)
    run(few, tmp_path / "out", before)
    extracted.clear()
    run(all_pages, tmp_path / "out", more)
    assert _bytes(tmp_path / "out") == _bytes(tmp_path / "at once")
    known = _documents(range(1, 20, 3)) - {"http://example.org/0/13"}
    assert sorted(extracted) == sorted(set(_all_urls(range(20))) - known)


def test_pages_that_are_gone_or_were_fetched_again_are_refused(
    tmp_path: Path, extracted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    all_pages, links = _write(tmp_path / "all", range(20))
    run(all_pages, tmp_path / "out", links)
    few, _ = _write(tmp_path / "few", range(19))
    notes: list[str] = []
    monkeypatch.setattr(RecordedProgress, "note", lambda _, message: notes.append(message))
    with pytest.raises(ChangedRunError, match=r"its input 'pages' has changed\. Use --overwrite"):
        run(few, tmp_path / "out", links)
    assert not notes
    again, _ = _write(tmp_path / "again", range(20))
    manifest = read_manifest(str(again))
    table = pq.read_table(again / "pages-00001.parquet").to_pylist()
    with shards.write_shard(str(again), "pages-00001.parquet", PAGE_SCHEMA) as shard:
        for row in table:
            shard.write({**row, "fetched_at": FETCHED_AT.replace(year=2027)})
    files = [file for file in manifest.files if file.name != "pages-00001.parquet"]
    write_stage(again, "fetch", [*files, shard.entry], 40)
    with pytest.raises(ChangedRunError, match=r"its input 'pages' has changed\. Use --overwrite"):
        run(again, tmp_path / "out", links)
    # A build replaces the result.
    run(again, tmp_path / "out", links, follow_inputs=("pages",))
    run(again, tmp_path / "at once", links)
    assert _bytes(tmp_path / "out") == _bytes(tmp_path / "at once")


def test_a_shard_of_drops_is_extracted_again(tmp_path: Path) -> None:
    """Drops have no time of request, by which pages that were fetched again are known."""
    urls = ["http://a.org/1", "http://b.org/1"]
    text, empty = (html_page("x", sentences=count).encode() for count in (6, 0))

    def write(name: str, *payloads: bytes) -> Path:
        parts = [[(url, page, HTML_HEADERS)] for url, page in zip(urls, payloads, strict=True)]
        return write_pages(tmp_path / name, parts)

    run(write("before", text, empty), tmp_path / "out")
    after = write("after", text, text)
    assert run(after, tmp_path / "out").records_out == 2
    run(after, tmp_path / "at once")
    assert _bytes(tmp_path / "out") == _bytes(tmp_path / "at once")


def test_pages_in_files_of_other_shards_are_read(tmp_path: Path) -> None:
    """As after links were added to a list that is divided into more shards."""
    pages, links = _write(tmp_path / "corpus", range(8))
    run(pages, tmp_path / "expected", links)
    first = pq.read_table(pages / "pages-00000.parquet").to_pylist()
    entries = []
    for index, rows in enumerate([[], first]):
        with shards.write_shard(str(pages), shards.shard_name("pages", index), PAGE_SCHEMA) as shard:
            for row in rows:
                shard.write(row)
        entries.append(shard.entry)
    warc = next(file for file in read_manifest(str(pages)).files if file.name == "pages-00000.warc.gz")
    write_stage(pages, "fetch", [*entries, warc], 8)
    run(pages, tmp_path / "out", links)
    documents = pq.read_table(tmp_path / "out" / "documents-00001.parquet")["url"]
    assert documents == pq.read_table(tmp_path / "expected" / "documents-00000.parquet")["url"]
