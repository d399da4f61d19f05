"""How long `webtext explain`, `show`, `stats` and `sql`, and the pages of `webtext browse`, take on a large corpus.

    python benchmarks/bench_corpus_queries.py [--documents 8000000] [--folder DIR] [--only browse]

Writes a synthetic corpus from `scrape` to `tokenize`, with texts of 20 to 99 words, in shards as the stages write them;
the three stages that write documents have the same files, of which one in ten documents is listed as dropped by dedup.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from pipelines.algorithms.web.urls import id_of_url
from pipelines.engine.manifest import Identity, Manifest, ShardEntry, write_manifest
from pipelines.records import shards
from pipelines.records.schemas import DOCUMENT_SCHEMA, DROPPED_SCHEMA, LINK_SCHEMA, PAGE_SCHEMA

SHARD_DOCUMENTS, BATCH = 100_000, 10_000
TOKEN_SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("url", pa.string()),
        ("offset", pa.int64()),
        ("tokens", pa.int64()),
        ("document_offset", pa.int64()),
    ]
)

TABLES = (
    ("scrape", "links-{:05d}.parquet", LINK_SCHEMA),
    ("fetch", "pages-{:05d}.parquet", PAGE_SCHEMA),
    ("extract", "documents-{:05d}.parquet", DOCUMENT_SCHEMA),
    ("dedup", "dropped-{:05d}.parquet", DROPPED_SCHEMA),
    ("tokenize", "train-{:05d}-documents.parquet", TOKEN_SCHEMA),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=8_000_000)
    parser.add_argument("--folder", type=Path, help="keep the corpus here, and use it if it is there")
    parser.add_argument("--only", choices=["commands", "browse"])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        corpus = options.folder or Path(temporary, "corpus")
        if not corpus.exists():
            write_corpus(corpus, options.documents)
        size = sum({path.stat().st_ino: path.stat().st_size for path in corpus.rglob("*.parquet")}.values())
        print(f"{options.documents:,} documents, {size / 1e9:.1f} GB; load {os.getloadavg()[0]:.1f}")
        if options.only != "browse":
            measure_commands(corpus, options.documents)
        if options.only != "commands":
            measure_browser(corpus, options.documents)


def measure_commands(corpus: Path, documents: int) -> None:
    urls = [url_of(number) for number in (documents // 3, documents // 7 * 5)]
    for name, arguments in (
        ("explain URL", ["explain", urls[0]]),
        ("explain ID", ["explain", id_of_url(urls[1])]),
        ("explain a URL that is not there", ["explain", urls[0] + "/none"]),
        ("show URL", ["show", urls[0]]),
        ("show --random 5", ["show", "--random", "5"]),
        ("show --dropped near_duplicate --random 5", ["show", "--dropped", "near_duplicate", "--random", "5"]),
        ("stats", ["stats"]),
        (
            "sql, documents by domain",
            ["sql", "SELECT domain, count(*) FROM documents GROUP BY ALL ORDER BY 2 DESC LIMIT 5"],
        ),
    ):
        seconds = sorted(_seconds([*arguments, "--corpus", str(corpus)]) for _ in range(1 if name == "stats" else 3))
        print(f"{name}: {seconds[len(seconds) // 2]:.2f} s", flush=True)


def measure_browser(corpus: Path, documents: int) -> None:
    """Print how long the server takes for pages, elapsed and CPU time, and its peak memory (Linux only)."""
    start = time.perf_counter()
    command = [sys.executable, "-m", "webtext_cli", "browse", "--corpus", str(corpus), "--port", "0", "--no-open"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        address = next(word for line in server.stdout for word in line.split() if word.startswith("http"))
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        base = address.partition("/?")[0]
        try:
            browser.open(address).read()
            print(f"start to the overview: {time.perf_counter() - start:.2f} s", flush=True)
            middle = SHARD_DOCUMENTS // 2 + (documents // SHARD_DOCUMENTS // 2 << 32)  # as `position` of documents
            dropped = "/dropped?stage=dedup&reason=near_duplicate"
            for name, page in (
                ("first page of documents", "/documents"),
                ("documents, one language", "/documents?language=de"),
                ("documents, one domain", f"/documents?domain={url_of(documents // 3)[8:25]}"),
                ("documents, one subreddit", "/documents?subreddit=sub77"),
                ("documents, most words first", "/documents?sort=words"),
                ("documents, newest first", "/documents?sort=date"),
                ("documents, random order", "/documents?random={}"),
                ("documents, the page in the middle", f"/documents?after={middle}"),
                ("documents by score, the page in the middle", f"/documents?sort=score&after={middle}"),
                ("facet of languages", "/documents/facet?facet=language"),
                ("facet of domains, one language", "/documents/facet?facet=domain&language=de"),
                ("facet of subreddits", "/documents/facet?facet=subreddit"),
                ("rules", "/dropped"),
                ("dropped documents", f"{dropped}&seed={{}}"),
                ("one document by its id", f"/document?id={id_of_url(url_of(documents // 7 * 5))}"),
                ("one document by its URL", f"/document?url={url_of(documents // 3)}"),
            ):
                cpu = _cpu_seconds(server.pid)
                seconds = sorted(_page_seconds(browser, base + page.format(number)) for number in (1, 2, 3))
                cpu = (_cpu_seconds(server.pid) - cpu) / 3
                print(f"{name}: {seconds[1]:.2f} s (CPU {cpu:.2f} s)", flush=True)
            status = Path(f"/proc/{server.pid}/status").read_text()
            print(f"peak memory of the server: {int(status.partition('VmHWM:')[2].split()[0]) / 1e3:,.0f} MB")
        finally:
            server.terminate()


def _cpu_seconds(process: int) -> float:
    """Return the CPU time of a process, which other processes of a shared machine change little."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _page_seconds(browser: urllib.request.OpenerDirector, address: str) -> float:
    start = time.perf_counter()
    browser.open(address).read()
    return time.perf_counter() - start


def _seconds(arguments: list[str]) -> float:
    start = time.perf_counter()
    command = [sys.executable, "-m", "webtext_cli", *arguments]
    subprocess.run(command, check=False, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def url_of(number: int) -> str:
    return f"https://site{number // 800:05d}.example/articles/{number:08d}.html"


def write_corpus(corpus: Path, documents: int) -> None:
    entries: dict[str, list[ShardEntry]] = {}
    for shard, first in enumerate(range(0, documents, SHARD_DOCUMENTS)):
        count = min(SHARD_DOCUMENTS, documents - first)
        with contextlib.ExitStack() as stack:
            files = {
                stage: stack.enter_context(shards.write_shard(str(corpus / stage), name.format(shard), schema))
                for stage, name, schema in TABLES
            }
            for batch in _batches(first, count):
                for stage, _, schema in TABLES:
                    files[stage].write_batch(_select(batch, schema, dropped=stage == "dedup"))
        for stage, name, _ in TABLES:
            entry = ShardEntry("shards", name.format(shard), count, count, files=(files[stage].entry,))
            entries.setdefault(stage, []).append(entry)
        for copy in ("dedup", "remove-wikipedia"):
            name = files["extract"].entry.name
            (corpus / copy).mkdir(exist_ok=True)
            os.link(corpus / "extract" / name, corpus / copy / name)
            entries.setdefault(copy, []).append(
                ShardEntry("shards", name, count, count, files=(files["extract"].entry,))
            )
    for stage, listed in entries.items():
        write_manifest(str(corpus / stage), Manifest(Identity(stage, 1, {}, {}), tuple(listed)))


def _batches(first: int, count: int) -> Iterator[pa.Table]:
    """Yield batches with the columns of all tables."""
    chance = np.random.default_rng(first)
    vocabulary = np.array([f"word{number:x}" for number in range(30_000)])
    for start in range(first, first + count, BATCH):
        numbers = range(start, min(start + BATCH, first + count))
        rows = len(numbers)
        urls = [url_of(number) for number in numbers]
        lengths = chance.integers(20, 100, rows)
        words = vocabulary[chance.integers(0, len(vocabulary), int(lengths.sum()))]
        texts = [" ".join(part) for part in np.split(words, np.cumsum(lengths)[:-1])]
        scores = chance.integers(3, 500, rows)
        yield pa.table(
            {
                "id": [id_of_url(url) for url in urls],
                "url": urls,
                "original_url": urls,
                "final_url": urls,
                "domain": [url[8:25] for url in urls],
                "text": texts,
                "title": [f"Title {number}" for number in numbers],
                "language": np.array(["en", "en", "en", "de", "fr"])[scores % 5],
                "score": scores,
                "submission_ids": [[f"t{number}"] for number in numbers],
                "subreddits": [[f"sub{number % 5000}"] for number in numbers],
                "created_utc": 1262304000 + 31 * np.arange(numbers.start, numbers.stop),
                "over_18": np.zeros(rows, bool),
                "status": np.full(rows, 200, np.int32),
                "outcome": ["ok"] * rows,
                "source": ["live"] * rows,
                "fetched_at": pa.array(np.full(rows, 1_700_000_000_000), pa.int64()),
                "bytes": scores * 100,
                "words": lengths,
                "offset": np.arange(rows) * 100,
                "tokens": lengths,
                "document_offset": np.zeros(rows, np.int64),
                "reason": ["near_duplicate"] * rows,
            }
        )


def _select(table: pa.Table, schema: pa.Schema, dropped: bool) -> pa.RecordBatch:
    if dropped:
        table = table.take(pa.array(range(0, table.num_rows, 10)))
    missing = pa.nulls(table.num_rows)
    names = set(table.schema.names)
    columns = [
        (table[field.name].combine_chunks() if field.name in names else missing).cast(field.type) for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


if __name__ == "__main__":
    main()
