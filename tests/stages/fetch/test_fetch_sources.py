"""Pages from WARC and ARC files of anyone, joined with links without a request."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fetch_run import MISS, Fetched, outcomes_by_path, read_rows, refuse_requests, take_pages
from local_archives import Archived, archived_record

from pipelines.engine.executor import make_executor
from pipelines.engine.run import RunOptions
from pipelines.errors import InputError, UsageError, WebtextError
from pipelines.stages.extract.config import ExtractConfig
from pipelines.stages.extract.stage import extract
from pipelines.stages.fetch import archives
from pipelines.stages.fetch.config import FetchConfig
from pipelines.stages.fetch.stage import fetch

_HOST = "http://www.example.org"


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_requests(monkeypatch)


def _page(path: str, day: str = "2014-05-14", body: bytes = b"<p>text</p>", **headers: str) -> Archived:
    url = path if "://" in path else _HOST + path
    return Archived(url, day, body, headers={"Content-Type": "text/html", **headers})


def _moved(path: str, to: str, day: str = "2014-01-01") -> Archived:
    return Archived(_HOST + path, day, b"", 301, {"Location": to})


def _write(path: Path, captures: list[Archived]) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"".join(map(archived_record, captures)))
    return path


def test_each_link_has_its_nearest_capture_or_is_not_in_the_source(tmp_path: Path) -> None:
    warcs = tmp_path / "warcs"
    _write(warcs / "a.warc.gz", [_page("/a", "2010-01-01"), _page("/a", "2014-06-01", b"<p>nearest</p>"), _page("/z")])
    _write(warcs / "b.warc.gz", [_page("/a", "2014-01-01"), _page("https://example.org/b/"), _page("/C")])
    urls = [f"{_HOST}{path}" for path in ("/a", "/b", "/c", "/d")] + ["mailto:me@example.org"]
    fetched = take_pages(tmp_path, urls, warcs / "*.warc.gz")
    outcomes = {"/a": "2014-06-01", "/b": "2014-05-14", "/c": MISS, "/d": MISS}
    rows = {row["url"]: row for row in fetched.rows}
    assert rows.pop("mailto:me@example.org")["outcome"] == "dropped.bad_url"
    assert {url.removeprefix(_HOST): row["outcome"] for url, row in rows.items()} == {
        path: "ok" if outcome[0] == "2" else outcome for path, outcome in outcomes.items()
    }
    assert {row["source"] for row in fetched.rows} == {"warc"}
    row = fetched.row(f"{_HOST}/a")
    assert (row["captured_days"], row["status"], f"{row['captured_at']:%Y-%m-%d}") == (19, 200, "2014-06-01")
    record = fetched.record(f"{_HOST}/a")
    assert record.content_stream().read() == b"<p>nearest</p>"
    assert record.rec_headers.get_header("WARC-Date") == "2014-06-01T12:00:00Z"
    path, _, place = record.rec_headers.get_header("WARC-Source-URI").partition("#")
    offset, length = map(int, place.split("+"))
    assert path == str(warcs / "a.warc.gz")
    assert b"<p>nearest</p>" in gzip.decompress(Path(path).read_bytes()[offset : offset + length])
    assert fetched.row(f"{_HOST}/b")["final_url"] == "https://example.org/b/"
    assert fetched.summary is not None
    assert fetched.summary.dropped == {"not_in_source": 2, "bad_url": 1}
    assert fetched.summary.extra["pages_in_source"] == 6
    details = {row["url"]: row["detail"] for row in read_rows(fetched.folder, "dropped")}
    assert details[f"{_HOST}/d"] == "warc: no capture"
    report = " ".join(re.sub(r"<[^>]+>", " ", (fetched.folder / "report.html").read_text()).split())
    assert re.search(r"Pages 2 .*Dropped 3 for 2 reasons", report), report[:600]
    with gzip.open(fetched.folder / "pages-00000.warc.gz") as stream:
        assert b"robots: rfc9309" not in stream.read(2000)


def test_tracking_parameters_of_a_link_do_not_hide_its_page(tmp_path: Path) -> None:
    warc = _write(tmp_path / "a.warc.gz", [_page("/a"), _page("/b?id=1"), _page("/b"), _page("/c?utm_source=x")])
    paths = ["/a?utm_source=reddit&fbclid=1", "/b?id=1&utm_medium=link", "/c?utm_source=x", "/c?id=2"]
    fetched = take_pages(tmp_path, [_HOST + path for path in paths], warc)
    assert outcomes_by_path(fetched) == dict.fromkeys(paths[:3], "2014-05-14") | {paths[3]: MISS}
    assert fetched.row(_HOST + paths[1])["final_url"] == f"{_HOST}/b?id=1"


def test_links_without_dates_have_the_latest_capture(tmp_path: Path) -> None:
    warc = _write(tmp_path / "a.warc.gz", [_page("/a", day) for day in ("2014-05-14", "2020-01-01", "2016-01-01")])
    (tmp_path / "urls.txt").write_text(f"{_HOST}/a\n")
    fetched = Fetched(
        tmp_path / "fetch",
        fetch(
            FetchConfig(source="warc", pages=(str(warc),)),
            links=str(tmp_path / "urls.txt"),
            output=str(tmp_path / "fetch"),
            options=RunOptions(executor=make_executor(1)),
        ),
    )
    assert outcomes_by_path(fetched) == {"/a": "2020-01-01"}


def test_redirects_are_followed_within_the_files(tmp_path: Path) -> None:
    captures = [
        _moved("/a", "/b"),
        _moved("/b", "http://elsewhere.example/c"),
        _page("http://elsewhere.example/c"),
        _moved("/loop", "/loop2"),
        _moved("/loop2", "/loop"),
        _moved("/gone", "/nowhere"),
        *(_moved(f"/long/{number}", f"/long/{number + 1}") for number in range(4)),
        _page("/long/4"),
    ]
    _write(tmp_path / "a.warc.gz", captures[::2])
    _write(tmp_path / "b.warc.gz", captures[1::2])
    urls = [_HOST + path for path in ("/a", "/loop", "/gone", "/long/0", "/long/1")]
    fetched = take_pages(tmp_path, urls, tmp_path / "*.warc.gz", max_redirects=3)
    assert outcomes_by_path(fetched) == {
        "/a": "2014-05-14",
        "/loop": MISS,
        "/gone": MISS,
        "/long/0": MISS,
        "/long/1": "2014-05-14",
    }
    assert fetched.row(f"{_HOST}/a")["final_url"] == "http://elsewhere.example/c"


def test_only_pages_are_taken_and_the_next_nearest_capture_is_tried(tmp_path: Path) -> None:
    body = b"5\r\nhello\r\n6\r\n, page\r\n0\r\n\r\n"
    captures = [
        _page("/soft", body=b"<title>404 Not Found</title>"),
        _page("/soft", "2012-01-01"),
        _page("/large", body=b"x" * 3000),
        _page("/image", **{"Content-Type": "image/png"}),
        Archived(f"{_HOST}/error", "2014-01-01", b"", 500),
        _page("/chunked", body=body, **{"Transfer-Encoding": "chunked"}),
        _page("/gzip", body=gzip.compress(b"<p>text</p>", mtime=0), **{"Content-Encoding": "gzip"}),
    ]
    warc = _write(tmp_path / "a.warc.gz", captures)
    urls = [_HOST + path for path in ("/soft", "/large", "/image", "/error", "/chunked", "/gzip")]
    fetched = take_pages(tmp_path, urls, warc, max_page_bytes=2000)
    days = {"/soft": "2012-01-01", "/chunked": "2014-05-14", "/gzip": "2014-05-14"}
    assert outcomes_by_path(fetched) == {**dict.fromkeys(["/large", "/image", "/error"], MISS), **days}
    assert fetched.record(f"{_HOST}/chunked").content_stream().read() == b"hello, page"
    details = {row["url"]: row["detail"] for row in read_rows(fetched.folder, "dropped")}
    assert details[f"{_HOST}/large"] == "warc: too_large 1"


def test_a_response_without_its_body_is_no_page(tmp_path: Path) -> None:
    headers = _page("/a", body=b""), _page("/b", body=b"<p>the first bytes</p>"), _moved("/c", "/b")
    records = [gzip.decompress(archived_record(capture)) for capture in headers]
    cut = [data.replace(b"WARC-Date", b"WARC-Truncated: length\r\nWARC-Date", 1) for data in records]
    (tmp_path / "a.warc").write_bytes(b"".join(cut))
    fetched = take_pages(tmp_path, [f"{_HOST}/{name}" for name in "abc"], tmp_path / "a.warc")
    assert outcomes_by_path(fetched) == {"/a": MISS, "/b": "2014-05-14", "/c": "2014-05-14"}
    assert fetched.record(f"{_HOST}/b").rec_headers.get_header("WARC-Truncated") == "length"
    assert [row["detail"] for row in read_rows(fetched.folder, "dropped")] == ["warc: truncated 1"]


_ARC_HEAD = b"1 0 Test\nURL IP-address Archive-date Content-type Archive-length\n"
_ARC = b"filedesc://a.arc 0.0.0.0 20140514120000 text/plain %d\n%s\n" % (len(_ARC_HEAD), _ARC_HEAD)


def _arc_record(path: str) -> bytes:
    response = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<p>text</p>"
    return f"{_HOST}{path} 127.0.0.1 20140514120000 text/html {len(response)}\n".encode() + response + b"\n"


def _plain(paths: list[str]) -> list[bytes]:
    return [gzip.decompress(archived_record(_page(path))) for path in paths]


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("a.warc", lambda paths: b"".join(_plain(paths))),
        ("a.warc.gz", lambda paths: b"".join(map(gzip.compress, _plain(paths)))),
        ("a.arc", lambda paths: _ARC + b"".join(map(_arc_record, paths))),
        ("a.arc.gz", lambda paths: gzip.compress(_ARC) + b"".join(gzip.compress(_arc_record(one)) for one in paths)),
    ],
)
def test_archives_of_each_kind_are_read(tmp_path: Path, name: str, write: Callable[[list[str]], bytes]) -> None:
    (tmp_path / name).write_bytes(write(["/a", "/b", "/c"]))
    fetched = take_pages(tmp_path, [f"{_HOST}/c", f"{_HOST}/b", f"{_HOST}/x"], tmp_path / name)
    assert outcomes_by_path(fetched) == {"/c": "2014-05-14", "/b": "2014-05-14", "/x": MISS}
    record = fetched.record(f"{_HOST}/b")
    assert record.content_stream().read() == b"<p>text</p>"
    assert record.rec_headers.get_header("WARC-Source-URI").startswith(f"{tmp_path / name}#")
    assert not (fetched.folder / "_work").exists()


@pytest.mark.parametrize(
    ("name", "data", "problem"),
    [
        ("a.warc.gz", archived_record(_page("/a")) + archived_record(_page("/b"))[:-30], "is damaged after byte"),
        ("a.warc.gz", gzip.compress(b"".join(_plain(["/a", "/b"]))), r"is damaged after byte 0 \(.*non-chunked gzip"),
        ("a.warc", b"".join(_plain(["/a", "/b"]))[:-15], "the last record is truncated"),
        ("a.arc", b"five words in one line\n", "is not an ARC file"),
        ("a.zip", b"PK", "unknown file type"),
        ("a.warc.zst", b"", "no single page can be read .* decompress the file first"),
        ("a.warc.bz2", b"", "decompress the file first"),
    ],
)
def test_damaged_files_are_errors_that_name_the_position(tmp_path: Path, name: str, data: bytes, problem: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(InputError, match=rf"{name}.*{problem}"):
        take_pages(tmp_path, [f"{_HOST}/a"], tmp_path / name)


def test_a_file_is_added_and_only_what_is_missing_is_looked_up(tmp_path: Path) -> None:
    warcs = tmp_path / "warcs"
    _write(warcs / "a.warc.gz", [_page("/a", "2012-01-01")])
    urls = [_HOST + path for path in ("/a", "/b", "/c")]
    first = take_pages(tmp_path, urls, warcs)
    assert outcomes_by_path(first) == {"/a": "2012-01-01", "/b": MISS, "/c": MISS}
    assert take_pages(tmp_path, urls, warcs).rows == first.rows
    _write(warcs / "b.warc.gz", [_page("/a"), _page("/b")])
    second = take_pages(tmp_path, urls, warcs)
    assert outcomes_by_path(second) == {"/a": "2012-01-01", "/b": "2014-05-14", "/c": MISS}
    for path in ("/a", "/b"):
        assert second.record(_HOST + path).content_stream().read() == b"<p>text</p>"


@pytest.mark.parametrize("moment", [1, 4, 9])
def test_an_interrupted_run_ends_as_if_undisturbed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: int
) -> None:
    captures = [_page(f"/{number}") for number in range(9)]
    captures += [_moved(f"/{number}", "/1") for number in range(9, 12)]
    warc = _write(tmp_path / "a.warc.gz", captures)
    urls = [f"{_HOST}/{number}" for number in range(13)]
    (tmp_path / "whole").mkdir()
    whole = take_pages(tmp_path / "whole", urls, warc)
    reads: list[int] = []
    read = archives.read_record

    def stop(*arguments: Any) -> Any:
        reads.append(1)
        if len(reads) == moment:
            raise KeyboardInterrupt
        return read(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(archives, "read_record", stop)
        patch.setattr(archives, "_READ_AHEAD", 1)
        with pytest.raises(KeyboardInterrupt):
            take_pages(tmp_path, urls, warc)
    fetched = take_pages(tmp_path, urls, warc)
    assert outcomes_by_path(fetched) == outcomes_by_path(whole)
    assert list(outcomes_by_path(fetched).values()).count(MISS) == 1


@pytest.mark.usefixtures("warm_processes")
@pytest.mark.parametrize("group_rows", [8192, 3, 1])
def test_an_index_in_many_row_groups_gives_the_same_with_several_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group_rows: int
) -> None:
    monkeypatch.setattr("pipelines.records.shards._GROUP_ROWS", group_rows)
    for number in range(5):
        _write(tmp_path / f"{number}.warc.gz", [_page(f"/{part}") for part in range(number, 40, 6)])
    urls = [f"{_HOST}/{number}" for number in range(44)]
    fetched = take_pages(tmp_path, urls, tmp_path / "*.warc.gz", workers=2 if group_rows == 3 else 1)
    expected = {f"/{number}": MISS if number % 6 == 5 or number >= 40 else "2014-05-14" for number in range(44)}
    assert outcomes_by_path(fetched) == expected


@pytest.mark.usefixtures("warm_processes")
def test_the_pages_of_an_earlier_fetch_are_taken_and_extracted(tmp_path: Path) -> None:
    text = b"<html><body><article>" + b"<p>A paragraph with several words in it.</p>" * 20 + b"</article></body>"
    _write(tmp_path / "a.warc.gz", [_page("/a", body=text)])
    first = take_pages(tmp_path, [f"{_HOST}/a"], tmp_path / "a.warc.gz")
    (tmp_path / "again").mkdir()
    second = take_pages(tmp_path / "again", [f"{_HOST}/a"], first.folder / "pages-00000.warc.gz")
    assert second.record(f"{_HOST}/a").content_stream().read() == text
    summary = extract(
        ExtractConfig(),
        pages=str(second.folder),
        links=str(tmp_path / "again" / "links"),
        output=str(tmp_path / "extract"),
        options=RunOptions(executor=make_executor(1)),
    )
    assert summary.records_out == 1


@pytest.mark.parametrize(
    ("name", "url"),
    [
        ("example.warc", "http://example.com"),
        ("example.warc.gz", "https://www.example.com/"),
        ("example.arc", "http://example.com/"),
        ("example.arc.gz", "http://example.com/"),
        ("example-iana.org-chunked.warc", "http://www.iana.org/"),
        ("example-wget-bad-target-uri.warc.gz", "http://example.com/"),
    ],
)
def test_real_archives_are_read(shared_data: Path, tmp_path: Path, name: str, url: str) -> None:
    fetched = take_pages(tmp_path, [url], shared_data / "warc" / "test" / "data" / name)
    [row] = fetched.rows
    assert (row["outcome"], row["source"], row["status"]) == ("ok", "warc", 200)
    assert b"</html>" in fetched.record(url).content_stream().read()


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"source": "live", "pages": ("a.warc",)}, "no effect without --source"),
        ({"source": "warc"}, "needs --pages"),
        (
            {"source": "warc", "pages": ("a.warc",), "archive": ("wayback",)},
            "--archive has no effect without --source live",
        ),
    ],
)
def test_options_that_make_no_sense_together_are_refused(tmp_path: Path, config: dict[str, Any], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        take_pages(tmp_path, [f"{_HOST}/a"], **config)


def test_another_source_is_not_mixed_with_an_earlier_result(tmp_path: Path) -> None:
    warc = _write(tmp_path / "a.warc.gz", [_page("/a")])
    first = take_pages(tmp_path, [f"{_HOST}/a"], warc)
    with pytest.raises(WebtextError, match="source"):
        take_pages(tmp_path, [f"{_HOST}/a"], source="live")
    assert first.rows


def test_an_interrupted_run_resumes_from_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, after, urls = tmp_path / "before", tmp_path / "after", [_HOST + "/a", _HOST + "/b"]
    before.mkdir()
    _write(before / "saved" / "a.warc.gz", [_page("/a"), _page("/b")])

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.chdir(before)
    with monkeypatch.context() as patch:
        patch.setattr(archives, "_store_pages", stop)
        with pytest.raises(KeyboardInterrupt):
            take_pages(Path(), urls, "saved")
    before.rename(after)
    monkeypatch.chdir(tmp_path)
    fetched = take_pages(after, urls, "after/saved")
    assert [row["outcome"] for row in fetched.rows] == ["ok", "ok"]
