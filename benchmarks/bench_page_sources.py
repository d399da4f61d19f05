"""`webtext fetch --source warc`: seconds per phase, and whether each link has the page that it should have.

    python benchmarks/bench_page_sources.py [--files 20] [--pages 5000] [--links 100000] [--workers 2]

The WARC files, one gzip member per record, have pages of random words (10 kB), each at one of a million URLs, and a
redirect to each tenth of them. The links, in a list, are nine in ten of these URLs, and others.
"""

from __future__ import annotations

import argparse
import gzip
import os
import random
import resource
import tempfile
import time
from pathlib import Path

import pyarrow.parquet as pq

from pipelines.engine.executor import make_executor
from pipelines.engine.run import RunOptions
from pipelines.progress import Silent
from pipelines.stages.fetch.config import FetchConfig
from pipelines.stages.fetch.stage import fetch

_PAGE_WORDS = 1500


class _Phases(Silent):
    def start(self, label: str, total: int | None, unit: str) -> None:
        self._label, self._start = label, time.perf_counter()

    def finish(self, complete: bool) -> None:
        print(f"{self._label}: {time.perf_counter() - self._start:.1f} s")


def url_of(page: int) -> str:
    return f"http://www.host{page // 50}.com/article/{page % 50}"


def record(url: str, status: int, header: str, body: str) -> bytes:
    block = f"HTTP/1.1 {status} OK\r\n{header}\r\n\r\n{body}"
    head = (
        f"WARC/1.0\r\nWARC-Type: response\r\nWARC-Target-URI: {url}\r\nWARC-Date: 2014-05-14T12:00:00Z\r\n"
        f"Content-Type: application/http; msgtype=response\r\nContent-Length: {len(block)}\r\n\r\n"
    )
    return gzip.compress(f"{head}{block}\r\n\r\n".encode(), 1)


def write_warc(path: Path, pages: range, words: list[str]) -> None:
    generator = random.Random(pages.start)
    with path.open("wb") as stream:
        for page in pages:
            body = f"<title>Page {page} of many</title><p>{' '.join(generator.choices(words, k=_PAGE_WORDS))}</p>"
            url = url_of(page)
            if page % 10 == 0:
                stream.write(record(url, 301, f"Location: {url}/moved", ""))
                url += "/moved"
            stream.write(record(url, 200, "Content-Type: text/html", body))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=20)
    parser.add_argument("--pages", type=int, default=5000, help="pages per file")
    parser.add_argument("--links", type=int, default=100_000)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    count = options.files * options.pages
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        words = [f"{random.Random(number).getrandbits(32):x}" for number in range(20_000)]
        for number in range(options.files):
            write_warc(folder / f"{number}.warc.gz", range(number * options.pages, (number + 1) * options.pages), words)
        size = sum(path.stat().st_size for path in folder.iterdir())
        print(f"{options.files} files, {size / 1e9:.2f} GB, {count:,} pages; load {os.getloadavg()[0]:.1f}")
        links = random.Random(0).sample(range(count * 10 // 9), options.links)
        (folder / "urls.txt").write_text("".join(f"{url_of(page)}\n" for page in links))
        start = time.perf_counter()
        fetch(
            FetchConfig(source="warc", pages=(str(folder / "*.warc.gz"),)),
            links=str(folder / "urls.txt"),
            output=str(folder / "fetch"),
            options=RunOptions(executor=make_executor(options.workers), progress=_Phases()),
        )
        seconds = time.perf_counter() - start
        rows = [row for path in (folder / "fetch").glob("pages-*.parquet") for row in pq.read_table(path).to_pylist()]
        right = sum(
            row["outcome"] == ("ok" if page < count else "dropped.not_in_source")
            and (row["final_url"] or "").endswith("/moved") == (page < count and page % 10 == 0)
            for row in rows
            for host, path in [row["url"].removeprefix("http://www.host").split(".com/article/")]
            for page in [int(host) * 50 + int(path)]
        )
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
        print(
            f"{seconds:.0f} s for {len(rows):,} links, of which {right:,} are right; load {os.getloadavg()[0]:.1f}; "
            f"peak memory of a worker {peak / 1e9:.2f} GB"
        )


if __name__ == "__main__":
    main()
