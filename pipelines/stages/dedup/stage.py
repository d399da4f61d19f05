"""Drops duplicates: equal texts, and near-duplicates by MinHash, verified by their true Jaccard similarity."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Sequence

import numpy as np

from pipelines.engine.machine import retain_freed_memory
from pipelines.engine.manifest import ShardEntry
from pipelines.engine.run import RunOptions, Stage, StageRun, Summary, TaskResult, result_files, stage_run
from pipelines.records import inputs
from pipelines.records.data_card import DATA_CARD, write_data_card
from pipelines.stages.dedup import report
from pipelines.stages.dedup.config import DedupConfig
from pipelines.stages.dedup.documents import TABLES, Corpus, SourceShard, count_documents, open_earlier

STAGE = Stage("dedup", 4, (*TABLES, report.PAGE, DATA_CARD))

# Compressed input per bucket: at 200 bytes per document it has about two million keys, which take 100 MB to sort.
_BUCKET_BYTES = 16 << 20
_MAX_BUCKETS = 1 << 14
# Documents whose keys a task reads (about 20 keys per document), and bytes of pairs (about 10 per pair).
_TASK_DOCUMENTS, _TASK_BYTES = 1 << 16, 4 << 20


def dedup(config: DedupConfig, *, documents: str | Sequence[str], output: str, options: RunOptions) -> Summary:
    """Write the documents without duplicates, a list of the dropped ones, and `clusters.parquet`.

    `documents` is the folder of a stage, or files, folders or globs as `inputs` reads them. A document is dropped if
    a better one is kept whose normalized text is equal, or whose set of word shingles has a Jaccard similarity of at
    least the threshold to its own. Better is the document of higher score, then of earlier creation, then of smaller
    id. Raises InputError if there are no documents. Paper, section 2.1.
    """
    if config.write_signatures:
        from pipelines.stages.dedup.signatures import check_datasketch

        check_datasketch(config.num_perm, config.minhash_seed)
    source = inputs.open_configured(documents, config, options, output)
    own = [SourceShard(shard.index, shard) for shard in source.shards]
    earlier, fingerprints = open_earlier(config.against, config, len(own), options)
    files = [file for shard in (*own, *earlier) for file in shard.files]
    size_bytes = inputs.size_on_disk(files)
    options = options.for_input(size_bytes)
    # The number does not change the result.
    buckets = max(1, min(_MAX_BUCKETS, -(-size_bytes // _BUCKET_BYTES)))
    prints = {"documents": source.fingerprint} | ({"against": " ".join(fingerprints)} if earlier else {})
    with stage_run(STAGE, config, inputs=prints, output=output, options=options, texts=files) as run:
        if not run.finished:
            with options.executor.persistent_workers(_prepare_worker):
                corpus = Corpus(config, run.output, len(own), buckets)
                _run_phases(corpus, own, earlier, None if earlier else source.records, run)
        return run.finish()


def _prepare_worker() -> None:
    """Import what tasks need in a worker, while the main process does the same."""
    retain_freed_memory()
    importlib.import_module("pipelines.stages.dedup.clusters")


def _run_phases(
    corpus: Corpus, own: list[SourceShard], earlier: list[SourceShard], records: int | None, run: StageRun
) -> None:
    from pipelines.stages.dedup import clusters, pairs, paragraphs
    from pipelines.stages.dedup.signatures import sign_shard

    # A resumed run keeps the number of buckets of the tasks that are complete.
    run.once("plan", lambda: TaskResult(files=(corpus.write_array("plan", 0, np.array([corpus.buckets])),)), work=True)
    corpus = dataclasses.replace(corpus, buckets=int(corpus.read_array("plan", 0)[0]))
    config, sources, buckets = corpus.config, own + earlier, corpus.buckets

    def map_parts(phase: str, function: Callable[..., TaskResult], parts: int) -> list[ShardEntry]:
        name = "part-{:05d}".format
        return run.map(function, range(parts), corpus, phase=phase, name=name, total=parts, unit="parts", work=True)

    if config.paragraphs is not None:
        counted = run.map(paragraphs.count_paragraphs, own, corpus, phase="paragraphs", work=True, total=records)
        corpus = dataclasses.replace(corpus, paragraph_parts=_parts(counted, buckets))
        map_parts("frequent-paragraphs", paragraphs.sum_paragraphs, corpus.paragraph_parts)
        run.once("frequent", paragraphs.join_frequent, corpus, work=True)
    run.map(sign_shard, sources, corpus, phase="signatures", work=True, total=records)
    starts = count_documents(len(sources), run.output)
    key_parts = max(1, min(buckets, -(-starts[-1] // _TASK_DOCUMENTS)))
    corpus = dataclasses.replace(corpus, starts=starts, key_parts=key_parts)

    copies = map_parts("copies", pairs.find_copies, key_parts)
    run.once("copy-marks", pairs.mark_copies, corpus, work=True)
    compared = map_parts("candidates", pairs.find_candidates, key_parts)
    run.once("candidate-marks", pairs.mark_candidates, corpus, work=True)
    run.map(pairs.write_shingles, sources, corpus, phase="shingles", work=True, total=corpus.documents)

    # In a large group of documents with a common key, followers of a leader, a better near document, are not compared
    # with each other. If their leader is dropped, followers may be kept: then they are compared in a further round,
    # until all kept documents have been compared.
    near: list[ShardEntry] = []
    open_documents = 1
    while open_documents:
        corpus = dataclasses.replace(corpus, pair_parts=(*corpus.pair_parts, _parts(compared, buckets)))
        near += map_parts(f"verification-{corpus.round}", pairs.verify_pairs, corpus.pair_parts[-1])
        run.once(f"decisions-{corpus.round}", clusters.decide, corpus, work=True)
        if open_documents := pairs.count_new(corpus):
            compared = map_parts(f"candidates-{corpus.round + 1}", pairs.find_more, key_parts)
    corpus = dataclasses.replace(corpus, groups=_parts([*near, *copies], len(sources)))
    map_parts("kept", clusters.choose_kept, corpus.groups)
    map_parts("clusters", clusters.gather_clusters, corpus.groups)
    run.once("report-choice", report.choose_documents, corpus, work=True)
    entries = run.map(clusters.filter_documents, own, corpus, work=True, total=corpus.own_documents)
    run.once("documents", lambda: result_files(entries))
    if earlier:
        run.map(report.read_earlier, earlier, corpus, phase="report-texts", work=True)
    run.once("list", clusters.join_clusters, corpus)
    run.once("card", lambda: write_data_card(run.output, STAGE.name))
    run.once("report", report.write_report, corpus, entries)
    if config.paragraphs is not None:
        run.once("paragraph-list", paragraphs.write_paragraphs, corpus)


def _parts(entries: Sequence[ShardEntry], most: int) -> int:
    """Return the number of tasks that read the files of a phase, at most `most`."""
    size_bytes = sum(file.size_bytes for entry in entries for file in entry.files)
    return max(1, min(most, -(-size_bytes // _TASK_BYTES)))
