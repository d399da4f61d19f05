"""Compares `webtext overlap-report`, from Parquet to report, with a Python set of n-grams, in speed and in results.

    python benchmarks/bench_overlap.py [--data FOLDER] [--copies N] [--rounds N] [--set-bytes BYTES]

FOLDER contains `text/` and `benchmarks/` (default: $WEBTEXT_TEST_DATA). The documents of `text/` are written as Parquet
N times, each time with different ids. The command is timed as a process, with one worker and with two, for WikiText-2,
GSM8K and tinyshakespeare together; memory is the peak sum over the command and its workers. The baseline, as in
datatrove, is a set with the benchmarks' n-grams as strings, which is queried for each n-gram of a sample of the same
documents; these are already in memory, and it writes no report.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from process_tree import proportional_set_mb, tree

from pipelines.records import inputs
from pipelines.records.drops import Drops

_N = 8
_FILE_BYTES = 160_000_000
_SAMPLE_INTERVAL_S = 0.1


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = os.environ.get("WEBTEXT_TEST_DATA", str(Path(__file__).resolve().parents[2] / "shared" / "data"))
    parser.add_argument("--data", type=Path, default=Path(default))
    parser.add_argument("--copies", type=int, default=9, help="copies of the documents to write")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--set-bytes", type=int, default=30_000_000, help="bytes of text to query the set with")
    options = parser.parse_args()
    if not (options.data / "text").exists():
        print(f"skipped: {options.data} does not exist; name the data with --data or WEBTEXT_TEST_DATA")
        return
    texts = read_texts(options.data / "text")
    with tempfile.TemporaryDirectory() as folder:
        size_mb = write_corpus(texts, options.copies, Path(folder) / "docs") / 1e6
        print(f"{options.copies * len(texts):,} documents, {size_mb:,.0f} MB of text; {os.cpu_count()} cores; ", end="")
        print(f"load {os.getloadavg()[0]:.1f}")
        set_speed = time_set(texts, benchmark_texts(options.data), options.set_bytes)
        print(f"a Python set of n-grams: {set_speed:.2f} MB/s")
        for workers in (1, 2):
            runs = [time_command(options.data, Path(folder), workers) for _ in range(options.rounds)]
            seconds = statistics.median(run[0] for run in runs)
            speed = size_mb / seconds
            print(
                f"webtext overlap-report, --workers {workers}: {seconds:.2f} s of "
                f"{', '.join(f'{run[0]:.2f}' for run in runs)}; {speed:.0f} MB/s, {speed / workers:.0f} per core, "
                f"{speed / set_speed:.0f} times the set; {max(run[1] for run in runs):,.0f} MB of memory"
            )
        check(texts, options.data, Path(folder))


def read_texts(folder: Path) -> list[str]:
    """Return all texts of a folder."""
    source = inputs.open_documents([str(path) for path in sorted(folder.glob("*.jsonl.zst"))])
    columns = (batch.column("text") for shard in source.shards for batch in inputs.read_documents(shard, Drops()))
    return [text for column in columns for text in column.to_pylist()]


def write_corpus(texts: list[str], copies: int, folder: Path) -> int:
    """Write copies of the texts as Parquet; return their total bytes."""
    folder.mkdir()
    sizes = [len(text.encode()) for text in texts]
    starts = [
        0,
        *(
            index
            for index, end in enumerate(itertools.accumulate(sizes), 1)
            if end // _FILE_BYTES > (end - sizes[index - 1]) // _FILE_BYTES
        ),
    ]
    for copy in range(copies):
        for part, (first, last) in enumerate(zip(starts, [*starts[1:], len(texts)], strict=True)):
            ids = [f"{copy}-{number}" for number in range(first, last)]
            pq.write_table(
                pa.table({"id": ids, "text": texts[first:last]}),
                folder / f"{copy:03d}-{part}.parquet",
                compression="zstd",
                row_group_size=1024,
            )
    return copies * sum(sizes)


def benchmark_files(data: Path) -> list[str]:
    """Return the values of `--benchmark`."""
    folder = data / "benchmarks"
    return [
        f"wikitext-2/test={folder / 'wikitext2-test.txt'}",
        f"gsm8k/test:question={folder / 'gsm8k-test.jsonl'}",
        f"tinyshakespeare={folder / 'tinyshakespeare.txt'}",
    ]


def benchmark_texts(data: Path) -> dict[str, list[str]]:
    """Return the examples of each benchmark by name."""
    folder = data / "benchmarks"
    questions = [json.loads(line)["question"] for line in (folder / "gsm8k-test.jsonl").read_text().splitlines()]
    lines = {name: (folder / f"{name}.txt").read_text().split("\n") for name in ("wikitext2-test", "tinyshakespeare")}
    return {"wikitext-2": lines["wikitext2-test"], "gsm8k": questions, "tinyshakespeare": lines["tinyshakespeare"]}


def list_ngrams(text: str) -> Iterator[str]:
    """Yield the n-grams of a text."""
    words = re.findall(r"[^\W_]+", text.lower())
    return map(" ".join, zip(*(words[start:] for start in range(_N)), strict=False))


def benchmark_ngrams(benchmarks: dict[str, list[str]]) -> set[str]:
    """Return the n-grams of benchmarks."""
    return {ngram for texts in benchmarks.values() for text in texts for ngram in list_ngrams(text)}


def time_set(texts: list[str], benchmarks: dict[str, list[str]], max_bytes: int) -> float:
    """Return the MB/s at which a set is queried for the n-grams of a sample of the texts."""
    known = benchmark_ngrams(benchmarks)
    step = max(1, sum(map(len, texts)) // max_bytes)
    sample = texts[::step]
    start = time.perf_counter()
    hits = sum(ngram in known for text in sample for ngram in list_ngrams(text))
    seconds = time.perf_counter() - start
    print(f"({hits:,} hits) ", end="")
    return sum(len(text.encode()) for text in sample) / 1e6 / seconds


def time_command(data: Path, folder: Path, workers: int) -> tuple[float, float]:
    """Return the seconds of the command, and the peak memory of it and its workers in MB."""
    shutil.rmtree(folder / "report", ignore_errors=True)
    arguments = [sys.executable, "-m", "webtext_cli", "overlap-report", "-i", str(folder / "docs")]
    arguments += ["-o", str(folder / "report"), "--workers", str(workers), "--json", "-q"]
    for benchmark in benchmark_files(data):
        arguments += ["--benchmark", benchmark]
    start = time.perf_counter()
    process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL)
    peak_mb = 0.0
    ended = threading.Event()

    def watch() -> None:
        nonlocal peak_mb
        while not ended.wait(_SAMPLE_INTERVAL_S):
            peak_mb = max(peak_mb, sum(map(proportional_set_mb, tree(process.pid))))

    watcher = threading.Thread(target=watch)
    watcher.start()
    assert process.wait() == 0
    seconds = time.perf_counter() - start
    ended.set()
    watcher.join()
    return seconds, peak_mb


def check(texts: list[str], data: Path, folder: Path) -> None:
    """Compare the last report with the counts of a set of all n-grams of the texts."""
    corpus = {ngram for text in texts for ngram in list_ngrams(text)}
    report = json.loads((folder / "report" / "report.json").read_text())
    for row in report["benchmarks"]:
        tested = [ngram for text in benchmark_texts(data)[row["name"]] for ngram in list_ngrams(text)]
        hits = sum(ngram in corpus for ngram in tested)
        is_equal = (len(tested), hits) == (row["ngrams"], row["overlapping"])
        print(f"{row['name']}: {hits:,} of {len(tested):,} n-grams, {'equal' if is_equal else f'NOT equal: {row}'}")


if __name__ == "__main__":
    main()
