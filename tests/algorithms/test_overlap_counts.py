"""The figures of the overlap report, counted over arrays, are those that a plain count gives."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipelines.algorithms.ngrams.overlap_counts import (
    HISTOGRAM_STEPS,
    count_examples,
    distribution,
    longest_runs,
)
from pipelines.reports.overlap_text import column_values

_NGRAMS = 6
_EXAMPLES = st.lists(st.lists(st.integers(-1, _NGRAMS - 1), max_size=30), max_size=8)
_FOUND = st.lists(st.booleans(), min_size=_NGRAMS, max_size=_NGRAMS)


def _arrays(examples: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    words = np.cumsum([0, *map(len, examples)], dtype=np.int64)
    return np.array([id for ids in examples for id in ids], np.int32), words


@settings(deadline=None)
@example([[0] * 20, [0] * 3 + [1] * 17, [-1]], [True] + [False] * 5)
@given(_EXAMPLES, _FOUND)
def test_column_values(examples: list[list[int]], found: list[bool]) -> None:
    ids, words = _arrays(examples)
    counts = count_examples(ids, words, np.array(found))
    row = column_values(counts)
    positions = [[id for id in each if id >= 0] for each in examples]
    hits = [[id for id in each if found[id]] for each in positions]
    tested = [(len(hit), len(each)) for hit, each in zip(hits, positions, strict=True) if each]
    every, distinct = {id for each in positions for id in each}, {id for each in hits for id in each}
    assert row["ngrams"] == sum(map(len, positions))
    assert counts.overlaps.sum() == sum(map(len, hits))
    assert row["percent_positions"] == round(100 * sum(map(len, hits)) / max(1, sum(map(len, positions))), 6)
    assert row["percent_distinct"] == round(100 * len(distinct) / max(1, len(every)), 6)
    assert (row["examples"], row["too_short"]) == (len(examples), len(examples) - len(tested))
    assert row["examples_any"] == sum(hit > 0 for hit, _ in tested)
    assert row["examples_15"] == sum(hit > 0 and hit / n >= 0.15 for hit, n in tested)
    assert row["examples_50"] == sum(hit > 0 and hit / n >= 0.5 for hit, n in tested)
    histogram = counts.histogram()
    assert histogram[0] == sum(hit == 0 for hit, _ in tested)
    for step in range(1, HISTOGRAM_STEPS + 1):
        low, high = (step - 1) / HISTOGRAM_STEPS, step / HISTOGRAM_STEPS
        assert histogram[step] == sum(low * n < hit <= high * n for hit, n in tested)


@settings(deadline=None)
@given(_EXAMPLES, _FOUND, st.integers(1, 9))
def test_longest_runs(examples: list[list[int]], found: list[bool], most: int) -> None:
    ids, words = _arrays(examples)
    runs = longest_runs(ids, words, np.array(found), most)
    every = []
    for number, each in enumerate(examples):
        flags = [id >= 0 and found[id] for id in each] + [False]
        start = None
        for at, flag in enumerate(flags):
            if flag and start is None:
                start = at
            if not flag and start is not None:
                every.append((number, start, at - start, tuple(each[start:at])))
                start = None
    expected: list[tuple[int, int, int]] = []
    seen = set()
    for number, start, length, own in sorted(every, key=lambda run: -run[2]):
        if own not in seen:
            seen.add(own)
            expected.append((number, start, length))
    assert [tuple(map(int, run)) for run in zip(*runs, strict=True)] == expected[:most]


def test_distribution() -> None:
    ids, words = _arrays([[0] * 100, [0] + [1] * 199, [1] * 4, [-1], [0, 1]])
    shown = distribution(count_examples(ids, words, np.array([True, False])))
    assert (shown["examples"], shown["too_short"]) == (5, 1)
    assert (shown["none_percent"], shown["under_1_percent"]) == (25.0, 50.0)
    assert shown["median_percent"] == 25.25
    assert shown["mean_percent"] == 37.625
    assert [shown["cumulative"][percent] for percent in (0, 1, 49, 50, 99, 100)] == [0.25, 0.5, 0.5, 0.75, 0.75, 1.0]


def test_the_distribution_of_no_texts() -> None:
    ids, words = _arrays([])
    counts = count_examples(ids, words, np.array([True]))
    assert distribution(counts)["median_percent"] is None
    assert column_values(counts)["ngrams"] == 0
