"""Encodes documents into the token shards of a training and a held-out split."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from pipelines.core import inputs, progress, shards, storage
from pipelines.core.document_filter import urls_of
from pipelines.core.drops import Drops
from pipelines.core.errors import InputError
from pipelines.core.manifest import ShardEntry
from pipelines.core.records import DROPPED_SCHEMA
from pipelines.core.run import RunOptions, Stage, Summary, TaskResult, stage_run
from pipelines.core.tokenizer_formats import end_of_text_id, parse_tokenizer, read_tokenizer, vocabulary_size
from pipelines.stages.tokenize.config import TokenizeConfig
from pipelines.stages.tokenize.token_shards import SPLITS, SplitWriter, TokenFormat, token_format
from pipelines.stages.tokenize.tokenizer import load_tokenizer, use_one_thread_in_a_worker

STAGE = Stage("tokenize", 1, ("tokenizer.json", "tokens.json"))

_TOKENIZER = "tokenizer.json"
# Documents are encoded together up to this many characters: an encoding takes some hundred bytes a token.
_ENCODED_TOGETHER_CHARACTERS = 1_000_000


@dataclasses.dataclass(frozen=True)
class _Task:
    shard: inputs.DocumentShard
    held_out: float
    form: TokenFormat
    tokenizer_sha256: str
    output: str
    work: str

    @property
    def name(self) -> str:
        return self.shard.name


@dataclasses.dataclass(frozen=True)
class _Row:
    id: str
    url: str | None
    text: str
    held_out: bool


def tokenize(
    config: TokenizeConfig, *, documents: str | Sequence[str], tokenizer: str, output: str, options: RunOptions
) -> Summary:
    """Write `train-N.bin` and `held-out-N.bin`: the ids of each document, and `<|endoftext|>` after each.

    Ids are uint16, or uint32 past 65,536 entries; `tokens.json` describes the files. A document is held out by a hash
    of its `cluster`, or of its id where the input has no such column, or of its text where it has no id either, never
    by its place. `tokenizer` is a path, see
    `read_tokenizer`. Raises InputError where that holds no tokenizer, or one without `<|endoftext|>`.
    """
    data = read_tokenizer(tokenizer)
    size = vocabulary_size(parse_tokenizer(data, tokenizer))
    sha256 = hashlib.sha256(data).hexdigest()
    form = token_format(config.format, size)
    source = inputs.open_documents(documents, config.text_field)
    fingerprints = {"documents": source.fingerprint, "tokenizer": sha256}
    with stage_run(STAGE, config, fingerprints, output, options) as run:
        if not run.finished:
            run.once("tokenizer", lambda: TaskResult(files=(shards.write_file(output, _TOKENIZER, data),)))
            tasks = [_Task(shard, config.held_out, form, sha256, output, run.work) for shard in source.shards]
            entries = run.map(_tokenize_shard, tasks, total=source.records)
            run.once("describe", lambda: _describe(entries, form, size, data, output))
            if config.held_out and not sum(entry.counts["held-out_documents"] for entry in entries):
                run.note(f"no document is held out: too few for a share of {config.held_out:g} (--held-out)")
        return run.finish()


def is_held_out(key: str, share: float) -> bool:
    """Tell whether a document is held out: by its key alone, so for the same share on every machine and in any order.

    A larger share holds out all that a smaller one does.
    """
    digest = hashlib.sha256(f"held-out:{key}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < share * 2**64


def _tokenize_shard(task: _Task) -> TaskResult:
    use_one_thread_in_a_worker()
    tokenizer = load_tokenizer(storage.join(task.output, _TOKENIZER), task.tokenizer_sha256)
    end_of_text = end_of_text_id(tokenizer)
    with contextlib.ExitStack() as stack:
        dropped_name = shards.shard_name("dropped", task.shard.index)
        dropped = stack.enter_context(shards.write_shard(task.output, dropped_name, DROPPED_SCHEMA))
        drops = Drops(dropped.writer)
        train, held_out = (
            SplitWriter(stack, split, task.shard.index, task.form, task.output, task.work) for split in SPLITS
        )
        for rows in _groups(task, drops):
            encodings = tokenizer.encode_batch_fast([row.text for row in rows], add_special_tokens=False)
            for row, encoding in zip(rows, encodings, strict=True):
                writer = held_out if row.held_out else train
                writer.write(row.id, row.url, [*encoding.ids, end_of_text])
            progress.advance(len(rows))
    documents = train.documents + held_out.documents
    return TaskResult(
        records_in=inputs.documents_read(drops, documents),
        records_out=documents,
        dropped=drops.counts,
        counts={
            "train_tokens": train.tokens,
            "train_documents": train.documents,
            "held-out_tokens": held_out.tokens,
            "held-out_documents": held_out.documents,
        },
        files=(*train.finish(), *held_out.finish(), dropped.entry),
    )


def _groups(task: _Task, drops: Drops) -> Iterator[list[_Row]]:
    """Yield documents in groups of at most about a million characters."""
    group: list[_Row] = []
    characters = 0
    for row in _rows(task, drops):
        if group and characters + len(row.text) > _ENCODED_TOGETHER_CHARACTERS:
            yield group
            group, characters = [], 0
        group.append(row)
        characters += len(row.text)
    if group:
        yield group


def _rows(task: _Task, drops: Drops) -> Iterator[_Row]:
    names = {storage.basename(file.path) for file in task.shard.files}
    for batch in inputs.read_documents(task.shard, drops):
        ids, texts = batch.column("id").to_pylist(), batch.column("text").to_pylist()
        columns = (ids, urls_of(batch), texts, _keys(batch, ids, texts, names))
        for id, url, text, key in zip(*columns, strict=True):
            if text:
                yield _Row(id, url, text, is_held_out(key, task.held_out))
            else:
                drops.add("empty_text", id, url)


def _keys(batch: pa.RecordBatch, ids: list[str], texts: list[str], names: set[str]) -> list[str]:
    """Return what decides the split of each document: near-duplicates of one cluster must not be on both sides.

    An id that was made of the file and the row only says where a document stands: there its text decides.
    """
    keys = [text if _is_place(id, names) else id for id, text in zip(ids, texts, strict=True)]
    if "cluster" not in batch.schema.names:
        return keys
    clusters = batch.column("cluster").to_pylist()
    return [key if cluster is None else str(cluster) for key, cluster in zip(keys, clusters, strict=True)]


def _is_place(id: str, names: set[str]) -> bool:
    name, _, row = id.rpartition(":")
    return id in names or (name in names and row.isdecimal())


def _describe(entries: list[ShardEntry], form: TokenFormat, size: int, data: bytes, output: str) -> TaskResult:
    splits = {split: _split_files(entries, split) for split in SPLITS}
    if any(entry.records_out for entry in entries) and not splits["train"]:
        raise InputError(
            "tokenize: every document is held out, none is left to train on; lower --held-out, then run again "
            "with --overwrite"
        )
    description = {
        "format": form.name,
        "dtype": form.dtype,
        "header_bytes": form.header_bytes,
        "vocab_size": size,
        "end_of_text": end_of_text_id(parse_tokenizer(data, _TOKENIZER)),
        "tokenizer_sha256": hashlib.sha256(data).hexdigest(),
        "splits": splits,
    }
    text = json.dumps(description, indent=1, sort_keys=True) + "\n"
    return TaskResult(files=(shards.write_file(output, "tokens.json", text.encode()),))


def _split_files(entries: list[ShardEntry], split: str) -> list[dict[str, Any]]:
    return [
        {
            "name": file.name,
            "tokens": int(entry.counts[f"{split}_tokens"]),
            "documents": int(entry.counts[f"{split}_documents"]),
        }
        for entry in entries
        for file in entry.files
        if file.name.startswith(split) and file.name.endswith(".bin")
    ]
