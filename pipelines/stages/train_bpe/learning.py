"""Learns the merges: with webtext's trainer from word counts, or with the `tokenizers` library from the texts."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from pipelines import progress, storage
from pipelines.algorithms.bpe.byte_level import byte_characters
from pipelines.algorithms.bpe.merges import Merges, learn_merges
from pipelines.engine.journal import WORK
from pipelines.engine.machine import check_memory
from pipelines.engine.run import TaskResult
from pipelines.errors import InputError
from pipelines.format import format_bytes
from pipelines.records import inputs, shards
from pipelines.records.document_split import document_keys, held_out_mask, split_keys
from pipelines.records.drops import Drops
from pipelines.stages.train_bpe.config import TrainBpeConfig
from pipelines.stages.train_bpe.count_tables import CountedWords, Words
from pipelines.stages.train_bpe.counting import select_documents
from pipelines.tokenizers.formats import byte_level_tokenizer

BYTES = 256
_MERGES_FILE = storage.join(WORK, "merges.parquet")
_MERGES_SCHEMA = pa.schema([("left", pa.int32()), ("right", pa.int32()), ("counts", pa.int64())])
# `tokenizers` does not report how often a pair occurred.
_UNKNOWN_COUNT = -1

# Memory of the command while it merges, measured on 2 to 6 million random words of 12 to 48 million bytes, and on
# real text (benchmarks/bpe.md): Python with the libraries, then per symbol (more if ids exceed 65,535) and per word.
_PROCESS_BYTES = 480_000_000
_BYTES_PER_SYMBOL, _BYTES_PER_WIDE_SYMBOL, _BYTES_PER_WORD = 6, 8, 64
_MAX_NARROW_VOCABULARY = 65_536
# The trainer of `tokenizers`: 0.39 GB for 0.29 million words, 3.98 GB for 3.58 million.
_BYTES_PER_LIBRARY_WORD = 1_100
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
    needed_bytes = merging_bytes(words, symbols, config.vocab_size, config.engine)
    if words >= _NOTED_WORDS:
        progress.note(f"train-bpe: merging {words:,} distinct words needs about {format_bytes(needed_bytes)} of memory")
    if config.engine == "tokenizers":
        less_bytes, option = merging_bytes(words, symbols, config.vocab_size), "--engine webtext"
    else:
        less_bytes, option = merging_bytes(*repeated, config.vocab_size), "--min-word-count 2"
    counts = f"--counts {storage.join(output, 'counts-*.parquet')}"
    is_enough = available_bytes is not None and less_bytes <= available_bytes
    alternative = f"with {option}, which needs about {format_bytes(less_bytes)}"
    advice = f"train from the counts ({counts}) on a machine with more memory, or "
    advice += alternative if is_enough else "count fewer documents with --sample-bytes"
    check_memory(f"train-bpe: merging {words:,} distinct words", needed_bytes, available_bytes, advice)


def merging_bytes(words: int, symbols: int, vocab_size: int, engine: str = "webtext") -> int:
    """Return the memory of the command while it merges distinct words of `symbols` bytes in total."""
    per_symbol = _BYTES_PER_SYMBOL if vocab_size <= _MAX_NARROW_VOCABULARY else _BYTES_PER_WIDE_SYMBOL
    library_bytes = _BYTES_PER_LIBRARY_WORD * words if engine == "tokenizers" else 0
    return _PROCESS_BYTES + max(per_symbol * symbols + _BYTES_PER_WORD * words, library_bytes)


def learn_from_words(config: TrainBpeConfig, words: Words) -> Merges:
    """Return the merges of words, most frequent pairs first."""
    return learn_merges(
        *words, first_id=BYTES, most=max_merges(config), min_count=config.min_frequency, on_progress=progress.advance
    )


def learn_with_library(config: TrainBpeConfig, texts: Iterator[str], words: Words) -> Merges:
    """Return the merges that the trainer of `tokenizers` finds in the texts; note where webtext's trainer differs.

    The library gives special tokens the first ids, so it trains without one, and it sorts the alphabet by code point,
    which for the characters of bytes is GPT-2's order. The counts of pairs are those of webtext's trainer, as far as
    both agree.
    """
    from tokenizers import trainers

    tokenizer = byte_level_tokenizer({}, [])
    trainer = trainers.BpeTrainer(
        vocab_size=config.vocab_size - 1,
        min_frequency=config.min_frequency,
        show_progress=False,
        initial_alphabet=list(byte_characters().values()),
    )
    tokenizer.train_from_iterator(texts, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    ids: dict[str, int] = model["vocab"]
    assert [ids[character] for character in byte_characters().values()] == list(range(BYTES))
    left, right = (np.array([ids[pair[side]] for pair in model["merges"]], np.int32) for side in (0, 1))
    expected = learn_from_words(config, words)
    common = min(len(left), len(expected.left))
    differs = np.flatnonzero((left[:common] != expected.left[:common]) | (right[:common] != expected.right[:common]))
    same = int(differs[0]) if len(differs) else common
    if same < max(len(left), len(expected.left)):
        progress.note(f"train-bpe: tokenizers and webtext disagree from merge {same:,} on; writing those of tokenizers")
    counts = np.full(len(left), _UNKNOWN_COUNT, np.int64)
    counts[:same] = expected.counts[:same]
    return Merges(left, right, counts)


def texts_to_train_on(config: TrainBpeConfig, source: inputs.DocumentInput, sampled_below: int) -> Iterator[str]:
    """Yield the texts that the trainer of `tokenizers` reads."""
    for shard in source.undivided:
        for records in inputs.read_documents(shard, Drops()):
            batch = select_documents(records, shard, sampled_below, Drops())
            if config.train_on != "all":
                keys = split_keys(batch, document_keys(batch, shard))
                batch = batch.filter(pa.array(~held_out_mask(keys, config.held_out)))
            yield from batch.column("text").to_pylist()


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
