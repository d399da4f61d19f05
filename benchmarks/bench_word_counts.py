"""Times counting the words of texts in memory: ours, gigatoken's and the `regex` library's, on one thread each.

    python benchmarks/bench_word_counts.py [docs.jsonl.zst] [--rounds 5]

The default input is `text/docs.jsonl.zst` in the folder $WEBTEXT_TEST_DATA.
Each round counts all texts by each in turn; the medians are printed, and whether all counts are equal.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

# Before gigatoken starts its threads.
os.environ["RAYON_NUM_THREADS"] = "1"

import numpy as np
import pyarrow as pa
import regex

from pipelines.algorithms.bpe.split import GPT2_SPLIT
from pipelines.algorithms.bpe.word_table import WordTable
from pipelines.algorithms.columns import text_arrays
from pipelines.records import inputs
from pipelines.records.drops import Drops


def by_table(columns: list[pa.Array]) -> WordTable:
    """Count as `webtext train-bpe` does."""
    table = WordTable()
    for column in columns:
        table.add(*text_arrays(column), np.zeros(len(column), np.uint8))
    return table


def by_gigatoken(texts: list[bytes]) -> list[tuple[bytes, int]]:
    """Count by gigatoken's private function, which takes texts with a byte between them that is in no text."""
    from gigatoken.gigatoken_rs import pretokenized_counts

    counted: list[tuple[bytes, int]] = pretokenized_counts(b"\xff".join(texts), b"\xff")
    return counted


def by_pattern(texts: list[bytes]) -> list[tuple[bytes, int]]:
    """Count by GPT-2's regular expression."""
    find = regex.compile(GPT2_SPLIT).findall
    return [(word.encode(), count) for word, count in Counter(w for text in texts for w in find(text.decode())).items()]


def words_of(table: WordTable) -> dict[bytes, int]:
    """Return the words of a table by their bytes."""
    data, starts = table.column()
    whole = data.tobytes()
    words = (whole[start:end] for start, end in pairwise(starts.tolist()))
    return dict(zip(words, table.counts()[:, 0].tolist(), strict=True))


def main() -> None:
    """Print the medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    data = os.environ.get("WEBTEXT_TEST_DATA", str(Path(__file__).resolve().parents[2] / "shared" / "data"))
    parser.add_argument("docs", type=Path, nargs="?", default=Path(data) / "text" / "docs.jsonl.zst")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    if not options.docs.exists():
        print(f"skipped: {options.docs} does not exist; name a JSONL file, or set WEBTEXT_TEST_DATA")
        return
    source = inputs.open_documents([str(options.docs)])
    columns = [batch.column("text") for shard in source.shards for batch in inputs.read_documents(shard, Drops())]
    texts = [text for column in columns for text in column.cast(pa.binary()).to_pylist()]
    size_mb = sum(map(len, texts)) / 1e6
    by_table(columns[:1])  # loads what was compiled before
    counters: dict[str, Callable[[], object]] = {
        "webtext": lambda: by_table(columns),
        "gigatoken": lambda: by_gigatoken(texts),
        "regex": lambda: by_pattern(texts),
    }
    seconds: dict[str, list[float]] = {name: [] for name in counters}
    for number in range(options.rounds):
        for name, count in counters.items():
            if name == "regex" and number:
                continue
            start = time.perf_counter()
            count()
            seconds[name].append(time.perf_counter() - start)
    for name, each in seconds.items():
        median = statistics.median(each)
        print(f"{name:10} {median:7.2f} s {size_mb / median:7.1f} MB/s   {' '.join(f'{one:.2f}' for one in each)}")
    ours = Counter(words_of(by_table(columns)))
    for name, theirs in (("gigatoken", by_gigatoken(texts)), ("regex", by_pattern(texts))):
        print(f"{name}: {'the same counts' if Counter(dict(theirs)) == ours else 'OTHER COUNTS'}")


if __name__ == "__main__":
    main()
