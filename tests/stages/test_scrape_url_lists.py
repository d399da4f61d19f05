"""Lists of URLs of every kind, and the rows in them that hold none."""

from __future__ import annotations

import bz2
import csv
import gzip
import hashlib
import io
import json
import lzma
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.core import shards
from pipelines.core.errors import InputError, UsageError
from pipelines.core.run import RunOptions, Summary
from pipelines.stages.scrape.config import ScrapeConfig
from pipelines.stages.scrape.file_stats import FileStats
from pipelines.stages.scrape.reading import REJECT_SCHEMA, Rejects
from pipelines.stages.scrape.sources import SourceFile
from pipelines.stages.scrape.stage import scrape
from pipelines.stages.scrape.url_lists import counted_urls

_PACK: dict[str, Callable[[bytes], bytes]] = {
    ".zst": zstandard.compress,
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
    ".gz": gzip.compress,
}


def _write(folder: Path, name: str, data: str | bytes) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    content = data.encode() if isinstance(data, str) else data
    path.write_bytes(_PACK.get(path.suffix, bytes)(content))
    return path


def _read(path: Path, column: str = "url") -> tuple[list[str | None], list[tuple[int, str, str]]]:
    """Return the URLs of a sound list, and its rejects as line, reason and text."""
    urls, rejects, stats = _read_with_stats(path, column)
    assert stats.problem(str(path)) is None
    return urls, rejects


def _read_with_stats(path: Path, column: str = "url") -> tuple[list[str | None], list[tuple[int, str, str]], FileStats]:
    file = SourceFile(path.name, str(path), "")
    folder = path.parent / f"{path.name}-rejects"
    stats = FileStats()
    with shards.write_shard(str(folder), "rejects.parquet", REJECT_SCHEMA) as written:
        submissions = list(counted_urls(file, column, Rejects(file, written.writer), stats))
    for each in submissions:
        assert (each.id, each.created_utc, each.score, each.subreddit, each.title) == ("", 0, None, "", "")
        assert not each.over_18 | each.is_self | each.promoted
    rows = pq.read_table(folder / "rejects.parquet").to_pylist()
    assert (stats.lines, stats.bad_lines) == (len(submissions) + len(rows), len(rows))
    urls = [each.url for each in submissions]
    return urls, [(row["line"], row["reason"], row["text"]) for row in rows], stats


@pytest.mark.parametrize("suffix", ["", ".zst", ".xz", ".bz2", ".gz"])
def test_one_url_a_line(tmp_path: Path, suffix: str) -> None:
    text = b"\xef\xbb\xbfhttp://a.com/1\r\n# a comment\n\n  http://b.com/\xc3\xa9  \n{not json\nhttp://\xff.com/\nhttp://c.com/"
    urls, rejects = _read(_write(tmp_path, f"list.txt{suffix}", text))
    assert urls == ["http://a.com/1", "http://b.com/é", "{not json", "http://c.com/"]
    assert rejects == [(6, "not_utf8", "http://\ufffd.com/")]


def test_json_lines_and_plain_ones(tmp_path: Path) -> None:
    lines = [
        '{"url": "http://a.com/", "score": 4}',
        '{"url": null}',
        '{"url": "http://b.com/\\ud83d"}',
        "http://plain.com/",
        "{broken",
        '{"link": "http://c.com/"}',
        '{"url": 5}',
        '{"url": {"deep": "x"}}',
        "[" * 100000,
        "{" + '"a":[' * 100000,
    ]
    urls, rejects = _read(_write(tmp_path, "list.jsonl.zst", "\n".join(lines)))
    assert urls == ["http://a.com/", None, "http://b.com/\ufffd", "http://plain.com/", "[" * 100000]
    reasons = [(5, "not_json"), (6, "no_field"), (7, "not_text"), (8, "not_text"), (10, "not_json")]
    assert [(line, reason) for line, reason, _ in rejects] == reasons


def test_the_field_may_lie_in_an_object_and_a_name_with_a_dot_goes_first(tmp_path: Path) -> None:
    records = [{"meta": {"url": "http://a.com/"}}, {"meta.url": "http://b.com/", "meta": 5}, {"meta": {}}, {"meta": []}]
    path = _write(tmp_path, "documents.jsonl", "\n".join(map(json.dumps, records)))
    urls, rejects = _read(path, "meta.url")
    assert urls == ["http://a.com/", "http://b.com/"]
    assert [(line, reason) for line, reason, _ in rejects] == [(3, "no_field"), (4, "no_field")]


def test_the_lists_that_openwebtext2_makes(tmp_path: Path) -> None:
    meta = {
        "id": [1, 2],
        "score": [3, 4],
        "title": ["t", "u"],
        "subreddit": ["a", "b"],
        "created_utc": ["2017-01-01T00:00:00"],
    }
    lines = "".join(json.dumps({"text": f"http://a.com/{n}", "meta": meta}) + "\n" for n in range(3))
    path = _write(tmp_path, "urls_0.jsonl.zst", lines)
    assert _read(path, "text") == ([f"http://a.com/{n}" for n in range(3)], [])
    with pytest.raises(InputError, match=r"no line has a field 'url'; the first has: text, meta \(set another"):
        _read(path)


def test_csv_as_the_standard_library_writes_it(tmp_path: Path) -> None:
    text = io.StringIO()
    rows: list[list[Any]] = [
        ["id", " url ", "title"],
        [1, "http://a.com/?x=1,2", 'He said "no", twice\nand left'],
        [2, "", "é"],
        [3, " http://b.com/ ", ""],
    ]
    csv.writer(text).writerows(rows)
    assert _read(_write(tmp_path, "list.csv.gz", "\ufeff" + text.getvalue())) == (
        ["http://a.com/?x=1,2", None, "http://b.com/"],
        [],
    )


def test_bad_rows_of_csv_cost_only_themselves(tmp_path: Path) -> None:
    text = (
        b"title,url\n"
        b"one,http://a.com/1\n"
        b'"an open quote,http://a.com/2\n'
        b"three,http://a.com/3\n"
        b'four,"http://a.com/4" or so\n'
        b"five\n"
        b"latin \xe9,http://a.com/6\n"
        b"seven,http://a.com/\xe97\n"
        b'eight,"http://a.com/8\nhttp://a.com/9"\n'
        b'"ten\n\nlines",http://a.com/10\n'
        b'"to the end,http://a.com/11\n'
        b"twelve,http://a.com/12"
    )
    urls, rejects = _read(_write(tmp_path, "list.csv", text))
    assert urls == [f"http://a.com/{n}" for n in (1, 3, 6, 10, 12)]
    assert [(line, reason) for line, reason, _ in rejects] == [
        (3, "bad_csv"),
        (5, "bad_csv"),
        (6, "short_row"),
        (8, "not_utf8"),
        (9, "several_lines"),
        (14, "bad_csv"),
    ]
    assert rejects[0][2] == '"an open quote,http://a.com/2'


def test_an_open_quote_before_a_long_file_costs_one_row(tmp_path: Path) -> None:
    rows = "".join(f"http://a.com/{n},{'x' * 90}\n" for n in range(5000))
    for place in (0, 2000, 4999):
        lines = rows.splitlines(keepends=True)
        lines[place] = '"' + lines[place]
        urls, rejects = _read(_write(tmp_path, f"{place}.csv", "url,title\n" + "".join(lines)))
        assert urls == [f"http://a.com/{n}" for n in range(5000) if n != place]
        assert [(line, reason) for line, reason, _ in rejects] == [(place + 2, "bad_csv")]


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(st.text(st.sampled_from('ab",\n\r #{é'), max_size=6), st.text("ab:/.?é#{", max_size=6)), max_size=9
    )
)
def test_whatever_the_standard_library_writes_is_read_back(tmp_path_factory: Any, rows: list[tuple[str, str]]) -> None:
    folder = tmp_path_factory.mktemp("csv")
    text = io.StringIO()
    csv.writer(text).writerows([("title", "url"), *rows])
    urls, rejects = _read(_write(folder, "list.csv", text.getvalue()))
    assert (urls, rejects) == ([url or None for _, url in rows], [])


def test_tsv_knows_no_quotes(tmp_path: Path) -> None:
    text = b'url\ttitle\nhttp://a.com/\t"open\nhttp://b.com/\nhttp://\xff/\tx\n\tempty\r\n'
    urls, rejects = _read(_write(tmp_path, "list.tsv.xz", text))
    assert urls == ["http://a.com/", "http://b.com/", None]
    assert rejects == [(4, "not_utf8", "http://\ufffd/\tx")]
    urls, rejects = _read(_write(tmp_path, "titles.tsv", text), "title")
    assert urls == ['"open', "x", "empty"]
    assert [(line, reason) for line, reason, _ in rejects] == [(3, "short_row")]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
def test_parquet_columns_of_text(tmp_path: Path, kind: pa.DataType) -> None:
    urls = [None if n % 50 == 7 else f"http://a.com/{n % 99}" for n in range(2500)]
    other = pa.array(range(2500))
    pq.write_table(
        pa.table({"other": other, "link": pa.array(urls, kind)}), tmp_path / "list.parquet", row_group_size=700
    )
    assert _read(tmp_path / "list.parquet", "link") == (urls, [])


def test_strings_of_parquet_that_are_no_text_are_rejects(tmp_path: Path) -> None:
    raw = pa.array([b"http://a.com/", b"http://\xff/", None] * 500, pa.binary())
    column = pa.Array.from_buffers(pa.string(), len(raw), raw.buffers())
    pq.write_table(pa.table({"url": column}), tmp_path / "list.parquet")
    urls, rejects, stats = _read_with_stats(tmp_path / "list.parquet")
    assert (urls, len(rejects)) == (["http://a.com/", None] * 500, 500)
    assert stats.damage == "500 of its 1,500 lines cannot be read (more than 1%); is it a list of URLs?"
    pq.write_table(pa.table({"url": column.slice(0, 4)}), tmp_path / "few.parquet")
    assert _read(tmp_path / "few.parquet") == (
        ["http://a.com/", None, "http://a.com/"],
        [(2, "not_utf8", "http://\ufffd/")],
    )


def test_a_list_is_streamed(tmp_path: Path) -> None:
    def peak_bytes(rows: int, name: str, line: str) -> int:
        path = _write(tmp_path, f"{rows}-{name}", "url\n" * name.startswith("c") + line * rows)
        tracemalloc.start()
        for _ in _urls_of(path):
            pass
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    for name, line in (
        ("c.csv.gz", "http://example.com/page\n"),
        ("l.jsonl.gz", '{"url": "http://example.com/page"}\n'),
    ):
        assert peak_bytes(60_000, name, line) < peak_bytes(4_000, name, line) + 2_000_000


def _urls_of(path: Path) -> Iterator[str | None]:
    file = SourceFile(path.name, str(path), "")
    with shards.write_shard(str(path.parent / "out"), "rejects.parquet", REJECT_SCHEMA) as written:
        for submission in counted_urls(file, "url", Rejects(file, written.writer), FileStats()):
            yield submission.url


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"link\nhttp://a.com/\n", r"column .url.; it has: link \(set another one with --url-column"),
        ("a.tsv", b"a\tb\nx\ty\n", "a.tsv: has no column 'url'; it has: a, b"),
    ],
)  # fmt: skip
def test_wrong_lists_fail_by_name(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    with pytest.raises(InputError, match=message):
        _read(_write(tmp_path, name, content))


@pytest.mark.parametrize(
    ("name", "content", "urls", "damage"),
    [
        ("a.csv", b'"url\n' + b"x\n" * 9, 0, "its first row cannot be read as CSV ("),
        ("b.csv", b"url\n" + b"a\n" * 5 + b"\xff\n" * 20, 5, "20 of its 25 lines cannot be read (more than 1%); is it"),
        ("d.txt", b"http://a.com/\xff\n" * 10, 0, "10 of its 10 lines cannot be read (more than 1%); is it a list of"),
        ("e.txt", b"\n\n# only a comment\n", 0, "contains no lines at all; is the download complete?"),
        ("e.csv", b"", 0, "contains no lines at all"),
        ("e.jsonl", b"", 0, "contains no lines at all"),
        ("e.parquet", b"http://a.com/", 0, "is not a Parquet file ("),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_list_is_noted(tmp_path: Path, name: str, content: bytes, urls: int, damage: str) -> None:
    found, _, stats = _read_with_stats(_write(tmp_path, name, content))
    assert found == ["a"] * urls
    assert stats.damage.startswith(damage)
    assert stats.damaged_at is None
    assert stats.problem("x") == f"x: {stats.damage}"


@pytest.mark.parametrize("suffix", _PACK)
@pytest.mark.parametrize("kind", ["txt", "csv", "tsv", "jsonl"])
def test_a_list_that_is_cut_is_read_up_to_there(tmp_path: Path, kind: str, suffix: str) -> None:
    # What does not compress, so that a cut is a cut of lines.
    wanted = [f"http://a.com/{hashlib.sha512(b'%d' % n).hexdigest()}" for n in range(20_000)]
    form = '{{"url": "{}"}}\n' if kind == "jsonl" else "{}\n"
    text = "url\n" * (kind in ("csv", "tsv")) + "".join(form.format(url) for url in wanted)
    path = _write(tmp_path, f"list.{kind}{suffix}", text)
    size = path.stat().st_size * 9 // 10
    path.write_bytes(path.read_bytes()[:size])
    urls, rejects, stats = _read_with_stats(path)
    assert len(urls) > 8000
    assert (urls, rejects) == (wanted[: len(urls)], [])
    assert stats.damaged_at == size
    assert f"truncated or corrupt near compressed byte {size} (" in str(stats.problem("x"))


def test_a_parquet_file_that_is_damaged_within_is_read_up_to_there(tmp_path: Path) -> None:
    path = tmp_path / "list.parquet"
    wanted = [f"http://a.com/{n}" for n in range(9000)]
    pq.write_table(pa.table({"url": wanted}), path, row_group_size=3000, compression="zstd", use_dictionary=False)
    start = pq.ParquetFile(path).metadata.row_group(1).column(0).data_page_offset
    data = bytearray(path.read_bytes())
    data[start : start + 300] = bytes(300)
    path.write_bytes(data)
    urls, _, stats = _read_with_stats(path)
    assert urls == wanted[: len(urls)]
    assert 0 < len(urls) <= 3000
    assert stats.damage.startswith("cannot be read as Parquet (")


def test_a_column_that_is_no_text_fails_by_name(tmp_path: Path) -> None:
    pq.write_table(pa.table({"url": [1, 2]}), tmp_path / "c.parquet")
    with pytest.raises(InputError, match=r"c.parquet: column 'url' is int64, not text"):
        _read(tmp_path / "c.parquet")
    with pytest.raises(InputError, match=r"c.parquet: has no column 'link'; it has: url"):
        _read(tmp_path / "c.parquet", "link")


def _scrape(dumps: list[Path] | list[str], output: Path, **config: Any) -> Summary:
    summary = scrape(
        ScrapeConfig(**{"source": "urls", "profile": "none", "shards": 4, **config}),
        dumps=[str(path) for path in dumps],
        output=str(output),
        options=RunOptions(),
    )
    assert summary.records_in == summary.records_out + sum(summary.dropped.values())
    return summary


def _links(output: Path) -> dict[str, dict[str, Any]]:
    rows = [row for path in sorted(output.glob("links-*.parquet")) for row in pq.read_table(path).to_pylist()]
    return {row.pop("url"): row for row in rows}


def test_lists_of_every_kind_make_the_same_links(tmp_path: Path) -> None:
    urls = ["http://b.com/?utm_source=x", "http://a.com/1", "http://b.com/", "ftp://c.com/", "http://i.imgur.com/x"]
    folder = tmp_path / "lists"
    paths = [
        _write(folder, "urls.txt.gz", "# a list\n\n" + "".join(f"{url}\n" for url in urls)),
        _write(folder, "urls.csv", "name,url\n" + "".join(f'"a, b",{url}\n' for url in urls)),
        _write(folder, "urls.tsv.xz", "name\turl\n" + "".join(f"a\t{url}\n" for url in urls)),
        _write(folder, "urls.jsonl.zst", "".join(json.dumps({"url": url}) + "\n" for url in urls)),
        folder / "urls.parquet",
    ]
    pq.write_table(pa.table({"url": urls}), paths[-1])
    for path in paths:
        output = tmp_path / f"out-{path.name}"
        summary = _scrape([path], output, profile="webtext-2019")
        assert (summary.records_in, summary.records_out) == (5, 2)
        assert summary.dropped == {"media_host": 1, "merged_into_link": 1, "not_http": 1}
        links = _links(output)
        assert sorted(links) == ["http://a.com/1", "http://b.com/"]
        assert links["http://b.com/"] == {
            "original_url": "http://b.com/",
            "domain": "b.com",
            "score": 0,
            "submission_ids": [],
            "subreddits": [],
            "title": "",
            "created_utc": 0,
            "over_18": False,
        }
    # All of them at once, as a folder: every URL is there five times.
    assert _scrape([folder], tmp_path / "all").dropped["merged_into_link"] == 5 * 4 - 3


def test_rejects_are_counted_and_listed(tmp_path: Path) -> None:
    path = _write(tmp_path, "list.csv", b'url\nhttp://a.com/\n"http://b.com/\nhttp://\xff.com/\n')
    summary = _scrape([path], tmp_path / "out")
    assert (summary.records_in, summary.records_out, summary.dropped) == (3, 1, {"bad_line": 2})
    rows = pq.read_table(tmp_path / "out" / "rejects-00000.parquet").to_pylist()
    assert [(row["file"], row["line"], row["reason"]) for row in rows] == [
        ("list.csv", 3, "bad_csv"),
        ("list.csv", 4, "not_utf8"),
    ]


def test_a_list_on_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = b'http://a.com/\n{"text": "http://b.com/"}\n'
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(lines)))
    assert _scrape(["-"], tmp_path / "out", url_column="text").records_out == 2
    assert sorted(_links(tmp_path / "out")) == ["http://a.com/", "http://b.com/"]


def test_a_column_is_refused_where_nothing_can_have_it(tmp_path: Path) -> None:
    path = _write(tmp_path, "list.txt.gz", "http://a.com/\n")
    with pytest.raises(UsageError, match="--url-column link has no effect on lists of one URL per line"):
        _scrape([path], tmp_path / "out", url_column="link")
    with pytest.raises(UsageError, match="--url-column has no meaning with --source dump"):
        _scrape([path], tmp_path / "out", source="dump", url_column="link")
    table = _write(tmp_path, "list.csv", "link\nhttp://b.com/\n")
    assert _scrape([path, table], tmp_path / "out", url_column="link").records_out == 2


def test_a_dump_and_a_table_are_no_lists_of_lines(tmp_path: Path) -> None:
    record = {"id": "a", "url": "http://a.com/", "score": 3, "created_utc": 1, "subreddit": "b", "is_self": False}
    for name, text, message in [
        (
            "RS_2017-11.json",
            json.dumps(record) + "\n",
            "is a dump of submissions, not a list of URLs; leave out --source",
        ),
        ("list", "id,url\n1,http://a.com/\n", r"begins with the header of a table, .* end in \.csv"),
        ("list", 'title\t"url"\nx\thttp://a.com/\n', r"begins with the header of a table, .* end in \.tsv"),
    ]:
        path = _write(tmp_path, name, text)
        with pytest.raises(InputError, match=message):
            _read(path)
