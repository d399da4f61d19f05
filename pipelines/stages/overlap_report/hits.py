"""Writes `hits.parquet`: a row per position of a benchmark at which an n-gram of the corpus begins."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from pipelines import progress, storage
from pipelines.engine.manifest import FileEntry
from pipelines.records import shards
from pipelines.stages.overlap_report.corpus_matches import CorpusMatches
from pipelines.stages.overlap_report.indexing import Flags, IndexedBenchmark, StoredIndex, ngram_texts
from pipelines.stages.overlap_report.layout import HITS, places_name

HIT_SCHEMA = pa.schema(
    [
        pa.field("benchmark", pa.string(), nullable=False),
        pa.field("split", pa.string()),
        pa.field("example", pa.int64(), nullable=False),
        pa.field("place", pa.string(), nullable=False),
        pa.field("position", pa.int64(), nullable=False),
        pa.field("ngram", pa.string(), nullable=False),
        pa.field("count", pa.int64()),
        pa.field("documents", pa.int64()),
        pa.field("document_id", pa.string()),
        pa.field("url", pa.string()),
    ]
)
_BATCH_ROWS = 65_536


def write_hits(
    benchmarks: Sequence[IndexedBenchmark], stored: StoredIndex, matches: CorpusMatches, found: Flags
) -> FileEntry:
    """Write a row per position whose n-gram is found."""
    with shards.write_shard(stored.output, HITS, HIT_SCHEMA) as hits:
        for indexed in benchmarks:
            batches = shards.read_batches(storage.join(stored.output, places_name(indexed.number)))
            places = pa.chunked_array([batch.column("place") for batch in batches], pa.string())
            positions = np.flatnonzero((indexed.ids >= 0) & found[np.maximum(indexed.ids, 0)])
            for start in range(0, len(positions), _BATCH_ROWS):
                part = positions[start : start + _BATCH_ROWS]
                rows, ids = len(part), np.asarray(indexed.ids[part], np.int64)
                examples = np.searchsorted(indexed.words, part, side="right") - 1
                columns = [
                    pa.repeat(pa.scalar(indexed.benchmark.name, pa.string()), rows),
                    pa.repeat(pa.scalar(indexed.benchmark.split, pa.string()), rows),
                    pa.array(examples),
                    places.take(pa.array(examples)).combine_chunks(),
                    pa.array(part - indexed.words[examples]),
                    ngram_texts(stored, ids),
                    pa.nulls(rows, pa.int64()) if matches.counts is None else pa.array(matches.counts[ids]),
                    pa.nulls(rows, pa.int64()) if matches.documents is None else pa.array(matches.documents[ids]),
                    *matches.first_sources(ids),
                ]
                hits.writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=HIT_SCHEMA))
                progress.advance(0)
    return hits.entry
