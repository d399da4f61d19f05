"""Computes `report.json`, which `pipelines.reports.overlap` presents, and `hits.parquet`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines import progress
from pipelines.algorithms.columns import text_arrays
from pipelines.algorithms.ngrams.hashing import word_hashes
from pipelines.algorithms.ngrams.index import ngram_texts
from pipelines.algorithms.ngrams.overlap_counts import ExampleCounts, Flags, distribution, longest_runs, match_positions
from pipelines.algorithms.ngrams.words import describe
from pipelines.benchmark_sets.benchmarks import Benchmark, read_example_batches
from pipelines.engine.manifest import FileEntry
from pipelines.errors import InputError, UsageError
from pipelines.records import inputs, shards
from pipelines.records.schemas import make_schema
from pipelines.reports.overlap_text import column_values
from pipelines.stages.overlap_report.clean_benchmarks import clean_folders, write_clean_benchmark
from pipelines.stages.overlap_report.config import OverlapReportConfig
from pipelines.stages.overlap_report.indexing import IndexedBenchmark, Variant, load_examples, load_index
from pipelines.stages.overlap_report.scanning import HELD_OUT, CorpusMatches
from pipelines.stages.overlap_report.scores import Metrics, ScoreFile, score_rows

HITS = "hits.parquet"
SAMPLES = "samples"
HIT_SCHEMA = make_schema(
    benchmark="string", split="string?", example="int64", place="string", position="int64", ngram="string",
    count="int64?", documents="int64?", document_id="string?", url="string?",
)  # fmt: skip
_COMMON_NGRAMS = 30
_PASSAGES = 24
_CONTEXT_CHARACTERS = 240
_PASSAGE_CHARACTERS = 1500
_MAX_UTF8_BYTES = 4
_SHARES = ("percent_positions", "percent_distinct")


@dataclasses.dataclass(frozen=True)
class Audit:
    """What is audited: benchmarks, train splits by the label of their benchmark, scores, and samples.

    `samples` are those of a model, followed by held-out documents to compare them with.
    """

    config: OverlapReportConfig
    benchmarks: tuple[Benchmark, ...]
    trains: Mapping[str, Sequence[Benchmark]]
    scores: tuple[ScoreFile, ...]
    samples: tuple[Benchmark, ...]

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
        sources = {f"benchmark {benchmark.label}": benchmark for benchmark in self.benchmarks}
        for name, benchmark in [*sources.items(), *((SAMPLES, samples) for samples in self.samples[:1])]:
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
            "--write-clean corpus": config.write_clean == "corpus",
        }
        for flag, is_set in conflicts.items():
            if is_set:
                raise UsageError(f"{flag} needs the documents, which --index does not read; omit one of the two")


@dataclasses.dataclass(frozen=True)
class Findings:
    """The indexes, and which n-grams are in the corpus (`matches` of the first one, `other_flags` of the others).

    Also which n-grams of the first index, that of the report, are ignored, and are in the train splits of each label.
    """

    variants: Sequence[Variant]
    matches: CorpusMatches
    ignored: Flags
    own_train: Mapping[str, Flags]
    other_flags: Sequence[Flags]


def make_report(
    audit: Audit, findings: Findings, corpus: Mapping[str, Any], scores: Mapping[str, Metrics]
) -> tuple[dict[str, Any], list[FileEntry]]:
    """Return `report.json`, and the entries of the other files.

    `corpus` has the fields that describe the corpus and how it was searched.
    """
    config, matches, variant = audit.config, findings.matches, findings.variants[0]
    is_found = matches.is_found & ~findings.ignored
    benchmarks = load_examples(variant, audit.benchmarks)
    files = [_write_hits(benchmarks, config.example, variant, matches=matches, is_found=is_found)]
    rows = []
    folders = clean_folders([benchmark.label for benchmark in audit.benchmarks])
    for indexed, folder in zip(benchmarks, folders, strict=True):
        counts = indexed.counts(is_found)
        row = {
            **_benchmark_row(indexed, counts),
            "own_train": _own_train_row(indexed, audit, findings),
            "paper": dataclasses.asdict(indexed.benchmark.paper) if indexed.benchmark.paper else None,
            "scores": score_rows(scores.get(indexed.benchmark.label, {}), counts),
            "passages": longest_passages(indexed, config, matches, is_found),
        }
        if config.write_clean == "benchmark":
            clean = write_clean_benchmark(
                indexed.benchmark, config.example, overlapping=counts.overlapping, output=variant.output, folder=folder
            )
            files += clean.files
            row["clean"] = {"folder": folder, "kept": clean.kept, "left_out": clean.removed}
        rows.append(row)
    options = ("apostrophes", "letters", "lines", "example", "ignore_common")
    report = {
        **corpus,
        "n": config.ngram,
        "normalisation": describe(config.normalization),
        "options": {name: getattr(config, name) for name in options},
        "benchmarks": rows,
        "common_ngrams": _common_ngrams(benchmarks, variant, matches),
        "ignored": None
        if config.ignore_common is None
        else {
            "above_documents": config.ignore_common,
            "ngrams": int(findings.ignored.sum()),
            "positions": sum(int(indexed.counts(findings.ignored).overlaps.sum()) for indexed in benchmarks),
        },
        "sensitivity": _sensitivity_table(audit, findings) if config.sensitivity else None,
        "samples": _sample_figures(audit, findings) if audit.samples else None,
    }
    return report, files


def _write_hits(
    benchmarks: Sequence[IndexedBenchmark], example: str, variant: Variant, matches: CorpusMatches, is_found: Flags
) -> FileEntry:
    """Write `hits.parquet`: a row per position of a benchmark whose n-gram is found."""
    index = load_index(variant)
    with shards.write_shard(variant.output, HITS, HIT_SCHEMA) as hits:
        for indexed in benchmarks:
            for batch in read_example_batches(indexed.benchmark, example):
                first, last = indexed.words[[batch.first, batch.first + len(batch.texts)]]
                positions = first + match_positions(indexed.ids[first:last], is_found)
                rows, ids = len(positions), np.asarray(indexed.ids[positions], np.int64)
                examples = np.searchsorted(indexed.words, positions, side="right") - 1
                has_counts = matches.answers is None
                columns = [
                    pa.repeat(pa.scalar(indexed.benchmark.name, pa.string()), rows),
                    pa.repeat(pa.scalar(indexed.benchmark.split, pa.string()), rows),
                    pa.array(examples),
                    pa.array(batch.places, pa.string()).take(pa.array(examples - batch.first)),
                    pa.array(positions - indexed.words[examples]),
                    ngram_texts(index, ids),
                    pa.array(matches.counts[ids]) if has_counts else pa.nulls(rows, pa.int64()),
                    pa.array(matches.documents[ids]) if has_counts else pa.nulls(rows, pa.int64()),
                    *matches.first_sources(ids),
                ]
                hits.write_batch(pa.RecordBatch.from_arrays(columns, schema=HIT_SCHEMA))
                progress.advance(0)
    return hits.entry


def longest_passages(
    indexed: IndexedBenchmark, config: OverlapReportConfig, matches: CorpusMatches, is_found: Flags
) -> list[dict[str, Any]]:
    """Return the longest passages of a benchmark that are in the corpus, longest first."""
    runs = longest_runs(indexed.ids, indexed.words, is_found, _PASSAGES)
    runs_by_example: dict[int, list[int]] = {}
    for run, example in enumerate(runs.examples.tolist()):
        runs_by_example.setdefault(example, []).append(run)
    passages: dict[int, dict[str, Any]] = {}
    for batch in read_example_batches(indexed.benchmark, config.example):
        if len(passages) == len(runs.examples):
            break
        for example in runs_by_example.keys() & range(batch.first, batch.first + len(batch.texts)):
            row = example - batch.first
            data, (begin, end) = text_arrays(batch.texts.slice(row, 1))
            data = data[begin:end]
            example_words = word_hashes(data, np.array([0, len(data)]), config.normalization)
            for run in runs_by_example[example]:
                position, length = int(runs.positions[run]), int(runs.lengths[run])
                first, words = int(indexed.words[example]) + position, length + config.ngram - 1
                passages[run] = {
                    "example": example,
                    "place": batch.places[row],
                    "words": words,
                    "sources": matches.shared_sources(np.asarray(indexed.ids[first : first + length], np.int64)),
                    **_quote(data, int(example_words.starts[position]), int(example_words.ends[position + words - 1])),
                }
    return [passages[run] for run in range(len(passages))]


def _quote(data: npt.NDArray[np.uint8], start: int, end: int) -> dict[str, str]:
    """Return the passage from `start` to `end` of the bytes of an example, and the text around it."""
    # Slightly more than is shown, to detect whether the text continues.
    passage = _decode(data, start, min(end, start + _MAX_UTF8_BYTES * (_PASSAGE_CHARACTERS + 2)))
    context_bytes = _MAX_UTF8_BYTES * (_CONTEXT_CHARACTERS + 2)
    before, after = _decode(data, start - context_bytes, start), _decode(data, end, end + context_bytes)
    # A word that is cut is dropped, unless it is all of the context.
    if len(before) > _CONTEXT_CHARACTERS:
        before = "… " + before[-_CONTEXT_CHARACTERS:].split(" ", 1)[-1]
    if len(after) > _CONTEXT_CHARACTERS:
        after = after[:_CONTEXT_CHARACTERS].rsplit(" ", 1)[0] + " …"
    if len(passage) > _PASSAGE_CHARACTERS:
        passage = passage[:_PASSAGE_CHARACTERS] + "…"
    return {"before": before, "text": passage, "after": after}


def _decode(data: npt.NDArray[np.uint8], start: int, end: int) -> str:
    """Return the characters between two positions in UTF-8, without partial ones."""
    return data[max(0, start) : end].tobytes().decode("utf-8", "ignore")


def _sample_figures(audit: Audit, findings: Findings) -> dict[str, Any]:
    """Return the distribution of overlap over the samples and the held-out documents. Appendix, figure 5."""
    samples, is_found = load_examples(findings.variants[-1], audit.samples), findings.other_flags[-1]
    by_name = {indexed.benchmark.name: distribution(indexed.counts(is_found)) for indexed in samples}
    return {"samples": by_name[SAMPLES], "held_out": by_name.get(HELD_OUT)}


def _sensitivity_table(audit: Audit, findings: Findings) -> list[dict[str, Any]]:
    """Return a row per combination of options, sorted by the length of n-grams and then by the options."""
    rows = []
    for variant, flags in zip(findings.variants, [findings.matches.is_found, *findings.other_flags], strict=True):
        if not variant.of_samples:
            examples = load_examples(variant, audit.benchmarks)
            benchmarks = [_benchmark_row(indexed, indexed.counts(flags)) for indexed in examples]
            names = ("name", "split", "ngrams", *_SHARES)
            shares = [{name: row[name] for name in names} for row in benchmarks]
            rows.append({"n": variant.n, **dataclasses.asdict(variant.normalization), "benchmarks": shares})
    return sorted(
        rows, key=lambda row: (row["n"], row["apostrophes"] != "split", row["letters"] != "unicode", row["lines"])
    )


def _benchmark_row(indexed: IndexedBenchmark, counts: ExampleCounts) -> dict[str, Any]:
    return {
        "name": indexed.benchmark.name,
        "split": indexed.benchmark.split,
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
    benchmarks: Sequence[IndexedBenchmark], variant: Variant, matches: CorpusMatches
) -> list[dict[str, Any]]:
    """Return the n-grams that are in the most documents, which are usually boilerplate."""
    counts, documents = matches.counts, matches.documents
    shared = np.flatnonzero(documents > 1)
    # Ties are broken by text, so that the order does not depend on hashes; the first cut is by numbers alone.
    most = shared[np.lexsort((-counts[shared], -documents[shared]))][: 4 * _COMMON_NGRAMS]
    texts = dict(zip(most.tolist(), ngram_texts(load_index(variant), most).to_pylist(), strict=True))
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
