"""Learns the merges: by our own trainer from the counts of words, or by the `tokenizers` library from the texts."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from pipelines.algorithms.bpe.byte_level import byte_characters
from pipelines.algorithms.bpe.merges import Merges, learn_merges
from pipelines.core import inputs, progress, shards, storage
from pipelines.core.document_split import document_keys, is_held_out, split_keys
from pipelines.core.drops import Drops
from pipelines.core.errors import InputError
from pipelines.core.run import TaskResult
from pipelines.stages.train_bpe.config import TrainBpeConfig
from pipelines.stages.train_bpe.counting import documents_to_count
from pipelines.stages.train_bpe.counts import Words

BYTES = 256
_MERGES_SCHEMA = pa.schema([("left", pa.int32()), ("right", pa.int32()), ("counts", pa.int64())])
# What `tokenizers` does not tell.
_NOT_COUNTED = -1


def learn_from_words(config: TrainBpeConfig, words: Words, output: str, work_file: str) -> TaskResult:
    """Write the merges of words, most frequent pairs first, as a work file."""
    return _written(_learned(config, words), config, output, work_file)


def learn_by_library(
    config: TrainBpeConfig,
    source: inputs.DocumentInput,
    sampled_below: int,
    words: Words,
    output: str,
    work_file: str,
) -> TaskResult:
    """Write the merges that the trainer of `tokenizers` finds, which reads the texts itself; note where ours differ.

    It gives special tokens the first ids, so it trains without one; and it sorts the alphabet by code point, which for
    the characters that stand for bytes is GPT-2's order. It does not tell how often a pair occurred: that is from ours,
    as far as they agree.
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
    tokenizer.train_from_iterator(_texts(config, source, sampled_below), trainer)
    model = json.loads(tokenizer.to_str())["model"]
    ids: dict[str, int] = model["vocab"]
    assert [ids[character] for character in byte_characters().values()] == list(range(BYTES))
    left, right = (np.array([ids[pair[side]] for pair in model["merges"]], np.int32) for side in (0, 1))
    ours = _learned(config, words)
    both = min(len(left), len(ours.left))
    differs = np.flatnonzero((left[:both] != ours.left[:both]) | (right[:both] != ours.right[:both]))
    same = int(differs[0]) if len(differs) else both
    if same < max(len(left), len(ours.left)):
        progress.note(f"train-bpe: the trainer of tokenizers and ours differ from merge {same:,} on; its are written")
    counts = np.full(len(left), _NOT_COUNTED, np.int64)
    counts[:same] = ours.counts[:same]
    return _written(Merges(left, right, counts), config, output, work_file)


def read_merges(output: str, work_file: str) -> Merges:
    """Return the merges of a work file."""
    table = pa.Table.from_batches(shards.read_batches(storage.join(output, work_file)), _MERGES_SCHEMA)
    return Merges(*(column.to_numpy() for column in table.columns))


def token_bytes_of(merges: Merges) -> list[bytes]:
    """Return the bytes of each entry: those of GPT-2's alphabet, then what each merge makes."""
    tokens = [bytes([byte]) for byte in byte_characters()]
    for left, right in zip(merges.left.tolist(), merges.right.tolist(), strict=True):
        tokens.append(tokens[left] + tokens[right])
    return tokens


def why_it_ended(config: TrainBpeConfig, merges: int) -> str:
    """Say why there are so many merges and no more."""
    if merges == config.vocab_size - BYTES - 1:
        return "the vocabulary is full"
    return f"no further pair occurs {config.min_frequency} times" if config.min_frequency > 1 else "no pair is left"


def _learned(config: TrainBpeConfig, words: Words) -> Merges:
    return learn_merges(
        *words,
        first_id=BYTES,
        most=config.vocab_size - BYTES - 1,
        min_count=config.min_frequency,
        on_progress=progress.advance,
    )


def _texts(config: TrainBpeConfig, source: inputs.DocumentInput, sampled_below: int) -> Iterator[str]:
    for shard in source.shards:
        # What counts here are merges, not documents.
        for batch in documents_to_count(shard, sampled_below, Drops(), tell=lambda _: None):
            texts = batch.column("text").to_pylist()
            if config.train_on == "all":
                yield from texts
                continue
            for text, key in zip(texts, split_keys(batch, document_keys(batch, shard)), strict=True):
                if not is_held_out(key, config.held_out):
                    yield text


def _written(merges: Merges, config: TrainBpeConfig, output: str, work_file: str) -> TaskResult:
    if not len(merges.left):
        raise InputError(
            f"train-bpe: no pair occurs {config.min_frequency} times in the text, so there is nothing to merge; "
            "give more text or a lower --min-frequency"
        )
    with shards.write_shard(output, work_file, _MERGES_SCHEMA) as written:
        columns = [pa.array(each) for each in merges]
        written.writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=_MERGES_SCHEMA))
    return TaskResult(counts={"merges": len(merges.left)}, files=(written.entry,))
