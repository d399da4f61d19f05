"""Pages that are gone, from archives on loopback: the right captures, each asked once, and nothing taken for a page."""

from __future__ import annotations

import dataclasses
import datetime as dt
import gzip
import itertools
import time
from pathlib import Path
from typing import Any

import pytest
from extract_run import write_links
from fetch_run import fetch_links, read_rows, run_fetch, sources
from local_archives import Archived, crawl_options, machine_options, serve_files, wayback, write_crawl
from local_web import Answer, LocalWeb
from warcio.archiveiterator import ArchiveIterator
from warcio.checker import Checker

from pipelines.engine.executor import make_executor
from pipelines.engine.run import RunOptions
from pipelines.errors import UsageError
from pipelines.stages.extract.config import ExtractConfig
from pipelines.stages.extract.stage import extract
from pipelines.stages.fetch import archives

# The links of write_links were posted on this day.
_POSTED = dt.datetime(2014, 5, 13, tzinfo=dt.UTC)


_GONE = "dropped.http_not_found"


@pytest.mark.parametrize("index", ["index", "index/*.parquet"])
def test_the_capture_nearest_to_the_submission_is_taken(tmp_path: Path, web: LocalWeb, index: str) -> None:
    days = ["2008-01-01", "2014-05-20", "2014-05-01", "2020-01-01"]
    many = [Archived(web.url(f"/other/{number}"), "2014-05-13") for number in range(40)]
    nearest = [Archived(web.url("/a"), day, day.encode() * 9) for day in days]
    write_crawl(tmp_path / "crawl", [*many[:20], *nearest, *many[20:]], files=3)
    urls = [web.url(path) for path in ("/live", "/a", "/b")]
    fetched = fetch_links(tmp_path, urls, **crawl_options(tmp_path / "crawl", index))
    assert sources(fetched) == {"/live": "live", "/a": "2014-05-20", "/b": _GONE}
    row = fetched.row(web.url("/a"))
    assert (row["source"], row["captured_days"], row["status"]) == ("commoncrawl", 7, 200)
    assert row["archives"] == fetched.row(web.url("/b"))["archives"] != ""
    record = fetched.record(web.url("/a"))
    assert record.content_stream().read() == b"2014-05-20" * 9
    assert record.rec_headers.get_header("WARC-Date") == "2014-05-20T12:00:00Z"
    assert "warc/" in record.rec_headers.get_header("WARC-Source-URI")
    assert fetched.summary is not None
    assert fetched.summary.extra["pages_from_commoncrawl"] == 1
    [dropped] = read_rows(fetched.folder, "dropped")
    assert dropped["detail"] == "status 404; commoncrawl: no capture"


def test_a_join_has_few_links_in_memory(tmp_path: Path, web: LocalWeb, monkeypatch: pytest.MonkeyPatch) -> None:
    read, counts = archives.read_row_group, list[int]()

    def read_row_group(*arguments: Any) -> Any:
        counts.append(len(arguments[-1]))
        return read(*arguments)

    monkeypatch.setattr(archives, "read_row_group", read_row_group)
    monkeypatch.setattr("pipelines.records.shards._GROUP_ROWS", 2)
    monkeypatch.setattr(archives, "_MAX_WANTED", 8)
    pages = [web.url(f"/{number}") for number in range(24)]
    same_key = [web.url("/" + "".join(letters)) for letters in itertools.product("pP", "aA", "gG")]
    urls = [*pages, *same_key, *(f"{url}/" for url in same_key)]
    write_links(tmp_path / "links", [urls[shard::4] for shard in range(4)])
    write_crawl(tmp_path / "crawl", [Archived(url, "2014-05-20") for url in urls], files=1, row_group=100)
    fetched = fetch_links(tmp_path, urls, **crawl_options(tmp_path / "crawl"))
    assert set(sources(fetched).values()) == {"2014-05-20"}
    assert (sum(counts), len(fetched.rows)) == (len(urls), len(urls))
    # A limit, and the links of a shard.
    assert max(counts) <= 8 + 4
    # The index is read few times, too.
    assert len(counts) <= 12


def test_captures_outside_the_window_and_of_other_pages_are_not_taken(tmp_path: Path, web: LocalWeb) -> None:
    write_crawl(
        tmp_path / "crawl",
        [
            Archived(web.url("/a"), "2014-06-30"),
            Archived(web.url("/b"), "2014-06-01"),
            Archived(web.url("/C"), "2014-05-13"),  # the same key as /c, which ignores case
            Archived(web.url("/d/"), "2014-05-13"),
            Archived(web.url("/e"), "2014-05-13", headers={"Content-Type": "image/png"}),
            Archived(web.url("/f"), "2014-05-01", b"", 301, {"Location": "/g"}),
            Archived(web.url("/g"), "2014-04-03"),  # in the window of its redirect
            Archived(web.url("/h"), "2014-06-01"),
            *(Archived(web.url("/H"), f"2014-05-{day}") for day in range(10, 20)),
        ],
        row_group=100,
    )
    urls = [web.url(f"/{name}") for name in "abcdfeh"]
    fetched = fetch_links(tmp_path, urls, **crawl_options(tmp_path / "crawl"), archive_window=30)
    days = {"/b": "2014-06-01", "/d": "2014-05-13", "/h": "2014-06-01"}
    assert sources(fetched) == {f"/{name}": _GONE for name in "acef"} | days


def test_wayback_does_not_lead_outside_the_window(tmp_path: Path, web: LocalWeb) -> None:
    moved = Archived(web.url("/a"), "2014-05-01", b"", 301, {"Location": web.url("/b")})
    with wayback([moved, Archived(web.url("/b"), "2014-08-01"), Archived(web.url("/c"), "2014-08-01")]) as machine:
        urls = [web.url(path) for path in ("/live", "/a", "/c")]
        fetched = fetch_links(tmp_path, urls, **machine_options(machine), archive_window=30)
    assert sources(fetched) == {"/live": "live", "/a": _GONE, "/c": _GONE}
    details = [row["detail"] for row in read_rows(fetched.folder, "dropped")]
    assert details == ["status 404; wayback: outside_window 1", "status 404; wayback: no capture"]


def test_redirects_are_followed_within_the_archive(tmp_path: Path, web: LocalWeb) -> None:
    def moved(path: str, to: str, day: str = "2013-01-01") -> Archived:
        return Archived(web.url(path), day, b"", 301, {"Location": to})

    write_crawl(
        tmp_path / "crawl",
        [
            moved("/a", "/b"),
            moved("/b", web.url("/c")),
            Archived(web.url("/c"), "2013-02-02"),
            moved("/loop", "/loop"),
            moved("/nowhere", "/not-captured"),
            moved("/mail", "mailto:me@example.org"),
            *(moved(f"/long/{number}", f"/long/{number + 1}") for number in range(9)),
            moved("/both", "/c"),
            Archived(web.url("/both"), "2009-01-01"),
        ],
    )
    urls = [web.url(path) for path in ("/a", "/loop", "/nowhere", "/mail", "/long/0", "/both")]
    fetched = fetch_links(tmp_path, urls, **crawl_options(tmp_path / "crawl"))
    assert sources(fetched) == {
        "/a": "2013-02-02",
        "/loop": _GONE,
        "/nowhere": _GONE,
        "/mail": _GONE,
        "/long/0": _GONE,
        "/both": "2009-01-01",
    }
    assert fetched.row(web.url("/a"))["final_url"] == web.url("/c")


_PAGE = b"<html><title>A title</title><p>text</p></html>"


@pytest.mark.parametrize(
    ("body", "headers", "why"),
    [
        (b"<title>404 Not Found</title>", {}, "soft_not_found 1"),
        (b"<title>Sorry, the page you want was not found</title>", {}, "soft_not_found 1"),
        (b"<title>Acme: error 404</title>", {}, "soft_not_found 1"),
        (b"\x00\x01\x02\x03" * 100, {"Content-Type": "text/plain"}, "unsupported_content_type 1"),
        (b"x" * 5000, {}, "too_large 1"),
        (gzip.compress(b"x" * 50_000, mtime=0), {"Content-Encoding": "gzip"}, "too_large 1"),
        (gzip.compress(_PAGE, mtime=0)[:-9], {"Content-Encoding": "gzip"}, "incomplete 1"),
        (_PAGE, {"Content-Encoding": "br"}, "unsupported_encoding 1"),
        (_PAGE, {"Content-Encoding": "gzip"}, None),
        (gzip.compress(_PAGE, mtime=0), {"Content-Encoding": "gzip"}, None),
        (_PAGE, {"Transfer-Encoding": "chunked"}, None),
        (b"<title>404: the story of an area code</title>" + b"<p>text</p>" * 20, {}, "soft_not_found 1"),
        (b"<title>How pages are not founded</title>", {}, None),
    ],
)
def test_only_pages_are_taken(
    tmp_path: Path, web: LocalWeb, body: bytes, headers: dict[str, str], why: str | None
) -> None:
    archived = Archived(web.url("/a"), "2014-01-01", body, headers={"Content-Type": "text/html", **headers})
    write_crawl(tmp_path / "crawl", [dataclasses.replace(archived)])
    config = crawl_options(tmp_path / "crawl", max_page_bytes=4000)
    # The columnar index may have seen another type than the header says.
    fetched = fetch_links(tmp_path, [web.url("/a"), web.url("/live")], **config)
    if why is None:
        assert sources(fetched)["/a"] == "2014-01-01"
        expected = _PAGE if b"text" in body or headers else body
        assert fetched.record(web.url("/a")).content_stream().read() == expected
    else:
        [dropped] = read_rows(fetched.folder, "dropped")
        assert dropped["detail"] == f"status 404; commoncrawl: {why}"


def test_files_of_a_web_server_are_read_by_ranges(tmp_path: Path, web: LocalWeb) -> None:
    pages = [Archived(web.url(f"/{number}"), "2014-05-14") for number in range(30)]
    write_crawl(tmp_path / "crawl", pages, files=3)
    names = [f"index/part-{number}.parquet" for number in range(3)]
    (tmp_path / "crawl" / "cc-index-table.paths.gz").write_bytes(gzip.compress("\n".join(names).encode()))
    with serve_files(tmp_path / "crawl") as address:
        for name in ("cc-index-table.paths.gz", "index/part-1.parquet"):
            folder = tmp_path / name.replace("/", "-")
            folder.mkdir()
            config = {"archive": ("commoncrawl",), "cc_index": (f"{address}/{name}",), "cc_records": address}
            fetched = fetch_links(folder, [page.url for page in pages], **config)
            assert len([row for row in fetched.rows if row["source"] == "commoncrawl"]) == (
                10 if "part" in name else 30
            )


def test_an_archive_is_asked_later_and_only_for_what_is_missing(tmp_path: Path, web: LocalWeb) -> None:
    urls = [web.url(path) for path in ("/live", "/a", "/b", "/c")]
    first = fetch_links(tmp_path, urls)
    assert sources(first) == {"/live": "live", "/a": _GONE, "/b": _GONE, "/c": _GONE}
    asked = len(web.paths())
    write_crawl(tmp_path / "one", [Archived(web.url("/a"), "2014-01-01")])
    write_crawl(tmp_path / "two", [Archived(web.url(path), "2015-01-01") for path in ("/a", "/b")])
    second = fetch_links(tmp_path, urls, **crawl_options(tmp_path / "one"))
    assert sources(second) == {"/live": "live", "/a": "2014-01-01", "/b": _GONE, "/c": _GONE}
    with wayback([Archived(web.url(path), "2016-01-01") for path in ("/a", "/b", "/c")]) as machine:
        options = {"archive": ("commoncrawl", "wayback"), "wayback_url": machine.url, "wayback_rate": 6000.0}
        third = fetch_links(tmp_path, urls, **crawl_options(tmp_path / "two", **options))
        assert sources(third) == {"/live": "live", "/a": "2014-01-01", "/b": "2015-01-01", "/c": "2016-01-01"}
        assert third.row(web.url("/c"))["archives"].count("commoncrawl:") == 2
        count = len(machine.requests)
        assert count == 2
        for config in (
            crawl_options(tmp_path / "two", **options),
            {},
        ):  # also a run that names no archive keeps what they had
            assert fetch_links(tmp_path, urls, **config).rows == third.rows
        assert len(machine.requests) == count
    assert len(web.paths()) == asked
    assert third.record(web.url("/a")).content_stream().read() == Archived("", "").body
    for path in sorted(third.folder.glob("*.warc.gz")):
        _check_warc(path)


def _check_warc(path: Path) -> None:
    class Command:
        verbose = True
        inputs = [str(path)]  # noqa: RUF012

    checker = Checker(Command())
    checker.process_one(str(path))
    assert checker.exit_value == 0
    with path.open("rb") as stream:
        assert all(record.rec_type in ("warcinfo", "request", "response") for record in ArchiveIterator(stream))


def test_all_links_can_be_taken_from_an_archive(tmp_path: Path, web: LocalWeb) -> None:
    write_crawl(tmp_path / "crawl", [Archived(web.url("/live"), "2014-01-01")])
    web.pages["/other"] = b"<p>other</p>"
    urls = [web.url("/live"), web.url("/other"), "mailto:me@example.org"]
    fetched = fetch_links(tmp_path, urls, **crawl_options(tmp_path / "crawl"), archive_for="all")
    assert [row["source"] for row in fetched.rows] == ["commoncrawl", "live", "live"]
    assert [row["outcome"] for row in fetched.rows] == ["ok", "ok", "dropped.bad_url"]
    assert fetched.record(web.url("/other")).content_stream().read() == b"<p>other</p>"


def test_what_a_site_refuses_is_not_taken_from_an_archive(tmp_path: Path, web: LocalWeb) -> None:
    web.pages |= {"/robots.txt": Answer(b"User-agent: *\nDisallow: /no", headers={"Content-Type": "text/plain"})}
    web.pages |= {"/forbidden": Answer(status=403), "/picture": Answer(b"PNG", headers={"Content-Type": "image/png"})}
    paths = ("/no", "/forbidden", "/picture", "/gone")
    write_crawl(tmp_path / "crawl", [Archived(web.url(path), "2014-01-01") for path in paths])
    fetched = fetch_links(tmp_path, [web.url(path) for path in paths], **crawl_options(tmp_path / "crawl"))
    assert [row["source"] for row in fetched.rows] == ["live", "live", "live", "commoncrawl"]


@pytest.mark.parametrize("moment", range(4))
def test_an_interrupted_run_ends_as_if_undisturbed(
    tmp_path: Path, web: LocalWeb, monkeypatch: pytest.MonkeyPatch, moment: int
) -> None:
    pages = [Archived(web.url(f"/{number}"), "2014-05-14") for number in range(12)]
    moved = [Archived(web.url(f"/{number}"), "2014-05-14", b"", 302, {"Location": "/1"}) for number in range(12, 16)]
    write_crawl(tmp_path / "crawl", [*pages[:9], *moved])
    urls = [web.url(f"/{number}") for number in range(18)]
    (tmp_path / "whole").mkdir()
    whole = fetch_links(tmp_path / "whole", urls, **crawl_options(tmp_path / "crawl"))
    read = archives.read_record
    asked: list[int] = []

    def stop(*arguments: Any) -> Any:
        asked.append(arguments[2]["warc_record_offset"])
        if len(asked) == (1, 5, 10, 14)[moment]:
            raise KeyboardInterrupt
        return read(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(archives, "read_record", stop)
        patch.setattr(archives, "_READ_AHEAD", 1)
        patch.setattr(archives, "_LINKS", 5)
        with pytest.raises(KeyboardInterrupt):
            fetch_links(tmp_path, urls, **crawl_options(tmp_path / "crawl"))
    fetched = fetch_links(tmp_path, urls, **crawl_options(tmp_path / "crawl"))
    assert sources(fetched) == sources(whole)
    assert len([path for path in web.paths() if path == "/17"]) == 2
    for row in fetched.rows:
        if row["outcome"] == "ok":
            assert fetched.record(row["url"]).content_stream().read() == Archived("", "").body


@pytest.mark.usefixtures("warm_processes")
def test_archived_pages_are_extracted(tmp_path: Path, web: LocalWeb) -> None:
    text = (
        b"<html><body><article>" + b"<p>An archived paragraph with several words in it.</p>" * 20 + b"</article></body>"
    )
    write_crawl(tmp_path / "crawl", [Archived(web.url("/a"), "2014-05-14", text)])
    fetched = fetch_links(tmp_path, [web.url("/a")], **crawl_options(tmp_path / "crawl"))
    options = RunOptions(executor=make_executor(1))
    summary = extract(
        ExtractConfig(),
        pages=str(fetched.folder),
        links=str(tmp_path / "links"),
        output=str(tmp_path / "extract"),
        options=options,
    )
    assert summary.records_out == 1


def test_wayback_has_the_nearest_capture_and_its_redirects(tmp_path: Path, web: LocalWeb) -> None:
    body = b"<p>archived, as it was received</p>"
    archived = [
        Archived(web.url("/a"), "2010-01-01"),
        Archived(web.url("/a"), "2014-06-01", body, headers={"Content-Type": "text/html", "Content-Length": "9"}),
        *(Archived(web.url("/A"), f"2014-05-{day}") for day in range(10, 20)),
        Archived(web.url("/b"), "2014-01-01", b"", 301, {"Location": web.url("/c")}),
        Archived(web.url("/c"), "2015-01-01", body),
        Archived(web.url("/d"), "2014-01-01", b"<title>404 Not Found</title>"),
    ]
    with wayback(archived) as machine:
        urls = [web.url(path) for path in ("/a", "/b", "/d", "/e")]
        fetched = fetch_links(tmp_path, urls, **machine_options(machine))
    assert sources(fetched) == {"/a": "2014-06-01", "/b": "2015-01-01", "/d": _GONE, "/e": _GONE}
    assert fetched.row(web.url("/b"))["final_url"] == web.url("/c")
    assert fetched.row(web.url("/a"))["captured_days"] == 19
    record = fetched.record(web.url("/a"))
    assert record.content_stream().read() == body
    assert record.http_headers.get_header("Content-Length") is None  # that of the body before it was decoded
    details = [row["detail"] for row in read_rows(fetched.folder, "dropped")]
    assert details == ["status 404; wayback: soft_not_found 1", "status 404; wayback: no capture"]


def test_the_rate_and_the_pauses_that_wayback_asks_for_are_obeyed(tmp_path: Path, web: LocalWeb) -> None:
    refusals = [(429, {"Retry-After": "1"}), (503, {"Retry-After": "1"})]
    with wayback([Archived(web.url("/a"), "2014-01-01")], refusals) as machine:
        start = time.monotonic()
        fetched = fetch_links(tmp_path, [web.url("/a")], **machine_options(machine, wayback_rate=240.0))
        assert time.monotonic() - start > 2.2
        assert len(machine.requests) == 4
    assert sources(fetched) == {"/a": "2014-01-01"}


def test_a_budget_ends_the_requests_and_a_larger_one_asks_for_the_rest(tmp_path: Path, web: LocalWeb) -> None:
    urls = [web.url(f"/{number}") for number in range(6)]
    with wayback([Archived(url, "2014-01-01") for url in urls]) as machine:
        first = fetch_links(tmp_path, urls, **machine_options(machine, wayback_requests=5))
        assert len(machine.requests) == 5
        assert list(sources(first).values()) == ["2014-01-01"] * 2 + [_GONE] * 4
        assert first.summary is not None
        assert first.summary.extra["links_unanswered_by_wayback"] == 4
        second = fetch_links(tmp_path, urls, **machine_options(machine, wayback_requests=100))
        assert set(sources(second).values()) == {"2014-01-01"}
        assert len(machine.requests) == 5 + 8


def test_links_added_or_retried_without_archives_are_asked_for_later(tmp_path: Path, web: LocalWeb) -> None:
    urls = [web.url(path) for path in ("/live", "/a", "/b")]
    write_crawl(tmp_path / "crawl", [Archived(url, "2014-01-01") for url in urls])
    options = crawl_options(tmp_path / "crawl")
    web.pages["/a"] = [Answer(status=403), Answer(status=404)]
    assert list(run_fetch(tmp_path, urls[:2], **options).outcomes.values()) == ["ok", "http_forbidden"]
    assert list(run_fetch(tmp_path, urls).outcomes.values()) == ["ok", "http_forbidden", "http_not_found"]
    assert list(sources(run_fetch(tmp_path, **options)).values()) == ["live", "dropped.http_forbidden", "2014-01-01"]
    assert run_fetch(tmp_path, retry=["http_forbidden"]).outcomes[urls[1]] == "http_not_found"
    before = len(web.requests)
    assert list(sources(run_fetch(tmp_path, **options)).values()) == ["live", "2014-01-01", "2014-01-01"]
    assert list(sources(run_fetch(tmp_path)).values()) == ["live", "2014-01-01", "2014-01-01"]
    assert len(web.requests) == before


def test_only_archives_are_asked(tmp_path: Path, web: LocalWeb) -> None:
    urls = [web.url(path) for path in ("/live", "/a")]
    with pytest.raises(UsageError, match="--source archives: needs --archive"):
        fetch_links(tmp_path, urls, source="archives")
    with wayback([Archived(web.url("/live"), "2014-05-20")]) as machine:
        fetched = fetch_links(tmp_path, urls, source="archives", **machine_options(machine))
        assert sources(fetched) == {"/live": "2014-05-20", "/a": "dropped.not_in_source"}
        machine.requests.clear()
        fetch_links(tmp_path, urls, source="archives", **machine_options(machine))
        assert machine.requests == web.paths() == []
    assert fetched.row(urls[1])["source"] == "archives"
    [dropped] = read_rows(fetched.folder, "dropped")
    assert dropped["detail"] == "wayback: no capture"
