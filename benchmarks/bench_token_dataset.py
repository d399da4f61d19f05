"""Compares reading batches by `TokenDataset`, by datasets (Hugging Face) and as nanoGPT does: tokens per second.

    python benchmarks/bench_token_dataset.py [--tokens 200000000] [--length 1025] [--batch-size 64]
                                             [--batches 500] [--rounds 7] [--documents 8000000]

All read the same random blocks of the same random tokens, which the first round brings into the page cache, in one
process, and give int64: several items, or a batch of torch. Rounds take turns; the median and the best of them are
printed, by elapsed and by processor time. datasets has the blocks as lists of 16-bit numbers of a fixed length, in a
memory-mapped file of `save_to_disk`, and is left out where it is not installed.

Then, how long opening takes with --documents documents of 25 tokens, and the memory that it takes.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import importlib.metadata
import importlib.util
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from process_tree import peak_mb
from token_shards import random_tokens
from torch.utils.data import default_collate

import webtext
from pipelines.engine.run import RunOptions, Stage, TaskResult, stage_run
from pipelines.records import shards
from pipelines.stages.tokenize.token_shards import TOKEN_DOCUMENTS_SCHEMA, documents_file

VOCABULARY = 50_257
MEAN_TOKENS = 1_100
TOKENIZER = b"{}"  # which nothing here reads
Read = Callable[[list[int]], Any]


@dataclasses.dataclass(frozen=True)
class _NoOptions:
    pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=200_000_000)
    parser.add_argument("--length", type=int, default=1025)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--batches", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--documents", type=int, default=8_000_000)
    options = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores")
    with tempfile.TemporaryDirectory() as folder:
        compare_readers(options, Path(folder))
    with tempfile.TemporaryDirectory() as folder:
        measure_opening(write_folder(folder, options.documents, 25), options.documents)
    print(f"load {os.getloadavg()[0]:.1f}")


def write_folder(folder: str, documents: int, mean_tokens: int) -> str:
    """Write a folder of `tokenize` with one shard of random documents; return its path."""
    lengths = np.random.default_rng(0).poisson(mean_tokens - 2, documents) + 2
    ends = np.cumsum(lengths)

    def write() -> TaskResult:
        tokens = random_tokens(int(ends[-1]), VOCABULARY - 1, 0)
        tokens[ends - 1] = VOCABULARY - 1
        shard = shards.write_file(folder, "train-00000.bin", tokens.astype("<u2").tobytes())
        with shards.write_shard(folder, documents_file(shard.name), TOKEN_DOCUMENTS_SCHEMA) as table:
            for first in range(0, documents, 8192):
                part = slice(first, first + 8192)
                ids = [f"{number:032x}" for number in range(*part.indices(documents))]
                columns = [ids, [None] * len(ids), (ends - lengths)[part], lengths[part], [0] * len(ids)]
                arrays = map(pa.array, columns, TOKEN_DOCUMENTS_SCHEMA.types)
                table.write_batch(pa.RecordBatch.from_arrays(list(arrays), schema=TOKEN_DOCUMENTS_SCHEMA))
        description = {
            "dtype": "uint16",
            "header_bytes": 0,
            "vocab_size": VOCABULARY,
            "end_of_text": VOCABULARY - 1,
            "tokenizer_sha256": hashlib.sha256(TOKENIZER).hexdigest(),
            "splits": {"train": [{"name": shard.name, "tokens": int(ends[-1]), "documents_file": table.entry.name}]},
        }
        files = {"tokenizer.json": TOKENIZER, "tokens.json": json.dumps(description).encode()}
        entries = [shards.write_file(folder, name, data) for name, data in files.items()]
        return TaskResult(1, 1, files=(shard, table.entry, *entries))

    with stage_run(Stage("tokenize", 1), _NoOptions(), inputs={}, output=folder, options=RunOptions()) as run:
        run.once("tokenize", write)
        run.finish()
    return folder


def compare_readers(options: argparse.Namespace, folder: Path) -> None:
    length = options.length
    path = write_folder(str(folder / "tokenize"), options.tokens // MEAN_TOKENS, MEAN_TOKENS)
    blocks = webtext.TokenDataset(path, length=length)
    documents = webtext.TokenDataset(path, length=length, documents=True)
    readers: dict[str, Read] = {
        "TokenDataset": blocks.__getitems__,
        "TokenDataset, collated": lambda numbers: default_collate(blocks.__getitems__(numbers)),
        "TokenDataset, documents": documents.__getitems__,
        "nanoGPT": lambda numbers: nanogpt_batch(f"{path}/train-00000.bin", numbers, length),
    }
    if importlib.util.find_spec("datasets"):
        print(f"datasets {importlib.metadata.version('datasets')}, torch {torch.__version__}")
        readers |= datasets_readers(str(folder / "arrow"), f"{path}/train-00000.bin", length)
    expected = torch.from_numpy(np.stack([item["input_ids"] for item in blocks.__getitems__([5, 2])]))
    for name in readers.keys() - {"TokenDataset, documents"}:
        found = readers[name]([5, 2])
        found = default_collate(found) if isinstance(found, list) else found
        rows = found["input_ids"] if isinstance(found, dict) else found
        assert torch.equal(rows, expected), name
    numbers = blocks.epoch_order(0)[: options.batches * options.batch_size]
    batches = [
        batch.tolist() for batch in np.split(numbers, range(options.batch_size, len(numbers), options.batch_size))
    ]
    speeds: dict[str, list[tuple[float, float]]] = {name: [] for name in readers}
    for _ in range(options.rounds + 1):
        for name, read in readers.items():
            speeds[name].append(measure(read, batches, length if "documents" not in name else 0))
    print("M tokens/s: elapsed median (best), of processor time median (best)")
    for name, rounds in speeds.items():
        elapsed, processor = zip(*rounds[1:], strict=True)
        print(
            f"{name:28} {statistics.median(elapsed):6.0f} ({max(elapsed):.0f})"
            f" {statistics.median(processor):6.0f} ({max(processor):.0f})"
        )


def measure(read: Read, batches: list[list[int]], length: int) -> tuple[float, float]:
    """Return million tokens per second of elapsed and of processor time; a length of 0 counts the tokens of items."""
    tokens, elapsed, processor = 0, time.perf_counter(), time.process_time()
    for numbers in batches:
        found = read(numbers)
        tokens += len(numbers) * length or sum(len(item["input_ids"]) for item in found)
    elapsed, processor = time.perf_counter() - elapsed, time.process_time() - processor
    return tokens / elapsed / 1e6, tokens / processor / 1e6


def nanogpt_batch(path: str, numbers: list[int], length: int) -> torch.Tensor:
    """Read as `get_batch` of nanoGPT's train.py reads `x`, with the same blocks instead of random ones."""
    data = np.memmap(path, dtype=np.uint16, mode="r")
    return torch.stack([torch.from_numpy((data[i * length : (i + 1) * length]).astype(np.int64)) for i in numbers])


def datasets_readers(folder: str, tokens_path: str, length: int) -> dict[str, Read]:
    import datasets

    tokens = np.fromfile(tokens_path, np.uint16)
    tokens = tokens[: len(tokens) // length * length]
    rows = pa.FixedSizeListArray.from_arrays(pa.array(tokens), length)
    datasets.disable_progress_bars()
    datasets.Dataset(pa.table({"input_ids": rows})).save_to_disk(folder)
    mapped = datasets.load_from_disk(folder, keep_in_memory=False)
    as_numpy, as_torch, as_arrow = (mapped.with_format(name) for name in ("numpy", "torch", "arrow"))

    def converted(numbers: list[int]) -> torch.Tensor:
        column = as_arrow[numbers]["input_ids"].combine_chunks()
        return torch.from_numpy(column.flatten().to_numpy().reshape(-1, length).astype(np.int64))

    return {
        "datasets, numpy": as_numpy.__getitems__,
        "datasets, numpy, collated": lambda numbers: default_collate(as_numpy.__getitems__(numbers)),
        "datasets, torch": lambda numbers: as_torch[numbers]["input_ids"],
        "datasets, arrow, converted": converted,
    }


def measure_opening(path: str, documents: int) -> None:
    for by_document, verify in ((False, False), (True, False), (True, False), (True, True)):
        # A process of its own, whose peak memory is that of opening.
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            items, elapsed, processor, peak = pool.apply(open_dataset, (path, by_document, verify))
        kind = f"{documents:,} documents" if by_document else "blocks"
        print(f"opened {kind}, verify={verify}: {elapsed:.2f} s, {processor:.2f} s of processor time", end="; ")
        print(f"{items:,} items; peak memory +{peak:.0f} MB")


def open_dataset(path: str, by_document: bool, verify: bool) -> tuple[int, float, float, float]:
    """Return the items, elapsed and processor seconds, and by how many MB the peak memory grew."""
    before = peak_mb(os.getpid())
    elapsed, processor = time.perf_counter(), time.process_time()
    items = len(webtext.TokenDataset(path, length=512, documents=by_document, verify=verify))
    elapsed, processor = time.perf_counter() - elapsed, time.process_time() - processor
    return items, elapsed, processor, peak_mb(os.getpid()) - before


if __name__ == "__main__":
    main()
