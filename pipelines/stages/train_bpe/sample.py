"""Sampled texts of every shard, chosen by hash: the written tokenizer is checked on them, and others compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from pipelines.engine.manifest import FileEntry
from pipelines.records import inputs, shards
from pipelines.records.document_split import hash_key
from pipelines.records.schemas import make_schema
from pipelines.records.tally import LowestHashes

SAMPLE_SCHEMA = make_schema(id="string", text="string", held_out="bool")
# Only the beginning of a long document is sampled, so that a sample has many documents.
_MAX_CHARACTERS = 16_384


def sampled_text(batch: pa.RecordBatch, row: int, held_out: bool) -> dict[str, Any]:
    """Return the row of a sample for a document of a batch."""
    text: str = batch.column("text")[row].as_py()
    return {"id": batch.column("id")[row].as_py(), "text": text[:_MAX_CHARACTERS], "held_out": held_out}


def write_sample(output: str, index: int, rows: LowestHashes) -> FileEntry:
    """Write sampled texts as `sample-N.parquet`, in the order of the hashes."""
    with shards.write_shard(output, shards.shard_name("sample", index), SAMPLE_SCHEMA) as written:
        written.write_batch(pa.RecordBatch.from_pylist(list(rows), schema=SAMPLE_SCHEMA))
    return written.entry


def join_samples(files: Sequence[inputs.InputFile], output: str, size: int) -> FileEntry:
    """Write one sample from several; each text has the same chance, whatever the order of the files."""
    joined = LowestHashes(size)
    for file in files:
        file.verify()
        for batch in shards.read_batches(file.path, SAMPLE_SCHEMA.names):
            for row in batch.to_pylist():
                # The key of the document is not known.
                joined.add([hash_key(f"{row['id']}\n{row['text']}", "sample"), row["id"]], row)
    return write_sample(output, 0, joined)


def read_sample(paths: Sequence[str]) -> pa.Table:
    """Return the rows of samples."""
    return pa.Table.from_batches([batch for path in paths for batch in shards.read_batches(path)], SAMPLE_SCHEMA)
