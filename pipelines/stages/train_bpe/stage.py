"""Trains one byte-level BPE on all documents."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from pipelines.core import inputs, progress, shards
from pipelines.core.drops import Drops
from pipelines.core.errors import InputError
from pipelines.core.records import DROPPED_SCHEMA
from pipelines.core.run import RunOptions, Stage, Summary, TaskResult, stage_run
from pipelines.stages.train_bpe.config import TrainBpeConfig

STAGE = Stage(
    "train-bpe",
    1,
    ("tokenizer.json", "vocab.json", "merges.txt", "encoder.json", "vocab.bpe", "ranks.tiktoken"),
)

# The texts that the finished files are compared on: the beginnings of some documents, spread over the shards.
_SAMPLE_DOCUMENTS = 64
_SAMPLE_CHARACTERS = 8192

# `tokenizers` counts pairs in 32 bits, and the most frequent pair of English makes up about one of 30 bytes.
_COUNTS_OVERFLOW_BYTES = 60_000_000_000


def train_bpe(config: TrainBpeConfig, *, documents: str | Sequence[str], output: str, options: RunOptions) -> Summary:
    """Write a tokenizer folder: one tokenizer for each library that reads such, and proven with each.

    Ids are those of GPT-2: the 256 bytes in its order, the merges, `<|endoftext|>` last. A text that cannot fill the
    vocabulary gives a smaller one, with a note. Raises InputError where not one pair can be merged. Paper, section 2.2.
    """
    source = inputs.open_documents(documents, config.text_field)
    with stage_run(STAGE, config, {"documents": source.fingerprint}, output, options) as run:
        if not run.finished:
            entry = run.once("train", lambda: _train(config, source, output), total=source.records)
            size = int(entry.counts["vocabulary_size"])
            if size < config.vocab_size:
                run.note(
                    f"the text fills only {size:,} of the {config.vocab_size:,} entries: "
                    f"no further pair occurs {config.min_frequency} times (--min-frequency)"
                )
            if entry.counts["text_bytes"] > _COUNTS_OVERFLOW_BYTES:
                run.note("the text is over 60 GB: the trainer's 32-bit pair counts may have overflowed; train on less")
        return run.finish()


class _Texts:
    """The texts of all documents, counted; keeps the sample that the finished files are compared on."""

    def __init__(self, source: inputs.DocumentInput, drops: Drops) -> None:
        self._source = source
        self._drops = drops
        self.documents = self.text_bytes = 0
        self.sample: list[str] = []

    def __iter__(self) -> Iterator[str]:
        a_shard = -(-_SAMPLE_DOCUMENTS // len(self._source.shards))
        for shard in self._source.shards:
            wanted = min(_SAMPLE_DOCUMENTS, len(self.sample) + a_shard)
            for text in self._texts(shard):
                if len(self.sample) < wanted:
                    self.sample.append(text[:_SAMPLE_CHARACTERS])
                yield text

    def _texts(self, shard: inputs.DocumentShard) -> Iterator[str]:
        for batch in inputs.read_documents(shard, self._drops):
            for id, text in zip(batch.column("id").to_pylist(), batch.column("text").to_pylist(), strict=True):
                if not text:
                    self._drops.add("empty_text", id)
                    continue
                self.documents += 1
                self.text_bytes += len(text.encode())
                yield text
            progress.advance(batch.num_rows)


def _train(config: TrainBpeConfig, source: inputs.DocumentInput, output: str) -> TaskResult:
    from pipelines.algorithms.bpe import token_bytes
    from pipelines.stages.train_bpe.files import check_written, tokenizer_files

    with shards.write_shard(output, shards.shard_name("dropped", 0), DROPPED_SCHEMA) as dropped:
        texts = _Texts(source, Drops(dropped.writer))
        vocabulary, merges = _learn(config, texts)
    drops = texts._drops.counts
    if texts.documents and not merges:
        raise InputError(
            f"train-bpe: no pair occurs {config.min_frequency} times in the text, so there is nothing to merge; "
            "give more text or a lower --min-frequency"
        )
    tokens_by_id = [token_bytes(token) for token in sorted(vocabulary, key=vocabulary.__getitem__)]
    files = tokenizer_files(tokens_by_id, [(vocabulary[left], vocabulary[right]) for left, right in merges])
    written = [shards.write_file(output, name, data) for name, data in files.items()]
    tokens = check_written(output, texts.sample)
    sample_bytes = sum(len(text.encode()) for text in texts.sample)
    return TaskResult(
        records_in=texts.documents + sum(drops.values()),
        records_out=texts.documents,
        dropped=drops,
        counts={
            "vocabulary_size": len(vocabulary) + 1,
            "merges": len(merges),
            "text_bytes": texts.text_bytes,
            "sample_bytes_per_token": round(sample_bytes / tokens, 4) if tokens else 0.0,
        },
        files=(*written, dropped.entry),
    )


def _learn(config: TrainBpeConfig, texts: _Texts) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Return the vocabulary without `<|endoftext|>`, and the merges in order.

    `tokenizers` gives special tokens the first ids, so it trains without one; and it sorts the alphabet by code point,
    which for the characters that stand for bytes is GPT-2's order.
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
    tokenizer.train_from_iterator(iter(texts), trainer)
    model = json.loads(tokenizer.to_str())["model"]
    return model["vocab"], [(left, right) for left, right in model["merges"]]
