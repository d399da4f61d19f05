"""Phases 6 to 9: which documents are kept, which kept document each dropped one duplicates, clusters, the result.

A document is dropped only if it is near a better document that is kept, so there are no chains.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines import progress
from pipelines.algorithms.minhash.pairing import BLOCKED, KEPT, UNDECIDED, decide_in_order, decide_round
from pipelines.engine.manifest import FileEntry
from pipelines.engine.run import TaskResult
from pipelines.records import shards
from pipelines.records.buckets import read_bucket
from pipelines.records.document_filter import DropReason, filter_shard
from pipelines.records.schemas import make_schema
from pipelines.stages.dedup.documents import CLUSTERS, Corpus, Numbers, Records, SourceShard, part_of, read_columns
from pipelines.stages.dedup.pairs import COPY_SCHEMA, EDGE_SCHEMA
from pipelines.stages.dedup.paragraphs import ParagraphRemover
from pipelines.stages.dedup.report import ShardReport, tally_clusters
from pipelines.stages.dedup.signatures import write_signatures

CLUSTER_SCHEMA = make_schema(id="string", cluster="string", kind="string", jaccard="float64?", documents="int64")
EXACT, NEAR, KEPT_KIND = range(3)
KINDS = ("exact", "near", "kept")
# A document of a cluster, the kept one, the kind, the similarity (NaN for the kept one) and the size of the cluster.
_DROP_SCHEMA = make_schema(document="int64?", kept="int64?", kind="int8?", jaccard="float64?")
MEMBER_SCHEMA = pa.schema([*_DROP_SCHEMA, pa.field("documents", pa.int64())])
# Near pairs of undecided documents that are sorted at once, at about 100 bytes per pair.
_PAIRS_IN_MEMORY = 1 << 21
# Files that are read at once for the list of clusters.
_FILES_READ = 64


def decide(corpus: Corpus) -> TaskResult:
    """Write one byte per document: whether it is kept, or dropped because a near document is.

    Each round over the near pairs keeps the documents without a better undecided neighbour, and drops those near a kept
    one. When the pairs of undecided documents fit into memory, they are applied in the order of the worse document.
    """

    def read_edges() -> Iterator[tuple[Numbers, Numbers]]:
        for path in corpus.edge_paths():
            better, worse, _ = read_columns([path], EDGE_SCHEMA, None)
            yield better, worse

    outcomes = np.zeros(corpus.documents, np.uint8)
    for _, worse in read_edges():
        outcomes[worse] = UNDECIDED
    blocked_pairs = _PAIRS_IN_MEMORY + 1
    while blocked_pairs > _PAIRS_IN_MEMORY:
        for better, worse in read_edges():
            decide_round(better, worse, outcomes)
        is_blocked = outcomes == BLOCKED
        outcomes[outcomes == UNDECIDED] = KEPT
        outcomes[is_blocked] = UNDECIDED
        blocked_pairs = sum(int(np.count_nonzero(is_blocked[worse])) for _, worse in read_edges())
    pairs = [(better[is_blocked[worse]], worse[is_blocked[worse]]) for better, worse in read_edges()]
    better, worse = map(np.concatenate, zip(*pairs, strict=True))
    # A chain of documents would take as many rounds as it has documents.
    order = np.argsort(Records(corpus).ranks(worse), kind="stable")
    decide_in_order(better[order], worse[order], outcomes)
    return TaskResult(files=(corpus.write_array("outcomes", corpus.round, outcomes),))


def choose_kept(group: int, corpus: Corpus) -> TaskResult:
    """Write the dropped documents of a group of shards, and the copies of its documents, with the kept duplicate.

    Of several kept duplicates it is the most similar one, then the best.
    """
    outcomes = corpus.read_array("outcomes", corpus.round)
    sources = _shards_of_group(group, corpus)
    better, worse, jaccard = read_columns(corpus.edge_paths(), EDGE_SCHEMA, sources)
    is_used = (outcomes[better] == KEPT) & (outcomes[worse] != KEPT)
    better, worse, jaccard = better[is_used], worse[is_used], jaccard[is_used]
    order = np.lexsort((Records(corpus).ranks(better), -jaccard, worse))
    dropped, first = np.unique(worse[order], return_index=True)
    kept, jaccard = better[order][first], jaccard[order][first]
    copies, originals = read_columns(corpus.paths("copies", "buckets", corpus.key_parts), COPY_SCHEMA, sources)
    is_near = outcomes[originals] != KEPT
    places = np.searchsorted(dropped, originals[is_near])
    columns = (
        np.concatenate((dropped, copies[is_near], copies[~is_near])),
        np.concatenate((kept, kept[places], originals[~is_near])),
        np.where(np.arange(len(dropped) + len(copies)) < len(dropped) + len(places), NEAR, EXACT),
        np.concatenate((jaccard, jaccard[places], np.ones(np.count_nonzero(~is_near)))),
    )
    is_own = columns[0] < corpus.own_documents
    columns = tuple(column[is_own] for column in columns)  # type: ignore[assignment]
    owners = corpus.shards_of(columns[1])
    return TaskResult(files=(corpus.write_buckets("drops", group, _DROP_SCHEMA, columns, owners),))


def gather_clusters(group: int, corpus: Corpus) -> TaskResult:
    """Write the members of the clusters whose kept document is in a group of shards, by their shard; and a tally."""
    paths = corpus.paths("drops", "buckets", corpus.groups)
    documents, kept, kinds, jaccard = read_columns(paths, _DROP_SCHEMA, _shards_of_group(group, corpus))
    heads, places, dropped = np.unique(kept, return_inverse=True, return_counts=True)
    is_own = heads < corpus.own_documents
    own = heads[is_own]
    sizes = dropped + 1
    columns = (
        np.concatenate((documents, own)),
        np.concatenate((kept, own)),
        np.concatenate((kinds, np.full(len(own), KEPT_KIND))),
        np.concatenate((jaccard, np.full(len(own), np.nan))),
        np.concatenate((sizes[places], sizes[is_own])),
    )
    entry = corpus.write_buckets("members", group, MEMBER_SCHEMA, columns, corpus.shards_of(columns[0]))
    tally = tally_clusters(corpus, group, documents, kept, kinds == NEAR, jaccard)
    progress.advance()
    return TaskResult(files=(entry, tally))


def _shards_of_group(group: int, corpus: Corpus) -> range:
    return part_of(group, corpus.groups, len(corpus.starts) - 1)


def write_cluster_rows(corpus: Corpus, shard: int, members: pa.Table) -> FileEntry:
    """Write the rows of a shard in `clusters.parquet` as a work file; their ids are read from many shards."""
    records = Records(corpus)
    columns = [
        pa.array(records.ids(members["document"].to_numpy()), pa.string()),
        pa.array(records.ids(members["kept"].to_numpy()), pa.string()),
        pa.array([KINDS[kind] for kind in members["kind"].to_pylist()], pa.string()),
        pa.array(members["jaccard"].to_numpy(), from_pandas=True),
        members["documents"].combine_chunks(),
    ]
    return corpus.write_buckets("rows", shard, CLUSTER_SCHEMA, columns, np.zeros(members.num_rows, np.int32))


def join_clusters(corpus: Corpus) -> TaskResult:
    """Write `clusters.parquet`: every document of a cluster, in the order of the input."""
    with shards.write_shard(corpus.output, CLUSTERS, CLUSTER_SCHEMA) as written:
        paths = corpus.paths("rows", "buckets", corpus.own_shards)
        for first in range(0, len(paths), _FILES_READ):
            for batch in read_bucket(paths[first : first + _FILES_READ], CLUSTER_SCHEMA, None):
                written.write_batch(batch)
    return TaskResult(files=(written.entry,))


def filter_documents(shard: SourceShard, corpus: Corpus) -> TaskResult:
    """Write the documents of a shard that are kept, and the ids of the others, as a part of the result."""
    index = shard.index
    batches = read_bucket(corpus.paths("members", "buckets", corpus.groups), MEMBER_SCHEMA, index)
    members = pa.Table.from_batches(batches, MEMBER_SCHEMA).sort_by("document")
    dropped = members.filter(pc.not_equal(members["kind"], KEPT_KIND))
    rows = (dropped["document"].to_numpy() - corpus.starts[index]).tolist()
    kept_ids = Records(corpus).ids(dropped["kept"].to_numpy())
    kinds = [KINDS[kind] for kind in dropped["kind"].to_pylist()]
    reasons = {row: DropReason(f"{kind}_duplicate", id) for row, kind, id in zip(rows, kinds, kept_ids, strict=True)}
    remover, shard_report = ParagraphRemover(shard, corpus), ShardReport(corpus, index)
    rows_read = 0

    def decide(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, list[DropReason | None]]:
        nonlocal rows_read
        batch, is_emptied = remover(batch)
        for row in np.flatnonzero(is_emptied).tolist():
            reasons[rows_read + row] = DropReason("repeated_paragraphs")
        start = rows_read
        rows_read += batch.num_rows
        outcomes = [reasons.get(row) for row in range(start, rows_read)]
        shard_report.add(batch, [reason is not None for reason in outcomes])
        return batch, outcomes

    result = filter_shard(shard.require_documents(), corpus.output, decide)
    files, counts = (*shard_report.write(), write_cluster_rows(corpus, index, members), *result.files), {}
    if corpus.config.paragraphs is not None:
        files += (remover.write_examples(),)
        counts = {"paragraphs_removed": remover.removed, "documents_with_removed_paragraphs": remover.changed}
    if corpus.config.write_signatures:
        is_kept = np.ones(corpus.starts[index + 1] - corpus.starts[index], bool)
        is_kept[list(reasons)] = False
        files += (write_signatures(index, is_kept, corpus),)
    return dataclasses.replace(result, counts=counts, files=files)
