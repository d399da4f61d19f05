"""Drops duplicates: equal texts, and near-duplicates by MinHash, verified by their true Jaccard similarity."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pyarrow as pa

from pipelines.algorithms.minhash.signatures import choose_bands
from pipelines.core import inputs, shards, storage
from pipelines.core.document_filter import DropReason, filter_shard
from pipelines.core.manifest import ShardEntry
from pipelines.core.run import RunOptions, Stage, StageRun, Summary, TaskResult, stage_run
from pipelines.stages.dedup.candidates import KeySpace, find_pairs
from pipelines.stages.dedup.clusters import CLUSTERS, compare_members, write_clusters, write_members
from pipelines.stages.dedup.config import DedupConfig
from pipelines.stages.dedup.signatures import SignedShard, count_rows, open_signatures, sign_shard, work_name
from pipelines.stages.dedup.verification import CandidatePairs, mark_candidates, part_name, verify_pairs, write_shingles

STAGE = Stage("dedup", 1, (CLUSTERS,))


@dataclasses.dataclass(frozen=True)
class TaskSizes:
    """Bounds of the tasks: documents per part of a band (~100 bytes each), pairs per verification task (~50 bytes)."""

    documents_per_part: int = 1 << 20
    pairs_per_task: int = 1 << 20


def dedup(
    config: DedupConfig,
    *,
    documents: str | Sequence[str],
    output: str,
    options: RunOptions,
    sizes: TaskSizes | None = None,
) -> Summary:
    """Write the documents without duplicates, a list of the dropped ones, and `clusters.parquet`.

    `documents` is the folder of a stage, or files, folders or globs of Parquet, JSONL or .txt. Documents whose
    normalized texts are equal, or whose sets of word shingles have a Jaccard similarity of at least the threshold, form
    clusters (connected components). Of each cluster, the document of highest score is kept, then of earliest creation,
    then of smallest id. `sizes` bounds the memory of a task and does not change the result. Raises InputError if there
    are no documents. Paper, section 2.1.
    """
    source = inputs.open_documents(documents, config.text_field, config.max_document_mb)
    options = options.for_input(inputs.size_on_disk(source.files))
    with stage_run(STAGE, config, inputs={"documents": source.fingerprint}, output=output, options=options) as run:
        if not run.finished:
            with options.executor.persistent_workers():
                _run_phases(config, source, sizes or TaskSizes(), run)
        return run.finish()


def _run_phases(config: DedupConfig, source: inputs.DocumentInput, sizes: TaskSizes, run: StageRun) -> None:
    output = run.output
    run.map(sign_shard, source.shards, (config, output), phase="signatures", work=True, total=source.records)
    signed = open_signatures(source.shards, output)
    equal, candidates = _find_pairs(config, signed, sizes.documents_per_part, run)
    near, shingle_indexes = _verify_pairs(
        config, signed, pairs=candidates, pairs_per_task=sizes.pairs_per_task, run=run
    )
    run.once("members", lambda: write_members(equal, near, signed, output), work=True)
    context = (shingle_indexes, output)
    run.map(compare_members, signed, context, phase="comparison", work=True, total=len(signed), unit="shards")
    run.map(_filter_shard, source.shards, output, total=source.records)
    run.once("clusters", lambda: write_clusters(signed, config.threshold, output))


def _find_pairs(
    config: DedupConfig, signed: tuple[SignedShard, ...], documents_per_part: int, run: StageRun
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the files of pairs with equal texts, and those of candidate pairs."""
    bands, _ = choose_bands(config.num_perm, config.threshold)
    parts = max(1, -(-sum(shard.rows for shard in signed) // documents_per_part))
    keys = KeySpace(signed, bands, parts, run.output)
    items = keys.key_parts()
    entries = run.map(find_pairs, items, keys, phase="bands", work=True, total=len(items), unit="parts")
    return _paths(run, entries[:parts]), _paths(run, entries[parts:])


def _verify_pairs(
    config: DedupConfig, signed: tuple[SignedShard, ...], pairs: tuple[str, ...], pairs_per_task: int, run: StageRun
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the files of verified pairs, and the indexes of the candidates' shingles."""
    documents = sum(shard.rows for shard in signed)
    run.once("marks", lambda: mark_candidates(pairs, documents, run.output), work=True)
    run.map(write_shingles, signed, (config.ngram, run.output), phase="shingles", work=True, total=documents)
    shingle_indexes = tuple(storage.join(run.output, work_name("shingles", shard.documents.index)) for shard in signed)
    total = sum(map(count_rows, pairs))
    parts = max(1, -(-total // pairs_per_task))
    candidates = CandidatePairs(
        pairs=pairs, parts=parts, shingle_indexes=shingle_indexes, threshold=config.threshold, output=run.output
    )
    entries = run.map(
        verify_pairs,
        range(parts),
        candidates,
        name=part_name,
        phase="verification",
        work=True,
        total=total,
        unit="pairs",
    )
    return _paths(run, entries), shingle_indexes


def _paths(run: StageRun, entries: Sequence[ShardEntry]) -> tuple[str, ...]:
    return tuple(storage.join(run.output, file.name) for entry in entries for file in entry.files)


def _filter_shard(shard: inputs.DocumentShard, output: str) -> TaskResult:
    clusters = storage.join(output, work_name("clusters", shard.index))
    drop_reasons = {
        member["row"]: DropReason(f"{member['kind']}_duplicate", member["cluster"])
        for member in shards.read_rows(clusters, ["row", "cluster", "kind"])
        if member["kind"] != "kept"
    }
    rows_read = 0

    def filter_batch(batch: pa.RecordBatch) -> list[DropReason | None]:
        nonlocal rows_read
        start = rows_read
        rows_read += batch.num_rows
        return [drop_reasons.get(row) for row in range(start, rows_read)]

    return filter_shard(shard, output, filter_batch)
