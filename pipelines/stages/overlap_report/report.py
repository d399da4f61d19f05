"""Computes `report.json`; `pipelines.reports.overlap` presents it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pipelines.algorithms.ngrams.overlap_counts import ExampleCounts, distribution
from pipelines.algorithms.ngrams.words import describe
from pipelines.benchmark_sets.benchmarks import Benchmark
from pipelines.engine.manifest import FileEntry
from pipelines.errors import InputError, UsageError
from pipelines.records import inputs
from pipelines.reports.overlap_columns import column_values
from pipelines.stages.overlap_report.clean_benchmarks import clean_folders, write_clean_benchmark
from pipelines.stages.overlap_report.config import OverlapReportConfig
from pipelines.stages.overlap_report.corpus_matches import CorpusMatches
from pipelines.stages.overlap_report.hits import write_hits
from pipelines.stages.overlap_report.indexing import (
    Flags,
    IndexedBenchmark,
    StoredIndex,
    Variant,
    list_variants,
    load_benchmarks,
    load_samples,
    ngram_texts,
)
from pipelines.stages.overlap_report.passages import longest_passages
from pipelines.stages.overlap_report.samples import HELD_OUT, SAMPLES
from pipelines.stages.overlap_report.scores import Metrics, ScoreFile, score_rows

_COMMON_NGRAMS = 30
_SHARES = ("percent_positions", "percent_distinct")


@dataclasses.dataclass(frozen=True)
class Audit:
    """What is audited: the benchmarks, the train splits of some by label, the scores, and the samples.

    `samples` are those of a model, and held-out documents to compare them with.
    """

    config: OverlapReportConfig
    benchmarks: tuple[Benchmark, ...]
    trains: Mapping[str, Sequence[Benchmark]]
    scores: tuple[ScoreFile, ...]
    samples: tuple[Benchmark, ...]

    @property
    def variants(self) -> list[Variant]:
        """The indexes to build: first that of the report."""
        config = self.config
        return list_variants(
            config.ngram, config.normalization, sensitivity=config.sensitivity, samples=bool(self.samples)
        )

    def fingerprints(self) -> dict[str, str]:
        """Return the fingerprints of everything that is audited, by name."""
        trains = [train for splits in self.trains.values() for train in splits]
        return {
            **{f"benchmark {benchmark.label}": benchmark.fingerprint for benchmark in (*self.benchmarks, *trains)},
            **({SAMPLES: self.samples[0].fingerprint} if self.samples else {}),
            **{
                f"scores {number} {file.name}": inputs.fingerprint_files([file.path])
                for number, file in enumerate(self.scores)
            },
            "benchmarks": " ".join(benchmark.label for benchmark in self.benchmarks),
        }

    def check_unchanged(self, fingerprints: Mapping[str, str]) -> None:
        """Raise InputError if a file that is read again for the report was changed since it was indexed."""
        named = [(f"benchmark {benchmark.label}", benchmark) for benchmark in self.benchmarks]
        for name, benchmark in [*named, *((SAMPLES, benchmark) for benchmark in self.samples[:1])]:
            if benchmark.hub is None and benchmark.fingerprint != fingerprints[name]:
                raise InputError(
                    f"{benchmark.source}: was changed during the run; re-run the same command to read it again"
                )

    def check_needs_no_documents(self) -> None:
        """Raise UsageError for options that need the documents, which are not read with `--index`."""
        config = self.config
        conflicts = {
            "--ignore-common": config.ignore_common is not None,
            "--held-out": config.held_out > 0,
            "--sensitivity": config.sensitivity,
            "--self-test": config.self_test,
            "--write-clean corpus": config.write_clean == "corpus",
        }
        for flag, is_set in conflicts.items():
            if is_set:
                raise UsageError(f"{flag} needs the documents, but --index does not read them; remove one of the two")


@dataclasses.dataclass(frozen=True)
class Corpus:
    """The corpus in the report, and the method by which it was searched."""

    method: str
    fingerprint: str
    documents: int
    text_bytes: int | None = None
    overlapping: int | None = None
    error_bound: float = 0.0
    certificate: Mapping[str, Any] | None = None


@dataclasses.dataclass(frozen=True)
class Findings:
    """The n-grams of the report's index in the corpus, those to ignore, and those in the train splits, by label."""

    matches: CorpusMatches
    ignored: Flags
    own_train: Mapping[str, Flags]

    @property
    def counted(self) -> Flags:
        """The n-grams that are found and not ignored."""
        return self.matches.found & ~self.ignored


def make_report(
    audit: Audit, stored: StoredIndex, findings: Findings, corpus: Corpus, scores: Mapping[str, Metrics]
) -> tuple[dict[str, Any], list[FileEntry]]:
    """Return `report.json`, without what needs other indexes, and the other files that were written."""
    config = audit.config
    benchmarks = load_benchmarks(stored, audit.benchmarks)
    files = [write_hits(benchmarks, stored, findings.matches, findings.counted)]
    rows = []
    folders = clean_folders([benchmark.label for benchmark in audit.benchmarks])
    for indexed, folder in zip(benchmarks, folders, strict=True):
        counts = indexed.counts(findings.counted)
        rows.append(
            {
                **_benchmark_row(indexed, counts),
                "own_train": _own_train_row(indexed, audit, findings),
                "paper": dataclasses.asdict(indexed.benchmark.paper) if indexed.benchmark.paper else None,
                "scores": score_rows(scores.get(indexed.benchmark.label, {}), counts),
                "passages": longest_passages(indexed, config, findings.matches, findings.counted),
            }
        )
        if config.write_clean == "benchmark":
            clean = write_clean_benchmark(
                indexed.benchmark, config.example, overlapping=counts.overlapping, output=stored.output, folder=folder
            )
            files += clean.files
            rows[-1]["clean"] = {"folder": folder, "kept": clean.kept, "left_out": clean.removed}
    options = ("apostrophes", "letters", "lines", "example", "ignore_common")
    report = {
        "corpus": corpus.fingerprint,
        "method": corpus.method,
        "n": config.ngram,
        "normalisation": describe(config.normalization),
        "error_bound": corpus.error_bound,
        "options": {name: getattr(config, name) for name in options},
        "documents": corpus.documents,
        "text_bytes": corpus.text_bytes,
        "documents_overlapping": corpus.overlapping,
        "benchmarks": rows,
        "common_ngrams": _common_ngrams(benchmarks, stored, findings.matches),
        "ignored": _ignored_row(benchmarks, findings.ignored, config.ignore_common),
        "certificate": corpus.certificate,
        "sensitivity": None,
        "self_test": None,
        "samples": None,
    }
    return report, files


def sample_figures(audit: Audit, stored: StoredIndex, found: Flags) -> dict[str, Any]:
    """Return the distribution of overlap over the samples and the held-out documents. Appendix, figure 5."""
    samples = load_samples(stored, audit.samples)
    by_name = {indexed.benchmark.name: distribution(indexed.counts(found)) for indexed in samples}
    return {"samples": by_name[SAMPLES], "held_out": by_name.get(HELD_OUT)}


def sensitivity_table(
    audit: Audit, variants: Sequence[Variant], indexes: Sequence[StoredIndex], found: Sequence[Flags]
) -> list[dict[str, Any]]:
    """Return a row per way to count, by the words of an n-gram and then in the order of the options."""
    rows = []
    for variant, stored, flags in zip(variants, indexes, found, strict=True):
        if not variant.of_samples:
            benchmarks = [
                _benchmark_row(indexed, indexed.counts(flags)) for indexed in load_benchmarks(stored, audit.benchmarks)
            ]
            names = ("name", "split", "ngrams", *_SHARES)
            shares = [{name: row[name] for name in names} for row in benchmarks]
            rows.append({"n": variant.n, **dataclasses.asdict(variant.normalization), "benchmarks": shares})
    return sorted(
        rows, key=lambda row: (row["n"], row["apostrophes"] != "split", row["letters"] != "unicode", row["lines"])
    )


def _benchmark_row(indexed: IndexedBenchmark, counts: ExampleCounts) -> dict[str, Any]:
    names = {"name": indexed.benchmark.name, "split": indexed.benchmark.split}
    return {
        **names,
        **column_values(counts),
        "overlapping": int(counts.overlaps.sum()),
        "histogram": counts.histogram(),
    }


def _own_train_row(indexed: IndexedBenchmark, audit: Audit, findings: Findings) -> dict[str, Any] | None:
    """Return the overlap of a benchmark with its own train split: the first row of the paper's Table 6."""
    label = indexed.benchmark.label
    if label not in findings.own_train:
        return None
    splits = ", ".join(str(train.split) for train in audit.trains[label])
    row = _benchmark_row(indexed, indexed.counts(findings.own_train[label] & ~findings.ignored))
    return {"split": splits, **{name: row[name] for name in ("overlapping", *_SHARES)}}


def _common_ngrams(
    benchmarks: Sequence[IndexedBenchmark], stored: StoredIndex, matches: CorpusMatches
) -> list[dict[str, Any]]:
    """Return the n-grams that most documents share: usually boilerplate."""
    counts, documents = matches.counts, matches.documents
    if counts is None or documents is None:
        return []
    shared = np.flatnonzero(documents > 1)
    # Ties are broken by text, so that the order does not depend on hashes; the first cut is by numbers alone.
    most = shared[np.lexsort((-counts[shared], -documents[shared]))][: 4 * _COMMON_NGRAMS]
    texts = dict(zip(most.tolist(), ngram_texts(stored, most).to_pylist(), strict=True))
    ids = sorted(texts, key=lambda id: (-documents[id], -counts[id], texts[id]))[:_COMMON_NGRAMS]
    return [
        {
            "ngram": texts[id],
            "documents": int(documents[id]),
            "count": int(counts[id]),
            "benchmarks": [indexed.benchmark.label for indexed in benchmarks if (indexed.ids == id).any()],
        }
        for id in ids
    ]


def _ignored_row(
    benchmarks: Sequence[IndexedBenchmark], ignored: Flags, ignore_common: int | None
) -> dict[str, int] | None:
    if ignore_common is None:
        return None
    positions = sum(int(indexed.counts(ignored).overlaps.sum()) for indexed in benchmarks)
    return {"above_documents": ignore_common, "ngrams": int(ignored.sum()), "positions": positions}
