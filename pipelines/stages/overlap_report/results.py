"""What is said of each benchmark: its figures, its longest passages, its hits."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.algorithms.ngrams.hashing import word_hashes
from pipelines.algorithms.ngrams.index import NgramIndex
from pipelines.algorithms.ngrams.index_builder import Examples
from pipelines.algorithms.ngrams.overlap_counts import ExampleCounts, Runs, count_examples, longest_runs
from pipelines.algorithms.ngrams.words import Normalization
from pipelines.core import progress, shards, storage
from pipelines.core.manifest import FileEntry
from pipelines.core.text_columns import text_arrays
from pipelines.reports.overlap_columns import column_values
from pipelines.stages.overlap_report.benchmarks import Benchmark, read_example_batches
from pipelines.stages.overlap_report.holdings import Holdings
from pipelines.stages.overlap_report.indexing import Extent, places_name
from pipelines.stages.overlap_report.ngram_texts import ngram_texts

HIT_SCHEMA = pa.schema(
    [
        pa.field("benchmark", pa.string(), nullable=False),
        pa.field("split", pa.string()),
        pa.field("example", pa.int64(), nullable=False),
        pa.field("place", pa.string(), nullable=False),
        pa.field("position", pa.int64(), nullable=False),
        pa.field("ngram", pa.string(), nullable=False),
        pa.field("count", pa.int64()),
        pa.field("documents", pa.int64()),
        pa.field("document_id", pa.string()),
        pa.field("url", pa.string()),
    ]
)
_PASSAGES = 24
_COMMON = 30
_CONTEXT_CHARACTERS = 240
_PASSAGE_CHARACTERS = 1500
_HITS_WRITTEN = 65_536
# The most that a character takes in UTF-8.
_CHARACTER_BYTES = 4

Spans = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]


@dataclasses.dataclass(frozen=True)
class Audited:
    """A benchmark as it lies in the index: the n-grams that its words begin, and where its examples begin in them."""

    benchmark: Benchmark
    number: int
    ids: npt.NDArray[Any]
    words: npt.NDArray[np.int64]

    def counts(self, found: npt.NDArray[np.bool_]) -> ExampleCounts:
        """Count the n-grams of each example, and those that are found."""
        return count_examples(self.ids, self.words, found)


def audited(benchmarks: Sequence[Benchmark], extents: Sequence[Extent], examples: Examples) -> list[Audited]:
    """Return each benchmark's part of the index."""
    parts = []
    for number, (benchmark, extent) in enumerate(zip(benchmarks, extents, strict=True)):
        words = np.asarray(examples.words[extent.first : extent.last + 1])
        parts.append(Audited(benchmark, number, examples.ids[words[0] : words[-1]], words - words[0]))
    return parts


def benchmark_row(benchmark: Benchmark, counts: ExampleCounts) -> dict[str, Any]:
    """Return the figures of a benchmark."""
    names = {"name": benchmark.name, "split": benchmark.split}
    return {**names, **column_values(counts), "overlapping": int(counts.found.sum()), "histogram": counts.histogram()}


def own_train(split: str | None, counts: ExampleCounts) -> dict[str, Any]:
    """Return how much of a benchmark its own train split contains: the first row of the paper's Table 6."""
    values = column_values(counts)
    shares = {name: values[name] for name in ("percent_positions", "percent_distinct")}
    return {"split": split, "overlapping": int(counts.found.sum()), **shares}


def passages(
    each: Audited, example: str, n: int, normalization: Normalization, held: Holdings, found: npt.NDArray[np.bool_]
) -> list[dict[str, Any]]:
    """Return the longest passages of a benchmark that the corpus holds, with what stands around each, longest first."""
    runs = longest_runs(each.ids, each.words, found, _PASSAGES)
    found_in = runs.examples.tolist()
    rows: dict[int, dict[str, Any]] = {}
    for example_number, text, place in _texts_of(each.benchmark, example, set(found_in)):
        data, words = _words_of(text, normalization)
        for number in (number for number, found_there in enumerate(found_in) if found_there == example_number):
            rows[number] = _passage(each, n, held, runs, number, data, words, place)
    return [rows[number] for number in range(len(found_in))]


def write_hits(
    parts: Sequence[Audited], index: NgramIndex, held: Holdings, found: npt.NDArray[np.bool_], output: str, work: str
) -> FileEntry:
    """Write a row for each position that overlaps."""
    with shards.write_shard(output, "hits.parquet", HIT_SCHEMA) as hits:
        for each in parts:
            places = _places(output, work, each.number)
            at = np.flatnonzero((each.ids >= 0) & found[np.maximum(each.ids, 0)])
            for start in range(0, len(at), _HITS_WRITTEN):
                hits.writer.write_batch(_hit_rows(each, index, held, places, at[start : start + _HITS_WRITTEN]))
                progress.advance(0)
    return hits.entry


def common_ngrams(parts: Sequence[Audited], index: NgramIndex, held: Holdings) -> list[dict[str, Any]]:
    """Return the n-grams that the most documents share: boilerplate, as a rule."""
    if held.counts is None or held.documents is None:
        return []
    several = np.flatnonzero(held.documents > 1)
    # By text where documents and counts are equal, so that the order does not hang on hashes.
    most = several[np.lexsort((-held.counts[several], -held.documents[several]))][: 4 * _COMMON]
    texts = ngram_texts(index, most).to_pylist()
    rows = sorted(zip(most.tolist(), texts, strict=True), key=lambda row: _most_first(held, *row))[:_COMMON]
    return [
        {
            "ngram": text,
            "documents": int(held.documents[id]),
            "count": int(held.counts[id]),
            "benchmarks": [each.benchmark.label for each in parts if (each.ids == id).any()],
        }
        for id, text in rows
    ]


def ignored(parts: Sequence[Audited], flags: npt.NDArray[np.bool_], above: int) -> dict[str, int]:
    """Return what was left out of the figures as standing in too many documents."""
    positions = sum(int(each.counts(flags).found.sum()) for each in parts)
    return {"above_documents": above, "ngrams": int(flags.sum()), "positions": positions}


def sensitivity_row(
    n: int, normalization: Normalization, parts: Sequence[Audited], found: npt.NDArray[np.bool_]
) -> dict[str, Any]:
    """Return the shares of all benchmarks for one way to count."""
    rows = [benchmark_row(each.benchmark, each.counts(found)) for each in parts]
    kept = ("name", "split", "ngrams", "percent_positions", "percent_distinct")
    return {
        "n": n,
        **dataclasses.asdict(normalization),
        "benchmarks": [{name: row[name] for name in kept} for row in rows],
    }


def _most_first(held: Holdings, id: int, text: str) -> tuple[int, int, str]:
    assert held.counts is not None
    assert held.documents is not None
    return (-int(held.documents[id]), -int(held.counts[id]), text)


def _places(output: str, work: str, number: int) -> pa.ChunkedArray:
    path = storage.join(output, places_name(work, number))
    return pa.chunked_array([batch.column("place") for batch in shards.read_batches(path)], pa.string())


def _hit_rows(
    each: Audited, index: NgramIndex, held: Holdings, places: pa.ChunkedArray, at: npt.NDArray[np.int64]
) -> pa.RecordBatch:
    ids = np.asarray(each.ids[at], np.int64)
    examples = np.searchsorted(each.words, at, side="right") - 1
    document_ids, urls = held.first_sources(ids)
    rows = len(at)
    columns = [
        pa.repeat(pa.scalar(each.benchmark.name, pa.string()), rows),
        pa.repeat(pa.scalar(each.benchmark.split, pa.string()), rows),
        pa.array(examples),
        places.take(pa.array(examples)).combine_chunks(),
        pa.array(at - each.words[examples]),
        ngram_texts(index, ids),
        pa.nulls(rows, pa.int64()) if held.counts is None else pa.array(held.counts[ids]),
        pa.nulls(rows, pa.int64()) if held.documents is None else pa.array(held.documents[ids]),
        document_ids,
        urls,
    ]
    return pa.RecordBatch.from_arrays(columns, schema=HIT_SCHEMA)


def _texts_of(benchmark: Benchmark, example: str, wanted: set[int]) -> Iterator[tuple[int, pa.StringArray, str]]:
    """Yield some examples: the number, the text, as a column of it alone, and the place."""
    left = len(wanted)
    if not left:
        return
    for batch in read_example_batches(benchmark, example):
        for number in sorted(wanted.intersection(range(batch.first, batch.first + len(batch.texts)))):
            yield number, batch.texts.slice(number - batch.first, 1), batch.places[number - batch.first]
            left -= 1
        if not left:
            return


def _words_of(text: pa.StringArray, normalization: Normalization) -> tuple[npt.NDArray[np.uint8], Spans]:
    """Return the bytes of a text, and where each word begins and ends in them."""
    data, starts = text_arrays(text)
    first, last = int(starts[0]), int(starts[-1])
    alone = data[first:last]
    words = word_hashes(alone, np.array([0, last - first], np.int64), normalization)
    return alone, (words.starts, words.ends)


def _passage(
    each: Audited,
    n: int,
    held: Holdings,
    runs: Runs,
    number: int,
    data: npt.NDArray[np.uint8],
    spans: Spans,
    place: str,
) -> dict[str, Any]:
    example, position, length = (int(column[number]) for column in runs)
    word_count = length + n - 1
    start, end = int(spans[0][position]), int(spans[1][position + word_count - 1])
    at = int(each.words[example]) + position
    # A little more than is shown, so that the text tells whether that is all.
    inside = _decoded(data, start, min(end, start + _CHARACTER_BYTES * (_PASSAGE_CHARACTERS + 2)))
    return {
        "example": example,
        "place": place,
        "words": word_count,
        "before": _before(_decoded(data, start - _CHARACTER_BYTES * (_CONTEXT_CHARACTERS + 2), start)),
        "text": inside if len(inside) <= _PASSAGE_CHARACTERS else inside[:_PASSAGE_CHARACTERS] + "…",
        "after": _after(_decoded(data, end, end + _CHARACTER_BYTES * (_CONTEXT_CHARACTERS + 2))),
        "sources": held.most_shared_sources(np.asarray(each.ids[at : at + length], np.int64)),
    }


def _decoded(data: npt.NDArray[np.uint8], start: int, end: int) -> str:
    """Return the characters between two places in UTF-8; of those that these places cut, nothing."""
    return data[max(0, start) : end].tobytes().decode("utf-8", "ignore")


def _before(text: str) -> str:
    if len(text) <= _CONTEXT_CHARACTERS:
        return text
    return "… " + _from_next_word(text[-_CONTEXT_CHARACTERS:])


def _after(text: str) -> str:
    if len(text) <= _CONTEXT_CHARACTERS:
        return text
    return _from_next_word(text[:_CONTEXT_CHARACTERS][::-1])[::-1] + " …"


def _from_next_word(text: str) -> str:
    """Leave out the part of a word that a text begins with."""
    _, space, rest = text.partition(" ")
    return rest if space else text
