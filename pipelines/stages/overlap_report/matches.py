"""The n-grams of an index that are in the corpus: how often, in how many documents, and in which."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.algorithms.ngrams.index import Hits, NgramIndex, ngram_texts
from pipelines.algorithms.ngrams.overlap_counts import Flags, Numbers
from pipelines.engine.manifest import FileEntry
from pipelines.records import shards
from pipelines.records.document_filter import urls_of
from pipelines.records.schemas import make_schema

# Documents that are named per n-gram, and per passage.
SOURCES = 3

_SOURCE_TYPE = pa.struct([pa.field("id", pa.string(), nullable=False), pa.field("url", pa.string())])
MATCH_SCHEMA = make_schema(
    ngram_id="int64", ngram="string", count="int64", documents="int64", sources=pa.list_(_SOURCE_TYPE),
)  # fmt: skip
_BATCH_ROWS = 8192


class CorpusMatches:
    """Counts of the n-grams of an index in a corpus, and their first documents, in the order of addition.

    `counts` and `documents` are int64 per n-gram; they stay zero for the `answers` of a Bloom filter, which only knows
    whether an n-gram is found. Memory: 40 bytes per n-gram, and the names of the documents.
    """

    def __init__(self, ngrams: int, answers: Flags | None = None) -> None:
        self.answers = answers
        self.counts = np.zeros(ngrams, np.int64)
        self.documents = np.zeros(ngrams, np.int64)
        # Rows of the table of documents.
        self._source_rows = np.full((ngrams, SOURCES), -1, np.int64)
        self._sources: list[pa.StructArray] = []
        self._source_count = 0

    @property
    def found(self) -> Flags:
        """Which n-grams are in the corpus."""
        return self.counts > 0 if self.answers is None else self.answers

    def add_hits(self, hits: Hits, batch: pa.RecordBatch) -> None:
        """Add the hits in a batch of documents, which are other documents than those of other batches."""
        if not len(hits.ids):
            return
        pairs, counts = np.unique(hits.ids * batch.num_rows + hits.documents, return_counts=True)
        pair_ids, rows = np.divmod(pairs, batch.num_rows)
        ids, firsts, documents = np.unique(pair_ids, return_index=True, return_counts=True)
        self.counts[ids] += np.add.reduceat(counts, firsts)
        self.documents[ids] += documents
        urls = pa.array(urls_of(batch), pa.string())
        table = pa.StructArray.from_arrays([batch.column("id"), urls], fields=list(_SOURCE_TYPE))
        self._add_sources(ids, documents, rows, table)

    def add_shard(self, path: str) -> None:
        """Add the matches of a shard that `write` wrote."""
        for batch in shards.read_batches(path, ["ngram_id", "count", "documents", "sources"]):
            ids, sources = batch.column("ngram_id").to_numpy(), batch.column("sources")
            self.counts[ids] += batch.column("count").to_numpy()
            self.documents[ids] += batch.column("documents").to_numpy()
            table = sources.flatten()
            sizes = np.diff(sources.offsets.to_numpy())
            self._add_sources(ids, sizes, np.arange(len(table)), table)

    def _add_sources(self, ids: Numbers, sizes: Numbers, rows: Numbers, table: pa.StructArray) -> None:
        """Add `sizes[i]` documents of the n-gram `ids[i]`, which are some `rows` of a table of documents."""
        parents = np.repeat(np.arange(len(ids)), sizes)
        known = (self._source_rows[ids] >= 0).sum(axis=1)
        slots = np.arange(len(rows)) - (np.cumsum(sizes) - sizes)[parents] + known[parents]
        kept = np.flatnonzero(slots < SOURCES)
        used, numbers = np.unique(rows[kept], return_inverse=True)
        self._source_rows[ids[parents[kept]], slots[kept]] = self._source_count + numbers
        self._sources.append(table.take(pa.array(used)))
        self._source_count += len(used)

    def write(self, output: str, name: str, index: NgramIndex) -> FileEntry:
        """Write the n-grams that are in a shard, in order of their ids."""
        found = np.flatnonzero(self.found)
        with shards.write_shard(output, name, MATCH_SCHEMA) as written:
            for start in range(0, len(found), _BATCH_ROWS):
                ids = found[start : start + _BATCH_ROWS]
                rows = self._source_rows[ids]
                ends = np.cumsum((rows >= 0).sum(axis=1))
                sources = self._source_table().take(pa.array(rows[rows >= 0]))
                columns = [
                    pa.array(ids),
                    ngram_texts(index, ids),
                    pa.array(self.counts[ids]),
                    pa.array(self.documents[ids]),
                    pa.ListArray.from_arrays(pa.array([0, *ends], pa.int32()), sources),
                ]
                written.write_batch(pa.RecordBatch.from_arrays(columns, schema=MATCH_SCHEMA))
        return written.entry

    def shared_sources(self, ids: npt.NDArray[np.int64]) -> list[dict[str, Any]]:
        """Return the documents, at most three, that contain most of some n-grams."""
        rows = self._source_rows[ids]
        sources = self._source_table().take(pa.array(rows[rows >= 0])).to_pylist()
        shared = Counter((source["id"], source["url"]) for source in sources)
        return [{"id": id, "url": url} for (id, url), _ in shared.most_common(SOURCES)]

    def first_sources(self, ids: npt.NDArray[np.int64]) -> tuple[pa.Array, pa.Array]:
        """Return the id and the URL of the first document of each n-gram, null if unknown."""
        firsts = self._source_rows[ids, 0]
        rows = pa.array(firsts, pa.int64(), mask=firsts < 0)
        table = self._source_table()
        return pc.take(table.field("id"), rows), pc.take(table.field("url"), rows)

    def _source_table(self) -> pa.StructArray:
        if len(self._sources) != 1:
            self._sources = [pa.concat_arrays([pa.array([], _SOURCE_TYPE), *self._sources])]
        return self._sources[0]
