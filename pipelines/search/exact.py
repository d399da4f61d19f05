"""Finds an n-gram of any length by reading all documents, with the kernels of the overlap audit; needs no index."""

from __future__ import annotations

import contextlib
import heapq
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from pipelines import progress
from pipelines.algorithms.columns import text_arrays
from pipelines.algorithms.ngrams.index import NgramIndex, build_index, scan
from pipelines.algorithms.ngrams.normal_words import normalize_texts
from pipelines.engine.run import RunOptions
from pipelines.engine.tasks import item_name
from pipelines.errors import UsageError
from pipelines.progress import show_progress
from pipelines.records import inputs
from pipelines.records.document_options import DocumentConfig
from pipelines.records.drops import Drops
from pipelines.search.query import Match, Matches, make_match
from pipelines.search.snippets import compile_phrases
from pipelines.stages.search.segments import stored_documents

# As of the overlap audit: batches of this size stay in the cache.
_BATCH_BYTES = 4 << 20


def search_exactly(
    documents: Sequence[str], config: DocumentConfig, phrase: str, options: RunOptions, *, limit: int = 10
) -> Matches:
    """Return the documents that contain the words of a phrase, one after the other; `score` is how often.

    Raises UsageError for a phrase without words.
    """
    words = len(normalize_texts(pa.array([phrase]))[0].starts)
    if not words:
        raise UsageError(f"{phrase!r}: has no words to search for")
    index, _ = build_index([text_arrays(pa.array([phrase]))], words)
    source = inputs.open_configured(documents, config, options)
    options = options.for_input(inputs.size_on_disk(source.files))
    context, advance = (index, phrase, limit), options.progress.advance
    scans = contextlib.closing(options.executor.map(_scan_shard, source.shards, context, advance, item_name))
    with show_progress(options.progress, "search", source.records, "records"), scans as results:
        parts = [part for _, part in sorted((shard.index, part) for shard, part in results)]
    matches = [match for _, best in parts for match in best]
    return Matches(sum(count for count, _ in parts), heapq.nlargest(limit, matches, key=lambda match: match.score))


def _scan_shard(shard: inputs.DocumentShard, context: tuple[NgramIndex, str, int]) -> tuple[int, list[Match]]:
    """Return how many documents of a shard have the phrase, and those that have it most often."""
    (index, phrase, limit), count, best = context, 0, list[Match]()
    pattern = compile_phrases([phrase])
    for batch in inputs.read_documents(shard, Drops(), batch_bytes=_BATCH_BYTES):
        rows, times = np.unique(scan(index, *text_arrays(batch.column("text"))).documents, return_counts=True)
        count += len(rows)
        documents = stored_documents(batch.take(pa.array(rows)))
        best += [make_match(document, float(score), pattern) for document, score in zip(documents, times, strict=True)]
        best = heapq.nlargest(limit, best, key=lambda match: match.score)
        progress.advance(batch.num_rows)
    return count, best
