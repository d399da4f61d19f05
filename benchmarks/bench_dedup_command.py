"""`webtext dedup` as a whole against datatrove's four MinHash steps: seconds, and recall on planted near-duplicates.

    python benchmarks/bench_dedup_command.py [--data FOLDER] [--size-mb 500] [--peers PYTHON]
    python benchmarks/bench_dedup_command.py --documents 100000 1000000

FOLDER contains `text/docs.jsonl.zst` and `text/books.jsonl.zst` (default: $WEBTEXT_TEST_DATA). The first form writes
as many of their documents as the size allows, and documents of sentences sampled from them until it is reached, so
that near-duplicates stay rare; to every 50th document an edited copy is added. Both tools read the same Parquet files,
with two workers. PYTHON is an interpreter that has datatrove; without it, datatrove is left out. The second form
measures how the time per document grows, with documents of 40 words, one in ten an edited copy.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

WORKERS, FILES = 2, 8
NGRAM, BANDS, ROWS = 5, 21, 6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = os.environ.get("WEBTEXT_TEST_DATA", str(Path(__file__).resolve().parents[2] / "shared" / "data"))
    parser.add_argument("--data", type=Path, default=Path(default))
    parser.add_argument("--size-mb", type=int, default=500)
    parser.add_argument("--threshold", type=float, default=0.8)
    parser.add_argument("--documents", type=int, nargs="+", help="measure how the time grows")
    parser.add_argument("--peers", help="an interpreter with datatrove")
    parser.add_argument("--datatrove", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.datatrove:
        run_datatrove(*map(Path, options.datatrove))
        return
    with tempfile.TemporaryDirectory() as folder:
        if options.documents:
            for documents in options.documents:
                measure_growth(documents, Path(folder, str(documents)))
        else:
            compare(options, Path(folder))


def compare(options: argparse.Namespace, folder: Path) -> None:
    similarity = write_corpus(options.data / "text", folder / "in", options.size_mb)
    size_mb = options.size_mb
    print(f"{size_mb} MB; load {os.getloadavg()[0]:.1f}")
    seconds, cpu, memory = run_webtext(folder / "in", folder / "webtext", "--threshold", str(options.threshold))
    print(f"webtext: {seconds:.1f} s, {size_mb / seconds:.1f} MB/s; CPU {cpu:.1f} s; peak of a process {memory:.0f} MB")
    print_recall("webtext", similarity, kept_ids(folder / "webtext", "documents-*.parquet"))
    if options.peers:
        command = [options.peers, __file__, "--datatrove", str(folder / "in"), str(folder / "datatrove")]
        start, before = time.perf_counter(), os.times()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        other, after = time.perf_counter() - start, os.times()
        cpu_other = sum(after[2:4]) - sum(before[2:4])
        print(f"datatrove: {other:.1f} s, {size_mb / other:.2f} MB/s; CPU {cpu_other:.1f} s")
        print(f"webtext is {other / seconds:.1f} times as fast, {cpu_other / cpu:.1f} times by CPU time")
        print_recall("datatrove", similarity, kept_ids(folder / "datatrove" / "out", "*.parquet"))
    print(f"load {os.getloadavg()[0]:.1f}")


def write_corpus(data: Path, folder: Path, size_mb: int) -> dict[str, float]:
    """Write the corpus; return the true similarity of each planted copy, by its id, to its original."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    import zstandard

    chance = random.Random(1)
    texts = []
    for name in ("docs", "books"):
        with (data / f"{name}.jsonl.zst").open("rb") as file:
            lines = io.TextIOWrapper(zstandard.ZstdDecompressor().stream_reader(file), encoding="utf-8")
            texts += [json.loads(line)["text"] for line in lines]
    parts = [part.strip() for text in texts for part in re.split(r"[.\n]+", text)]
    sentences = sorted({f"{part}. " for part in parts if 5 <= len(part.split()) <= 60})
    words = [word for text in texts[:500] for word in text.split()]
    size = sum(len(text.encode()) for text in texts)
    while size > size_mb * 1_000_000:
        size -= len(texts.pop().encode())
    while size < size_mb * 1_000_000:
        texts.append("".join(chance.choices(sentences, k=max(3, int(chance.lognormvariate(3.2, 0.9))))))
        size += len(texts[-1].encode())
    rows, similarity = [(str(number), text) for number, text in enumerate(texts)], {}
    for number in range(0, len(texts), 50):
        copy = edited(texts[number], chance, words)
        sets = shingles_of(texts[number]), shingles_of(copy)
        if sets[0] and sets[1]:
            similarity[f"{number}-copy"] = len(sets[0] & sets[1]) / len(sets[0] | sets[1])
            rows.append((f"{number}-copy", copy))
    chance.shuffle(rows)
    folder.mkdir()
    for file in range(FILES):
        ids, part_texts = zip(*rows[file::FILES], strict=True)
        pq.write_table(pa.table({"id": ids, "text": part_texts}), folder / f"{file}.parquet", compression="zstd")
    return similarity


def edited(text: str, chance: random.Random, words: list[str]) -> str:
    """Replace, leave out and insert words, up to one in twenty."""
    share = chance.uniform(0.002, 0.05)
    result: list[str] = []
    for word in text.split():
        kind = chance.random() / share
        if kind >= 1 or kind < 1 / 3:
            result.append(word)
        if kind < 2 / 3:
            result.append(chance.choice(words))
    return " ".join(result)


def shingles_of(text: str) -> set[tuple[str, ...]]:
    words = re.findall(r"[^\W_]+", text.lower())
    return {tuple(words[start : start + NGRAM]) for start in range(max(1, len(words) - NGRAM + 1))} if words else set()


def run_webtext(source: Path, output: Path, *options: str) -> tuple[float, float, float]:
    """Return the seconds, the CPU seconds and the peak memory of a process in MB."""
    command = [sys.executable, "-c", "from webtext_cli.main import run; run()", "dedup", "-i", str(source)]
    start, before = time.perf_counter(), os.times()
    arguments = [*command, "-o", str(output), "--workers", str(WORKERS), "-q", *options]
    subprocess.run(arguments, check=True, cwd=Path(__file__).resolve().parents[1], stdout=subprocess.DEVNULL)
    after = os.times()
    peak_mb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e3
    return time.perf_counter() - start, sum(after[2:4]) - sum(before[2:4]), peak_mb


def kept_ids(folder: Path, pattern: str) -> set[str]:
    import pyarrow.parquet as pq

    return {id for path in folder.glob(pattern) for id in pq.read_table(path, columns=["id"])["id"].to_pylist()}


def print_recall(name: str, similarity: dict[str, float], kept: set[str]) -> None:
    """Print which share of planted pairs has lost one of its documents, by similarity."""
    results: dict[float, list[bool]] = defaultdict(list)
    for copy, value in similarity.items():
        results[int(value * 20) / 20].append(copy not in kept or copy.removesuffix("-copy") not in kept)
    for low, dropped in sorted(results.items()):
        print(f"  {name}: similarity {low:.2f}: {sum(dropped)} of {len(dropped)} ({sum(dropped) / len(dropped):.4f})")


def run_datatrove(source: Path, folder: Path) -> None:
    """Run datatrove's four steps with as many values per band and bands as here."""
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.dedup import MinhashDedupCluster, MinhashDedupFilter, MinhashDedupSignature
    from datatrove.pipeline.dedup.minhash import MinhashConfig, MinhashDedupBuckets
    from datatrove.pipeline.readers import ParquetReader
    from datatrove.pipeline.writers import ParquetWriter

    config = MinhashConfig(n_grams=NGRAM, num_buckets=BANDS, hashes_per_bucket=ROWS)
    steps: list[tuple[list[Any], int]] = [
        ([ParquetReader(str(source)), MinhashDedupSignature(f"{folder}/signatures", config)], FILES),
        ([MinhashDedupBuckets(f"{folder}/signatures", f"{folder}/buckets", config=config)], BANDS),
        ([MinhashDedupCluster(f"{folder}/buckets", f"{folder}/remove", config=config)], 1),
        (
            [ParquetReader(str(source)), MinhashDedupFilter(f"{folder}/remove"), ParquetWriter(f"{folder}/out")],
            FILES,
        ),
    ]
    for number, (pipeline, tasks) in enumerate(steps):
        LocalPipelineExecutor(pipeline, tasks=tasks, workers=WORKERS, logging_dir=f"{folder}/logs{number}").run()


def measure_growth(documents: int, folder: Path) -> None:
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    chance = np.random.default_rng(documents)
    vocabulary = np.array([f"w{number:05x}" for number in range(60_000)])
    (folder / "in").mkdir(parents=True)
    for first in range(0, documents, 100_000):
        count = min(100_000, documents - first)
        words = chance.integers(0, len(vocabulary), (count, 40))
        copies = np.flatnonzero(chance.random(count) < 0.1)
        words[copies] = words[chance.integers(0, count, len(copies))]
        words[copies, chance.integers(0, 40, len(copies))] = chance.integers(0, len(vocabulary), len(copies))
        ids = [str(first + number) for number in range(count)]
        table = pa.table({"id": ids, "text": [" ".join(row) for row in vocabulary[words]]})
        pq.write_table(table, folder / "in" / f"{first:010}.parquet")
    seconds, cpu, memory = run_webtext(folder / "in", folder / "out", "--threshold", "0.7")
    per_document = f"{cpu / documents * 1e6:.1f} microseconds of CPU per document"
    print(f"{documents:,} documents: {seconds:.1f} s, {per_document}, peak of a process {memory:.0f} MB", flush=True)


if __name__ == "__main__":
    main()
