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
from pipelines.stages.dedup.candidates import PartTask, count_pairs, find_pairs, parts_for
from pipelines.stages.dedup.clusters import CompareTask, compare_members, write_clusters, write_members
from pipelines.stages.dedup.config import DedupConfig
from pipelines.stages.dedup.signatures import Shingling, SignedShard, SignTask, sign_shard, signed_shards
from pipelines.stages.dedup.verification import (
    PAIRS_A_TASK,
    ShingleTask,
    VerifyTask,
    mark_candidates,
    verify_pairs,
    write_shingles,
)

STAGE = Stage("dedup", 1, ("clusters.parquet",))


@dataclasses.dataclass(frozen=True)
class _FilterTask:
    shard: inputs.DocumentShard
    clusters: str
    output: str

    @property
    def name(self) -> str:
        return self.shard.name


def dedup(config: DedupConfig, *, documents: str | Sequence[str], output: str, options: RunOptions) -> Summary:
    """Write the documents without duplicates, a list of those dropped, and `clusters.parquet`.

    Documents whose normalized texts are equal, or whose sets of word shingles have a Jaccard similarity of at least
    the threshold, form clusters (connected components). Each keeps its document of highest score, then of earliest
    creation, then of smallest id. Paper, section 2.1.
    """
    source = inputs.open_documents(documents, config.text_field)
    with stage_run(STAGE, config, {"documents": source.fingerprint}, output, options) as run:
        if not run.finished:
            _find_and_drop(config, source, run)
        return run.finish()


def _find_and_drop(config: DedupConfig, source: inputs.DocumentInput, run: StageRun) -> None:
    work = storage.basename(run.work)
    signed = _sign(config, source, run, work)
    equal, pairs = _pairs(config, signed, run, work)
    indexes, near = _verify(config, source, signed, pairs, run, work)
    members = run.once("members", lambda: write_members(equal, near, signed, run.output, work), work=True)
    compare = [CompareTask(index, path, indexes, run.output, work) for index, path in enumerate(_paths(run, [members]))]
    clusters = _paths(
        run, run.map(compare_members, compare, phase="comparison", work=True, total=len(compare), unit="shards")
    )
    tasks = [_FilterTask(shard, path, run.output) for shard, path in zip(source.shards, clusters, strict=True)]
    run.map(_filter_shard, tasks, total=source.records)
    run.once("clusters", lambda: write_clusters(clusters, config.threshold, run.output))


def _sign(config: DedupConfig, source: inputs.DocumentInput, run: StageRun, work: str) -> tuple[SignedShard, ...]:
    bands, rows = choose_bands(config.num_perm, config.threshold)
    shingling = Shingling(config.ngram, config.num_perm, config.seed, bands, rows)
    tasks = [SignTask(shard, shingling, run.output, work) for shard in source.shards]
    return signed_shards(_paths(run, run.map(sign_shard, tasks, phase="signatures", work=True, total=source.records)))


def _pairs(
    config: DedupConfig, signed: tuple[SignedShard, ...], run: StageRun, work: str
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the files of pairs with equal texts, and those of candidate pairs."""
    bands, _ = choose_bands(config.num_perm, config.threshold)
    parts = parts_for(sum(shard.rows for shard in signed))
    keys = [None, *range(bands)]
    tasks = [PartTask(key, bands, part, parts, signed, run.output, work) for key in keys for part in range(parts)]
    entries = run.map(find_pairs, tasks, phase="bands", work=True, total=len(tasks), unit="parts")
    return _paths(run, entries[:parts]), _paths(run, entries[parts:])


def _verify(
    config: DedupConfig,
    source: inputs.DocumentInput,
    signed: tuple[SignedShard, ...],
    pairs: tuple[str, ...],
    run: StageRun,
    work: str,
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the indexes of the candidates' shingles, and the files of verified pairs."""
    documents = sum(shard.rows for shard in signed)
    marked = run.once("marks", lambda: mark_candidates(pairs, documents, run.output, work), work=True)
    [marks] = _paths(run, [marked])
    shingled = [
        ShingleTask(shard, each, marks, config.ngram, run.output, work)
        for shard, each in zip(source.shards, signed, strict=True)
    ]
    written = run.map(write_shingles, shingled, phase="shingles", work=True, total=source.records)
    indexes = tuple(path for path in _paths(run, written) if path.endswith(".parquet"))
    total = count_pairs(pairs)
    parts = max(1, -(-total // PAIRS_A_TASK))
    tasks = [VerifyTask(part, parts, pairs, indexes, config.threshold, run.output, work) for part in range(parts)]
    near = run.map(verify_pairs, tasks, phase="verification", work=True, total=total, unit="pairs")
    return indexes, _paths(run, near)


def _paths(run: StageRun, entries: Sequence[ShardEntry]) -> tuple[str, ...]:
    return tuple(storage.join(run.output, file.name) for entry in entries for file in entry.files)


def _filter_shard(task: _FilterTask) -> TaskResult:
    members = shards.read_rows(task.clusters, ["row", "cluster", "kind"])
    verdicts = {
        row["row"]: DropReason(f"{row['kind']}_duplicate", row["cluster"]) for row in members if row["kind"] != "kept"
    }
    rows_read = 0

    def filter_batch(batch: pa.RecordBatch) -> list[DropReason | None]:
        nonlocal rows_read
        start = rows_read
        rows_read += batch.num_rows
        return [verdicts.get(row) for row in range(start, rows_read)]

    return filter_shard(task.shard, task.output, filter_batch)
