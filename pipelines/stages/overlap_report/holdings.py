"""What a corpus holds of an index's n-grams, joined from what the tasks wrote of its shards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.algorithms.ngrams.overlap_counts import SOURCES
from pipelines.core import shards

_SHOWN_SOURCES = 3


class Holdings:
    """Which n-grams are found; and, where the corpus was read, how often each is, in how many documents, and in which.

    `counts` and `documents` are int64 by number of the n-gram, None where a filter answered.
    """

    def __init__(self, found: npt.NDArray[np.bool_]) -> None:
        self.found = found
        self.counts: npt.NDArray[np.int64] | None = None
        self.documents: npt.NDArray[np.int64] | None = None
        self._refs = np.full((len(found), SOURCES), -1, np.int64)
        self._sources: list[pa.StructArray] = []
        self._source_count = 0

    @classmethod
    def read(cls, paths: Sequence[str], ngrams: int) -> Holdings:
        """Join the matches of shards: counts are added, and the documents of the first shards stand."""
        held = cls(np.zeros(ngrams, np.bool_))
        held.counts, held.documents = np.zeros(ngrams, np.int64), np.zeros(ngrams, np.int64)
        for path in paths:
            for batch in shards.read_batches(path, ["ngram_id", "count", "documents", "sources"]):
                ids = batch.column("ngram_id").to_numpy()
                held.counts[ids] += batch.column("count").to_numpy()
                held.documents[ids] += batch.column("documents").to_numpy()
                held._add_sources(ids, batch.column("sources"))
        held.found = held.counts > 0
        return held

    def without(self, ignored: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Return which n-grams are found and not ignored."""
        return self.found & ~ignored

    def above(self, documents: int | None) -> npt.NDArray[np.bool_]:
        """Return which n-grams stand in more documents than this; none where there is no limit."""
        if documents is None or self.documents is None:
            return np.zeros(len(self.found), np.bool_)
        return self.documents > documents

    def most_shared_sources(self, ids: npt.NDArray[np.int64]) -> list[dict[str, Any]]:
        """Return the documents, at most three, that hold most of some n-grams."""
        refs = self._refs[ids]
        sources = self._joined().take(pa.array(refs[refs >= 0])).to_pylist() if self._sources else []
        shared = Counter((source["id"], source["url"]) for source in sources)
        return [{"id": id, "url": url} for (id, url), _ in shared.most_common(_SHOWN_SOURCES)]

    def first_sources(self, ids: npt.NDArray[np.int64]) -> tuple[pa.Array, pa.Array]:
        """Return the id and the URL of the first document of each n-gram, null where none is known."""
        refs = self._refs[ids, 0]
        rows = pa.array(refs, pa.int64(), mask=refs < 0)
        if not self._sources:
            return pa.nulls(len(ids), pa.string()), pa.nulls(len(ids), pa.string())
        table = self._joined()
        return pc.take(table.field("id"), rows), pc.take(table.field("url"), rows)

    def _add_sources(self, ids: npt.NDArray[np.int64], lists: pa.ListArray) -> None:
        offsets = lists.offsets.to_numpy().astype(np.int64)
        parents = np.repeat(np.arange(len(ids)), np.diff(offsets))
        filled = (self._refs[ids] >= 0).sum(axis=1)
        slots = np.arange(offsets[-1] - offsets[0]) - (offsets[:-1] - offsets[0])[parents] + filled[parents]
        kept = np.flatnonzero(slots < SOURCES)
        self._refs[ids[parents[kept]], slots[kept]] = self._source_count + np.arange(len(kept))
        self._sources.append(lists.flatten().take(pa.array(kept)))
        self._source_count += len(kept)

    def _joined(self) -> pa.StructArray:
        if len(self._sources) > 1:
            self._sources = [pa.concat_arrays(self._sources)]
        return self._sources[0]
