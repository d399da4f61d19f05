"""Compares every n-gram of the benchmarks with the corpus, or with its Bloom filter, and writes the report.

With the corpus, the audit is exact: the n-grams of the benchmarks are few, so they are indexed with their words, and
the corpus streams past them once. Paper, section 4.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from pipelines import storage
from pipelines.benchmark_sets.benchmarks import parse_benchmarks, separate_train_splits
from pipelines.engine.manifest import FileEntry, ShardEntry
from pipelines.engine.run import RunOptions, Stage, StageRun, Summary, TaskResult, result_files, stage_run
from pipelines.errors import InputError, UsageError
from pipelines.format import format_bytes
from pipelines.records import inputs, shards
from pipelines.reports.overlap import render_overlap_report
from pipelines.stages.overlap_report.clean_benchmarks import clean_names
from pipelines.stages.overlap_report.config import OverlapReportConfig
from pipelines.stages.overlap_report.corpus_matches import CorpusMatches
from pipelines.stages.overlap_report.filter_index import FilterIndex, open_filter
from pipelines.stages.overlap_report.indexing import (
    Flags,
    StoredIndex,
    load_benchmarks,
    load_index,
    read_example_counts,
    stored_index,
    write_indexes,
)
from pipelines.stages.overlap_report.layout import (
    CLEAN,
    HELD_OUT_SAMPLE,
    HITS,
    IGNORED,
    PAGE,
    REPORT,
    found_name,
    own_train_name,
)
from pipelines.stages.overlap_report.report import (
    Audit,
    Corpus,
    Findings,
    make_report,
    sample_figures,
    sensitivity_table,
)
from pipelines.stages.overlap_report.samples import HELD_OUT, SAMPLES, join_held_out, sample_held_out
from pipelines.stages.overlap_report.scanning import ScanContext, clean_shard, read_found, scan_own_train, scan_shard
from pipelines.stages.overlap_report.scores import Metrics, parse_scores, read_scores
from pipelines.stages.overlap_report.self_test import measure_recall

STAGE = Stage("overlap-report", 2, (REPORT, PAGE, HITS, CLEAN))
# The phases that depend on the benchmarks: an unfinished run resumes with other benchmarks by repeating them.
_BENCHMARK_PHASES = ("benchmarks", "scan", "scanned", "own-train", "ignored", "clean", "probe", "report")
# Memory per n-gram, in each worker that scans, and where the matches of the shards are merged.
_SCAN_BYTES, _MERGE_BYTES = 60, 100
# Above this share of examples that are too short, the user is told.
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
    samples: str | None = None,
) -> Summary:
    """Write `report.json`, `report.html`, `hits.parquet`, and the matches of each shard of the documents.

    `benchmarks` are `NAME[/SPLIT][:SPLIT][:FIELD]=PATH`, or names of known benchmarks; `scores` are
    `NAME[/SPLIT]=PATH`; `samples` is the path of generated texts. With `index`, a folder of overlap-index, its Bloom
    filter is queried and `documents` is not read. The summary's `benchmarks` are those of the report. Raises UsageError
    for a benchmark of another form, InputError for one without an example that is long enough. Paper, section 4.
    """
    audited, trains = separate_train_splits(parse_benchmarks(benchmarks))
    audit = Audit(
        config=config,
        benchmarks=tuple(audited),
        trains=trains,
        scores=tuple(parse_scores(scores, audited)),
        samples=() if samples is None else tuple(parse_benchmarks([f"{SAMPLES}={samples}"])),
    )
    source = filter_index = None
    if index is not None:
        audit.check_needs_no_documents()
        filter_index = open_filter(index)
        filter_index.check_options(config.ngram, config.normalization)
        fingerprint = {"index": filter_index.fingerprint}
    elif config.probes is not None:
        raise UsageError("--probes needs an index to query; add --index, or remove --probes")
    elif documents is None:
        raise UsageError("overlap-report: neither documents nor an index; name one with --input or --index")
    else:
        source = inputs.open_configured(documents, config, options)
        options = options.for_input(inputs.size_on_disk(source.files))
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
    ) as run:
        if not run.finished and filter_index is not None:
            _report_from_index(audit, filter_index, fingerprints, run)
        elif not run.finished and source is not None:
            with options.executor.persistent_workers():
                _report_from_documents(audit, source, fingerprints, run)
        return _finish(audit, run)


def _report_from_documents(
    audit: Audit, source: inputs.DocumentInput, fingerprints: Mapping[str, str], run: StageRun
) -> None:
    audit = _add_held_out(audit, source, run)
    config, output = audit.config, run.output
    indexes = _index_benchmarks(audit, run)
    ngrams = len(load_index(indexes[0]).hashes)
    _check_memory(ngrams, run)
    scores = _read_scores(audit, output)
    context = ScanContext(indexes, config.held_out, output)
    entries = run.map(scan_shard, source.shards, context, phase="scan", work=True, total=source.records)
    run.once("scanned", lambda: result_files(entries))
    own_train = _scan_own_train(audit, indexes[0], run)
    paths = [storage.join(output, shards.shard_name("matches", shard.index)) for shard in source.shards]
    matches = CorpusMatches.read(paths, ngrams)
    findings = Findings(matches, matches.in_more_than(config.ignore_common), own_train)
    if config.write_clean == "corpus":
        _write_clean_corpus(source, indexes[0], findings.ignored, run)
    overlapping = _total(entries, "overlapping_documents")
    corpus = Corpus(
        method="exact",
        fingerprint=source.fingerprint,
        documents=sum(entry.records_out for entry in entries),
        text_bytes=_total(entries, "text_bytes"),
        overlapping=None if config.ignore_common else overlapping,
    )

    def write() -> TaskResult:
        audit.check_unchanged(fingerprints)
        report, files = make_report(audit, indexes[0], findings=findings, corpus=corpus, scores=scores)
        found = _read_variants(indexes, matches, len(source.shards))
        if config.sensitivity:
            report["sensitivity"] = sensitivity_table(audit, audit.variants, indexes, found)
        if audit.samples:
            report["samples"] = sample_figures(audit, indexes[-1], found[-1])
        if config.self_test:
            benchmarks = load_benchmarks(indexes[0], audit.benchmarks)
            report["self_test"] = measure_recall(
                benchmarks, config.example, index=load_index(indexes[0]), source=source.shards, held_out=config.held_out
            )
        return _write_report(report, files, output)

    _declare_clean_benchmarks(audit, run)
    run.once("report", write, unit="examples")


def _report_from_index(audit: Audit, filter_index: FilterIndex, fingerprints: Mapping[str, str], run: StageRun) -> None:
    indexes = _index_benchmarks(audit, run)
    scores = _read_scores(audit, run.output)
    own_train = _scan_own_train(audit, indexes[0], run)
    audit.check_unchanged(fingerprints)

    def write() -> TaskResult:
        matches = CorpusMatches(filter_index.contains(load_index(indexes[0])))
        certificate = filter_index.certificate(audit.config.probes)
        corpus = Corpus(
            method="bloom",
            fingerprint=filter_index.corpus,
            documents=filter_index.documents,
            error_bound=certificate["error_bound"],
            certificate=certificate,
        )
        findings = Findings(matches, matches.in_more_than(None), own_train)
        report, files = make_report(audit, indexes[0], findings=findings, corpus=corpus, scores=scores)
        if audit.samples:
            found = filter_index.contains(load_index(indexes[-1]))
            report["samples"] = sample_figures(audit, indexes[-1], found)
        result = _write_report(report, files, run.output)
        return dataclasses.replace(result, records_in=corpus.documents, records_out=corpus.documents)

    _declare_clean_benchmarks(audit, run)
    run.once("probe", write, unit="n-grams")


def _add_held_out(audit: Audit, source: inputs.DocumentInput, run: StageRun) -> Audit:
    """Add a sample of held-out documents to the samples of a model."""
    share = audit.config.held_out
    if not audit.samples or not share:
        return audit
    context = (share, run.output)
    run.map(sample_held_out, source.shards, context, phase="held-out", work=True, total=source.records)
    run.once("held-out-sample", lambda: join_held_out(source.shards, run.output), work=True)
    held_out = parse_benchmarks([f"{HELD_OUT}={storage.join(run.output, HELD_OUT_SAMPLE)}"])
    return dataclasses.replace(audit, samples=(*audit.samples, *held_out))


def _index_benchmarks(audit: Audit, run: StageRun) -> tuple[StoredIndex, ...]:
    """Build the indexes; return them in the order of the variants."""

    def write() -> TaskResult:
        return write_indexes(
            audit.benchmarks, audit.samples, example=audit.config.example, variants=audit.variants, output=run.output
        )

    entry = run.once("benchmarks", write, work=True, unit="examples")
    return tuple(stored_index(entry.files, run.output, variant) for variant in audit.variants)


def _check_memory(ngrams: int, run: StageRun) -> None:
    """Raise InputError, before the corpus is read, if the counts of so many n-grams do not fit in memory."""
    workers, free = run.workers, run.memory_bytes
    needed = ngrams * (_SCAN_BYTES * workers + _MERGE_BYTES)
    if free is not None and needed > free:
        raise InputError(
            f"overlap-report: the benchmarks have {ngrams:,} distinct n-grams, which take {format_bytes(needed)} with "
            f"{workers} workers, but {format_bytes(free)} of memory are free; use fewer --workers, or audit the "
            "benchmarks one by one"
        )


def _read_scores(audit: Audit, output: str) -> dict[str, Metrics]:
    """Read the scores before the corpus, so that wrong ones are refused at once."""
    counts = read_example_counts(output)
    labels = [benchmark.label for benchmark in audit.benchmarks]
    return read_scores(audit.scores, dict(zip(labels, counts, strict=False)))


def _scan_own_train(audit: Audit, stored: StoredIndex, run: StageRun) -> dict[str, Flags]:
    """Return which n-grams are in the train splits of each benchmark that has one, by label."""
    labeled = [(label, train) for label, splits in audit.trains.items() for train in splits]
    entries = run.map(
        scan_own_train,
        range(len(labeled)),
        ([train for _, train in labeled], audit.config.example, stored),
        name=own_train_name,
        phase="own-train",
        work=True,
        unit="examples",
    )
    paths: dict[str, list[str]] = {}
    for (label, _), entry in zip(labeled, entries, strict=True):
        paths.setdefault(label, []).append(storage.join(run.output, entry.files[0].name))
    ngrams = len(load_index(stored).hashes)
    return {label: read_found(files, ngrams) for label, files in paths.items()}


def _write_clean_corpus(source: inputs.DocumentInput, stored: StoredIndex, ignored: Flags, run: StageRun) -> None:
    run.once("ignored", lambda: TaskResult(files=(shards.write_array(run.output, IGNORED, ignored),)), work=True)
    run.map(clean_shard, source.shards, (stored, run.output), phase="clean", total=source.records)


def _total(entries: Sequence[ShardEntry], name: str) -> int:
    return int(sum(entry.counts[name] for entry in entries))


def _read_variants(indexes: Sequence[StoredIndex], matches: CorpusMatches, source_shards: int) -> list[Flags]:
    """Return which n-grams of each index are in the corpus."""
    found = [matches.found]
    for stored in indexes[1:]:
        names = (found_name(shard, stored.number) for shard in range(source_shards))
        paths = [storage.join(stored.output, name) for name in names]
        found.append(read_found(paths, len(load_index(stored).hashes)))
    return found


def _declare_clean_benchmarks(audit: Audit, run: StageRun) -> None:
    """Declare the files in `clean/`, so that they belong to the stage even after a kill."""
    if audit.config.write_clean == "benchmark":
        run.declare_outputs(clean_names(audit.benchmarks))


def _write_report(report: dict[str, Any], files: Sequence[FileEntry], output: str) -> TaskResult:
    text = json.dumps(report, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    return TaskResult(
        files=(
            shards.write_file(output, REPORT, text.encode()),
            shards.write_file(output, PAGE, render_overlap_report(report).encode()),
            *files,
        )
    )


def _finish(audit: Audit, run: StageRun) -> Summary:
    """Finish the run; note the benchmarks of which many examples are too short to overlap."""
    report = storage.read_json(storage.join(run.output, REPORT))
    for benchmark, row in zip(audit.benchmarks, report["benchmarks"], strict=True):
        if row["too_short"] > row["examples"] * _NOTED_TOO_SHORT:
            has_lines = benchmark.is_plain_text and audit.config.example in ("auto", "line")
            hint = "; --example paragraph joins lines" if has_lines else ""
            run.note(
                f"{benchmark.label}: {row['too_short']:,} of {row['examples']:,} examples have fewer than "
                f"{audit.config.ngram} words, so they cannot overlap{hint}"
            )
    rows = [{name: value for name, value in row.items() if name not in _NOT_IN_SUMMARY} for row in report["benchmarks"]]
    return run.finish({"benchmarks": rows})
