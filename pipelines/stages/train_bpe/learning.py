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
from pipelines.engine.run import TaskResult
from pipelines.errors import InputError
from pipelines.records import inputs, shards
from pipelines.records.document_split import document_keys, is_held_out, split_keys
from pipelines.records.drops import Drops
from pipelines.stages.train_bpe.config import TrainBpeConfig
from pipelines.stages.train_bpe.counting import select_documents
from pipelines.stages.train_bpe.counts import Words

BYTES = 256
_MERGES_FILE = storage.join(WORK, "merges.parquet")
_MERGES_SCHEMA = pa.schema([("left", pa.int32()), ("right", pa.int32()), ("counts", pa.int64())])
# `tokenizers` does not report how often a pair occurred.
_UNKNOWN_COUNT = -1


def max_merges(config: TrainBpeConfig) -> int:
    """Return the number of merges that fill the vocabulary, which also has the bytes and `<|endoftext|>`."""
    return config.vocab_size - BYTES - 1


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
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    trainer = trainers.BpeTrainer(
        vocab_size=config.vocab_size - 1,
        min_frequency=config.min_frequency,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
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
        progress.note(
            f"train-bpe: tokenizers and webtext disagree from merge {same:,} on; the merges of tokenizers are written"
        )
    counts = np.full(len(left), _UNKNOWN_COUNT, np.int64)
    counts[:same] = expected.counts[:same]
    return Merges(left, right, counts)


def texts_to_train_on(config: TrainBpeConfig, source: inputs.DocumentInput, sampled_below: int) -> Iterator[str]:
    """Yield the texts that the trainer of `tokenizers` reads."""
    for shard in source.shards:
        for records in inputs.read_documents(shard, Drops()):
            batch = select_documents(records, shard, sampled_below, Drops())
            texts = batch.column("text").to_pylist()
            if config.train_on == "all":
                yield from texts
                continue
            for text, key in zip(texts, split_keys(batch, document_keys(batch, shard)), strict=True):
                if not is_held_out(key, config.held_out):
                    yield text


def write_merges(output: str, merges: Merges, config: TrainBpeConfig) -> TaskResult:
    """Write the merges as a work file; raise InputError if there are none."""
    if not len(merges.left):
        raise InputError(
            f"train-bpe: no pair occurs {config.min_frequency} times in the text, so there is nothing to merge; "
            "use more text or a lower --min-frequency"
        )
    with shards.write_shard(output, _MERGES_FILE, _MERGES_SCHEMA) as written:
        written.writer.write_batch(pa.RecordBatch.from_arrays(list(map(pa.array, merges)), schema=_MERGES_SCHEMA))
    return TaskResult(counts={"merges": len(merges.left)}, files=(written.entry,))


def pairs_of(merges: Merges) -> list[tuple[int, int]]:
    """Return the two ids of each merge."""
    return list(zip(merges.left.tolist(), merges.right.tolist(), strict=True))


def read_merges(output: str) -> Merges:
    """Return the merges of the work file."""
    table = pa.Table.from_batches(shards.read_batches(storage.join(output, _MERGES_FILE)), _MERGES_SCHEMA)
    return Merges(*(column.to_numpy() for column in table.columns))


def why_it_ended(config: TrainBpeConfig, merges: int) -> str:
    """Return why training ended after a number of merges."""
    if merges == max_merges(config):
        return "the vocabulary is full"
    return f"no further pair occurs {config.min_frequency} times" if config.min_frequency > 1 else "no pair is left"
