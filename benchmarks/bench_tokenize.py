"""Compares `webtext tokenize`, from Parquet to shards, with tiktoken, tokenizers and gigatoken alone.

    python benchmarks/bench_tokenize.py [--data FOLDER] [--copies N] [--peer-bytes BYTES]

FOLDER contains `text/docs.jsonl.zst` and `gpt2_vocab/` (default: $WEBTEXT_TEST_DATA). The text is written as Parquet,
once unchanged and once as N copies with different ids, and the whole command is timed with one worker per core. The
peers encode texts that are already in memory, to lists or arrays, and write nothing. Their ids are compared with those
in the shards, document by document.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tiktoken
import zstandard
from tokenizers import Tokenizer

from pipelines.algorithms.bpe.byte_level import byte_characters
from pipelines.tokenizers.encoding import FastEncoder
from pipelines.tokenizers.formats import END_OF_TEXT, load_document_tokenizer, read_tokenizer

_SPLIT = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
_COPIES_PER_FILE = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = os.environ.get("WEBTEXT_TEST_DATA", str(Path(__file__).resolve().parents[2] / "shared" / "data"))
    parser.add_argument("--data", type=Path, default=Path(default))
    parser.add_argument("--copies", type=int, default=14, help="copies of the text in the large input")
    parser.add_argument("--peer-bytes", type=int, default=75_000_000, help="bytes of text that the peers encode")
    options = parser.parse_args()
    if not (options.data / "text" / "docs.jsonl.zst").exists():
        print(f"skipped: {options.data} does not exist; name the data with --data or WEBTEXT_TEST_DATA")
        return
    texts = read_texts(options.data / "text" / "docs.jsonl.zst")
    size_mb = sum(len(text.encode()) for text in texts) / 1e6
    print(f"{len(texts):,} documents, {size_mb:.1f} MB of text; {os.cpu_count()} cores; load {os.getloadavg()[0]:.1f}")
    vocabulary = options.data / "gpt2_vocab"
    peers = time_peers(texts, vocabulary, options.peer_bytes)
    with tempfile.TemporaryDirectory() as folder:
        for copies in dict.fromkeys((1, options.copies)):
            seconds = time_command(texts, copies, vocabulary, Path(folder) / str(copies))
            speed = copies * size_mb / seconds
            print(f"webtext tokenize, {copies * size_mb:,.0f} MB: {seconds:.2f} s, {speed:.0f} MB/s", end="")
            print(
                f", {speed / peers['tiktoken']:.1f} times tiktoken, {speed / peers['tokenizers']:.0f} times tokenizers"
            )
        compare(texts, vocabulary, Path(folder) / "1" / "tokens")


def read_texts(path: Path) -> list[str]:
    with zstandard.open(path, "rt") as lines:
        return [json.loads(line)["text"] for line in lines]


def time_peers(texts: list[str], vocabulary: Path, max_bytes: int) -> dict[str, float]:
    """Return the MB/s of each peer, encoding only, on all cores."""
    sample: list[str] = []
    size = 0
    for text in texts:
        if size < max_bytes:
            sample.append(text)
            size += len(text.encode())
    data = read_tokenizer(str(vocabulary))
    library, ranks, fast = load_document_tokenizer(data, "gpt2"), tiktoken_of(vocabulary), FastEncoder(data, "gpt2")
    column = pa.array(sample, pa.string())
    cores = os.cpu_count() or 1
    encoders: dict[str, Callable[[], Any]] = {
        "tiktoken": lambda: ranks.encode_ordinary_batch(sample, num_threads=cores),
        "tokenizers": lambda: library.encode_batch_fast(sample, add_special_tokens=False),
        "gigatoken": lambda: fast.encode(column, threads=True),
    }
    speeds = {}
    for name, encode in encoders.items():
        start = time.perf_counter()
        encode()
        seconds = time.perf_counter() - start
        speeds[name] = size / 1e6 / seconds
        print(f"{name} alone, {size / 1e6:,.0f} MB: {seconds:.2f} s, {speeds[name]:.1f} MB/s")
    return speeds


def tiktoken_of(vocabulary: Path) -> tiktoken.Encoding:
    bytes_of = {character: bytes([byte]) for byte, character in byte_characters().items()}
    entries = json.loads((vocabulary / "encoder.json").read_text())
    ranks = {
        b"".join(bytes_of[character] for character in text): id for text, id in entries.items() if text != END_OF_TEXT
    }
    special = {END_OF_TEXT: entries[END_OF_TEXT]}
    return tiktoken.Encoding("gpt2", pat_str=_SPLIT, mergeable_ranks=ranks, special_tokens=special)


def time_command(texts: list[str], copies: int, vocabulary: Path, folder: Path) -> float:
    """Return the seconds of the whole command on a number of copies of the texts."""
    (folder / "documents").mkdir(parents=True)
    for first in range(0, copies, _COPIES_PER_FILE):
        numbers = range(first, min(first + _COPIES_PER_FILE, copies))
        table = pa.concat_tables(table_of(texts, copy) for copy in numbers)
        pq.write_table(table, folder / "documents" / f"{first:03d}.parquet", compression="zstd", row_group_size=1000)
    command = [sys.executable, "-m", "webtext_cli", "tokenize", "-q"]
    command += ["-i", str(folder / "documents"), "-o", str(folder / "tokens"), "--tokenizer", str(vocabulary)]
    start = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - start


def table_of(texts: list[str], copy: int) -> pa.Table:
    urls = [f"http://example.com/{copy}/{number}" for number in range(len(texts))]
    return pa.table({"id": [f"{copy}-{number}" for number in range(len(texts))], "url": urls, "text": texts})


def compare(texts: list[str], vocabulary: Path, tokens: Path) -> None:
    """Compare the ids of every document in the shards with those of tokenizers and tiktoken."""
    library, ranks = load_document_tokenizer(read_tokenizer(str(vocabulary)), "gpt2"), tiktoken_of(vocabulary)
    documents = shard_documents(tokens)
    unequal = [id for id, ids in documents.items() if not is_equal(ids, texts[int(id.split("-")[1])], library, ranks)]
    print(f"{len(documents):,} documents compared with tokenizers and tiktoken, {len(unequal)} with different ids")
    if unequal or len(documents) != len(texts):
        sys.exit(f"the ids of {unequal[:5]} differ, or documents are missing")


def shard_documents(tokens: Path) -> dict[str, list[int]]:
    metadata = json.loads((tokens / "tokens.json").read_text())
    documents: dict[str, list[int]] = {}
    for file in [file for files in metadata["splits"].values() for file in files]:
        ids = np.fromfile(tokens / file["name"], metadata["dtype"], offset=metadata["header_bytes"])
        for row in pq.read_table(tokens / file["documents_file"]).to_pylist():
            documents.setdefault(row["id"], []).extend(ids[row["offset"] : row["offset"] + row["tokens"]].tolist())
    return documents


def is_equal(ids: list[int], text: str, library: Tokenizer, ranks: tiktoken.Encoding) -> bool:
    expected = ranks.encode_ordinary(text)
    return ids[:-1] == expected == library.encode(text, add_special_tokens=False).ids


if __name__ == "__main__":
    main()
