"""Learns the merges from word counts, and stores them."""

from __future__ import annotations

import pyarrow as pa

from pipelines import progress, storage
from pipelines.algorithms.bpe.merges import Merges, learn_merges
from pipelines.engine.journal import WORK
from pipelines.engine.machine import check_memory
from pipelines.engine.run import TaskResult
from pipelines.errors import InputError
from pipelines.format import format_bytes
from pipelines.records import shards
from pipelines.stages.train_bpe.config import TrainBpeConfig
from pipelines.stages.train_bpe.count_tables import CountedWords, Words

BYTES = 256
_MERGES_FILE = storage.join(WORK, "merges.parquet")
_MERGES_SCHEMA = pa.schema([("left", pa.int32()), ("right", pa.int32()), ("counts", pa.int64())])

# Memory of the command while it merges, measured on 2 to 6 million random words of 12 to 48 million bytes, and on
# real text (benchmarks/bpe.md): Python with the libraries, then per symbol (more if ids exceed 65,535) and per word.
_PROCESS_BYTES = 480_000_000
_BYTES_PER_SYMBOL, _BYTES_PER_WIDE_SYMBOL, _BYTES_PER_WORD = 6, 8, 64
_MAX_NARROW_VOCABULARY = 65_536
# Fewer need little more memory than the libraries.
_NOTED_WORDS = 1_000_000


def max_merges(config: TrainBpeConfig) -> int:
    """Return the number of merges that fill the vocabulary, which also has the bytes and `<|endoftext|>`."""
    return config.vocab_size - BYTES - 1


def check_merging_memory(
    config: TrainBpeConfig, counted: CountedWords, output: str, available_bytes: int | None
) -> None:
    """Raise InputError if the counted words cannot be merged on this machine; note what a large number needs."""
    repeated = counted.repeated_words, counted.repeated_word_bytes
    distinct = counted.distinct_words, counted.distinct_word_bytes
    words, symbols = distinct if config.min_word_count == 1 else repeated
    needed_bytes = merging_bytes(words, symbols, config.vocab_size)
    if words >= _NOTED_WORDS:
        progress.note(f"train-bpe: merging {words:,} distinct words needs about {format_bytes(needed_bytes)} of memory")
    less_bytes = merging_bytes(*repeated, config.vocab_size)
    counts = f"--counts {storage.join(output, 'counts-*.parquet')}"
    is_enough = available_bytes is not None and less_bytes <= available_bytes
    alternative = f"with --min-word-count 2, which needs about {format_bytes(less_bytes)}"
    advice = f"train from the counts ({counts}) on a machine with more memory, or "
    advice += alternative if is_enough else "count fewer documents with --sample-bytes"
    check_memory(f"train-bpe: merging {words:,} distinct words", needed_bytes, available_bytes, advice)


def merging_bytes(words: int, symbols: int, vocab_size: int) -> int:
    """Return the memory of the command while it merges distinct words of `symbols` bytes in total."""
    per_symbol = _BYTES_PER_SYMBOL if vocab_size <= _MAX_NARROW_VOCABULARY else _BYTES_PER_WIDE_SYMBOL
    return _PROCESS_BYTES + per_symbol * symbols + _BYTES_PER_WORD * words


def learn(config: TrainBpeConfig, words: Words) -> Merges:
    """Return the merges of words, most frequent pairs first."""
    return learn_merges(
        *words, first_id=BYTES, most=max_merges(config), min_count=config.min_frequency, on_progress=progress.advance
    )


def write_merges(output: str, merges: Merges, config: TrainBpeConfig) -> TaskResult:
    """Write the merges as a work file; raise InputError if there are none."""
    if not len(merges.left):
        raise InputError(
            f"train-bpe: no pair occurs {config.min_frequency} times in the text, so there is nothing to merge; "
            "use more text or a lower --min-frequency"
        )
    with shards.write_shard(output, _MERGES_FILE, _MERGES_SCHEMA) as written:
        written.write_batch(pa.RecordBatch.from_arrays(list(map(pa.array, merges)), schema=_MERGES_SCHEMA))
    return TaskResult(counts={"merges": len(merges.left)}, files=(written.entry,))


def pairs_of(merges: Merges) -> list[tuple[int, int]]:
    """Return the two ids of each merge."""
    return list(zip(merges.left.tolist(), merges.right.tolist(), strict=True))


def read_merges(output: str) -> Merges:
    """Return the merges of the work file."""
    table = pa.Table.from_batches(shards.read_batches(storage.join(output, _MERGES_FILE)), _MERGES_SCHEMA)
    return Merges(*(column.to_numpy() for column in table.columns))


def why_it_stopped(config: TrainBpeConfig, merges: int) -> str:
    """Return why training stopped after a number of merges."""
    if merges == max_merges(config):
        return "vocabulary full"
    return f"no remaining pair occurs {config.min_frequency} times" if config.min_frequency > 1 else "no pairs left"
