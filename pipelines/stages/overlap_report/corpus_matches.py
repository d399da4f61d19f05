"""The n-grams of an index that are in the corpus, merged from the matches of its shards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.algorithms.ngrams.overlap_counts import SOURCES
from pipelines.records import shards
from pipelines.stages.overlap_report.indexing import Flags

_SHOWN_SOURCES = 3


class CorpusMatches:
    """Which n-grams are found; if the corpus was read, also how often, in how many documents, and in which.

    `counts` and `documents` are int64 per n-gram, None for the answers of a filter.
    """

    def __init__(self, found: Flags) -> None:
        self.found = found
        self.counts: npt.NDArray[np.int64] | None = None
        self.documents: npt.NDArray[np.int64] | None = None
        self._source_rows = np.full((len(found), SOURCES), -1, np.int64)
        self._sources: list[pa.StructArray] = []
        self._source_count = 0

    @classmethod
    def read(cls, paths: Sequence[str], ngrams: int) -> CorpusMatches:
        """Merge the matches of shards: counts are added, sources are those of the first shards."""
        matches = cls(np.zeros(ngrams, np.bool_))
        matches.counts, matches.documents = np.zeros(ngrams, np.int64), np.zeros(ngrams, np.int64)
        for path in paths:
            for batch in shards.read_batches(path, ["ngram_id", "count", "documents", "sources"]):
                ids = batch.column("ngram_id").to_numpy()
                matches.counts[ids] += batch.column("count").to_numpy()
                matches.documents[ids] += batch.column("documents").to_numpy()
                matches._add_sources(ids, batch.column("sources"))
        matches.found = matches.counts > 0
        return matches

    def in_more_than(self, documents: int | None) -> Flags:
        """Return which n-grams are in more than so many documents; none without a limit."""
        if documents is None or self.documents is None:
            return np.zeros(len(self.found), np.bool_)
        return self.documents > documents

    def shared_sources(self, ids: npt.NDArray[np.int64]) -> list[dict[str, Any]]:
        """Return the documents, at most three, that contain most of some n-grams."""
        rows = self._source_rows[ids]
        sources = self._source_table().take(pa.array(rows[rows >= 0])).to_pylist() if self._sources else []
        shared = Counter((source["id"], source["url"]) for source in sources)
        return [{"id": id, "url": url} for (id, url), _ in shared.most_common(_SHOWN_SOURCES)]

    def first_sources(self, ids: npt.NDArray[np.int64]) -> tuple[pa.Array, pa.Array]:
        """Return the id and the URL of the first document of each n-gram, null if unknown."""
        if not self._sources:
            return pa.nulls(len(ids), pa.string()), pa.nulls(len(ids), pa.string())
        firsts = self._source_rows[ids, 0]
        rows = pa.array(firsts, pa.int64(), mask=firsts < 0)
        table = self._source_table()
        return pc.take(table.field("id"), rows), pc.take(table.field("url"), rows)

    def _add_sources(self, ids: npt.NDArray[np.int64], lists: pa.ListArray) -> None:
        offsets = lists.offsets.to_numpy().astype(np.int64)
        parents = np.repeat(np.arange(len(ids)), np.diff(offsets))
        filled = (self._source_rows[ids] >= 0).sum(axis=1)
        slots = np.arange(offsets[-1] - offsets[0]) - (offsets[:-1] - offsets[0])[parents] + filled[parents]
        kept = np.flatnonzero(slots < SOURCES)
        self._source_rows[ids[parents[kept]], slots[kept]] = self._source_count + np.arange(len(kept))
        self._sources.append(lists.flatten().take(pa.array(kept)))
        self._source_count += len(kept)

    def _source_table(self) -> pa.StructArray:
        if len(self._sources) > 1:
            self._sources = [pa.concat_arrays(self._sources)]
        return self._sources[0]
