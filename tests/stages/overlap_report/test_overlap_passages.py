"""The passages of a report: those of a plain reference, for any text, in time that does not grow with their number."""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reference_ngrams import word_spans

from pipelines.algorithms.ngrams.overlap_counts import longest_runs
from pipelines.algorithms.ngrams.words import Normalization
from pipelines.benchmark_sets.benchmarks import parse_benchmarks
from pipelines.stages.overlap_report.config import OverlapReportConfig
from pipelines.stages.overlap_report.indexing import IndexedBenchmark
from pipelines.stages.overlap_report.report import longest_passages
from pipelines.stages.overlap_report.scanning import CorpusMatches

_NORMALIZATIONS = [
    Normalization(apostrophes, letters, lines)
    for apostrophes in ("split", "drop")
    for letters in ("unicode", "ascii")
    for lines in ("cross", "stop")
]
_PIECES = [
    "a",
    "Word",
    "don't",
    "l\u2019eau",
    "\u0130stanbul",
    "\u039f\u03a3",
    "\U00010400x",
    "\u6f22\u5b57",
    "e\u0301",
    "1\u00b2",
]
_BETWEEN = [" ", "\n", ", ", " \u2014 ", "\U0001f600", "\u00a0", "_", "'"]


def _plain_passage(text: str, first: int, words: int, normalization: Normalization) -> tuple[str, str, str]:
    """Return what stands before a passage, it, and what stands after, from the text as a whole."""
    spans = word_spans(text, normalization)
    start, end = spans[first][0], spans[first + words - 1][1]
    before, inside, after = text[:start], text[start:end], text[end:]
    if len(before) > 240:
        shown = before[-240:]
        before = "\u2026 " + (shown[shown.index(" ") + 1 :] if " " in shown else shown)
    if len(after) > 240:
        shown = after[:240]
        after = (shown[: shown.rindex(" ")] if " " in shown else shown) + " \u2026"
    return before, inside[:1500] + "\u2026" if len(inside) > 1500 else inside, after


def _text(chosen: random.Random, pieces: int) -> str:
    between = _BETWEEN if chosen.random() < 0.7 else _BETWEEN[4:]
    text = "".join(chosen.choice(_PIECES) + chosen.choice(between) for _ in range(pieces))
    return chosen.choice(["", "", "\U0001f600" * chosen.randrange(230, 250)]) + text


def _passages(indexed: IndexedBenchmark, normalization: Normalization, found: np.ndarray) -> list[dict[str, Any]]:
    config = OverlapReportConfig(ngram=3, **dataclasses.asdict(normalization))
    return longest_passages(indexed, config, CorpusMatches(len(found), found), found)


def _indexed(path: Path, texts: list[str], normalization: Normalization, n: int) -> IndexedBenchmark:
    """Return examples of texts with made-up n-grams, all of them different: one for each word that begins one."""
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    (benchmark,) = parse_benchmarks([f"b={path}"])
    counts = [len(word_spans(text, normalization)) for text in texts]
    ids = np.arange(sum(counts))
    words = np.array([0, *itertools.accumulate(counts)], np.int64)
    for start, end in itertools.pairwise(words.tolist()):
        ids[max(start, end - n + 1) : end] = -1
    return IndexedBenchmark(benchmark, ids, words)


@pytest.mark.parametrize("normalization", _NORMALIZATIONS)
def test_passages_match_a_plain_implementation(tmp_path: Path, normalization: Normalization) -> None:
    chosen = random.Random(_NORMALIZATIONS.index(normalization))
    n = 3
    for share in (0.5, 0.9, 0.997):
        texts = [_text(chosen, chosen.choice([2, 10, 120, 900])) for _ in range(20)]
        indexed = _indexed(tmp_path / "b.jsonl", texts, normalization, n)
        found = np.array([chosen.random() < share for _ in indexed.ids])
        runs = longest_runs(indexed.ids, indexed.words, found, 24)
        rows = _passages(indexed, normalization, found)
        expected: list[dict[str, Any]] = []
        for example, position, length in zip(*(column.tolist() for column in runs), strict=True):
            before, inside, after = _plain_passage(texts[example], position, length + n - 1, normalization)
            row = {"example": example, "place": f"b.jsonl:{example + 1}", "words": length + n - 1}
            expected.append(row | {"before": before, "text": inside, "after": after, "sources": []})
        assert len(rows) == 24
        assert rows == expected


def test_context_is_limited_to_the_text_and_240_characters(tmp_path: Path) -> None:
    normalization = Normalization()
    for around, character in itertools.product(
        (0, 1, 239, 240, 241, 242, 243, 500), ("-", "\u00b7", "\u2014", "\U0001f600")
    ):
        text = f"{character * around}a b c{character * around}"
        indexed = _indexed(tmp_path / "b.jsonl", [text], normalization, 3)
        found = np.ones(3, np.bool_)
        (row,) = _passages(indexed, normalization, found)
        assert (row["before"], row["text"], row["after"]) == _plain_passage(text, 0, 3, normalization)


def test_many_passages_of_one_long_example_are_fast(tmp_path: Path) -> None:
    text = "some words of a text, " * 100_000
    indexed = _indexed(tmp_path / "b.jsonl", [text], Normalization(), 3)
    found = np.ones(len(indexed.ids), np.bool_)
    found[::1000] = False
    _passages(indexed, Normalization(), found)  # compiles
    start = time.perf_counter()
    assert len(_passages(indexed, Normalization(), found)) == 24
    # The plain way takes as long for each passage as it takes for one.
    once = time.perf_counter()
    word_spans(text)
    assert once - start < 8 * (time.perf_counter() - once)
