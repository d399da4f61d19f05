"""Archives that fail, or have what cannot be read: no page is lost for good, and errors come before requests."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fetch_run import fetch_links, read_rows, run_fetch, sources
from local_archives import (
    Archived,
    LocalWayback,
    crawl_options,
    machine_options,
    serve_files,
    served,
    wayback,
    write_crawl,
)
from local_web import LocalWeb

from pipelines.engine.retry import RetryPolicy
from pipelines.errors import ChangedRunError, InputError, UsageError, WebtextError

_QUICK_RETRIES = RetryPolicy(6, longest_backoff_s=0.0)


def test_records_that_cannot_be_read_now_end_the_run_and_are_read_by_the_next(
    tmp_path: Path, web: LocalWeb, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipelines.storage.object_store._RETRY_S", 0)
    pages = [Archived(web.url(f"/{number}"), "2014-05-14") for number in range(6)]
    write_crawl(tmp_path / "crawl", pages)
    options = crawl_options(tmp_path / "crawl")
    with served(lambda *_: (403, {}, b"")) as address, pytest.raises(WebtextError, match="403"):
        fetch_links(tmp_path, [page.url for page in pages], **options | {"cc_records": address})
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"empty: has none of the files that the index names, such as warc/"):
        fetch_links(tmp_path, [page.url for page in pages], **options | {"cc_records": str(tmp_path / "empty")})
    with serve_files(tmp_path / "crawl") as address:
        fetched = fetch_links(tmp_path, [page.url for page in pages], **options | {"cc_records": address})
    assert set(sources(fetched).values()) == {"2014-05-14"}
    assert len(web.paths()) == len(pages)


def test_times_of_an_index_have_fractions_of_a_second(tmp_path: Path, web: LocalWeb) -> None:
    crawl = tmp_path / "crawl"
    write_crawl(crawl, [Archived(web.url("/a"), day) for day in ("2014-05-14", "2014-06-14")], files=1)
    [path] = (crawl / "index").glob("*.parquet")
    table = pq.read_table(path)
    column = table.column_names.index("fetch_time")
    times = [time + dt.timedelta(milliseconds=429) for time in table["fetch_time"].to_pylist()]
    pq.write_table(table.set_column(column, "fetch_time", pa.array(times, pa.timestamp("ms", "UTC"))), path)
    fetched = fetch_links(tmp_path, [web.url("/a")], **crawl_options(crawl))
    assert sources(fetched) == {"/a": "2014-05-14"}


def test_an_odd_answer_of_waybacks_index_is_asked_for_again(
    tmp_path: Path, web: LocalWeb, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipelines.stages.fetch.wayback._POLICY", _QUICK_RETRIES)
    urls = [web.url(path) for path in ("/a", "/b", "/c")]
    with wayback([Archived(url, "2014-01-01") for url in urls]) as machine:
        answer, odd = machine.answer, 1

        def answer_oddly(path: str) -> Any:
            kind = {"Content-Type": "text/html"}
            return (200, kind, b"<p>Maintenance") if len(machine.requests) < odd else answer(path)

        monkeypatch.setattr(machine, "answer", lambda path: (machine.requests.append(path), answer_oddly(path))[1])
        odd = 10**6
        problem = r"unexpected answer to http://\S+%2Fc\S*: status 200, '<p>Maintenance', no response in 6 attempts"
        with pytest.raises(WebtextError, match=problem):
            fetch_links(tmp_path, urls, **machine_options(machine))
        machine.requests.clear()
        odd = 3
        fetched = fetch_links(tmp_path, urls, **machine_options(machine))
    assert set(sources(fetched).values()) == {"2014-01-01"}


def test_archived_pages_can_ask_not_to_be_archived(tmp_path: Path, web: LocalWeb) -> None:
    text = b'<head><meta name="robots" content="noarchive"></head><p>text'
    write_crawl(tmp_path / "crawl", [Archived(web.url("/a"), "2014-05-14", text)])
    urls = [web.url("/live"), web.url("/a")]
    fetched = fetch_links(tmp_path, urls, **crawl_options(tmp_path / "crawl"), honor=("noarchive",))
    assert sources(fetched) == {"/live": "live", "/a": "dropped.http_not_found"}
    assert fetched.summary is not None
    assert fetched.summary.extra["refused_noarchive"] == 1


def test_a_record_of_another_page_than_the_index_says_is_not_taken(tmp_path: Path, web: LocalWeb) -> None:
    write_crawl(tmp_path / "crawl", [Archived(web.url(path), "2014-01-01") for path in ("/a", "/b")], files=1)
    [path] = (tmp_path / "crawl" / "index").glob("*.parquet")
    rows = pq.read_table(path).to_pylist()
    place = ("warc_record_offset", "warc_record_length")
    pq.write_table(pa.Table.from_pylist([rows[0] | {name: rows[1][name] for name in place}]), path)
    fetched = fetch_links(tmp_path, [web.url("/live"), web.url("/a")], **crawl_options(tmp_path / "crawl"))
    assert sources(fetched) == {"/live": "live", "/a": "dropped.http_not_found"}
    assert fetched.summary is not None
    assert fetched.summary.extra["refused_other_page"] == 1


def test_damaged_records_are_counted_and_the_next_capture_is_taken(tmp_path: Path, web: LocalWeb) -> None:
    crawl = tmp_path / "crawl"
    pages = [Archived(web.url(path), "2014-05-14") for path in ("/a", "/b", "/c")]
    write_crawl(crawl, [*pages, *(dataclasses.replace(page, day="2014-07-01") for page in pages)], files=6)
    (crawl / "warc" / "0.warc.gz").write_bytes((crawl / "warc" / "0.warc.gz").read_bytes()[:150])
    (crawl / "warc" / "1.warc.gz").unlink()
    (crawl / "warc" / "2.warc.gz").write_bytes(b"no gzip member at all" * 9)
    fetched = fetch_links(tmp_path, [page.url for page in pages], **crawl_options(crawl))
    assert set(sources(fetched).values()) == {"2014-07-01"}
    assert fetched.summary is not None
    refused = {name: count for name, count in fetched.summary.extra.items() if name.startswith("refused")}
    assert sum(refused.values()) == 3
    assert refused["refused_no_file"] == 1


def test_a_wayback_that_stays_down_ends_the_run_which_resumes(
    tmp_path: Path, web: LocalWeb, monkeypatch: pytest.MonkeyPatch
) -> None:
    urls = [web.url(f"/{number}") for number in range(5)]
    with wayback([Archived(url, "2014-01-01") for url in urls]) as machine:
        answer = machine.answer

        def fail(path: str) -> Any:
            return answer(path) if len(machine.requests) < 3 else (503, {}, b"")

        with monkeypatch.context() as patch:
            patch.setattr(machine, "answer", fail)
            patch.setattr("pipelines.stages.fetch.wayback._POLICY", _QUICK_RETRIES)
            with pytest.raises(
                WebtextError, match=r"status 503, no response in 6 attempts; .* re-run the same command"
            ):
                fetch_links(tmp_path, urls, **machine_options(machine))
        fetched = fetch_links(tmp_path, urls, **machine_options(machine))
        assert set(sources(fetched).values()) == {"2014-01-01"}
    assert len(web.paths()) == 5


@pytest.mark.parametrize("stamp", ["20140101120000", "20140100000000"])
@pytest.mark.parametrize(
    "failure", [(503, {}, b""), (302, {"Location": "http://[no-url"}, b""), (200, {"Content-Type": "text/html"}, b"a")]
)
def test_a_capture_that_wayback_never_serves_does_not_hold_up_the_others(
    tmp_path: Path, web: LocalWeb, monkeypatch: pytest.MonkeyPatch, stamp: str, failure: Any
) -> None:
    monkeypatch.setattr("pipelines.stages.fetch.wayback._POLICY", _QUICK_RETRIES)
    urls = [web.url(path) for path in ("/a", "/b", "/c")]
    with wayback([Archived(url, "2014-01-01") for url in urls]) as machine:
        answer, index = machine.answer, [["timestamp", "original"], [stamp, urls[0]]]

        def fail(path: str) -> Any:
            if "%2Fa" in path:
                return 200, {}, json.dumps(index).encode()
            return failure if path.endswith("/a") else answer(path)

        monkeypatch.setattr(machine, "answer", fail)
        fetched = fetch_links(tmp_path, urls, **machine_options(machine))
    is_page = failure[0] == 200 and stamp.endswith("120000")
    first = "2014-01-01" if is_page else "dropped.http_not_found"
    assert sources(fetched) == {"/a": first, "/b": "2014-01-01", "/c": "2014-01-01"}
    assert {row["archives"] for row in fetched.rows} == {"wayback"}


def test_captures_of_wayback_that_cannot_be_decoded_are_refused(
    tmp_path: Path, web: LocalWeb, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipelines.stages.fetch.wayback._POLICY", _QUICK_RETRIES)
    brotli = b"\x8b\t\x80<p>archived text</p>\x03"  # <p>archived text</p>
    bodies = {"br": brotli, "gzip": b"this is not gzip", "zstd": b"zstd", "other/br": b"no brotli"}
    urls = [web.url(f"/{coding}") for coding in bodies]
    with wayback([Archived(url, "2014-01-01") for url in urls]) as machine:
        answer = machine.answer

        def encode(path: str) -> Any:
            status, headers, body = answer(path)
            coding = path.rpartition("/")[2] if path.startswith("/web/") else ""
            body = next((data for name, data in reversed(bodies.items()) if coding and path.endswith(f"/{name}")), body)
            return status, {**headers, "Content-Encoding": coding or "identity"}, body

        monkeypatch.setattr(machine, "answer", encode)
        fetched = fetch_links(tmp_path, urls, **machine_options(machine))
        assert len(machine.requests) == 2 * len(urls)
    gone = "dropped.http_not_found"
    assert sources(fetched) == {"/br": "2014-01-01", "/gzip": gone, "/zstd": gone, "/other/br": gone}
    assert fetched.record(urls[0]).content_stream().read() == b"<p>archived text</p>"
    details = [row["detail"].partition("; ")[2] for row in read_rows(fetched.folder, "dropped")]
    assert details == [f"wayback: {reason} 1" for reason in ["bad_encoding"] * 3]


def test_a_pause_of_more_than_an_hour_ends_the_run(tmp_path: Path, web: LocalWeb) -> None:
    with wayback([Archived(web.url("/a"), "2014-01-01")], [(429, {"Retry-After": "inf"})]) as machine:
        with pytest.raises(WebtextError, match="refuses requests for now; re-run"):
            fetch_links(tmp_path, [web.url("/a")], **machine_options(machine))
        assert sources(fetch_links(tmp_path, [web.url("/a")], **machine_options(machine))) == {"/a": "2014-01-01"}


def test_passwords_are_not_sent_to_wayback(tmp_path: Path, web: LocalWeb, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password secret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    machine, headers = LocalWayback([Archived(web.url("/a"), "2014-01-01")]), []
    with served(lambda path, sent: (headers.append(dict(sent)), machine.answer(path))[1]) as machine.url:
        fetch_links(tmp_path, [web.url("/a")], **machine_options(machine))
    assert [sent.get("Authorization") for sent in headers] == [None, None]


def test_a_retry_is_not_added_to_a_run_that_has_asked_archives(
    tmp_path: Path, web: LocalWeb, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipelines.stages.fetch.wayback._POLICY", RetryPolicy(1))
    urls = [web.url(path) for path in ("/live", "/a", "/b")]
    run_fetch(tmp_path, urls)
    with wayback([Archived(web.url("/b"), "2014-01-01")], [(404, {}), (429, {})]) as machine:
        with pytest.raises(WebtextError, match="status 429"):
            run_fetch(tmp_path, urls, **machine_options(machine))
        with pytest.raises(ChangedRunError, match="an unfinished run retries other reasons"):
            run_fetch(tmp_path, urls, **machine_options(machine), retry=["http_not_found"])
        fetched = run_fetch(tmp_path, urls, **machine_options(machine))
    assert sources(fetched) == {"/live": "live", "/a": "dropped.http_not_found", "/b": "2014-01-01"}
    assert web.paths() == ["/live", "/a", "/b"]


def test_answers_of_archives_for_links_whose_outcome_was_damaged_are_left_out(
    tmp_path: Path, web: LocalWeb, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipelines.stages.fetch.wayback._POLICY", RetryPolicy(1))
    urls = [web.url(path) for path in ("/live", "/a", "/b")]
    with wayback([Archived(web.url("/b"), "2014-01-01")], [(404, {}), (429, {})]) as machine:
        with pytest.raises(WebtextError, match="status 429"):
            run_fetch(tmp_path, urls, **machine_options(machine))
        (tmp_path / "fetch" / "_work" / "pages-00000" / "segment-000000.journal").unlink()
        fetched = run_fetch(tmp_path, urls, **machine_options(machine))
    assert list(fetched.outcomes.values()) == ["ok", "http_not_found", "http_not_found"]
    assert web.paths() == ["/live", "/a", "/b", "/live", "/b"]


def test_wrong_options_are_refused_before_any_request(tmp_path: Path, web: LocalWeb) -> None:
    for config, problem in (
        ({"archive": ("commoncrawl",)}, "needs --cc-index"),
        ({"archive": ("wayback",), "wayback_url": "ftp://x"}, "ftp://x: is not an http or https URL"),
        ({"cc_index": ("x.parquet",)}, "--cc-index has no effect without --archive commoncrawl"),
        ({"archive_for": "all"}, "--archive-for has no effect without --archive;"),
        ({"archive": ("wayback",), "cc_records": "x"}, "--cc-records has no effect without --archive commoncrawl"),
        ({"archive": ("commoncrawl",), "cc_index": ("x",), "wayback_rate": 5.0}, "--wayback-rate has no effect"),
    ):
        with pytest.raises(UsageError, match=problem):
            fetch_links(tmp_path, [web.url("/a")], **config)
    for name in ("x.txt", "cluster.idx"):
        (tmp_path / name).write_text("no index")
    pq.write_table(pa.table({"url": ["http://a.org/"]}), tmp_path / "t.parquet")
    with pytest.raises(InputError, match=r"t\.parquet: has no column 'url_surtkey'"):
        fetch_links(tmp_path, [web.url("/a")], archive=("commoncrawl",), cc_index=(str(tmp_path / "t.parquet"),))
    for path, problem in (
        ("no.parquet", "no such file"),
        ("x.txt", "not an index of Common Crawl"),
        ("cluster.idx", r"cluster\.idx: is not an index of Common Crawl; use \*\.parquet or cc-index-table\.paths"),
        ("a.idx", "no such"),
    ):
        with pytest.raises(InputError, match=problem):
            fetch_links(tmp_path, [web.url("/a")], archive=("commoncrawl",), cc_index=(str(tmp_path / path),))
    assert web.paths() == []
