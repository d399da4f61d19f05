"""What fetch reads: the shards of scrape, lists of URLs, and how they are shared among tasks."""

from __future__ import annotations

import dataclasses
import gzip
import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fetch_run import QUICK, read_rows, run_fetch
from local_web import Answer, LocalWeb

from pipelines.algorithms.web.urls import canonical_url, registered_domain
from pipelines.engine.executor import make_executor
from pipelines.engine.manifest import read_manifest
from pipelines.engine.run import RunOptions, Stage, TaskResult, stage_run
from pipelines.errors import DamagedShardError, InputError
from pipelines.records import shards
from pipelines.records.schemas import LINK_SCHEMA, PAGE_SCHEMA
from pipelines.records.url_lists import read_urls
from pipelines.stages.fetch.config import FetchConfig
from pipelines.stages.fetch.links import LIST_SHARD_BYTES, LinkInput, divide_lists, open_links, read_links
from pipelines.stages.fetch.stage import STAGE, fetch


@dataclasses.dataclass(frozen=True)
class _NoConfig:
    pass


def _scraped(folder: Path, url_shards: Sequence[Sequence[str]]) -> Path:
    """Write a folder as scrape does."""
    with stage_run(Stage("scrape", 1), _NoConfig(), inputs={}, output=str(folder), options=RunOptions()) as run:
        for index, urls in enumerate(url_shards):
            with shards.write_shard(str(folder), shards.shard_name("links", index), LINK_SCHEMA) as written:
                for url in urls:
                    domain = registered_domain(url) or ""
                    values = (url, url, domain, 5, ["a"], ["b"], ["c"], "title", 1_500_000_000, False)
                    written.write(dict(zip(LINK_SCHEMA.names, values, strict=True)))
            result = TaskResult(len(urls), len(urls), files=(written.entry,))
            run.once(f"links-{index:05d}", lambda result=result: result)
        run.finish()
    return folder


def _without_times(folder: Path) -> list[dict[str, Any]]:
    return [
        {key: value for key, value in row.items() if key not in ("fetched_at", "warc_offset")}
        for row in read_rows(folder, "pages")
    ]


def _read_first(source: LinkInput) -> list[str]:
    return read_links(source.shards[0], "")


def _read_shards(source: LinkInput, output: Path, workers: int = 1) -> list[list[str]]:
    options = RunOptions(executor=make_executor(workers))
    with stage_run(STAGE, _NoConfig(), inputs={}, output=str(output), options=options) as run:
        divide_lists(run, source.shards)
        return [read_links(shard, str(output)) for shard in source.shards]


def test_each_links_shard_becomes_a_pages_shard(tmp_path: Path) -> None:
    with LocalWeb({"/1": b"one", "/2": b"two", "/3": Answer(b"", 404)}) as web:
        urls = [web.url(path) for path in web.pages]
        source = _scraped(tmp_path / "scrape", [urls[:1], [], urls[1:]])
        options = RunOptions(executor=make_executor(1))
        summary = fetch(FetchConfig(**QUICK), links=str(source), output=str(tmp_path / "fetch"), options=options)
    assert (summary.records_in, summary.records_out, summary.dropped) == (3, 2, {"http_not_found": 1})
    tables = [pq.read_table(tmp_path / "fetch" / f"pages-0000{index}.parquet") for index in range(3)]
    assert [table.column("url").to_pylist() for table in tables] == [urls[:1], [], urls[1:]]
    assert all(table.schema.equals(PAGE_SCHEMA) for table in tables)
    assert tables[2].column("warc_file").to_pylist() == ["pages-00002.warc.gz", None]
    assert summary.extra == {"page_bytes": 6}
    # By this extract knows that the rows of pages are the rows of these links.
    assert read_manifest(str(tmp_path / "fetch")).identity.inputs == {"links": open_links(str(source)).fingerprint}


@pytest.mark.usefixtures("warm_processes")
def test_results_do_not_depend_on_the_number_of_workers(tmp_path: Path) -> None:
    pages = {f"http://site-{number % 13}.example/{number}": b"<p>%d</p>" % number for number in range(60)}
    pages |= {f"http://site-{number}.example/gone": Answer(b"", 410) for number in range(13)}
    with LocalWeb(pages) as web, web.as_proxy():
        source = _scraped(tmp_path / "scrape", [sorted(pages)[start::4] for start in range(4)])
        for workers in (1, 2):
            options = RunOptions(executor=make_executor(workers))
            output = tmp_path / f"fetch-{workers}"
            fetch(FetchConfig(**QUICK), links=str(source), output=str(output), options=options)
    assert _without_times(tmp_path / "fetch-1") == _without_times(tmp_path / "fetch-2")
    assert read_rows(tmp_path / "fetch-1", "dropped") == read_rows(tmp_path / "fetch-2", "dropped")


def test_a_damaged_shard_of_scrape_is_refused(tmp_path: Path) -> None:
    source = _scraped(tmp_path / "scrape", [["http://example.org/"]])
    (source / "links-00000.parquet").write_bytes(b"")
    with pytest.raises(DamagedShardError, match=r"links-00000.parquet: is damaged.*re-run `webtext scrape`"):
        fetch(FetchConfig(), links=str(source), output=str(tmp_path / "fetch"), options=RunOptions())


def test_folders_of_other_stages_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such folder; run `webtext scrape`"):
        open_links(str(tmp_path / "scrape"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="has no manifest"):
        open_links(str(tmp_path / "empty"))
    (tmp_path / "unfinished" / "_journal").mkdir(parents=True)
    with pytest.raises(InputError, match="scrape has not finished"):
        open_links(str(tmp_path / "unfinished"))
    source = _scraped(tmp_path / "scraped", [["http://example.org/"]])
    with pytest.raises(InputError, match="use one such folder alone"):
        open_links([str(source), str(source)])


def test_lists_of_urls_in_every_format(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("\ufeffhttp://a.example/\r\n\n# a comment\n  http://b.example/x  \n".encode())
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(b"http://c.example/\nhttp://d.example/\xff\n"))
    table = pa.table({"url": ["http://e.example/", None], "score": [1, 2]})
    pq.write_table(table, tmp_path / "c.parquet")
    whole = open_links(str(tmp_path))
    assert _read_first(whole) == [
        "http://a.example/", "http://b.example/x", "http://c.example/", "http://d.example/\ufffd", "http://e.example/",
        "",
    ]  # fmt: skip
    named = open_links([str(tmp_path / "*.parquet"), str(tmp_path / "a.txt")])
    assert _read_first(named)[0] == "http://e.example/"
    assert named.fingerprint != whole.fingerprint


def test_lists_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.txt")
    with pytest.raises(InputError, match=r"pipe\.txt: is not a regular file"):
        open_links(str(tmp_path / "pipe.txt"))
    with pytest.raises(InputError, match=r"missing\.txt: no such file"):
        open_links(str(tmp_path / "missing.txt"))
    pq.write_table(pa.table({"link": ["http://e.example/"]}), tmp_path / "no-url.parquet")
    with pytest.raises(InputError, match=r"no-url\.parquet: has no column 'url'; it has: link"):
        _read_first(open_links(str(tmp_path / "no-url.parquet")))
    pq.write_table(pa.table({"url": [1, 2]}), tmp_path / "numbers.parquet")
    with pytest.raises(InputError, match="column 'url' has the type"):
        _read_first(open_links(str(tmp_path / "numbers.parquet")))
    for name, problem in (
        ("urls.html", "contains web pages"),
        ("urls", r"unknown file type; supported are \.txt, .*\.jsonl"),
    ):
        (tmp_path / name).write_text("http://e.example/\n")
        with pytest.raises(InputError, match=rf"{name}: {problem}"):
            open_links(str(tmp_path / name))
    with pytest.raises(InputError, match=r"urls\.html: contains web pages"):
        _read_first(open_links(str(tmp_path / "*.html")))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "a.bin").write_text("{}")
    with pytest.raises(InputError, match=r"contains no \*.txt, \*.parquet"):
        open_links(str(tmp_path / "other"))


def test_lists_are_those_of_scrape(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("title,url\nOne,http://a.example/1\n")
    (tmp_path / "b.tsv").write_text("url\ttitle\nhttp://b.example/1\tOne\n")
    (tmp_path / "c.jsonl").write_text('{"url": "http://c.example/1"}\n')
    for name, host in (("a.csv", "a"), ("b.tsv", "b"), ("c.jsonl", "c")):
        assert _read_first(open_links(str(tmp_path / name))) == [f"http://{host}.example/1"]


def test_a_long_list_is_split_by_registered_domain(tmp_path: Path) -> None:
    urls = [f"http://{('www', 'm', 'blog')[number % 3]}.site-{number % 50}.co.uk/{number}" for number in range(600)]
    (tmp_path / "urls.txt").write_text("\n".join(urls))
    source = open_links(str(tmp_path / "urls.txt"), shard_bytes=1000)
    shard_urls = _read_shards(source, tmp_path / "fetch")
    assert len(shard_urls) == -(-(tmp_path / "urls.txt").stat().st_size // 1000)
    assert sorted(url for urls_of_shard in shard_urls for url in urls_of_shard) == sorted(urls)
    domains = [{registered_domain(url) for url in urls_of_shard} for urls_of_shard in shard_urls]
    assert sum(map(len, domains)) == 50


@pytest.mark.usefixtures("warm_processes")
def test_shards_of_lists_have_their_links_in_order(tmp_path: Path) -> None:
    odd = ["", "not a URL", "http://xn--/", "http://BÜCHER.example./ä", "x" * 40_000]
    urls = [odd[number % 5] if number % 7 == 0 else f"http://s{number % 90}.org/{number}" for number in range(2500)]
    pq.write_table(pa.table({"url": urls[:2200]}), tmp_path / "a.parquet")
    (tmp_path / "b.txt").write_text("\n".join(filter(None, urls[2200:])))
    source = open_links([str(tmp_path / "b.txt"), str(tmp_path / "a.parquet")], shard_bytes=20_000)
    parts = len(source.shards)
    assert parts > 3
    expected: list[list[str]] = [[] for _ in range(parts)]
    for url in [*filter(None, urls[2200:]), *urls[:2200]]:
        stored = f"(too long) {url[:200]}" if len(url) > 32 << 10 else url
        domain = registered_domain(canonical_url(stored) or stored) or ""
        expected[zlib.crc32(domain.encode()) % parts].append(stored)
    assert _read_shards(source, tmp_path / "one") == expected
    assert _read_shards(source, tmp_path / "two", workers=2) == expected
    assert (tmp_path / "one/_work/list-00001.buckets").read_bytes() == (
        tmp_path / "two/_work/list-00001.buckets"
    ).read_bytes()


def test_lists_are_divided_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.txt").write_text("".join(f"http://{name}{number}.org/\n" for number in range(100)))
    source, paths = open_links(str(tmp_path / "*.txt"), shard_bytes=500), list[str]()

    def read(path: str, **options: Any) -> Any:
        paths.append(Path(path).name)
        return read_urls(path, **options)

    monkeypatch.setattr("pipelines.stages.fetch.links.read_urls", read)
    expected = _read_shards(source, tmp_path / "fetch")
    assert paths == ["a.txt", "b.txt"]
    assert _read_shards(source, tmp_path / "fetch") == expected
    assert paths == ["a.txt", "b.txt"]
    # As a loss of power may leave it, since work files are not flushed to the disk.
    os.truncate(tmp_path / "fetch/_work/list-00001.buckets", 10)
    assert _read_shards(source, tmp_path / "fetch") == expected
    assert paths == ["a.txt", "b.txt", "b.txt"]


def test_all_spellings_of_a_host_are_in_one_shard(tmp_path: Path) -> None:
    hosts = (
        "bücher.example",
        "xn--bcher-kva.example",
        "BÜCHER.example.",
        "b%C3%BCcher.example",
        "me@bücher.example:80",
    )
    urls = [f"http://{host}/" for host in hosts]
    (tmp_path / "urls.csv").write_text("\n".join(["url", *urls]))
    source = open_links(str(tmp_path / "urls.csv"), shard_bytes=1)
    assert list(filter(None, _read_shards(source, tmp_path / "fetch"))) == [urls]


def test_a_list_longer_than_a_shard_is_fetched_completely(tmp_path: Path) -> None:
    pages = {f"http://site-{number}.example/": b"text" for number in range(40)}
    comment = "#" * (LIST_SHARD_BYTES + 1)
    with LocalWeb(pages) as web, web.as_proxy():
        fetched = run_fetch(tmp_path, [*pages, comment])
    assert len(list(fetched.folder.glob("pages-*.warc.gz"))) > 1
    assert fetched.outcomes == dict.fromkeys(pages, "ok")


def test_dropped_links_can_be_the_input_of_another_run(tmp_path: Path) -> None:
    with LocalWeb({"/1": b"one", "/2": [Answer(b"", 503), Answer(b"two")]}) as web:
        run_fetch(tmp_path, [web.url("/1"), web.url("/2")])
        again = [str(tmp_path / "fetch" / "dropped-*.parquet")]
        fetch(FetchConfig(**QUICK), links=again, output=str(tmp_path / "again"), options=RunOptions())
        assert list(read_manifest(str(tmp_path / "again")).identity.inputs) == ["urls"]
        rows = read_rows(tmp_path / "again", "pages")
        assert [(row["url"], row["outcome"]) for row in rows] == [(web.url("/2"), "ok")]
