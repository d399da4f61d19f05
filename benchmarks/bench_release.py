"""The bytes that two releases share, as storage that divides files by their content keeps them.

python benchmarks/bench_release.py --documents 24000 --removed 10 FOLDER

writes a corpus of one shard of made-up documents, releases it with texts, removes some documents chosen at random, and
releases it again. Both releases are cut into chunks of about 16 KiB (4 to 64) by a rolling hash, as FastCDC does; the
share of the second release's bytes whose chunks are in the first one.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.engine.executor import make_executor
from pipelines.engine.run import RunOptions
from pipelines.pipeline import BY_NAME
from pipelines.release.config import ReleaseConfig
from pipelines.release.stage import release

MIN_CHUNK, MEAN_BITS, MAX_CHUNK = 4 << 10, 14, 64 << 10
_WINDOW = 48


def chunks(data: bytes) -> Iterator[bytes]:
    """Cut bytes where the hash of a window of 48 bytes has MEAN_BITS zero bits."""
    values = np.frombuffer(hashlib.shake_256(b"gear").digest(256 * 8), np.uint64)[np.frombuffer(data, np.uint8)]
    sums = np.cumsum(values, dtype=np.uint64)
    hashes = sums[_WINDOW:] - sums[:-_WINDOW]
    hashes = (hashes ^ (hashes >> np.uint64(29))) * np.uint64(0x9E3779B97F4A7C15)
    ends = np.flatnonzero(hashes >> np.uint64(64 - MEAN_BITS) == 0) + _WINDOW + 1
    start = 0
    for end in (*ends.tolist(), len(data)):
        while end - start > MAX_CHUNK:
            yield data[start : start + MAX_CHUNK]
            start += MAX_CHUNK
        if end - start >= MIN_CHUNK or end == len(data):
            yield data[start:end]
            start = end


def shared_bytes(old: Path, new: Path) -> tuple[int, int]:
    """Return the bytes of a release whose chunks are in an earlier one, and all its bytes."""
    known = {hashlib.sha256(chunk).digest() for path in _files(old) for chunk in chunks(path.read_bytes())}
    parts = [chunk for path in _files(new) for chunk in chunks(path.read_bytes())]
    shared = sum(len(chunk) for chunk in parts if hashlib.sha256(chunk).digest() in known)
    return shared, sum(map(len, parts))


def _files(release_folder: Path) -> list[Path]:
    lines = (release_folder / "SHA256SUMS").read_text().splitlines()
    return [release_folder / line.split("  ")[1] for line in lines]


def write_corpus(folder: Path, documents: int) -> None:
    """Write a corpus of documents whose words are drawn by Zipf's law, as in English."""
    source = np.random.default_rng(1)
    letters, lengths = list("etaoinshrdlucmfwyp"), source.integers(2, 10, 30_000)
    words = np.array(["".join(source.choice(letters, size=length)) for length in lengths])
    rows = []
    for number in range(documents):
        drawn = words[np.minimum(source.zipf(1.2, int(source.lognormal(6.2, 0.9)) + 20), len(words)) - 1]
        url = f"https://site{number % 2000}.example/{number}"
        id = hashlib.sha256(url.encode()).hexdigest()[:32]
        row = {"id": id, "url": url, "title": f"Page {number}", "text": " ".join(drawn)}
        rows.append({**row, "created_utc": 1451606400 + number})
    (folder / "corpus").mkdir(parents=True)
    options = '[build]\nskip = ["filter", "dedup"]\n[remove-wikipedia]\ninput = ["../all.parquet"]\n'
    (folder / "corpus" / "webtext.toml").write_text(options)
    pq.write_table(pa.Table.from_pylist(rows), folder / "all.parquet")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--documents", type=int, default=24_000)
    parser.add_argument("--removed", type=int, default=10)
    arguments = parser.parse_args()
    folder = arguments.folder
    write_corpus(folder, arguments.documents)
    stage = BY_NAME["remove-wikipedia"]
    table = pq.read_table(folder / "all.parquet")
    dropped = set(random.Random(2).sample(range(table.num_rows), arguments.removed))
    fewer = table.take([row for row in range(table.num_rows) if row not in dropped])
    result: dict[str, object] = {
        "text_mb": round(sum(map(len, table["text"].to_pylist())) / 1e6, 1),
        "removed": arguments.removed,
    }
    for texts in (True, False):
        folders = []
        for version, rows in (("1", table), ("2", fewer)):
            pq.write_table(rows, folder / "all.parquet")
            corpus, options = folder / "corpus", RunOptions(make_executor(None), overwrite=True)
            read = {"documents": [str(folder / "all.parquet")], "output": str(corpus / stage.name)}
            stage.load()(stage.config_type()(), **read, options=options)
            folders.append(folder / f"release-{texts}-{version}")
            started = time.monotonic()
            release(ReleaseConfig("CC0-1.0", texts=texts), corpus=str(corpus), output=str(folders[-1]), options=options)
            seconds = time.monotonic() - started
        shared, size = shared_bytes(*folders)
        kind = "texts" if texts else "urls only"
        result[kind] = {"mb": round(size / 1e6, 1), "shared": round(shared / size, 4), "seconds": round(seconds, 1)}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
