"""Holds every n-gram of the benchmarks against the corpus, or its Bloom filter, and writes the report.

With the corpus the audit is exact: the benchmarks' n-grams are few, so they are indexed, with their words, and the
corpus streams past them once. Paper, section 4.
"""

from __future__ import annotations

import dataclasses
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pipelines.core import inputs, shards, storage
from pipelines.core.errors import InputError, UsageError
from pipelines.core.machine import available_memory_bytes
from pipelines.core.manifest import FileEntry, ShardEntry
from pipelines.core.run import RunOptions, Stage, StageRun, Summary, TaskResult, stage_run
from pipelines.reports.overlap import render_overlap_report
from pipelines.stages.overlap_report import samples
from pipelines.stages.overlap_report.benchmarks import Benchmark, parse_benchmarks, with_own_train
from pipelines.stages.overlap_report.clean_benchmarks import clean_names
from pipelines.stages.overlap_report.cleaning import CleanTask, clean_shard
from pipelines.stages.overlap_report.config import OverlapReportConfig
from pipelines.stages.overlap_report.holdings import Holdings
from pipelines.stages.overlap_report.indexing import (
    StoredIndex,
    Variant,
    load_index,
    stored_index,
    write_indexes,
)
from pipelines.stages.overlap_report.probing import Answers, open_filter
from pipelines.stages.overlap_report.reporting import (
    Audit,
    Corpus,
    make_report,
    parts_of,
    require_scores,
    sample_figures,
    sensitivity_table,
)
from pipelines.stages.overlap_report.scanning import (
    OwnTrainTask,
    ScanTask,
    found_name,
    read_found,
    scan_own_train,
    scan_shard,
)
from pipelines.stages.overlap_report.self_test import measure_recall

REPORT, HITS, PAGE, CLEAN = "report.json", "hits.parquet", "report.html", "clean"
STAGE = Stage("overlap-report", 2, (REPORT, PAGE, HITS, CLEAN))
_NOTED_TOO_SHORT = 0.25
_IGNORED = "ignored.npy"
# The name of the fingerprint of a model's samples.
_SAMPLES = "samples"
# All that hangs on the benchmarks: a run that was not finished goes on with others by doing this anew.
_PHASES = ("benchmarks", "scan", "scanned", "own-train", "ignored", "clean", "probe", "report")
# What counting takes: in each worker, and where the shards are joined.
_BYTES_AN_NGRAM_SCANNED, _BYTES_AN_NGRAM_HELD = 60, 100
# What the summary leaves to report.json.
_LONG = ("passages", "histogram")


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
    """Write `report.json`, `report.html`, `hits.parquet`, and what each shard of the documents holds.

    `benchmarks` are `NAME[/SPLIT][:SPLIT][:FIELD]=PATH`, or names of the registry; `scores` are `NAME[/SPLIT]=PATH`;
    `samples` the path of generated texts. With `index`, the folder of overlap-index, its Bloom filter answers in the
    documents' place, and `documents` is not read. The summary's `benchmarks` are those of the report. Raises UsageError
    for a benchmark of another form, InputError for one without an example that is long enough. Paper, section 4.
    """
    audited, trains = with_own_train(parse_benchmarks(benchmarks))
    audit = Audit(config, tuple(audited), trains, tuple(scores), _samples(samples))
    fingerprints = _fingerprints(audit)
    if index is not None:
        return _report_from_index(audit, index, fingerprints, output, options)
    if config.probes is not None:
        raise UsageError("--probes asks an index for made-up n-grams, and none is given; give --index or leave it out")
    if documents is None:
        raise UsageError("overlap-report: neither documents nor an index are given; name one with --input or --index")
    source = inputs.open_documents(documents, config.text_field)
    read = {"documents": source.fingerprint}
    with stage_run(STAGE, config, read, output, options, shard_inputs=fingerprints, global_phases=_PHASES) as run:
        if not run.finished:
            _report_from_documents(audit, source, fingerprints, run)
        return _finish(audit, run)


def _samples(path: str | None) -> tuple[Benchmark, ...]:
    return () if path is None else tuple(parse_benchmarks([f"{samples.SAMPLES}={path}"]))


def _fingerprints(audit: Audit) -> dict[str, str]:
    """Return what the report is made of, in the order that it shows."""
    trains = [each for splits in audit.trains.values() for each in splits]
    named = {f"benchmark {each.label}": each.fingerprint for each in (*audit.benchmarks, *trains)}
    sampled = {_SAMPLES: audit.samples[0].fingerprint} if audit.samples else {}
    scored = {}
    for number, value in enumerate(audit.scores):
        label, _, path = value.partition("=")
        if not label or not path:
            raise UsageError(f"--scores: {value!r} is not of the form NAME=PATH or NAME/SPLIT=PATH")
        scored[f"scores {number} {label}"] = inputs.fingerprint_files([path])
    return {**named, **sampled, **scored, "benchmarks": " ".join(each.label for each in audit.benchmarks)}


def _require_unchanged(audit: Audit, fingerprints: Mapping[str, str]) -> None:
    """Raise InputError where a file is no longer what was indexed: it is read again for the report."""
    read = [(f"benchmark {benchmark.label}", benchmark) for benchmark in audit.benchmarks]
    for name, benchmark in [*read, *((_SAMPLES, each) for each in audit.samples[:1])]:
        if benchmark.hub is None and benchmark.fingerprint != fingerprints[name]:
            raise InputError(
                f"{benchmark.source}: was changed while it was read; run `webtext overlap-report` again "
                "with --overwrite"
            )


def _require_memory(ngrams: int, workers: int) -> None:
    """Raise InputError, before the corpus is read, where what is counted of so many n-grams does not fit in memory."""
    needed, available = ngrams * (_BYTES_AN_NGRAM_SCANNED * workers + _BYTES_AN_NGRAM_HELD), available_memory_bytes()
    if available is not None and needed > available:
        raise InputError(
            f"overlap-report: the benchmarks have {ngrams:,} different n-grams, which take {needed / 1e9:.1f} GB with "
            f"{workers} workers, and {available / 1e9:.1f} GB of memory are free; take fewer --workers, or audit the "
            "benchmarks one by one"
        )


def _report_from_documents(
    audit: Audit, source: inputs.DocumentInput, fingerprints: Mapping[str, str], run: StageRun
) -> None:
    audit = _with_held_out(audit, source, run)
    config, work = audit.config, storage.basename(run.work)
    variants = audit.variants
    indexed = _index(audit, run)
    indexes = tuple(stored_index(indexed.files, run.output, work, variant) for variant in variants)
    ngrams = len(load_index(indexes[0]).hashes)
    _require_memory(ngrams, run.workers)
    require_scores(audit, indexes[0])
    tasks = [ScanTask(shard, indexes, config.held_out, run.output, work) for shard in source.shards]
    entries = run.map(scan_shard, tasks, phase="scan", work=True, total=source.records)
    run.once("scanned", lambda: _account(entries, work))
    own = _own_train(audit, indexes[0], run)
    held = Holdings.read(_named(entries, "matches-", run.output), ngrams)
    ignored = held.above(config.ignore_common)
    if config.write_clean == "corpus":
        _write_clean_corpus(source, indexes[0], ignored, run)

    def total(name: str) -> int:
        return int(sum(entry.counts[name] for entry in entries))

    corpus = Corpus(
        "exact",
        source.fingerprint,
        sum(entry.records_out for entry in entries),
        total("text_bytes"),
        None if config.ignore_common else total("overlapping_documents"),
    )

    def write() -> TaskResult:
        _require_unchanged(audit, fingerprints)
        report, files = make_report(audit, indexes[0], held, ignored, corpus, own)
        found = _found(variants, indexes, entries, held, run)
        if config.sensitivity:
            report["sensitivity"] = sensitivity_table(audit, variants, indexes, found)
        if audit.samples:
            report["samples"] = sample_figures(audit, indexes[-1], found[-1])
        if config.self_test:
            parts, index = parts_of(audit, indexes[0]), load_index(indexes[0])
            report["self_test"] = measure_recall(parts, config.example, index, source.shards, config.held_out)
        return _written(report, files, run.output)

    _announce_clean(audit, run)
    run.once("report", write, unit="examples")


def _report_from_index(
    audit: Audit, index: str, fingerprints: dict[str, str], output: str, options: RunOptions
) -> Summary:
    config = audit.config
    _refuse_what_needs_documents(config)
    answers = open_filter(index)
    answers.require(config.ngram, config.normalization)
    read = {"index": answers.fingerprint}
    with stage_run(STAGE, config, read, output, options, shard_inputs=fingerprints, global_phases=_PHASES) as run:
        if not run.finished:
            indexed, work = _index(audit, run), storage.basename(run.work)
            stored = [stored_index(indexed.files, output, work, variant) for variant in audit.variants]
            require_scores(audit, stored[0])
            own = _own_train(audit, stored[0], run)
            _require_unchanged(audit, fingerprints)
            _announce_clean(audit, run)
            run.once("probe", lambda: _probe(audit, answers, stored, own, run), unit="n-grams")
        return _finish(audit, run)


def _announce_clean(audit: Audit, run: StageRun) -> None:
    """Say which files the report writes in `clean/`, so that they are known for ours where the run is killed there."""
    if audit.config.write_clean == "benchmark":
        run.declare_outputs(clean_names(audit.benchmarks))


def _probe(
    audit: Audit,
    answers: Answers,
    stored: Sequence[StoredIndex],
    own: Mapping[str, npt.NDArray[np.bool_]],
    run: StageRun,
) -> TaskResult:
    held = Holdings(answers.contains(load_index(stored[0])))
    certificate = answers.certificate(audit.config.probes)
    corpus = Corpus(
        "bloom",
        answers.corpus,
        answers.documents,
        error_bound=certificate["error_bound"],
        certificate=certificate,
    )
    report, files = make_report(audit, stored[0], held, held.above(None), corpus, own)
    if audit.samples:
        report["samples"] = sample_figures(audit, stored[-1], answers.contains(load_index(stored[-1])))
    written = _written(report, files, run.output)
    return dataclasses.replace(written, records_in=answers.documents, records_out=answers.documents)


def _refuse_what_needs_documents(config: OverlapReportConfig) -> None:
    given = {
        "--ignore-common": config.ignore_common is not None,
        "--held-out": config.held_out > 0,
        "--sensitivity": config.sensitivity,
        "--self-test": config.self_test,
        "--write-clean corpus": config.write_clean == "corpus",
    }
    for flag, is_given in given.items():
        if is_given:
            raise UsageError(
                f"{flag} needs the documents, and with --index they are not read; leave one of the two out"
            )


def _with_held_out(audit: Audit, source: inputs.DocumentInput, run: StageRun) -> Audit:
    """Put held-out documents beside the samples, where there are samples."""
    share = audit.config.held_out
    if not audit.samples or not share:
        return audit
    work = storage.basename(run.work)
    tasks = [samples.HeldOutTask(shard, share, run.output, work) for shard in source.shards]
    entries = run.map(samples.sample_held_out, tasks, phase="held-out", work=True, total=source.records)
    paths = [storage.join(run.output, file.name) for entry in entries for file in entry.files]
    name = f"{work}/held-out.parquet"
    run.once("held-out-sample", lambda: samples.join_held_out(paths, run.output, name), work=True)
    held_out = parse_benchmarks([f"{samples.HELD_OUT}={storage.join(run.output, name)}"])
    return dataclasses.replace(audit, samples=(*audit.samples, *held_out))


def _index(audit: Audit, run: StageRun) -> ShardEntry:
    def write() -> TaskResult:
        work = storage.basename(run.work)
        return write_indexes(audit.benchmarks, audit.samples, audit.config.example, audit.variants, run.output, work)

    return run.once("benchmarks", write, work=True, unit="examples")


def _account(entries: Sequence[ShardEntry], work: str) -> TaskResult:
    """Make what the scanning tasks wrote part of the result; their work files are not."""
    written = (file for entry in entries for file in entry.files)
    return TaskResult(files=tuple(file for file in written if not file.name.startswith(f"{work}/")))


def _named(entries: Sequence[ShardEntry], prefix: str, output: str) -> list[str]:
    files = (file.name for entry in entries for file in entry.files)
    return [storage.join(output, name) for name in files if name.startswith(prefix)]


def _own_train(audit: Audit, index: StoredIndex, run: StageRun) -> dict[str, npt.NDArray[np.bool_]]:
    """Return which n-grams stand in the train splits of each benchmark that has one, by label."""
    work = storage.basename(run.work)
    labelled = [(label, train) for label, splits in audit.trains.items() for train in splits]
    tasks = [
        OwnTrainTask(number, train, audit.config.example, index, run.output, work)
        for number, (_, train) in enumerate(labelled)
    ]
    if not tasks:
        return {}
    entries = run.map(scan_own_train, tasks, phase="own-train", work=True, unit="examples")
    ngrams = len(load_index(index).hashes)
    paths: dict[str, list[str]] = {}
    for (label, _), entry in zip(labelled, entries, strict=True):
        paths.setdefault(label, []).append(storage.join(run.output, entry.files[0].name))
    return {label: read_found(each, ngrams) for label, each in paths.items()}


def _write_clean_corpus(
    source: inputs.DocumentInput,
    index: StoredIndex,
    ignored: npt.NDArray[np.bool_],
    run: StageRun,
) -> None:
    name = f"{storage.basename(run.work)}/{_IGNORED}"

    def write() -> TaskResult:
        data = io.BytesIO()
        np.lib.format.write_array(data, ignored, allow_pickle=False)
        return TaskResult(files=(shards.write_file(run.output, name, data.getvalue()),))

    run.once("ignored", write, work=True)
    tasks = [CleanTask(shard, index, name, run.output) for shard in source.shards]
    run.map(clean_shard, tasks, phase="clean", total=source.records)


def _found(
    variants: Sequence[Variant],
    indexes: Sequence[StoredIndex],
    entries: Sequence[ShardEntry],
    held: Holdings,
    run: StageRun,
) -> list[npt.NDArray[np.bool_]]:
    """Return which n-grams of each index the corpus holds."""
    work = storage.basename(run.work)
    found = [held.found]
    for variant, stored in zip(variants[1:], indexes[1:], strict=True):
        names = (found_name(work, number, variant.number) for number in range(len(entries)))
        paths = [storage.join(run.output, name) for name in names]
        found.append(read_found(paths, len(load_index(stored).hashes)))
    return found


def _written(report: dict[str, Any], files: Sequence[FileEntry], output: str) -> TaskResult:
    text = json.dumps(report, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    return TaskResult(
        files=(
            shards.write_file(output, REPORT, text.encode()),
            shards.write_file(output, PAGE, render_overlap_report(report).encode()),
            *files,
        )
    )


def _finish(audit: Audit, run: StageRun) -> Summary:
    """Finish the run; say of which benchmarks a large part could not overlap at all."""
    report = storage.read_json(storage.join(run.output, REPORT))
    for benchmark, row in zip(audit.benchmarks, report["benchmarks"], strict=True):
        if row["too_short"] > row["examples"] * _NOTED_TOO_SHORT:
            hint = (
                "; --example paragraph joins lines"
                if benchmark.is_plain_text and audit.config.example in ("auto", "line")
                else ""
            )
            run.note(
                f"{benchmark.label}: {row['too_short']:,} of {row['examples']:,} examples have fewer than "
                f"{audit.config.ngram} words, so they cannot overlap{hint}"
            )
    rows = [{name: value for name, value in row.items() if name not in _LONG} for row in report["benchmarks"]]
    return run.finish({"benchmarks": rows})
