"""Compares every n-gram of the benchmarks with the corpus, or with its Bloom filter, and writes the report.

With the corpus, the audit is exact: the n-grams of the benchmarks are few, so they are indexed with their words, and
the corpus streams past them once. Paper, section 4.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pipelines import storage
from pipelines.algorithms.ngrams.overlap_counts import Flags
from pipelines.benchmark_sets.benchmarks import parse_benchmarks, separate_train_splits
from pipelines.benchmark_sets.examples import example_format
from pipelines.engine.machine import check_memory
from pipelines.engine.manifest import FileEntry
from pipelines.engine.run import RunOptions, Stage, StageRun, Summary, TaskResult, result_files, stage_run
from pipelines.errors import UsageError
from pipelines.records import inputs, shards
from pipelines.reports.overlap import render_overlap_report
from pipelines.reports.render import write_page
from pipelines.stages.overlap_report.clean_benchmarks import CLEAN, clean_names
from pipelines.stages.overlap_report.config import OverlapReportConfig
from pipelines.stages.overlap_report.filter_index import FilterIndex
from pipelines.stages.overlap_report.indexing import (
    Variant,
    list_variants,
    load_index,
    read_example_counts,
    write_indexes,
)
from pipelines.stages.overlap_report.report import HITS, SAMPLES, Audit, Findings, make_report
from pipelines.stages.overlap_report.scanning import (
    HELD_OUT,
    HELD_OUT_SAMPLE,
    IGNORED,
    CorpusMatches,
    ScanContext,
    clean_shard,
    flags_name,
    join_held_out,
    read_flags,
    sample_held_out,
    scan_own_train,
    scan_shard,
)
from pipelines.stages.overlap_report.scores import Metrics, parse_scores, read_scores

REPORT, PAGE = "report.json", "report.html"
STAGE = Stage("overlap-report", 6, (REPORT, PAGE, HITS, CLEAN))
# The phases that depend on the benchmarks: an unfinished run resumes with other benchmarks by repeating them.
_BENCHMARK_PHASES = ("benchmarks", "scan", "scanned", "own-train", "ignored", "clean", "report")
# Memory per n-gram, in each worker that scans, and where the matches of the shards are merged.
_SCAN_BYTES, _MERGE_BYTES = 60, 100
# A share of examples that are too short above this is noted.
_NOTED_TOO_SHORT = 0.25
# What is in report.json but not in the summary.
_NOT_IN_SUMMARY = ("passages", "histogram")


def overlap_report(
    config: OverlapReportConfig,
    *,
    documents: str | Sequence[str] | None,
    benchmarks: Sequence[str],
    output: str,
    options: RunOptions,
    index: str | None = None,
    scores: Sequence[str] = (),
    generated: str | None = None,
) -> Summary:
    """Write `report.json`, `report.html`, `hits.parquet`, and the matches of each shard of the documents.

    `benchmarks` are `NAME[/SPLIT][:SPLIT][:FIELD]=PATH`, or names of known benchmarks; `scores` are
    `NAME[/SPLIT]=PATH`; `generated` is the path of generated texts. With `index`, a folder of overlap-index, its Bloom
    filter is queried and `documents` is not read. The summary's `benchmarks` are those of the report. Raises UsageError
    for a benchmark of another form, InputError for one without an example that is long enough. Paper, section 4.
    """
    audited, trains = separate_train_splits(parse_benchmarks(benchmarks))
    audit = Audit(
        config=config,
        benchmarks=tuple(audited),
        trains=trains,
        scores=tuple(parse_scores(scores, audited)),
        samples=() if generated is None else tuple(parse_benchmarks([f"{SAMPLES}={generated}"])),
    )
    source: inputs.DocumentInput | FilterIndex
    if index is not None:
        audit.check_needs_no_documents()
        source = FilterIndex(index)
        source.check_options(config)
        fingerprint = {"index": source.folder.fingerprint}
        texts = [source.folder.file]
    elif config.probes is not None:
        raise UsageError("--probes has no effect without --index; add --index or omit --probes")
    elif documents is None:
        raise UsageError("overlap-report: neither documents nor an index; name one with --input or --index")
    else:
        source = inputs.open_configured(documents, config, options, output)
        texts = source.files
        options = options.for_input(inputs.size_on_disk(texts))
        fingerprint = {"documents": source.fingerprint}
    fingerprints = audit.fingerprints()
    with stage_run(
        STAGE,
        config,
        inputs=fingerprint,
        output=output,
        options=options,
        shard_inputs=fingerprints,
        global_phases=_BENCHMARK_PHASES,
        texts=texts,
    ) as run:
        if not run.finished:
            if isinstance(source, FilterIndex):
                _report_from_index(audit, source, fingerprints, run)
            else:
                with options.executor.persistent_workers():
                    _report_from_documents(audit, source, fingerprints, run)
        return _finish(audit, run)


def _report_from_documents(
    audit: Audit, source: inputs.DocumentInput, fingerprints: Mapping[str, str], run: StageRun
) -> None:
    config, output, total = audit.config, run.output, source.records
    if audit.samples and config.held_out:
        context = ScanContext(config, output)
        parts = run.map(sample_held_out, source.shards, context, phase="held-out", work=True, total=total)
        run.once("held-out-sample", lambda: join_held_out(parts, output), work=True)
        held_out = parse_benchmarks([f"{HELD_OUT}={storage.join(output, HELD_OUT_SAMPLE)}"])
        audit = dataclasses.replace(audit, samples=(*audit.samples, *held_out))
    variants = _index_benchmarks(audit, run)
    ngrams = len(load_index(variants[0]).arrays.hashes)
    # Before the corpus is read.
    task = f"overlap-report: counting the {ngrams:,} distinct n-grams of the benchmarks with {run.workers} workers"
    needed_bytes = ngrams * (_SCAN_BYTES * run.workers + _MERGE_BYTES)
    check_memory(task, needed_bytes, run.memory_bytes, "use fewer --workers, or check the benchmarks one by one")
    scores = _read_scores(audit, output)
    context = ScanContext(config, output, variants)
    entries = run.map(scan_shard, source.shards, context, phase="scan", work=True, total=total)
    run.once("scanned", lambda: result_files(entries))
    own_train = _scan_own_train(audit, variants, run)
    matches = CorpusMatches(ngrams)
    for shard in source.shards:
        matches.add_shard(storage.join(output, shards.shard_name("matches", shard.index)))
    limit = config.ignore_common
    ignored = np.zeros(ngrams, np.bool_) if limit is None else matches.documents > limit
    if config.write_clean == "corpus":
        run.once("ignored", lambda: TaskResult(files=(shards.write_array(output, IGNORED, ignored),)), work=True)
        run.map(clean_shard, source.shards, variants[0], phase="clean", total=total)

    def write() -> TaskResult:
        audit.check_unchanged(fingerprints)
        corpus = {
            "corpus": source.fingerprint,
            "corpus_files": list(dict.fromkeys(file.stage or file.name for file in source.files)),
            "method": "exact",
            "error_bound": 0.0,
            "documents": sum(entry.records_out for entry in entries),
            "text_bytes": sum(int(entry.counts["text_bytes"]) for entry in entries),
            "documents_overlapping": None
            if limit
            else sum(int(entry.counts["overlapping_documents"]) for entry in entries),
            "certificate": None,
        }
        other_flags = [
            read_flags([storage.join(output, flags_name(variant, shard.index)) for shard in source.shards], variant)
            for variant in variants[1:]
        ]
        findings = Findings(variants, matches, ignored, own_train, other_flags)
        return _write_report(*make_report(audit, findings, corpus, scores), output)

    run.once("report", write, unit="examples")


def _report_from_index(audit: Audit, filter_index: FilterIndex, fingerprints: Mapping[str, str], run: StageRun) -> None:
    variants = _index_benchmarks(audit, run)
    scores = _read_scores(audit, run.output)
    own_train = _scan_own_train(audit, variants, run)
    header = filter_index.header

    def write() -> TaskResult:
        audit.check_unchanged(fingerprints)
        is_found = filter_index.contains(load_index(variants[0]))
        certificate = filter_index.certificate(audit.config.probes)
        corpus = {
            "corpus": header.corpus,
            "corpus_files": [],
            "method": "bloom",
            "error_bound": certificate["error_bound"],
            "documents": header.documents,
            "text_bytes": None,
            "documents_overlapping": None,
            "certificate": certificate,
        }
        matches, ignored = CorpusMatches(len(is_found), is_found), np.zeros(len(is_found), np.bool_)
        other_flags = [filter_index.contains(load_index(variant)) for variant in variants[1:]]
        findings = Findings(variants, matches, ignored, own_train, other_flags)
        result = _write_report(*make_report(audit, findings, corpus, scores), run.output)
        return dataclasses.replace(result, records_in=header.documents, records_out=header.documents)

    run.once("report", write, unit="n-grams")


def _index_benchmarks(audit: Audit, run: StageRun) -> tuple[Variant, ...]:
    """Build the indexes; return them in order, that of the report first."""
    config = audit.config
    if config.write_clean == "benchmark":  # the files belong to the stage even after a kill
        run.declare_outputs(clean_names(audit.benchmarks))
    variants = list_variants(run.output, config, sensitivity=config.sensitivity, samples=bool(audit.samples))
    entry = run.once(
        "benchmarks",
        lambda: write_indexes(variants, audit.benchmarks, audit.samples, config.example),
        work=True,
        unit="examples",
    )
    return tuple(variant.stored(entry.files) for variant in variants)


def _read_scores(audit: Audit, output: str) -> dict[str, Metrics]:
    """Read the scores before the corpus, so that invalid ones are refused at once."""
    counts = read_example_counts(output)
    labels = [benchmark.label for benchmark in audit.benchmarks]
    return read_scores(audit.scores, dict(zip(labels, counts, strict=False)))


def _scan_own_train(audit: Audit, variants: tuple[Variant, ...], run: StageRun) -> dict[str, Flags]:
    """Return which n-grams are in the train splits of each benchmark that has one, by label."""
    trains = tuple(train for splits in audit.trains.values() for train in splits)
    entries = run.map(
        scan_own_train,
        range(len(trains)),
        ScanContext(audit.config, run.output, variants, trains),
        name=lambda number: f"own-train-{number:05d}",
        phase="own-train",
        work=True,
        unit="examples",
    )
    paths = (storage.join(run.output, entry.files[0].name) for entry in entries)
    return {label: read_flags([next(paths) for _ in splits], variants[0]) for label, splits in audit.trains.items()}


def _write_report(report: dict[str, Any], files: Sequence[FileEntry], output: str) -> TaskResult:
    report_file = shards.write_file(output, REPORT, storage.json_bytes(report))
    page_file = write_page(output, PAGE, render_overlap_report(report))
    return TaskResult(files=(report_file, page_file, *files))


def _finish(audit: Audit, run: StageRun) -> Summary:
    """Finish the run; note benchmarks with many examples that are too short to overlap."""
    report = storage.read_json(storage.join(run.output, REPORT))
    for benchmark, row in zip(audit.benchmarks, report["benchmarks"], strict=True):
        if row["too_short"] > row["examples"] * _NOTED_TOO_SHORT:
            has_lines = benchmark.hub is None and example_format(benchmark.files[0]) == "text"
            hint = "; --example paragraph joins lines" if has_lines and audit.config.example in ("auto", "line") else ""
            run.note(
                f"{benchmark.label}: {row['too_short']:,} of {row['examples']:,} examples have fewer than "
                f"{audit.config.ngram} words, so they cannot overlap{hint}"
            )
    rows = [{name: value for name, value in row.items() if name not in _NOT_IN_SUMMARY} for row in report["benchmarks"]]
    return run.finish({"benchmarks": rows})
