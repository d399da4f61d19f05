"""A sample of the documents that `tokenize` held out, to stand beside those of a model (appendix, figure 5)."""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Sequence

import pyarrow as pa

from pipelines.core import inputs, progress, shards
from pipelines.core.document_filter import with_text
from pipelines.core.document_split import document_keys, hash_keys, held_out_mask, split_keys
from pipelines.core.drops import Drops
from pipelines.core.errors import InputError
from pipelines.core.manifest import FileEntry
from pipelines.core.run import TaskResult

_SCHEMA = pa.schema([pa.field("hash", pa.uint64(), nullable=False), pa.field("text", pa.string(), nullable=False)])
SAMPLES, HELD_OUT = "samples", "held-out"
_DOCUMENTS = 1000


@dataclasses.dataclass(frozen=True)
class HeldOutTask:
    """A shard of whose held-out documents some are to be taken."""

    shard: inputs.DocumentShard
    held_out: float
    output: str
    work: str

    @property
    def name(self) -> str:
        """The name of the task."""
        return self.shard.name


def sample_held_out(task: HeldOutTask) -> TaskResult:
    """Write the held-out documents of the lowest hashes, at most 1,000, as a work file."""
    lowest: list[tuple[int, str]] = []
    for batch in inputs.read_documents(task.shard, Drops()):
        progress.advance(batch.num_rows)
        batch = with_text(batch, Drops())
        if not batch.num_rows:
            continue
        keys = split_keys(batch, document_keys(batch, task.shard))
        flags = held_out_mask(keys, task.held_out)
        texts = batch.column("text").filter(pa.array(flags)).to_pylist()
        hashes = hash_keys(keys, "overlap")[flags].tolist()
        lowest = heapq.nsmallest(_DOCUMENTS, [*lowest, *zip(hashes, texts, strict=True)])
    return TaskResult(files=(_write(lowest, task.output, f"{task.work}/held-out-part-{task.shard.index:05d}.parquet"),))


def join_held_out(paths: Sequence[str], output: str, name: str) -> TaskResult:
    """Write the 1,000 held-out documents of the lowest hashes of all; raise InputError where there is none."""
    rows = ((row["hash"], row["text"]) for path in paths for row in shards.read_rows(path))
    lowest = heapq.nsmallest(_DOCUMENTS, rows)
    if not lowest:
        raise InputError(
            "overlap-report: --held-out leaves no document to show beside the samples; give a larger share"
        )
    return TaskResult(files=(_write(lowest, output, name),))


def _write(rows: Sequence[tuple[int, str]], output: str, name: str) -> FileEntry:
    with shards.write_shard(output, name, _SCHEMA) as written:
        for hash, text in rows:
            written.writer.write({"hash": hash, "text": text})
    return written.entry
