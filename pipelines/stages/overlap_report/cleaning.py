"""Writes the corpus without the documents that overlap with a benchmark."""

from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow as pa

from pipelines.algorithms.ngrams.index import scan
from pipelines.core import inputs, progress, shards, storage
from pipelines.core.drops import Drops
from pipelines.core.run import TaskResult
from pipelines.core.text_columns import text_arrays
from pipelines.stages.overlap_report.indexing import StoredIndex, load_index
from pipelines.stages.overlap_report.scanning import OVERLAPPING_SCHEMA, corpus_batches, list_overlapping


@dataclasses.dataclass(frozen=True)
class CleanTask:
    """A shard to write without the documents that hold an n-gram of the index which is not ignored."""

    shard: inputs.DocumentShard
    index: StoredIndex
    ignored_name: str
    output: str

    @property
    def name(self) -> str:
        """The name of the task."""
        return self.shard.name


def clean_shard(task: CleanTask) -> TaskResult:
    """Write `documents-N.parquet`, the documents of a shard that do not overlap, and `removed-N.parquet`, the others.

    Held-out documents are documents like others here: what is left is the input, in its columns.
    """
    index = load_index(task.index)
    counted = ~storage.read_array(storage.join(task.output, task.ignored_name))
    schema = inputs.document_schema(task.shard)
    with (
        shards.write_shard(task.output, shards.shard_name("documents", task.shard.index), schema) as kept,
        shards.write_shard(task.output, shards.shard_name("removed", task.shard.index), OVERLAPPING_SCHEMA) as removed,
    ):
        for batch in corpus_batches(task.shard, 0.0, Drops()):
            hits = scan(index, *text_arrays(batch.column("text")))
            overlapping = np.bincount(hits.documents[counted[hits.ids]], minlength=batch.num_rows)
            list_overlapping(removed.writer, batch, overlapping, hits.ngram_counts)
            kept.writer.write_batch(batch.filter(pa.array(overlapping == 0)))
            progress.advance(batch.num_rows)
    counts = {"clean_documents": kept.writer.records, "overlapping_documents_left_out": removed.writer.records}
    return TaskResult(counts=counts, files=(kept.entry, removed.entry))
