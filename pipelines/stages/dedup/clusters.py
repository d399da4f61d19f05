"""Phase 4: the clusters of equal and near-duplicate texts, and which document of each is kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.algorithms.kernels.union_find import DisjointSets
from pipelines.core import progress, shards, storage
from pipelines.core.manifest import FileEntry
from pipelines.core.run import TaskResult
from pipelines.stages.dedup.candidates import PAIR_SCHEMA
from pipelines.stages.dedup.signatures import RANK_SCHEMA, Numbers, SignedShard, read_arrays, work_name
from pipelines.stages.dedup.verification import ShingleFiles

CLUSTERS = "clusters.parquet"
CLUSTER_SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("cluster", pa.string(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("jaccard", pa.float64()),
        pa.field("documents", pa.int64(), nullable=False),
    ]
)
_ROW = pa.field("row", pa.int64(), nullable=False)
# `text` and `kept_text` identify equal texts: the first document with this text, and with that of the kept document.
_MEMBER_SCHEMA = pa.schema(
    [
        _ROW,
        pa.field("id", pa.string(), nullable=False),
        pa.field("cluster", pa.string(), nullable=False),
        pa.field("documents", pa.int64(), nullable=False),
        pa.field("is_kept", pa.bool_(), nullable=False),
        pa.field("text", pa.int64(), nullable=False),
        pa.field("kept_text", pa.int64(), nullable=False),
    ]
)
# Missing values sort last, in either direction.
_BEST_FIRST = [("score", "descending"), ("created_utc", "ascending"), ("id", "ascending"), ("document", "ascending")]

Edges = tuple[Numbers, Numbers]


def write_members(
    equal: tuple[str, ...], near: tuple[str, ...], signed: tuple[SignedShard, ...], output: str
) -> TaskResult:
    """Write the clustered documents of each shard, each with the document that is kept in its place.

    Kept is the document of highest score, then of earliest creation, then of smallest id (then the first in the input).
    Memory: the rank of every clustered document, not its text.
    """
    equal_texts = _read_edges(equal)
    members = _rank_members(*_find_clusters(equal_texts, _read_edges(near)), signed)
    return TaskResult(files=tuple(_write_shard_members(members, shard, equal_texts, output) for shard in signed))


def _read_edges(paths: tuple[str, ...]) -> Edges:
    """Return the pairs of files as two arrays, in the order of the right ends."""
    left, right = read_arrays(paths, PAIR_SCHEMA)
    order = np.argsort(right, kind="stable")
    return left[order], right[order]


def _find_clusters(equal_texts: Edges, near: Edges) -> tuple[Numbers, Numbers]:
    """Return the clustered documents, ascending, and the number of the cluster of each."""
    left, right = (np.concatenate(ends) for ends in zip(equal_texts, near, strict=True))
    documents, nodes = np.unique(np.concatenate((left, right)), return_inverse=True)
    clusters = DisjointSets(len(documents))
    for left_node, right_node in zip(nodes[: len(left)].tolist(), nodes[len(left) :].tolist(), strict=True):
        clusters.union(left_node, right_node)
    return documents, clusters.labels()


def _rank_members(documents: Numbers, clusters: Numbers, signed: tuple[SignedShard, ...]) -> pa.Table:
    """Return the clustered documents in order, with the kept document (number, id) and size of their clusters."""
    ranks = pa.concat_tables(_read_ranks(documents, shard) for shard in signed)
    members = ranks.append_column("document", pa.array(documents)).append_column("group", pa.array(clusters))
    members = members.take(pc.sort_indices(members, sort_keys=[("group", "ascending"), *_BEST_FIRST]))
    _, starts, sizes = np.unique(members.column("group").to_numpy(), return_index=True, return_counts=True)
    kept_rows = pa.array(np.repeat(starts, sizes))
    members = (
        members.append_column("kept", members.column("document").take(kept_rows))
        .append_column("cluster", members.column("id").take(kept_rows))
        .append_column("documents", pa.array(np.repeat(sizes, sizes)))
    )
    return members.sort_by("document")


def _read_ranks(documents: Numbers, shard: SignedShard) -> pa.Table:
    """Return the ranks of those of the documents that are in a shard, in order."""
    low, high = np.searchsorted(documents, [shard.start, shard.start + shard.rows])
    rows = documents[low:high] - shard.start
    batches = []
    start = 0
    for batch in shards.read_batches(shard.path, RANK_SCHEMA.names) if len(rows) else ():
        first, last = np.searchsorted(rows, [start, start + batch.num_rows])
        batches.append(batch.take(pa.array(rows[first:last] - start)))
        start += batch.num_rows
    return pa.Table.from_batches(batches, RANK_SCHEMA)


def _write_shard_members(members: pa.Table, shard: SignedShard, equal_texts: Edges, output: str) -> FileEntry:
    low, high = np.searchsorted(members.column("document").to_numpy(), [shard.start, shard.start + shard.rows])
    members = members.slice(low, high - low)
    documents, kept = members.column("document").to_numpy(), members.column("kept").to_numpy()
    columns = {
        "row": pa.array(documents - shard.start),
        **{name: members.column(name) for name in ("id", "cluster", "documents")},
        "is_kept": pa.array(documents == kept),
        "text": pa.array(_first_with_text(documents, equal_texts)),
        "kept_text": pa.array(_first_with_text(kept, equal_texts)),
    }
    with shards.write_shard(output, work_name("members", shard.documents.index), _MEMBER_SCHEMA) as written:
        for batch in pa.table(columns, schema=_MEMBER_SCHEMA).to_batches():
            written.writer.write_batch(batch)
    return written.entry


def _first_with_text(documents: Numbers, equal_texts: Edges) -> Numbers:
    """Return for each document the first document with the same text, often itself."""
    firsts, others = equal_texts
    if not len(others):
        return documents
    position = np.minimum(np.searchsorted(others, documents), len(others) - 1)
    return np.where(others[position] == documents, firsts[position], documents)


def compare_members(shard: SignedShard, context: tuple[tuple[str, ...], str]) -> TaskResult:
    """Write the rows of `clusters.parquet` for one shard, with the row of each document in the shard."""
    shingle_indexes, output = context
    index = shard.documents.index
    schema = pa.schema([_ROW, *CLUSTER_SCHEMA])
    with (
        shards.write_shard(output, work_name("clusters", index), schema) as written,
        ShingleFiles(shingle_indexes) as shingles,
    ):
        for member in shards.read_rows(storage.join(output, work_name("members", index))):
            kind, jaccard = _compare_to_kept(member, shingles)
            row = {key: member[key] for key in ("row", "id", "cluster", "documents")}
            written.writer.write({**row, "kind": kind, "jaccard": jaccard})
    progress.advance()
    return TaskResult(files=(written.entry,))


def _compare_to_kept(member: dict[str, Any], shingles: ShingleFiles) -> tuple[str, float | None]:
    """Return the kind of a duplicate, and its Jaccard similarity to the kept document."""
    if member["is_kept"]:
        return "kept", None
    if member["text"] == member["kept_text"]:
        return "exact", 1.0
    return "near", shingles.jaccard(member["text"], member["kept_text"])


def write_clusters(signed: tuple[SignedShard, ...], threshold: float, output: str) -> TaskResult:
    """Write `clusters.parquet`; count clusters, the largest, and members below the threshold to the kept one."""
    clusters = largest = below_threshold = 0
    with shards.write_shard(output, CLUSTERS, CLUSTER_SCHEMA) as written:
        for shard in signed:
            path = storage.join(output, work_name("clusters", shard.documents.index))
            for batch in shards.read_batches(path, CLUSTER_SCHEMA.names):
                written.writer.write_batch(batch)
                clusters += batch.column("kind").to_pylist().count("kept")
                largest = max(largest, pc.max(batch.column("documents")).as_py() or 0)
                below_threshold += pc.sum(pc.less(batch.column("jaccard"), threshold)).as_py() or 0
    counts = {"clusters": clusters, "largest_cluster": largest, "below_threshold_to_kept": below_threshold}
    return TaskResult(counts=counts, files=(written.entry,))
