"""Builds the index of words by which `webtext search` finds documents.

A task indexes the documents of a shard in segments, and `index/meta.json` makes one index of all segments.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from collections.abc import Mapping, Sequence

import pyarrow as pa

from pipelines import storage
from pipelines.engine.manifest import ShardEntry, check_entries, read_manifest
from pipelines.engine.run import RunOptions, Stage, Summary, TaskResult, stage_run
from pipelines.extras import require_extra
from pipelines.records import inputs, shards
from pipelines.records.drops import Drops
from pipelines.records.schemas import DROPPED_SCHEMA
from pipelines.stages.search.config import SearchConfig
from pipelines.stages.search.segments import INDEX, write_meta, write_segments

STAGE = Stage("search", 1, (f"{INDEX}/",), grows=("documents",))
# Text per segment: one takes about 300 MB of memory while it is written.
_SEGMENT_BYTES = 128 << 20


@dataclasses.dataclass(frozen=True)
class _Context:
    """The output folder and the fingerprint of the input; the entries of an earlier result, by name, in its folder."""

    output: str
    fingerprint: str
    folder: str
    earlier: Mapping[str, ShardEntry]

    def name_task(self, shard: inputs.DocumentShard) -> str:
        """Return a name that says which documents the task indexes: of a stage, those of a file."""
        content = [shard.name, *(file.entry.sha256 if file.entry else self.fingerprint for file in shard.files)]
        return f"{shard.name}-{hashlib.sha256(' '.join(content).encode()).hexdigest()[:16]}"


def search(config: SearchConfig, *, documents: str | Sequence[str], output: str, options: RunOptions) -> Summary:
    """Write `index/`, an index of tantivy with the words, the fields and the texts of the documents.

    `documents` are the folder of a stage, or files. An index of a stage's folder that has changed is updated: the
    segments of unchanged files are taken from it. Raises WebtextError if tantivy is not installed.
    """
    require_extra("search", "webtext search", "tantivy")
    from tantivy.tantivy import __version__ as version  # such as `tantivy v0.27.0, index_format v7`

    source = inputs.open_configured(documents, config, options, output)
    options = options.for_input(inputs.size_on_disk(source.files))
    prints = {"documents": source.fingerprint, "tantivy": version.rpartition(", ")[2]}
    with stage_run(STAGE, config, inputs=prints, output=output, options=options, texts=source.files) as run:
        if not run.finished:
            earlier = {entry.name: entry for entry in read_manifest(run.earlier).shards} if run.earlier else {}
            context = _Context(run.output, source.fingerprint, run.earlier or "", earlier)
            entries = run.map(_index_shard, source.shards, context, name=context.name_task, total=source.records)
            described = [file.name for entry in entries for file in entry.files if file.name.endswith(".json")]
            run.once("index", lambda: TaskResult(files=(write_meta(run.output, described),)))
        return run.finish()


def _index_shard(shard: inputs.DocumentShard, context: _Context) -> TaskResult:
    name, text_bytes = context.name_task(shard), 0
    entry = context.earlier.get(name)
    if entry and check_entries(context.folder, [entry]) == [None]:
        for file in entry.files:
            storage.link(storage.join(context.folder, file.name), storage.join(context.output, file.name))
        return TaskResult(entry.records_in, entry.records_out, entry.dropped, entry.counts, entry.files)

    def number_segment(batch: pa.RecordBatch) -> int:
        nonlocal text_bytes
        text_bytes += int(batch.column("text").nbytes)
        return text_bytes // _SEGMENT_BYTES

    files, kept = [], 0
    with shards.write_shard(context.output, shards.shard_name("dropped", shard.index), DROPPED_SCHEMA) as dropped:
        drops = Drops(dropped.write)
        for number, batches in itertools.groupby(inputs.read_documents(shard, drops), number_segment):
            documents, written = write_segments(batches, f"{name[-16:]}{number:08x}", context.output)
            kept += documents
            files += written
    return drops.task_result(kept, (*files, dropped.entry), {"text_bytes": text_bytes})
