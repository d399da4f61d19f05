"""Puts the report together: what report.json says, and the files beside it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pipelines.algorithms.ngrams.overlap_counts import distribution
from pipelines.algorithms.ngrams.words import describe
from pipelines.core.manifest import FileEntry
from pipelines.stages.overlap_report import results
from pipelines.stages.overlap_report.benchmarks import Benchmark
from pipelines.stages.overlap_report.clean_benchmarks import clean_folders, write_clean_benchmark
from pipelines.stages.overlap_report.config import OverlapReportConfig
from pipelines.stages.overlap_report.holdings import Holdings
from pipelines.stages.overlap_report.indexing import (
    StoredIndex,
    Variant,
    load_examples,
    load_index,
    read_extents,
    variants_of,
)
from pipelines.stages.overlap_report.samples import HELD_OUT, SAMPLES
from pipelines.stages.overlap_report.scores import read_scores, score_rows


@dataclasses.dataclass(frozen=True)
class Audit:
    """What is audited: the benchmarks, the train splits of some by label, the paths of scores, and the samples.

    `samples` are those of a model, and held-out documents to stand beside them.
    """

    config: OverlapReportConfig
    benchmarks: tuple[Benchmark, ...]
    trains: Mapping[str, Sequence[Benchmark]]
    scores: tuple[str, ...]
    samples: tuple[Benchmark, ...]

    @property
    def variants(self) -> list[Variant]:
        """The indexes that are made: first that of the report."""
        config = self.config
        return variants_of(
            config.ngram, config.normalization, sensitivity=config.sensitivity, samples=bool(self.samples)
        )


@dataclasses.dataclass(frozen=True)
class Corpus:
    """What the report says of the corpus, and how it was asked."""

    method: str
    fingerprint: str
    documents: int
    text_bytes: int | None = None
    overlapping: int | None = None
    error_bound: float = 0.0
    certificate: Mapping[str, Any] | None = None


def parts_of(audit: Audit, stored: StoredIndex) -> list[results.Audited]:
    """Return each benchmark's part of an index."""
    extents, _ = read_extents(stored.folder, stored.work, len(audit.benchmarks))
    return results.audited(audit.benchmarks, extents, load_examples(stored))


def require_scores(audit: Audit, stored: StoredIndex) -> None:
    """Raise InputError or UsageError now, before the corpus is read, for scores that do not fit their benchmark."""
    extents, _ = read_extents(stored.folder, stored.work, len(audit.benchmarks))
    examples = {each.label: extent.last - extent.first for each, extent in zip(audit.benchmarks, extents, strict=True)}
    read_scores(audit.scores, audit.benchmarks, examples)


def make_report(
    audit: Audit,
    stored: StoredIndex,
    held: Holdings,
    ignored: npt.NDArray[np.bool_],
    corpus: Corpus,
    own: Mapping[str, npt.NDArray[np.bool_]],
) -> tuple[dict[str, Any], list[FileEntry]]:
    """Return report.json without what comes from other indexes, and the files that were written beside it."""
    config, index = audit.config, load_index(stored)
    found = held.without(ignored)
    parts = parts_of(audit, stored)
    files = [results.write_hits(parts, index, held, found, stored.folder, stored.work)]
    counted = [each.counts(found) for each in parts]
    examples = {each.benchmark.label: len(counts.ngrams) for each, counts in zip(parts, counted, strict=True)}
    scores = read_scores(audit.scores, audit.benchmarks, examples)
    folders = clean_folders([each.label for each in audit.benchmarks])
    rows = []
    for each, counts in zip(parts, counted, strict=True):
        label = each.benchmark.label
        train = own[label] & ~ignored if label in own else None
        rows.append(
            {
                **results.benchmark_row(each.benchmark, counts),
                "own_train": None
                if train is None
                else results.own_train(_splits(audit.trains[label]), each.counts(train)),
                "paper": dataclasses.asdict(each.benchmark.paper) if each.benchmark.paper else None,
                "scores": score_rows(scores.get(label, {}), counts.overlapping, counts.tested),
                "passages": results.passages(each, config.example, config.ngram, config.normalization, held, found),
            }
        )
        if config.write_clean == "benchmark":
            folder = folders[each.number]
            clean = write_clean_benchmark(each.benchmark, config.example, counts.overlapping, stored.folder, folder)
            files += clean.files
            rows[-1]["clean"] = {"folder": folder, "kept": clean.kept, "left_out": clean.left_out}
    report = {
        "corpus": corpus.fingerprint,
        "method": corpus.method,
        "n": config.ngram,
        "normalisation": describe(config.normalization),
        "error_bound": corpus.error_bound,
        "options": {
            name: getattr(config, name) for name in ("apostrophes", "letters", "lines", "example", "ignore_common")
        },
        "documents": corpus.documents,
        "text_bytes": corpus.text_bytes,
        "documents_overlapping": corpus.overlapping,
        "benchmarks": rows,
        "common_ngrams": results.common_ngrams(parts, index, held),
        "ignored": results.ignored(parts, ignored, config.ignore_common) if config.ignore_common else None,
        "certificate": corpus.certificate,
        "sensitivity": None,
        "self_test": None,
        "samples": None,
    }
    return report, files


def _splits(trains: Sequence[Benchmark]) -> str:
    return ", ".join(str(train.split) for train in trains)


def sample_figures(audit: Audit, stored: StoredIndex, found: npt.NDArray[np.bool_]) -> dict[str, Any]:
    """Return how the samples, and held-out documents, are spread over shares of overlap. Appendix, figure 5."""
    _, extents = read_extents(stored.folder, stored.work, len(audit.benchmarks))
    sampled = results.audited(audit.samples, extents, load_examples(stored))
    by_name = {each.benchmark.name: distribution(each.counts(found)) for each in sampled}
    return {"samples": by_name[SAMPLES], "held_out": by_name.get(HELD_OUT)}


def sensitivity_table(
    audit: Audit,
    variants: Sequence[Variant],
    indexes: Sequence[StoredIndex],
    found: Sequence[npt.NDArray[np.bool_]],
) -> list[dict[str, Any]]:
    """Return a row for each way to count, by the words of an n-gram and then in the order of the options."""
    rows = [
        results.sensitivity_row(variant.n, variant.normalization, parts_of(audit, stored), flags)
        for variant, stored, flags in zip(variants, indexes, found, strict=True)
        if not variant.of_samples
    ]
    return sorted(
        rows, key=lambda row: (row["n"], row["apostrophes"] != "split", row["letters"] != "unicode", row["lines"])
    )
