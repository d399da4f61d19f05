"""The join of links with an index in Common Crawl's schema: seconds, memory, and whether every capture is found.

    python benchmarks/bench_archives.py [--rows 50000000] [--links 1000000] [--workers 2] [--folder DIR]

The index is made first: files of 2 million rows sorted by key, in row groups of 100,000; every page has one to three
captures. Nine links in ten are pages of it, at random, in 16 shards. Timed are the keys of the links, the join, and the
choice of the nearest capture, which is compared with that computed from the numbers of the rows.
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipelines.engine.executor import LocalExecutor
from pipelines.records.buckets import read_bucket
from pipelines.stages.fetch.archives import (
    CAPTURE_SCHEMA,
    Lookup,
    join_index,
    open_index,
    surt_key,
    write_wanted,
)
from pipelines.stages.fetch.config import FetchConfig
from pipelines.stages.fetch.segments import FetchContext

_FILE_ROWS = 2_000_000
_SHARDS = 16
_PAGES_PER_HOST = 50
_DAY_S = 86_400
_START_S = 1_300_000_000


def page_of_row(rows: np.ndarray) -> np.ndarray:
    """Return the page of a row: of every six rows, pages have one, two and three."""
    return rows // 6 * 3 + np.array([0, 1, 1, 2, 2, 2])[rows % 6]


def captured_s(rows: np.ndarray) -> np.ndarray:
    """Return when a row was captured, in seconds since 1970."""
    return _START_S + (rows * 7919) % 4000 * _DAY_S


def write_file(number: int, context: tuple[str, int]) -> None:
    """Write one file of the index."""
    folder, count = context
    rows = np.arange(number * _FILE_ROWS, min((number + 1) * _FILE_ROWS, count))
    pages = page_of_row(rows)
    host = pc.utf8_lpad(pa.array(pages // _PAGES_PER_HOST).cast(pa.string()), 8, "0")
    path = pc.utf8_lpad(pa.array(pages % _PAGES_PER_HOST).cast(pa.string()), 2, "0")
    join = pc.binary_join_element_wise
    table = pa.table(
        {
            "url_surtkey": join("com,host", host, ")/article/", path, ""),
            "url": join("http://www.host", host, ".com/article/", path, ""),
            "url_host_registered_domain": join("host", host, ".com", ""),
            "fetch_time": pa.array(captured_s(rows)).cast(pa.timestamp("s")).cast(pa.timestamp("ms")),
            "fetch_status": pa.array(np.full(len(rows), 200, np.int16)),
            "content_mime_detected": pa.repeat(pa.scalar("text/html"), len(rows)),
            "warc_filename": join("crawl-data/warc/", pa.array(rows % 60_000).cast(pa.string()), ".warc.gz", ""),
            "warc_record_offset": pa.array(rows % 1_000_000_000).cast(pa.int32()),
            "warc_record_length": pa.array(rows % 50_000 + 500).cast(pa.int32()),
        }
    )
    pq.write_table(table, f"{folder}/part-{number:05d}.parquet", row_group_size=100_000)


def write_shard(shard: int, context: tuple[str, int, int]) -> None:
    """Write the links of a shard, with their keys."""
    folder, links, pages = context
    numbers, at = shard_links(shard, links, pages)
    urls = [f"https://host{page // _PAGES_PER_HOST:08d}.com/article/{page % _PAGES_PER_HOST:02d}" for page in numbers]
    keys = [surt_key(url) or "" for url in urls]
    rows = [(key, shard, link, int(at[link]), url) for link, (key, url) in enumerate(zip(keys, urls, strict=True))]
    write_wanted(lookup_in(folder), shard, rows)


def shard_links(shard: int, links: int, pages: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the page of each link of a shard, of which a tenth are in no index, and its time."""
    random = np.random.default_rng(shard)
    count = links // _SHARDS
    return random.integers(0, pages * 10 // 9, count), _START_S + random.integers(0, 4000, count) * _DAY_S


def lookup_in(folder: str, index: Sequence[str] = ()) -> Lookup:
    """Return the lookup whose work files are in a folder."""
    return Lookup(FetchContext(FetchConfig(), folder, _SHARDS), "bench", index, str, 1)


def join(number: int, context: tuple[str, Sequence[str]]) -> int:
    """Join one file of the index; return the peak memory of this process in bytes."""
    join_index(number, lookup_in(*context))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def check(shard: int, context: tuple[int, int, int, Lookup]) -> int:
    """Choose the nearest capture of each link of a shard, and return how many links are as expected."""
    links, pages, rows, lookup = context
    numbers, at = shard_links(shard, links, pages)
    paths = [os.path.join(lookup.fetch.output, lookup.captures(number)) for number in range(len(lookup.index))]
    table = pa.Table.from_batches(read_bucket(paths, CAPTURE_SCHEMA, shard), CAPTURE_SCHEMA)
    seconds = table["fetch_time"].cast(pa.timestamp("s")).cast(pa.int64()).to_numpy()
    nearest = np.full(len(numbers), np.inf)
    np.minimum.at(nearest, table["link"].to_numpy(), abs(seconds - at[table["link"].to_numpy()]))
    expected = np.full(len(numbers), np.inf)
    first = numbers // 3 * 6 + np.array([0, 1, 3])[numbers % 3]
    for step in range(3):
        row = first + step
        is_capture = (page_of_row(row) == numbers) & (row < rows)
        distance = abs(captured_s(row) - at)
        expected[is_capture] = np.minimum(expected, distance)[is_capture]
    return int((nearest == expected).sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=50_000_000)
    parser.add_argument("--links", type=int, default=1_000_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="keep the index there, and use it if it is there already")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        index_folder = options.folder or Path(temporary, "index")
        index_folder.mkdir(parents=True, exist_ok=True)
        executor = LocalExecutor(options.workers)
        run = partial(executor.map, on_progress=lambda _: None, name=str)
        start = time.perf_counter()
        if not list(index_folder.iterdir()):
            list(run(write_file, range(-(-options.rows // _FILE_ROWS)), context=(str(index_folder), options.rows)))
        size = sum(path.stat().st_size for path in index_folder.iterdir())
        print(f"index: {options.rows:,} rows, {size / 1e9:.1f} GB, made in {time.perf_counter() - start:.0f} s")
        pages = int(page_of_row(np.array([options.rows - 1]))[0]) + 1
        print(f"load {os.getloadavg()[0]:.1f}")
        start = time.perf_counter()
        list(run(write_shard, range(_SHARDS), context=(temporary, options.links, pages)))
        keyed = time.perf_counter()
        index = open_index([str(index_folder)], "")
        peaks = [peak for _, peak in run(join, range(len(index)), context=(temporary, index))]
        joined = time.perf_counter()
        context = (options.links, pages, options.rows, lookup_in(temporary, index))
        right = sum(count for _, count in run(check, range(_SHARDS), context=context))
        chosen = time.perf_counter()
        total = options.links // _SHARDS * _SHARDS
        print(
            f"{total:,} links: keys {keyed - start:.0f} s, join {joined - keyed:.0f} s, "
            f"choice {chosen - joined:.0f} s; {right:,} links have the capture that they should; "
            f"peak memory of a worker {max(peaks) / 1e9:.2f} GB; "
            f"load {os.getloadavg()[0]:.1f}"
        )


if __name__ == "__main__":
    main()
