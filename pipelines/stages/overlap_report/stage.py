"""Looks up every n-gram of the benchmarks in the corpus, or in its Bloom filter, and writes the report.

With the corpus the audit is exact: the benchmarks' n-grams are few, so they are held in memory, as strings, and the
corpus streams past them once.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from pipelines.algorithms.ngrams import NORMALISATION, ngrams, words
from pipelines.algorithms.overlap import Match, Tally
from pipelines.algorithms.pybloom_filter import false_positive_rate
from pipelines.core import inputs, progress, shards, storage
from pipelines.core.document_filter import urls_of
from pipelines.core.drops import Drops
from pipelines.core.errors import InputError, UsageError
from pipelines.core.manifest import FileEntry
from pipelines.core.records import DROPPED_SCHEMA
from pipelines.core.run import RunOptions, Stage, StageRun, Summary, TaskResult, stage_run
from pipelines.reports.overlap import BenchmarkView, render_overlap
from pipelines.stages.overlap_report.benchmarks import Benchmark, parse_benchmarks, read_examples
from pipelines.stages.overlap_report.config import OverlapReportConfig

STAGE = Stage("overlap-report", 1, ("report.json", "report.html", "hits.parquet"))

REPORT, HITS, PAGE = "report.json", "hits.parquet", "report.html"
_SHOWN_PASSAGES = 12
_NOTED_TOO_SHORT = 0.25

NGRAM_SCHEMA = pa.schema([pa.field("ngram", pa.string(), nullable=False)])
MATCH_SCHEMA = pa.schema(
    [
        pa.field("ngram", pa.string(), nullable=False),
        pa.field("count", pa.int64()),
        pa.field("document_id", pa.string()),
        pa.field("url", pa.string()),
    ]
)
HIT_SCHEMA = pa.schema(
    [
        pa.field("benchmark", pa.string(), nullable=False),
        pa.field("split", pa.string()),
        pa.field("example", pa.int64(), nullable=False),
        pa.field("place", pa.string(), nullable=False),
        pa.field("position", pa.int64(), nullable=False),
        *MATCH_SCHEMA,
    ]
)


@dataclasses.dataclass(frozen=True)
class _ScanTask:
    shard: inputs.DocumentShard
    ngram: int
    ngrams_path: str
    ngrams_sha256: str
    output: str

    @property
    def name(self) -> str:
        return self.shard.name


@dataclasses.dataclass(frozen=True)
class _Method:
    """What the report says of how it was made."""

    name: str
    corpus: str
    error_bound: float


def overlap_report(
    config: OverlapReportConfig,
    *,
    documents: str | Sequence[str] | None,
    benchmarks: Sequence[str],
    output: str,
    options: RunOptions,
    index: str | None = None,
) -> Summary:
    """Write `report.json`, `report.html`, `hits.parquet`, and `matches-N.parquet` for each shard of the documents.

    `benchmarks` are strings `NAME[/SPLIT][:FIELD]=PATH`. With `index`, the folder of overlap-index, its Bloom filter
    answers in the documents' place, and `documents` is not read. The summary's `benchmarks` are those of the report.
    Raises UsageError for a benchmark of another form, InputError for one without an example that is long enough.
    Paper, section 4.
    """
    parsed = parse_benchmarks(benchmarks)
    fingerprints = {f"benchmark {each.label}": each.fingerprint for each in parsed}
    fingerprints["benchmarks"] = " ".join(each.label for each in parsed)
    if index is not None:
        return _report_from_index(config, index, parsed, fingerprints, output, options)
    if documents is None:
        raise UsageError("overlap-report: neither documents nor an index are given; name one with --input or --index")
    source = inputs.open_documents(documents, config.text_field)
    with stage_run(STAGE, config, {**fingerprints, "documents": source.fingerprint}, output, options) as run:
        if not run.finished:
            wanted = _collect_ngrams(config, parsed, run)
            path = storage.join(output, wanted.name)
            tasks = [_ScanTask(shard, config.ngram, path, wanted.sha256, output) for shard in source.shards]
            entries = run.map(_scan_shard, tasks, phase="scan", total=source.records)
            matches = [file for entry in entries for file in entry.files if file.name.startswith("matches-")]
            method = _Method("exact", source.fingerprint, 0.0)
            run.once("report", lambda: _report(config, parsed, matches, method, output), unit="examples")
        return _finish(config, parsed, run)


def _report_from_index(
    config: OverlapReportConfig,
    index: str,
    benchmarks: list[Benchmark],
    fingerprints: dict[str, str],
    output: str,
    options: RunOptions,
) -> Summary:
    folder = inputs.open_stage(index, ("overlap-index",))
    description_file, index_file = folder.file("index.json"), folder.file("index.bloom")
    description_file.verify()
    description = storage.read_json(description_file.path)
    if description["format"] != "pybloom-live":
        raise InputError(f"{index}: is asked by a later version only; make it with --filter pybloom-live")
    if description["n"] != config.ngram:
        raise UsageError(f"{index}: holds {description['n']}-grams; ask for them with --ngram {description['n']}")
    with stage_run(STAGE, config, {**fingerprints, "index": folder.fingerprint}, output, options) as run:
        if not run.finished:
            run.note(f"the index takes {index_file.size_bytes / 1e6:,.1f} MB of memory")
            wanted = _collect_ngrams(config, benchmarks, run)
            documents = folder.manifest.records_out
            path = storage.join(output, wanted.name)
            entry = run.once("probe", lambda: _probe(index_file, path, documents, output), unit="n-grams")
            method = _Method("bloom", description["corpus"], entry.counts["error_bound"])
            matches = list(entry.files)
            run.once("report", lambda: _report(config, benchmarks, matches, method, output), unit="examples")
        return _finish(config, benchmarks, run)


def _finish(config: OverlapReportConfig, benchmarks: list[Benchmark], run: StageRun) -> Summary:
    """Finish the run; say of which benchmarks a large part could not overlap at all."""
    rows = storage.read_json(storage.join(run.output, REPORT))["benchmarks"]
    for benchmark, row in zip(benchmarks, rows, strict=True):
        if row["too_short"] > row["examples"] * _NOTED_TOO_SHORT:
            hint = "; --txt-example paragraph joins lines" if benchmark.files[0].endswith(".txt") else ""
            run.note(
                f"{benchmark.label}: {row['too_short']:,} of {row['examples']:,} examples have fewer than "
                f"{config.ngram} words, so they cannot overlap{hint}"
            )
    return run.finish({"benchmarks": rows})


def _collect_ngrams(config: OverlapReportConfig, benchmarks: list[Benchmark], run: StageRun) -> FileEntry:
    name = storage.join(storage.basename(run.work), "ngrams.parquet")
    entry = run.once(
        "benchmarks", lambda: _write_ngrams(config, benchmarks, run.output, name), work=True, unit="examples"
    )
    return entry.files[0]


def _write_ngrams(config: OverlapReportConfig, benchmarks: list[Benchmark], output: str, name: str) -> TaskResult:
    """Write the distinct n-grams of all benchmarks; refuse a benchmark that has none."""
    seen: set[str] = set()
    with shards.write_shard(output, name, NGRAM_SCHEMA) as shard:
        for benchmark in benchmarks:
            examples = longest = 0
            for example in read_examples(benchmark, config.txt_example):
                text_words = words(example.text)
                examples += 1
                longest = max(longest, len(text_words))
                for ngram in ngrams(text_words, config.ngram):
                    if ngram not in seen:
                        seen.add(ngram)
                        shard.writer.write({"ngram": ngram})
                progress.advance()
            _require_long_examples(config, benchmark, examples, longest)
    return TaskResult(files=(shard.entry,))


def _require_long_examples(config: OverlapReportConfig, benchmark: Benchmark, examples: int, longest: int) -> None:
    if not examples:
        raise InputError(f"{benchmark.files[0]}: the benchmark {benchmark.label} is empty: it holds no example at all")
    if longest < config.ngram:
        raise InputError(
            f"{benchmark.files[0]}: all {examples} examples of the benchmark {benchmark.label} are too short: the "
            f"longest has {longest} words, an n-gram needs {config.ngram}; lower --ngram"
            + (", or see --txt-example" if benchmark.files[0].endswith(".txt") else "")
        )


@functools.lru_cache(maxsize=1)
def _wanted_ngrams(path: str, sha256: str) -> frozenset[str]:
    """Return the benchmarks' n-grams, read once in a process; `sha256` tells one file of a path from the next."""
    if storage.sha256_of(path) != sha256:
        raise InputError(f"{path}: was changed while documents were scanned; run `webtext overlap-report` again")
    return frozenset(row["ngram"] for row in shards.read_rows(path))


def _scan_shard(task: _ScanTask) -> TaskResult:
    """Write which of the benchmarks' n-grams a shard holds, how often, and the first document with each."""
    wanted = _wanted_ngrams(task.ngrams_path, task.ngrams_sha256)
    found: dict[str, Match] = {}
    documents = seen = 0
    with (
        shards.write_shard(task.output, shards.shard_name("matches", task.shard.index), MATCH_SCHEMA) as matches,
        shards.write_shard(task.output, shards.shard_name("dropped", task.shard.index), DROPPED_SCHEMA) as dropped,
    ):
        drops = Drops(dropped.writer)
        for batch in inputs.read_documents(task.shard, drops):
            texts = batch.column("text").to_pylist()
            for id, url, text in zip(batch.column("id").to_pylist(), urls_of(batch), texts, strict=True):
                seen += _look_up(text, task.ngram, wanted, Match(0, id, url), found)
                documents += 1
                progress.advance()
        for ngram, match in found.items():
            matches.writer.write({"ngram": ngram, **_match_fields(match)})
    return TaskResult(
        records_in=inputs.documents_read(drops, documents),
        records_out=documents,
        dropped=drops.counts,
        counts={"corpus_ngrams": seen},
        files=(matches.entry, dropped.entry),
    )


def _look_up(text: str, n: int, wanted: frozenset[str], here: Match, found: dict[str, Match]) -> int:
    """Add the n-grams of a document that are wanted to `found`; return how many n-grams the document has."""
    text_words = words(text)
    for ngram in ngrams(text_words, n):
        if ngram in wanted:
            known = found.get(ngram, here)
            found[ngram] = dataclasses.replace(known, count=(known.count or 0) + 1)
    return max(0, len(text_words) - n + 1)


def _probe(index: inputs.InputFile, ngrams_path: str, documents: int, output: str) -> TaskResult:
    """Write which of the benchmarks' n-grams a Bloom filter says that it holds."""
    from pybloom_live import BloomFilter

    index.verify()
    with storage.open_read(index.path) as stream:
        bloom = BloomFilter.fromfile(stream)
    with shards.write_shard(output, shards.shard_name("matches", 0), MATCH_SCHEMA) as matches:
        for row in shards.read_rows(ngrams_path):
            if row["ngram"] in bloom:
                matches.writer.write({"ngram": row["ngram"], **_match_fields(Match())})
            progress.advance()
    return TaskResult(
        records_in=documents,
        records_out=documents,
        counts={"error_bound": false_positive_rate(bloom)},
        files=(matches.entry,),
    )


def _report(
    config: OverlapReportConfig, benchmarks: list[Benchmark], files: list[FileEntry], method: _Method, output: str
) -> TaskResult:
    matches = _read_matches([storage.join(output, file.name) for file in files])
    views = []
    with shards.write_shard(output, HITS, HIT_SCHEMA) as hits:
        for benchmark in benchmarks:
            tally = Tally(config.ngram)
            for example in read_examples(benchmark, config.txt_example):
                for position, ngram, match in tally.add(example.place, example.text, matches):
                    where = {"example": example.number, "place": example.place, "position": position, "ngram": ngram}
                    name = {"benchmark": benchmark.name, "split": benchmark.split}
                    hits.writer.write({**name, **where, **_match_fields(match)})
                progress.advance()
            row = tally.row(benchmark.name, benchmark.split)
            views.append(BenchmarkView(row, tuple(tally.histogram), tuple(tally.longest_passages(_SHOWN_PASSAGES))))
    report = {
        "corpus": method.corpus,
        "method": method.name,
        "n": config.ngram,
        "normalisation": NORMALISATION,
        "error_bound": method.error_bound,
        "benchmarks": [dict(view.row) for view in views],
    }
    text = json.dumps(report, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    return TaskResult(
        files=(
            shards.write_file(output, REPORT, text.encode()),
            shards.write_file(output, PAGE, render_overlap(report, views).encode()),
            hits.entry,
        )
    )


def _read_matches(paths: list[str]) -> dict[str, Match]:
    """Join the shards' matches: counts are added, and the first shard's document stands."""
    joined: dict[str, Match] = {}
    for path in paths:
        for row in shards.read_rows(path):
            ngram = row.pop("ngram")
            known = joined.get(ngram)
            count = row["count"] if known is None else (known.count or 0) + row["count"]
            joined[ngram] = dataclasses.replace(known or Match(**row), count=count)
    return joined


def _match_fields(match: Match) -> dict[str, Any]:
    return {"count": match.count, "document_id": match.document_id, "url": match.url}
