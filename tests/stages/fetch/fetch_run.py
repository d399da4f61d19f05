"""Runs fetch on a list of URLs and reads back what it wrote; shared by the tests of fetch."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from extract_run import write_links
from warcio.archiveiterator import ArchiveIterator

from pipelines.engine.config import make_config
from pipelines.engine.executor import make_executor
from pipelines.engine.run import RunOptions, Summary
from pipelines.progress import Silent
from pipelines.stages.fetch.config import FetchConfig
from pipelines.stages.fetch.stage import fetch

MISS = "dropped.not_in_source"
QUICK = {"allow_private_addresses": True, "per_host_delay": 0.0, "retries": 0, "timeout": 5.0}


@dataclasses.dataclass(frozen=True)
class Fetched:
    """The folder that a run wrote, and its rows."""

    folder: Path
    summary: Summary | None

    @property
    def rows(self) -> list[dict[str, Any]]:
        return read_rows(self.folder, "pages")

    @property
    def outcomes(self) -> dict[str, str]:
        return {row["url"]: row["outcome"].removeprefix("dropped.") for row in self.rows}

    def row(self, url: str) -> dict[str, Any]:
        return next(row for row in self.rows if row["url"] == url)

    def record(self, url: str) -> Any:
        """Return the record that the row of a URL points at, with its payload already read."""
        row = self.row(url)
        data = (self.folder / row["warc_file"]).read_bytes()[row["warc_offset"] :]
        return next(iter(ArchiveIterator(io.BytesIO(data))))


def run_fetch(
    folder: Path,
    urls: Iterable[str] | None = None,
    *,
    workers: int = 1,
    overwrite: bool = False,
    discard_pages: bool = False,
    retry: Iterable[str] = (),
    **config: Any,
) -> Fetched:
    """Fetch a list of URLs into `folder/fetch`; without one, the list of an earlier call."""
    source = folder / "urls.txt"
    if urls is not None:
        source.write_text("".join(f"{url}\n" for url in urls), encoding="utf-8")
    options = RunOptions(executor=make_executor(workers), overwrite=overwrite, discard_pages=discard_pages)
    settings = make_config(FetchConfig, {}, {**QUICK, **config}, str)
    summary = fetch(settings, links=str(source), output=str(folder / "fetch"), options=options, retry=tuple(retry))
    return Fetched(folder / "fetch", summary)


def read_rows(folder: Path, noun: str) -> list[dict[str, Any]]:
    """Return the rows of all shards of a folder."""
    return [row for path in sorted(folder.glob(f"{noun}-*.parquet")) for row in pq.read_table(path).to_pylist()]


def read_records(path: Path) -> list[tuple[str, str, bytes]]:
    """Return type, target and payload of all records of a WARC, with every digest checked."""
    records = []
    with path.open("rb") as stream:
        iterator = ArchiveIterator(stream, check_digests="raise")
        for record in iterator:
            target = record.rec_headers.get_header("WARC-Target-URI")
            records.append((record.rec_type, target, record.raw_stream.read()))
            assert record.digest_checker.passed is not False
    return records


def refuse_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a fetch fail that requests pages."""

    def crawl(*_: object, **__: object) -> None:
        raise AssertionError("requested a page")

    monkeypatch.setattr("pipelines.stages.fetch.stage.Crawl", crawl)


def take_pages(
    folder: Path,
    addresses: list[str],
    *pages: str | Path,
    workers: int = 1,
    progress: Silent | None = None,
    **config: Any,
) -> Fetched:
    """Take the pages of links that have a date (13 May 2014) from files, in two shards if there are several."""
    links = folder / "links"
    if not links.exists():
        write_links(links, [addresses[::2], addresses[1::2]] if len(addresses) > 1 else [addresses])
    flags = {"source": "warc", "pages": tuple(map(str, pages)), **config}
    settings = make_config(FetchConfig, {}, flags, str)
    options = RunOptions(executor=make_executor(workers), progress=progress or Silent())
    return Fetched(folder / "fetch", fetch(settings, links=str(links), output=str(folder / "fetch"), options=options))


def outcomes_by_path(fetched: Fetched) -> dict[str, str]:
    """Return, by path, the day of the page or the outcome."""
    return {
        "/" + row["url"].split("/", 3)[3]: f"{row['captured_at']:%Y-%m-%d}" if row["captured_at"] else row["outcome"]
        for row in fetched.rows
    }


def fetch_links(folder: Path, urls: list[str], **config: Any) -> Fetched:
    """Fetch links that have a date."""
    links = folder / "links"
    if not links.exists():
        write_links(links, [urls])
    settings = make_config(FetchConfig, {}, {**QUICK, **config}, str)
    options = RunOptions(executor=make_executor(1))
    return Fetched(folder / "fetch", fetch(settings, links=str(links), output=str(folder / "fetch"), options=options))


def sources(fetched: Fetched) -> dict[str, str]:
    """Return, by path, the day of the capture, `live`, or the reason of the drop."""
    return {
        "/" + row["url"].split("/", 3)[3]: f"{row['captured_at']:%Y-%m-%d}"
        if row["captured_at"]
        else row["source"]
        if row["outcome"] == "ok"
        else row["outcome"]
        for row in fetched.rows
    }
