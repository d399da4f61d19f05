"""Small dumps, runs of scrape over them, and what they left, for tests of the stage as a whole."""

from __future__ import annotations

import bz2
import calendar
import gzip
import json
import lzma
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import zstandard

from pipelines.engine.run import RunOptions, Summary
from pipelines.stages.scrape import stage
from pipelines.stages.scrape.config import ScrapeConfig
from pipelines.stages.scrape.stage import scrape

_PACK: dict[str, Callable[[bytes], bytes]] = {
    ".zst": zstandard.ZstdCompressor(level=1, write_checksum=True).compress,
    ".xz": lambda data: lzma.compress(data, preset=0),
    ".bz2": bz2.compress,
    ".gz": lambda data: gzip.compress(data, mtime=0),
}


class Notes:
    """A progress display that keeps what a run says and starts."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def start(self, label: str, total: int | None, unit: str = "records") -> None:
        """See `Progress.start`."""

    def advance(self, count: int = 1) -> None:
        """See `Progress.advance`."""

    def finish(self, complete: bool) -> None:
        """See `Progress.finish`."""

    def note(self, message: str) -> None:
        """Keep one line."""
        self.lines.append(message)


def second(month: str, day: int = 1) -> int:
    """Return the first second of a day of a month YYYY-MM, UTC."""
    year, number = map(int, month.split("-"))
    return calendar.timegm((year, number, day, 0, 0, 0))


def records(month: str, scores: Iterable[Any], start: int = 0, days: int = 28) -> list[dict[str, Any]]:
    """Return submissions of a month with these scores, spread over its days; their ids go on from `start`."""
    made = []
    for number, score in enumerate(scores, start):
        time = second(month, 1 + number % days) + number // days
        host = f"site{number % 7}.com"
        made.append(
            {
                "id": f"{month[2:4]}{month[5:]}{number:04x}",
                "url": f"http://{host}/{number // 3}",
                "domain": host,
                "score": score,
                "created_utc": time,
                "subreddit": f"r{number % 3}",
                "title": f"Title {number}",
                "is_self": False,
                "over_18": False,
            }
        )
    return made


def write_dump(folder: Path, name: str, lines: Iterable[Any]) -> Path:
    """Write records (or lines as they are) as a dump, compressed as its name says."""
    path = folder / name
    data = "".join((each if isinstance(each, str) else json.dumps(each)) + "\n" for each in lines).encode()
    path.write_bytes(_PACK.get(path.suffix, bytes)(data))
    return path


def run_scrape(dumps: Iterable[Path], output: Path, options: RunOptions | None = None, **config: Any) -> Summary:
    """Scrape dumps without a profile into 4 shards, and hold the funnel to add up."""
    made = ScrapeConfig(**{"profile": "none", "shards": 4, **config})
    summary = scrape(made, dumps=[str(path) for path in dumps], output=str(output), options=options or RunOptions())
    assert summary.records_in == summary.records_out + sum(summary.dropped.values())
    return summary


def read_table(output: Path, name: str) -> list[dict[str, Any]]:
    """Return the rows of one of the lists beside the links."""
    rows: list[dict[str, Any]] = pq.read_table(output / f"{name}-00000.parquet").to_pylist()
    return rows


def read_links(output: Path) -> dict[str, dict[str, Any]]:
    """Return the links by their URLs."""
    rows = [row for path in sorted(output.glob("links-*.parquet")) for row in pq.read_table(path).to_pylist()]
    return {row.pop("url"): row for row in rows}


def result_bytes(output: Path) -> dict[str, bytes]:
    """Return the content of every file of a finished result by name."""
    found = {path.name: path.read_bytes() for path in output.iterdir() if path.is_file() and path.name[0] != "."}
    assert "manifest.json" in found
    return found


def recorded_reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the labels of the files that are read, in a list that grows."""
    seen: list[str] = []
    partition_file = stage.partition_file

    def recorded(item: Any, context: Any) -> Any:
        seen.append(item.label)
        return partition_file(item, context)

    monkeypatch.setattr(stage, "partition_file", recorded)
    return seen
