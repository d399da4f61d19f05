"""Lists of URLs as the source of scrape."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from compressed_files import write_compressed

from pipelines.engine.run import RunOptions, Summary
from pipelines.errors import InputError, UsageError
from pipelines.stages.scrape.config import ScrapeConfig
from pipelines.stages.scrape.reports import FileStats
from pipelines.stages.scrape.sources import SourceFile, read_file
from pipelines.stages.scrape.stage import scrape
from pipelines.stages.scrape.submission import Rejects


def _read(path: Path, column: str = "url") -> tuple[list[str | None], FileStats]:
    file = SourceFile(path.name, str(path), "")
    stats, rejects = FileStats(), list[dict[str, Any]]()
    batches = read_file(file, ScrapeConfig(source="urls", url_column=column), stats, Rejects(path.name, rejects.append))
    rows = [row for batch in batches for row in zip(*batch, strict=True)]
    assert [number for number, _ in rows] == list(range(1, len(rows) + 1))
    assert (stats.lines, stats.bad_lines) == (len(rows) + len(rejects), len(rejects))
    return [submission.url for _, submission in rows], stats


def test_a_missing_column_names_the_option(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"it has: link \(set another one with --url-column\)"):
        _read(write_compressed(tmp_path, "a.csv", "link\nhttp://a.com/\n"))


def test_a_truncated_list_is_noted(tmp_path: Path) -> None:
    path = write_compressed(tmp_path, "a.txt.gz", "".join(f"http://a.com/{n}\n" for n in range(20_000)))
    path.write_bytes(path.read_bytes()[:20_000])
    urls, stats = _read(path)
    assert len(urls) > 1000
    assert stats.damaged_at == 20_000
    assert "truncated or corrupt near compressed byte 20000 (" in str(stats.problem("x"))


@pytest.mark.parametrize(
    ("name", "content", "urls", "damage"),
    [
        ("a.csv", b'"url\n' + b"x\n" * 9, 0, "the row that begins in line 1 cannot be read as CSV ("),
        ("b.csv", b"url\n" + b"a\n" * 5 + b"\xff\n" * 20, 5, "20 of its 25 lines cannot be read (more than 1%)"),
        ("d.txt", b"http://a.com/\xff\n" * 10, 0, "10 of its 10 lines cannot be read (more than 1%)"),
        ("e.txt", b"\n\n# only a comment\n", 0, "contains no lines"),
        ("e.csv", b"", 0, "contains no lines"),
        ("e.csv.gz", b"", 0, "contains no lines"),
        ("e.csv", b"\n\r\n", 0, "contains no lines"),
        ("e.tsv.zst", b"\n", 0, "contains no lines"),
        ("e.jsonl", b"", 0, "contains no lines"),
        ("e.parquet", b"http://a.com/", 0, "is not a Parquet file ("),
    ],
)  # fmt: skip
def test_problems_of_a_list_are_noted(tmp_path: Path, name: str, content: bytes, urls: int, damage: str) -> None:
    read, stats = _read(write_compressed(tmp_path, name, content))
    assert read == ["a"] * urls
    assert stats.damage.startswith(damage)
    assert stats.damaged_at is None
    assert stats.problem("x") == f"x: {stats.damage}"


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


def test_lists_in_every_format_give_the_same_links(tmp_path: Path) -> None:
    urls = ["http://b.com/?utm_source=x", "http://a.com/1", "http://b.com/", "ftp://c.com/", "http://i.imgur.com/x"]
    folder = tmp_path / "lists"
    paths = [
        write_compressed(folder, "urls.txt.gz", "# a list\n\n" + "".join(f"{url}\n" for url in urls)),
        write_compressed(folder, "urls.csv", "name,url\n" + "".join(f'"a, b",{url}\n' for url in urls)),
        write_compressed(folder, "urls.tsv.xz", "name\turl\n" + "".join(f"a\t{url}\n" for url in urls)),
        write_compressed(folder, "urls.jsonl.zst", "".join(json.dumps({"url": url}) + "\n" for url in urls)),
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
            "authors": [],
            "title": "",
            "created_utc": 0,
            "over_18": False,
        }
    # All of them at once, as a folder: every URL is there five times.
    assert _scrape([folder], tmp_path / "all").dropped["merged_into_link"] == 5 * 4 - 3


def test_rejects_are_counted_and_listed(tmp_path: Path) -> None:
    path = write_compressed(tmp_path, "list.csv", b'url\nhttp://a.com/\n"http://b.com/"x\nhttp://\xff.com/\n')
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


def test_a_column_that_no_file_can_have_is_refused(tmp_path: Path) -> None:
    path = write_compressed(tmp_path, "list.txt.gz", "http://a.com/\n")
    with pytest.raises(UsageError, match="--url-column link has no effect on lists of one URL per line"):
        _scrape([path], tmp_path / "out", url_column="link")
    table = write_compressed(tmp_path, "list.csv", "link\nhttp://b.com/\n")
    assert _scrape([path, table], tmp_path / "out", url_column="link").records_out == 2
