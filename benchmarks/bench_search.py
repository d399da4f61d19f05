"""How long `webtext search` takes to index 2 GB of text, and to answer queries, traces and exact scans.

    python benchmarks/bench_search.py [--data FOLDER] [--bytes N] [--workers N] [--folder DIR]

FOLDER contains `text/` and `benchmarks/` (default: $WEBTEXT_TEST_DATA). The paragraphs of `text/` are written as
documents of about 5 KB, shuffled anew each time they have all been used, as Parquet of 64 MB of text per file; so a
phrase occurs in as many documents as there are copies. Memory is the peak sum over the command and its workers.
"""

from __future__ import annotations

import argparse
import functools
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from process_tree import proportional_set_mb, tree

from pipelines.records import inputs
from pipelines.records.drops import Drops
from pipelines.search.query import SearchIndex
from pipelines.search.trace import trace

_DOCUMENT_BYTES, _FILE_BYTES = 5000, 64_000_000
_PHRASES, _TRACED_WORDS = 20, 250


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = os.environ.get("WEBTEXT_TEST_DATA", str(Path(__file__).resolve().parents[2] / "shared" / "data"))
    parser.add_argument("--data", type=Path, default=Path(default))
    parser.add_argument("--bytes", type=int, default=2_000_000_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument(
        "--folder", type=Path, help="keep the documents and the index here, and use those that are there"
    )
    options = parser.parse_args()
    if not (options.data / "text").exists():
        print(f"skipped: {options.data} does not exist; name the data with --data or WEBTEXT_TEST_DATA")
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        documents, index = folder / "documents", folder / "index"
        if not documents.exists():
            write_documents(options.data / "text", options.bytes, documents)
        size_mb = sum(pq.read_table(path, columns=["text"]).nbytes for path in documents.iterdir()) / 1e6
        print(f"{size_mb:,.0f} MB of text; {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
        workers = ["--workers", str(options.workers)]
        if not index.exists():
            print(f"index: {run_command(['--build', '-i', str(documents), '-o', str(index), *workers], size_mb)}")
        stored = {path.suffix: 0 for path in (index / "index").iterdir()}
        for path in (index / "index").iterdir():
            stored[path.suffix] += path.stat().st_size
        shares = ", ".join(f"{suffix} {size / size_mb / 1e6:.3f}" for suffix, size in sorted(stored.items()))
        print(f"index: {sum(stored.values()) / size_mb / 1e6:.2f} bytes per byte of text ({shares})")
        measure_queries(documents, index, options.data)
        phrase = next(iter_phrases(documents, 8))
        print(f"exact scan: {run_command(['--exact', phrase, '-i', str(documents), *workers], size_mb)}")


def measure_queries(documents: Path, index_folder: Path, data: Path) -> None:
    """Print the times of opening the index, of phrases and of words, and of a trace."""
    started = time.perf_counter()
    index = SearchIndex.open(str(index_folder))
    print(f"open: {time.perf_counter() - started:.3f} s")
    common = ['"of the"', '"one of the most"', '"at the end of the"', "the", "and of the"]
    kinds = {
        "phrases of 3 words": [
            f'"{phrase}"' for phrase, _ in zip(iter_phrases(documents, 3), range(_PHRASES), strict=False)
        ],
        "phrases of 8 words": [
            f'"{phrase}"' for phrase, _ in zip(iter_phrases(documents, 8), range(_PHRASES), strict=False)
        ],
        "three words": [phrase for phrase, _ in zip(iter_phrases(documents, 3), range(_PHRASES), strict=False)],
        "common words": common,
    }
    for kind, queries in kinds.items():
        times = [timed(functools.partial(index.search, query)) for query in queries]
        elapsed, cpu = zip(*times, strict=True)
        middle, worst = (tuple(map(f, (elapsed, cpu))) for f in (statistics.median, max))
        print(
            f"{kind}: median {middle[0]:.3f} s, worst {worst[0]:.3f} s of {len(times)}; "
            f"CPU time {middle[1]:.3f} s, {worst[1]:.3f} s"
        )
    known = next(iter_phrases(documents, _TRACED_WORDS))
    unknown = " ".join((data / "benchmarks" / "wikitext2-valid.txt").read_text().split()[1000 : 1000 + _TRACED_WORDS])
    for name, text in (("known", f"{known} {unknown}"), ("unknown", f"{unknown} {unknown[::-1]}")):
        passages = trace(index, text).passages
        seconds, cpu_s = timed(functools.partial(trace, index, text))
        longest = max((passage.words for passage in passages), default=0)
        print(
            f"trace of {len(text.split())} words, {name}: {seconds:.2f} s, CPU time {cpu_s:.2f} s; "
            f"longest passage {longest} words"
        )


def timed(function: Callable[[], object]) -> tuple[float, float]:
    """Return how long a call takes, and its CPU time."""
    started, cpu_started = time.perf_counter(), time.process_time()
    function()
    return time.perf_counter() - started, time.process_time() - cpu_started


def write_documents(texts: Path, size_bytes: int, folder: Path) -> None:
    """Write shuffled paragraphs as documents."""
    source = inputs.open_documents([str(path) for path in sorted(texts.glob("*.jsonl.zst"))])
    batches = (batch for shard in source.shards for batch in inputs.read_documents(shard, Drops()))
    paragraphs = [part for batch in batches for text in batch.column("text").to_pylist() for part in text.split("\n\n")]
    folder.mkdir(parents=True)
    shuffled, rows, pending, written = random.Random(1), list[str](), 0, 0
    while written < size_bytes:
        shuffled.shuffle(paragraphs)
        for text in join_paragraphs(paragraphs):
            rows.append(text)
            pending += len(text.encode())
            if pending >= _FILE_BYTES:
                number = len(list(folder.iterdir()))
                names = [f"{number}-{row}" for row in range(len(rows))]
                words = [len(text.split()) for text in rows]
                urls = [f"http://site{row % 1000}.com/{name}" for row, name in enumerate(names)]
                domains = [url.split("/")[2] for url in urls]
                table = pa.table({"id": names, "url": urls, "domain": domains, "text": rows, "words": words})
                pq.write_table(table, folder / f"{number:03d}.parquet", compression="zstd", row_group_size=4096)
                written, pending, rows = written + pending, 0, []
                if written >= size_bytes:
                    break


def join_paragraphs(paragraphs: list[str]) -> Iterator[str]:
    """Yield documents of a few paragraphs."""
    parts, size = list[str](), 0
    for paragraph in paragraphs:
        parts.append(paragraph)
        size += len(paragraph)
        if size >= _DOCUMENT_BYTES:
            yield "\n\n".join(parts)
            parts, size = [], 0


def iter_phrases(documents: Path, words: int) -> Iterator[str]:
    """Yield runs of words of documents, chosen at random."""
    chosen = random.Random(words)
    for path in sorted(documents.iterdir()):
        texts = pq.read_table(path, columns=["text"]).column("text")
        for row in chosen.sample(range(len(texts)), 20):
            runs = [part.split() for part in texts[row].as_py().split("\n\n")]
            runs = [run for run in runs if len(run) > words and "".join(run[:words]).isalpha()] or [[]]
            run = chosen.choice(runs) if words < _TRACED_WORDS else texts[row].as_py().split()
            if len(run) >= words:
                yield " ".join(run[:words])


def run_command(arguments: list[str], size_mb: float) -> str:
    """Run `webtext search`, and describe its speed and memory."""
    started, cpu_before = time.perf_counter(), cpu_seconds()
    command = [sys.executable, "-m", "webtext_cli", "search", "--quiet", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    peaks = [0.0]

    def sample() -> None:
        while process.poll() is None:
            peaks.append(sum(map(proportional_set_mb, tree(process.pid))))
            time.sleep(0.5)

    thread = threading.Thread(target=sample)
    thread.start()
    status = process.wait()
    seconds = time.perf_counter() - started
    thread.join()
    if status:
        sys.exit(f"webtext search {' '.join(arguments)} failed")
    cpu_s = cpu_seconds() - cpu_before
    return (
        f"{seconds:.1f} s, {size_mb / seconds:.0f} MB/s; {cpu_s:.1f} s of CPU time, "
        f"{size_mb / cpu_s:.0f} MB per s of it; "
        f"{max(peaks):,.0f} MB of memory; load {os.getloadavg()[0]:.1f}"
    )


def cpu_seconds() -> float:
    """Return the CPU time of the processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
