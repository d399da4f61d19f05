"""The longest passages of a benchmark that are in the corpus, with their context."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pipelines.algorithms.ngrams.hashing import word_hashes
from pipelines.algorithms.ngrams.overlap_counts import Flags, longest_runs
from pipelines.benchmark_sets.benchmarks import read_example_batches
from pipelines.records.text_columns import text_arrays
from pipelines.stages.overlap_report.config import OverlapReportConfig
from pipelines.stages.overlap_report.indexing import IndexedBenchmark
from pipelines.stages.overlap_report.matches import CorpusMatches

_PASSAGES = 24
_CONTEXT_CHARACTERS = 240
_PASSAGE_CHARACTERS = 1500
_MAX_UTF8_BYTES = 4


def longest_passages(
    indexed: IndexedBenchmark, config: OverlapReportConfig, matches: CorpusMatches, found: Flags
) -> list[dict[str, Any]]:
    """Return the longest passages of a benchmark that are in the corpus, longest first."""
    runs = longest_runs(indexed.ids, indexed.words, found, _PASSAGES)
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
            located = word_hashes(data, np.array([0, len(data)]), config.normalization)
            for run in runs_by_example[example]:
                position, length = int(runs.positions[run]), int(runs.lengths[run])
                first, words = int(indexed.words[example]) + position, length + config.ngram - 1
                passages[run] = {
                    "example": example,
                    "place": batch.places[row],
                    "words": words,
                    "sources": matches.shared_sources(np.asarray(indexed.ids[first : first + length], np.int64)),
                    **_quote(data, int(located.starts[position]), int(located.ends[position + words - 1])),
                }
    return [passages[run] for run in range(len(passages))]


def _quote(data: npt.NDArray[np.uint8], start: int, end: int) -> dict[str, str]:
    """Return the passage from `start` to `end` of the bytes of an example, and the text around it."""
    # A little more than is shown, so that it is known whether that is all.
    passage = _decode(data, start, min(end, start + _MAX_UTF8_BYTES * (_PASSAGE_CHARACTERS + 2)))
    context_bytes = _MAX_UTF8_BYTES * (_CONTEXT_CHARACTERS + 2)
    before, after = _decode(data, start - context_bytes, start), _decode(data, end, end + context_bytes)
    if len(before) > _CONTEXT_CHARACTERS:
        before = "… " + _drop_partial_word(before[-_CONTEXT_CHARACTERS:])
    if len(after) > _CONTEXT_CHARACTERS:
        after = _drop_partial_word(after[:_CONTEXT_CHARACTERS][::-1])[::-1] + " …"
    if len(passage) > _PASSAGE_CHARACTERS:
        passage = passage[:_PASSAGE_CHARACTERS] + "…"
    return {"before": before, "text": passage, "after": after}


def _decode(data: npt.NDArray[np.uint8], start: int, end: int) -> str:
    """Return the characters between two positions in UTF-8, without those that are cut."""
    return data[max(0, start) : end].tobytes().decode("utf-8", "ignore")


def _drop_partial_word(text: str) -> str:
    """Drop the rest of a word at the beginning of a text."""
    _, space, rest = text.partition(" ")
    return rest if space else text
