"""Pages from files that a table names with their URLs, joined with links without a request."""

from __future__ import annotations

import datetime as dt
import gzip
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fetch_run import MISS, outcomes_by_path, refuse_requests, take_pages

from pipelines.errors import InputError, StorageError, WebtextError
from pipelines.progress import Silent


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_requests(monkeypatch)


_TABLE = [
    ("http://example.org/a", "a.html"),
    ("https://www.example.org/b/", "deep/b.txt"),
    ("http://x.org/", "no.html"),
]


def _csv(path: Path, separator: str = ",", dates: bool = True) -> None:
    header = ["url", "file", "fetched_at"] if dates else ["file", "url"]
    lines = [[url, file, "2014-05-14T12:00:00Z"] if dates else [file, url] for url, file in _TABLE]
    path.write_text("\n".join(map(separator.join, [header, *lines])) + "\n")


def _jsonl(path: Path) -> None:
    rows = [{"url": url, "file": file, "fetched_at": "2014-05-14T12:00:00"} for url, file in _TABLE]
    del rows[2]["fetched_at"]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _parquet(path: Path, dates: Sequence[object] = ("2014-05-14", "2014-05-14", "2014-05-14")) -> None:
    cells = zip(_TABLE, dates, strict=True)
    rows = [{"url": url, "file": f"./{file}", "fetched_at": date} for (url, file), date in cells]
    pq.write_table(pa.Table.from_pylist(rows), path)


_NAIVE = dt.datetime.fromisoformat("2014-05-14T23:59:59.5")


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    folder = tmp_path / "saved"
    (folder / "deep").mkdir(parents=True)
    (folder / "a.html").write_bytes(b"<p>page a</p>")
    (folder / "deep" / "b.txt").write_bytes(b"text b")
    (folder / "stray.html").write_bytes(b"<p>stray</p>")
    return folder


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("urls.csv", _csv),
        ("urls.tsv", lambda path: _csv(path, "\t")),
        ("urls.jsonl", _jsonl),
        ("urls.parquet", _parquet),
        ("urls.parquet", lambda path: _parquet(path, [dt.date(2014, 5, 14)] * 3)),
        ("urls.parquet", lambda path: _parquet(path, [dt.datetime(2014, 5, 14, 23, tzinfo=dt.UTC), _NAIVE, None])),
    ],
)
def test_files_are_the_pages_of_a_table(tmp_path: Path, saved: Path, name: str, write: Callable[[Path], None]) -> None:
    write(saved / name)
    urls = ["http://example.org/a", "http://example.org/b", "http://x.org/"]
    progress, notes = Silent(), list[str]()
    progress.note = notes.append
    fetched = take_pages(tmp_path, urls, saved, progress=progress, source="files", urls=str(saved / name))
    assert outcomes_by_path(fetched) == {"/a": "2014-05-14", "/b": "2014-05-14", "/": MISS}
    assert {row["source"] for row in fetched.rows} == {"files"}
    record = fetched.record("http://example.org/b")
    assert record.content_stream().read() == b"text b"
    assert record.http_headers.get_header("Content-Type") == "text/plain"
    assert record.rec_headers.get_header("WARC-Source-URI") == str(saved / "deep" / "b.txt")
    assert fetched.summary is not None
    extra = fetched.summary.extra
    assert (extra["rows_without_file"], extra["files_without_row"], extra["pages_from_files"]) == (1, 1, 2)
    table = f"{saved / name}: "
    assert [note.removeprefix(table) for note in notes] == [
        f"1 row without a URL or file in {saved}: no.html (3)",
        f"1 file without a row in {saved}: stray.html",
    ]


def test_files_without_dates_have_the_time_of_their_last_change(tmp_path: Path, saved: Path) -> None:
    _csv(tmp_path / "urls.csv", dates=False)
    at = dt.datetime(2014, 5, 3, tzinfo=dt.UTC)
    for name in ("a.html", "deep/b.txt"):
        os.utime(saved / name, (at.timestamp(), at.timestamp()))
    (saved / "a.html.gz").write_bytes(gzip.compress((saved / "a.html").read_bytes()))
    urls = ["http://example.org/a", "http://example.org/b"]
    fetched = take_pages(tmp_path, urls, saved, source="files", urls=str(tmp_path / "urls.csv"))
    assert outcomes_by_path(fetched) == {"/a": "2014-05-03", "/b": "2014-05-03"}


@pytest.mark.parametrize(
    ("name", "table", "problem"),
    [
        ("urls.csv", "url,file,fetched_at\nhttp://example.org/a,a.html,yesterday\n", "row 1 is not an ISO 8601 date"),
        ("urls.csv", "url,path\nhttp://example.org/a,a.html\n", "has no column 'file'"),
        ("urls.jsonl", '{"url": "http://example.org/a"}\n', "has no column 'file'"),
        ("urls.jsonl", '{"url": "http://example.org/a", "file": "a.html", "fetched_at": 1400000000}\n', "not an ISO"),
    ],
)
def test_tables_without_files_or_with_wrong_dates_are_refused(
    tmp_path: Path, saved: Path, name: str, table: str, problem: str
) -> None:
    (tmp_path / name).write_text(table)
    with pytest.raises(InputError, match=rf"{name}: .*{problem}"):
        take_pages(tmp_path, ["http://example.org/a"], saved, source="files", urls=str(tmp_path / name))


@pytest.mark.parametrize("column", ["url", "file"])
def test_a_column_that_is_not_text_is_refused(tmp_path: Path, saved: Path, column: str) -> None:
    row = {"url": "http://example.org/a", "file": "a.html"}
    pq.write_table(pa.Table.from_pylist([row | {column: row[column].encode()}]), tmp_path / "urls.parquet")
    with pytest.raises(InputError, match=rf"urls\.parquet: column '{column}' has the type binary, not text"):
        take_pages(tmp_path, [row["url"]], saved, source="files", urls=str(tmp_path / "urls.parquet"))


@pytest.mark.parametrize(
    ("table", "problem"),
    [("url,file\n", "not_in_source 1"), ("url\n", "has no column 'file'"), ("", "has no column 'url'")],
)
def test_a_table_has_a_header_and_may_have_no_rows(tmp_path: Path, saved: Path, table: str, problem: str) -> None:
    (tmp_path / "urls.csv.gz").write_bytes(gzip.compress(table.encode()))
    with pytest.raises(WebtextError, match=problem):
        take_pages(tmp_path, ["http://x.org/"], saved, source="files", urls=str(tmp_path / "urls.csv.gz"))


def test_files_that_cannot_be_read_now_end_the_run_and_are_read_by_the_next(
    tmp_path: Path, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str) -> None:
        raise StorageError(f"{path}: cannot read: Input/output error")

    (saved / "deep" / "b.txt.gz").write_bytes(gzip.compress(b"text b" * 99)[:20])
    (tmp_path / "urls.csv").write_text("url,file\nhttp://example.org/a,a.html\nhttp://example.org/b,deep/b.txt.gz\n")
    options = {"source": "files", "urls": str(tmp_path / "urls.csv")}
    addresses = ["http://example.org/a", "http://example.org/b"]
    with monkeypatch.context() as patch:
        patch.setattr("pipelines.stages.fetch.page_sources.open_decompressed", refuse)
        with pytest.raises(StorageError, match="Input/output error"):
            take_pages(tmp_path, addresses, saved, **options)
    fetched = take_pages(tmp_path, addresses, saved, **options)
    assert {row["url"]: row["outcome"] for row in fetched.rows} == dict(zip(addresses, ["ok", MISS], strict=True))
    assert fetched.summary is not None
    assert fetched.summary.extra["refused_unreadable"] == 1
