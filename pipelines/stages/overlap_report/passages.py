"""The longest passages of a benchmark that are in the corpus, with their context."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.algorithms.ngrams.hashing import word_hashes
from pipelines.algorithms.ngrams.overlap_counts import Flags, longest_runs
from pipelines.benchmark_sets.benchmarks import Benchmark, read_example_batches
from pipelines.records.text_columns import text_arrays
from pipelines.stages.overlap_report.config import OverlapReportConfig
from pipelines.stages.overlap_report.indexing import IndexedBenchmark
from pipelines.stages.overlap_report.matches import CorpusMatches

_PASSAGES = 24
_CONTEXT_CHARACTERS = 240
_PASSAGE_CHARACTERS = 1500
_MAX_UTF8_BYTES = 4


class _ExampleText(NamedTuple):
    """The bytes of an example, where each of its words begins and ends, and its place."""

    data: npt.NDArray[np.uint8]
    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    place: str


def longest_passages(
    indexed: IndexedBenchmark, config: OverlapReportConfig, matches: CorpusMatches, found: Flags
) -> list[dict[str, Any]]:
    """Return the longest passages of a benchmark that are in the corpus, longest first."""
    runs = longest_runs(indexed.ids, indexed.words, found, _PASSAGES)
    examples = runs.examples.tolist()
    passages: dict[int, dict[str, Any]] = {}
    for example, column, place in _read_examples(indexed.benchmark, config.example, set(examples)):
        data, offsets = text_arrays(column)
        data = data[int(offsets[0]) : int(offsets[-1])]
        located = word_hashes(data, np.array([0, len(data)], np.int64), config.normalization)
        text = _ExampleText(data, located.starts, located.ends, place)
        for run in (run for run, run_example in enumerate(examples) if run_example == example):
            position, length = int(runs.positions[run]), int(runs.lengths[run])
            first = int(indexed.words[example]) + position
            ids = np.asarray(indexed.ids[first : first + length], np.int64)
            words = length + config.ngram - 1
            passages[run] = {
                "example": example,
                "words": words,
                "sources": matches.shared_sources(ids),
                **_quote(text, position, words),
            }
    return [passages[run] for run in range(len(examples))]


def _read_examples(benchmark: Benchmark, example: str, numbers: set[int]) -> Iterator[tuple[int, pa.StringArray, str]]:
    """Yield some examples: the number, the text as a column of its own, and the place."""
    remaining = len(numbers)
    if not remaining:
        return
    for batch in read_example_batches(benchmark, example):
        for number in sorted(numbers.intersection(range(batch.first, batch.first + len(batch.texts)))):
            row = number - batch.first
            yield number, batch.texts.slice(row, 1), batch.places[row]
            remaining -= 1
        if not remaining:
            return


def _quote(text: _ExampleText, position: int, words: int) -> dict[str, str]:
    start, end = int(text.starts[position]), int(text.ends[position + words - 1])
    # A little more than is shown, so that it is known whether that is all.
    passage = _decode(text.data, start, min(end, start + _MAX_UTF8_BYTES * (_PASSAGE_CHARACTERS + 2)))
    context_bytes = _MAX_UTF8_BYTES * (_CONTEXT_CHARACTERS + 2)
    before, after = _decode(text.data, start - context_bytes, start), _decode(text.data, end, end + context_bytes)
    if len(before) > _CONTEXT_CHARACTERS:
        before = "… " + _drop_partial_word(before[-_CONTEXT_CHARACTERS:])
    if len(after) > _CONTEXT_CHARACTERS:
        after = _drop_partial_word(after[:_CONTEXT_CHARACTERS][::-1])[::-1] + " …"
    if len(passage) > _PASSAGE_CHARACTERS:
        passage = passage[:_PASSAGE_CHARACTERS] + "…"
    return {"place": text.place, "before": before, "text": passage, "after": after}


def _decode(data: npt.NDArray[np.uint8], start: int, end: int) -> str:
    """Return the characters between two positions in UTF-8, without those that are cut."""
    return data[max(0, start) : end].tobytes().decode("utf-8", "ignore")


def _drop_partial_word(text: str) -> str:
    """Drop the rest of a word at the beginning of a text."""
    _, space, rest = text.partition(" ")
    return rest if space else text
