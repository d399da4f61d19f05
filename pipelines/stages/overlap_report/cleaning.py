"""Writes the corpus without the documents that overlap with a benchmark."""

from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow as pa

from pipelines.algorithms.ngram_index import scan
from pipelines.core import inputs, progress, shards, storage
from pipelines.core.drops import Drops
from pipelines.core.run import TaskResult
from pipelines.core.text_columns import arrays_of
from pipelines.stages.overlap_report.indexing import StoredIndex, load_index
from pipelines.stages.overlap_report.scanning import corpus_batches


@dataclasses.dataclass(frozen=True)
class CleanTask:
    """A shard to write without the documents that hold an n-gram of the index which is not ignored."""

    shard: inputs.DocumentShard
    index: StoredIndex
    ignored_name: str
    held_out: float
    output: str

    @property
    def name(self) -> str:
        """The name of the task."""
        return self.shard.name


def clean_shard(task: CleanTask) -> TaskResult:
    """Write `documents-N.parquet`: the documents of a shard, in its columns, that do not overlap."""
    index = load_index(task.index)
    counted = ~storage.read_array(storage.join(task.output, task.ignored_name))
    schema = inputs.document_schema(task.shard)
    overlapping = 0
    with shards.write_shard(task.output, shards.shard_name("documents", task.shard.index), schema) as kept:
        for batch in corpus_batches(task.shard, task.held_out, Drops()):
            hits = scan(index, *arrays_of(batch.column("text")))
            overlaps = np.bincount(hits.documents[counted[hits.ids]], minlength=batch.num_rows) > 0
            overlapping += int(overlaps.sum())
            kept.writer.write_batch(batch.filter(pa.array(~overlaps)))
            progress.advance(batch.num_rows)
    counts = {"clean_documents": kept.writer.records, "overlapping_documents_left_out": overlapping}
    return TaskResult(counts=counts, files=(kept.entry,))
