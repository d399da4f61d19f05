"""Signatures of documents: from Parquet to band keys on one core, against datasketch and datatrove.

    python benchmarks/bench_dedup.py [--data FOLDER] [--peers PYTHON]

FOLDER contains `text/docs.jsonl.zst` and `text/books.jsonl.zst` (default: $WEBTEXT_TEST_DATA). PYTHON is an interpreter
that has datatrove, which needs dependencies of its own; without it, datatrove is left out. All seconds are CPU time of
one core; in each round all take turns. datasketch gets every 20th document and datatrove every 40th.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROUNDS = 5
NGRAM, NUM_PERM, SEED, BANDS, ROWS = 5, 128, 1, 21, 6
DATASKETCH_STEP, DATATROVE_STEP = 20, 40
# update_batch holds shingles x permutations values at once: 4 MB for 128 permutations.
UPDATE_SHINGLES = 8192


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = os.environ.get("WEBTEXT_TEST_DATA", str(Path(__file__).resolve().parents[2] / "shared" / "data"))
    parser.add_argument("--data", type=Path, default=Path(default))
    parser.add_argument("--peers", help="an interpreter with datatrove")
    parser.add_argument("--datatrove", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.datatrove:
        print(datatrove_seconds(Path(options.datatrove)))
        return
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    report(options.data / "text", options.peers)


def report(folder: Path, peers: str | None) -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq
    import zstandard
    from datasketch import MinHash

    from pipelines.algorithms.minhash.normal_text import hash_column, nfc_column
    from pipelines.algorithms.minhash.signing import (
        Values,
        band_keys,
        lower_values,
        new_values,
        shingle_hashes_of,
        sign,
    )

    texts = []
    for name in ("docs", "books"):
        with (folder / f"{name}.jsonl.zst").open("rb") as file:
            lines = io.TextIOWrapper(zstandard.ZstdDecompressor().stream_reader(file), encoding="utf-8")
            texts += [json.loads(line)["text"] for line in lines]
    sizes_mb = [len(text.encode()) / 1e6 for text in texts]
    column = pa.array(texts)
    hashes, starts = shingle_hashes_of(column, NGRAM)
    sample = range(0, len(texts), DATASKETCH_STEP)
    sample_hashes = [(hashes[starts[row] : starts[row + 1]] & np.uint64(0xFFFFFFFF)) for row in sample]
    total_mb, millions = sum(sizes_mb), len(hashes) / 1e6
    load = os.getloadavg()[0]
    print(f"{len(texts)} documents, {total_mb:.0f} MB, {millions:.1f} million shingles; load {load:.1f}")

    with tempfile.TemporaryDirectory() as temporary:
        path, small = Path(temporary, "texts.parquet"), Path(temporary, "sample.jsonl")
        pq.write_table(pa.table({"text": column}), path, compression="zstd", row_group_size=1024)
        small.write_text("".join(json.dumps(text) + "\n" for text in texts[::DATATROVE_STEP]), "utf-8")

        def whole() -> None:
            for batch in pq.ParquetFile(path).iter_batches(1024, columns=["text"], use_threads=False):
                band_keys(sign(batch.column(0), NGRAM, NUM_PERM, SEED).values, BANDS, ROWS)

        def minhash_values() -> Values:
            values = new_values(len(texts), NUM_PERM)
            lower_values(values, hashes, starts, NUM_PERM, SEED)
            return values

        permutations = MinHash(NUM_PERM, SEED, scheme="affine32").permutations

        def datasketch() -> list[list[int]]:
            values = []
            for part in sample_hashes:
                minhash = MinHash(NUM_PERM, SEED, hashfunc=int, permutations=permutations, scheme="affine32")
                for start in range(0, len(part), UPDATE_SHINGLES):
                    minhash.update_batch(part[start : start + UPDATE_SHINGLES].astype(np.uint32).tolist())
                values.append(minhash.hashvalues.tolist())
            return values

        normal = nfc_column(column)
        steps: dict[str, tuple[float, float, Callable[[], Any]]] = {
            "Parquet to band keys": (total_mb, len(hashes), whole),
            "  form NFC": (total_mb, 0, lambda: nfc_column(column)),
            "  text hashes": (total_mb, 0, lambda: hash_column(normal)),
            "  shingles, with form NFC": (total_mb, len(hashes), lambda: shingle_hashes_of(column, NGRAM)),
            "  MinHash values": (total_mb, len(hashes), minhash_values),
            "datasketch, update_batch": (sum(sizes_mb[::DATASKETCH_STEP]), sum(map(len, sample_hashes)), datasketch),
        }
        whole()
        assert minhash_values()[::DATASKETCH_STEP].tolist() == datasketch()
        rates = defaultdict(list)
        for _ in range(ROUNDS):
            for name, (size_mb, shingles, function) in steps.items():
                start = time.process_time()
                function()
                seconds = time.process_time() - start
                rates[name].append((size_mb / seconds, shingles / seconds / 1e6))
            if peers:
                command = [peers, __file__, "--datatrove", str(small)]
                output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                rates["datatrove, signatures"].append(
                    (sum(sizes_mb[::DATATROVE_STEP]) / float(output.split()[-1]), 0.0)
                )
    for name, values in rates.items():
        by_size, by_shingle = ([value[index] for value in values] for index in range(2))
        shingle_rate = f", {statistics.median(by_shingle):.1f} million shingles/s" if by_shingle[0] else ""
        spread = f"({min(by_size):.4g} to {max(by_size):.4g})"
        print(f"{name}: {statistics.median(by_size):.4g} MB/s {spread}{shingle_rate}")
    print_ratio("MinHash values against update_batch", rates["  MinHash values"], rates["datasketch, update_batch"], 1)
    print_ratio(
        "Parquet to band keys against update_batch alone",
        rates["Parquet to band keys"],
        rates["datasketch, update_batch"],
        1,
    )
    if peers:
        print_ratio(
            "Parquet to band keys against datatrove", rates["Parquet to band keys"], rates["datatrove, signatures"], 0
        )
    print(f"load {os.getloadavg()[0]:.1f}")


def print_ratio(what: str, fast: list[tuple[float, float]], slow: list[tuple[float, float]], index: int) -> None:
    ratios = [one[index] / other[index] for one, other in zip(fast, slow, strict=True)]
    print(f"{what}: {statistics.median(ratios):.1f} times ({min(ratios):.1f} to {max(ratios):.1f})")


def datatrove_seconds(path: Path) -> float:
    """Time datatrove's signature step with as many values per band and bands as here."""
    from datatrove.data import Document
    from datatrove.pipeline.dedup.minhash import MinhashConfig, MinhashDedupSignature

    documents = [Document(text=json.loads(line), id=str(row)) for row, line in enumerate(path.open(encoding="utf-8"))]
    with tempfile.TemporaryDirectory() as folder:
        config = MinhashConfig(n_grams=NGRAM, num_buckets=BANDS, hashes_per_bucket=ROWS)
        step = MinhashDedupSignature(folder, config)
        step.run(iter([Document(text="loads the tokenizer", id="0")]), 0, 1)
        start = time.process_time()
        step.run(iter(documents), 1, 2)
        return time.process_time() - start


if __name__ == "__main__":
    main()
