"""The matches of shards against a plain count."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipelines.algorithms.columns import text_arrays
from pipelines.algorithms.ngrams.index import Hits, build_index
from pipelines.stages.overlap_report.scanning import SOURCES, CorpusMatches

_INDEX, _ = build_index([text_arrays(pa.array(["a b c d"]))], 1)
# Shards of batches of documents, each of which has some n-grams.
_SHARDS = st.lists(st.lists(st.lists(st.lists(st.integers(0, 3), max_size=6), max_size=5), max_size=4), max_size=3)


def _hits(batch: list[list[int]]) -> Hits:
    documents = np.array([row for row, ids in enumerate(batch) for _ in ids], np.int64)
    none = np.zeros(len(documents), np.int64)
    return Hits(documents, none, np.array([id for ids in batch for id in ids], np.int64), none)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(_SHARDS)
def test_found_ngrams_are_counted(tmp_path: Path, shards: list[list[list[list[int]]]]) -> None:
    holders: dict[int, list[int]] = defaultdict(list)
    paths = []
    document = 0
    for number, batches in enumerate(shards):
        matches = CorpusMatches(4)
        for batch in batches:
            names = [str(document + row) for row in range(len(batch))]
            matches.add_hits(_hits(batch), pa.record_batch({"id": pa.array(names, pa.string())}))
            for ids in batch:
                for id in ids:
                    holders[id].append(document)
                document += 1
        paths.append(str(tmp_path / f"{number}.parquet"))
        matches.write(str(tmp_path), f"{number}.parquet", _INDEX)
    merged = CorpusMatches(4)
    for path in paths:
        merged.add_shard(path)
    for id in range(4):
        distinct = sorted(set(holders[id]))
        assert (merged.is_found[id], merged.counts[id]) == (len(holders[id]) > 0, len(holders[id]))
        assert merged.documents[id] == len(distinct)
        sources = [source["id"] for source in merged.shared_sources(np.array([id]))]
        assert sources == [str(document) for document in distinct[:SOURCES]]
        first = merged.first_sources(np.array([id]))[0].to_pylist()
        assert first == [str(distinct[0]) if distinct else None]
