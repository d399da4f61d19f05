"""One large file: wall time of stages with one and with two workers, for each form of the file.

Usage: python benchmarks/bench_one_file.py [--mb 1000] [--stages filter,tokenize] [--forms jsonl,parquet] [--rounds 3]
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

_SYLLABLES = [a + b for a in "bcdfghklmnprstvw" for b in ("a", "e", "i", "o", "u", "an", "er", "is")]
_WORDS, _SENTENCES = 60_000, 40_000
_GROUP_ROWS = 1 << 30
_FORMS = ("jsonl", "txt", "jsonl.zst", "jsonl.gz", "parquet", "groups.parquet")
_STAGES = {
    "filter": ["filter"],
    "dedup": ["dedup"],
    "tokenize": ["tokenize"],
    "train-bpe": ["train-bpe", "--vocab-size", "8000"],
    "overlap-index": ["overlap-index"],
}


def main() -> None:
    """Write the file in each form, run each stage with 1 and 2 workers in turn, and print medians."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--mb", type=int, default=1000)
    parser.add_argument("--stages", default=",".join(_STAGES))
    parser.add_argument("--forms", default=",".join(_FORMS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", default="1,2")
    options = parser.parse_args()
    workers = [int(number) for number in options.workers.split(",")]
    folder = Path(tempfile.mkdtemp(prefix="one-file-"))
    print("| form | stage | " + " | ".join(f"{n} workers: s (CPU s)" for n in workers) + " | first / last |")
    try:
        for form in options.forms.split(","):
            path = _write(folder, form, options.mb * 1_000_000)
            for stage in options.stages.split(","):
                command = [*_STAGES[stage]]
                if stage == "tokenize":
                    command += ["--tokenizer", str(_train_tokenizer(folder))]
                runs: dict[int, list[tuple[float, float]]] = {number: [] for number in workers}
                for _ in range(options.rounds):
                    for number in workers:
                        runs[number].append(_run(command, path, folder / "out", number))
                walls = [statistics.median(wall for wall, _ in runs[number]) for number in workers]
                cpus = [statistics.median(cpu for _, cpu in runs[number]) for number in workers]
                cells = " | ".join(f"{wall:.1f} ({cpu:.1f})" for wall, cpu in zip(walls, cpus, strict=True))
                print(f"| {form} | {stage} | {cells} | {walls[0] / walls[-1]:.2f} |", flush=True)
            path.unlink()
    finally:
        shutil.rmtree(folder)


def _texts(size: int) -> Iterator[str]:
    """Yield texts of 0.2 to 12 KB, of words in Zipf's distribution, until they have `size` bytes."""
    source = random.Random(1)
    words = ["".join(source.choices(_SYLLABLES, k=source.randint(1, 4))) for _ in range(_WORDS)]
    words[:6] = ["the", "of", "and", "to", "that", "with"]
    weights = list(itertools.accumulate(1 / (rank + 3) for rank in range(_WORDS)))
    drawn = source.choices(words, cum_weights=weights, k=12 * _SENTENCES)
    sentences = [" ".join(drawn[first : first + 12]) + ". " for first in range(0, len(drawn), 12)]
    while size > 0:
        text = "".join(source.choices(sentences, k=source.randint(3, 160)))
        yield text
        size -= len(text)


def _write(folder: Path, form: str, size: int) -> Path:
    """Write documents in a form, with `size` bytes of text."""
    path = folder / f"documents.{form}"
    if form.endswith("parquet"):
        schema = pa.schema([("text", pa.string())])
        with pq.ParquetWriter(path, schema, compression="zstd") as writer:
            table = pa.table({"text": list(_texts(size))}, schema=schema)
            writer.write_table(table, row_group_size=8192 if form.startswith("groups") else _GROUP_ROWS)
        return path
    open_file = {"zst": zstandard.open, "gz": gzip.open}.get(path.suffix[1:], open)
    with open_file(path, "wt") as file:
        for text in _texts(size):
            file.write((text if form == "txt" else json.dumps({"text": text})) + "\n")
    return path


def _train_tokenizer(folder: Path) -> Path:
    output = folder / "tokenizer"
    if not output.exists():
        (folder / "sample.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in _texts(20_000_000)))
        _run(["train-bpe", "--vocab-size", "20000"], folder / "sample.jsonl", output, 1)
    return output / "tokenizer.json"


def _run(command: list[str], path: Path, output: Path, workers: int) -> tuple[float, float]:
    """Return wall and processor seconds of a command."""
    shutil.rmtree(output, ignore_errors=True)
    by_line = ["--document", "line"] if path.suffix == ".txt" else []
    arguments = ["-i", str(path), "-o", str(output), "--workers", str(workers), *by_line]
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run(
        [sys.executable, "-c", "from webtext_cli.main import run; run()", *command, *arguments],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.monotonic() - start, cpu


if __name__ == "__main__":
    main()
