"""A sample of the documents that `tokenize` held out, to compare with a model's samples (appendix, figure 5)."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import pyarrow as pa

from pipelines import progress, storage
from pipelines.engine.manifest import FileEntry
from pipelines.engine.run import TaskResult
from pipelines.errors import InputError
from pipelines.records import inputs, shards
from pipelines.records.document_filter import with_text
from pipelines.records.document_split import document_keys, hash_keys, held_out_mask, split_keys
from pipelines.records.drops import Drops
from pipelines.stages.overlap_report.layout import HELD_OUT_SAMPLE, held_out_part_name

SAMPLES, HELD_OUT = "samples", "held-out"
_SCHEMA = pa.schema([pa.field("hash", pa.uint64(), nullable=False), pa.field("text", pa.string(), nullable=False)])
_DOCUMENTS = 1000


def sample_held_out(shard: inputs.DocumentShard, context: tuple[float, str]) -> TaskResult:
    """Write the held-out documents of a shard with the lowest hashes, at most 1,000, as a work file."""
    share, output = context
    lowest: list[tuple[int, str]] = []
    for batch in inputs.read_documents(shard, Drops()):
        progress.advance(batch.num_rows)
        batch = with_text(batch, Drops())
        if batch.num_rows:
            keys = split_keys(batch, document_keys(batch, shard))
            is_held_out = held_out_mask(keys, share)
            texts = batch.column("text").filter(pa.array(is_held_out)).to_pylist()
            hashes = hash_keys(keys, "overlap")[is_held_out].tolist()
            lowest = heapq.nsmallest(_DOCUMENTS, [*lowest, *zip(hashes, texts, strict=True)])
    return TaskResult(files=(_write_sample(lowest, output, held_out_part_name(shard.index)),))


def join_held_out(source: Sequence[inputs.DocumentShard], output: str) -> TaskResult:
    """Write the 1,000 held-out documents with the lowest hashes; raise InputError if there is none."""
    paths = [storage.join(output, held_out_part_name(shard.index)) for shard in source]
    rows = ((row["hash"], row["text"]) for path in paths for row in shards.read_rows(path))
    lowest = heapq.nsmallest(_DOCUMENTS, rows)
    if not lowest:
        raise InputError("overlap-report: --held-out selects no document to compare with the samples; raise its share")
    return TaskResult(files=(_write_sample(lowest, output, HELD_OUT_SAMPLE),))


def _write_sample(rows: Sequence[tuple[int, str]], output: str, name: str) -> FileEntry:
    with shards.write_shard(output, name, _SCHEMA) as written:
        for hash, text in rows:
            written.writer.write({"hash": hash, "text": text})
    return written.entry
