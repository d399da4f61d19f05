"""Fourth phase: the clusters that equal and near texts form, and which document of each is kept."""

from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.algorithms.kernels.union_find import connected_components
from pipelines.core import progress, shards, storage
from pipelines.core.manifest import FileEntry
from pipelines.core.run import TaskResult
from pipelines.stages.dedup.candidates import read_pairs
from pipelines.stages.dedup.signatures import Numbers, SignedShard
from pipelines.stages.dedup.verification import ShingleFiles

# The ends of edges, left and right.
Edges = tuple[Numbers, Numbers]

CLUSTER_SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("cluster", pa.string(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("jaccard", pa.float64()),
        pa.field("documents", pa.int64(), nullable=False),
    ]
)
ROW = pa.field("row", pa.int64(), nullable=False)

# `text` and `kept_text` stand for equal texts: the first document with this text, and with that of the kept document.
_MEMBER_SCHEMA = pa.schema(
    [
        ROW,
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


@dataclasses.dataclass(frozen=True)
class CompareTask:
    """Compare each clustered document of a shard with the one that is kept."""

    index: int
    members: str
    shingle_indexes: tuple[str, ...]
    output: str
    work: str

    @property
    def name(self) -> str:
        """The name of the shard."""
        return f"documents-{self.index:05d}"


def write_members(
    equal: tuple[str, ...], near: tuple[str, ...], signed: tuple[SignedShard, ...], output: str, work: str
) -> TaskResult:
    """Write, for each shard, its documents that stand in a cluster, each with the document that is kept.

    Kept is the one of highest score, then of earliest creation, then of smallest id (then the first in the input).
    Holds what is known of every clustered document, not its text.
    """
    texts = _read_edges(equal)
    members = _best_first(_members(*_clusters(texts, _read_edges(near)), signed))
    files = [
        _write_shard_members(members, shard, texts, output, storage.join(work, shards.shard_name("members", index)))
        for index, shard in enumerate(signed)
    ]
    return TaskResult(files=tuple(files))


def _read_edges(paths: tuple[str, ...]) -> Edges:
    """Return the pairs of files as two arrays, in order of the right ends."""
    left, right = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
    for some_left, some_right in read_pairs(paths):
        left.append(some_left)
        right.append(some_right)
    all_left, all_right = np.concatenate(left), np.concatenate(right)
    order = np.argsort(all_right, kind="stable")
    return all_left[order], all_right[order]


def _clusters(texts: Edges, near: Edges) -> tuple[Numbers, Numbers]:
    """Return the documents that stand in a cluster, ascending, and for each the number of its cluster."""
    left, right = np.concatenate((texts[0], near[0])), np.concatenate((texts[1], near[1]))
    documents = np.unique(np.concatenate((left, right)))
    ends = np.searchsorted(documents, left), np.searchsorted(documents, right)
    return documents, connected_components(*ends, len(documents))


def _first_with_text(documents: Numbers, texts: Edges) -> Numbers:
    """Return for each document the first document with the same text, often itself."""
    firsts, others = texts
    if not len(others):
        return documents
    place = np.minimum(np.searchsorted(others, documents), len(others) - 1)
    return np.where(others[place] == documents, firsts[place], documents)


def _members(documents: Numbers, groups: Numbers, signed: tuple[SignedShard, ...]) -> pa.Table:
    """Return document, group, id and rank of every clustered document."""
    parts = [_rank_rows(documents, shard) for shard in signed]
    ranks = pa.concat_tables(part for part in parts if part is not None) if len(documents) else _no_rank_rows()
    return ranks.append_column("document", pa.array(documents)).append_column("group", pa.array(groups))


def _rank_rows(documents: Numbers, shard: SignedShard) -> pa.Table | None:
    """Return id, score and created_utc of those of the documents that are in a shard, in order."""
    low, high = np.searchsorted(documents, [shard.start, shard.start + shard.rows])
    if low == high:
        return None
    wanted = documents[low:high] - shard.start
    found = []
    start = 0
    for batch in shards.read_batches(shard.path, _no_rank_rows().schema.names):
        first, last = np.searchsorted(wanted, [start, start + batch.num_rows])
        found.append(batch.take(pa.array(wanted[first:last] - start)))
        start += batch.num_rows
    return pa.Table.from_batches(found)


def _no_rank_rows() -> pa.Table:
    return pa.table(
        {"id": pa.array([], pa.string()), "score": pa.array([], pa.int64()), "created_utc": pa.array([], pa.int64())}
    )


def _best_first(members: pa.Table) -> pa.Table:
    """Return the members with their cluster's kept document, id and size, in order of document."""
    order = pc.sort_indices(members, sort_keys=[("group", "ascending"), *_BEST_FIRST])
    ranked = members.take(order)
    groups = ranked.column("group").to_numpy()
    starts = np.flatnonzero(np.concatenate((np.ones(min(1, len(groups)), dtype=bool), groups[1:] != groups[:-1])))
    sizes = np.diff(np.append(starts, len(groups)))
    kept_rows = pa.array(np.repeat(starts, sizes))
    ranked = (
        ranked.append_column("kept", ranked.column("document").take(kept_rows))
        .append_column("cluster", ranked.column("id").take(kept_rows))
        .append_column("documents", pa.array(np.repeat(sizes, sizes)))
    )
    return ranked.sort_by("document")


def _write_shard_members(members: pa.Table, shard: SignedShard, texts: Edges, output: str, name: str) -> FileEntry:
    numbers = members.column("document").to_numpy()
    low, high = np.searchsorted(numbers, [shard.start, shard.start + shard.rows])
    ours = members.slice(low, high - low)
    documents, kept = ours.column("document").to_numpy(), ours.column("kept").to_numpy()
    columns = {
        "row": pa.array(documents - shard.start),
        "id": ours.column("id"),
        "cluster": ours.column("cluster"),
        "documents": ours.column("documents"),
        "is_kept": pa.array(documents == kept),
        "text": pa.array(_first_with_text(documents, texts)),
        "kept_text": pa.array(_first_with_text(kept, texts)),
    }
    with shards.write_shard(output, name, _MEMBER_SCHEMA) as written:
        for batch in pa.table(columns, schema=_MEMBER_SCHEMA).to_batches():
            written.writer.write_batch(batch)
    return written.entry


def compare_members(task: CompareTask) -> TaskResult:
    """Write the rows of `clusters.parquet` for one shard, with the row of each document in the shard."""
    name = storage.join(task.work, shards.shard_name("clusters", task.index))
    schema = pa.schema([ROW, *CLUSTER_SCHEMA])
    with shards.write_shard(task.output, name, schema) as written, ShingleFiles(task.shingle_indexes) as shingles:
        for member in shards.read_rows(task.members):
            kind, similarity = _kind_and_jaccard(member, shingles)
            row = {key: member[key] for key in ("row", "id", "cluster", "documents")}
            written.writer.write({**row, "kind": kind, "jaccard": similarity})
    progress.advance()
    return TaskResult(files=(written.entry,))


def _kind_and_jaccard(member: dict[str, int], shingles: ShingleFiles) -> tuple[str, float | None]:
    if member["is_kept"]:
        return "kept", None
    if member["text"] == member["kept_text"]:
        return "exact", 1.0
    return "near", shingles.jaccard(member["text"], member["kept_text"])


def write_clusters(parts: tuple[str, ...], threshold: float, output: str) -> TaskResult:
    """Write `clusters.parquet`, and count the clusters, the largest, and members unlike the kept document."""
    clusters = largest = unlike = 0
    with shards.write_shard(output, "clusters.parquet", CLUSTER_SCHEMA) as written:
        for part in parts:
            for batch in shards.read_batches(part, CLUSTER_SCHEMA.names):
                written.writer.write_batch(batch)
                clusters += batch.column("kind").to_pylist().count("kept")
                largest = max(largest, pc.max(batch.column("documents")).as_py() or 0)
                unlike += pc.sum(pc.less(batch.column("jaccard"), threshold)).as_py() or 0
    counts = {"clusters": clusters, "largest_cluster": largest, "below_threshold_to_kept": unlike}
    return TaskResult(counts=counts, files=(written.entry,))
