"""Scores of a model per example of a benchmark, and their means over clean and overlapping examples."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow.csv as pacsv

from pipelines.algorithms.ngrams.overlap_counts import ExampleCounts
from pipelines.benchmark_sets.benchmarks import Benchmark
from pipelines.errors import InputError, UsageError
from pipelines.format import loose_name, plural
from pipelines.records.reader import FORMATS, file_format, read_records, require_records

Metrics = dict[str, npt.NDArray[np.float64]]

_NUMBER = "example"
_MISSING = {value.lower() for value in pacsv.ConvertOptions().null_values} | {"none"}
# The mean of a negative log-likelihood, in natural logarithms, is the logarithm of a perplexity.
_LOG_LIKELIHOODS = ("nll", "loss")


class ScoreFile(NamedTuple):
    """A file of scores, the label of its benchmark, and the name under which the user gave it."""

    name: str
    label: str
    path: str


def parse_scores(values: Sequence[str], benchmarks: Sequence[Benchmark]) -> list[ScoreFile]:
    """Return the files of strings `NAME[/SPLIT]=PATH`; raise UsageError for another form or an unknown benchmark."""
    files = []
    for value in values:
        left, _, path = value.partition("=")
        name, slash, split = left.replace(":", "/").partition("/")
        if not name or not path or (slash and not split):
            raise UsageError(f"--scores: {value!r} is not of the form NAME=PATH or NAME/SPLIT=PATH")
        splits = [benchmark for benchmark in benchmarks if loose_name(benchmark.name) == loose_name(name)]
        matches = [benchmark for benchmark in splits if benchmark.label == f"{name}/{split}"] or [
            benchmark for benchmark in splits if not split or (benchmark.split or "").lower() == split.lower()
        ]
        if len(matches) != 1:
            labels = ", ".join(benchmark.label for benchmark in matches or benchmarks)
            problem = "matches several benchmarks of this report" if matches else "is not a benchmark of this report"
            raise UsageError(
                f"--scores: {left!r} {problem} ({labels}); write NAME/SPLIT=PATH with a name from this list"
            )
        files.append(ScoreFile(left, matches[0].label, path))
    return files


def read_scores(files: Sequence[ScoreFile], example_counts: Mapping[str, int]) -> dict[str, Metrics]:
    """Return, by label and metric, a score per example as float64, NaN for a missing one.

    A file is JSONL, Parquet or CSV with a record per example, in order, or with the number of its example, from 0, in
    `example`. Every other field of numbers or truth values is a metric; null means not scored. `example_counts` are
    the examples of each label. Raises UsageError for a metric given twice, InputError, with file and record, for an
    example that is missing, repeated or unknown. Paper, section 4, on LAMBADA.
    """
    scores: dict[str, Metrics] = {}
    for file in files:
        metrics = scores.setdefault(file.label, {})
        for name, values in _read_metrics(file.path, file.label, example_counts[file.label]).items():
            if name in metrics:
                raise UsageError(f"--scores: {file.label} has {name!r} twice, the second time in {file.path}")
            metrics[name] = values
    return scores


def score_rows(metrics: Metrics, counts: ExampleCounts) -> list[dict[str, Any]]:
    """Return a row per metric: the scored examples and mean of all, clean, overlapping and untested examples.

    Untested examples are too short for an n-gram. The mean of no example is None; `not_scored` counts examples without
    a score. A metric named nll or loss also gets a row with its perplexity.
    """
    groups = {
        "all": np.ones(len(counts.ngrams), np.bool_),
        "clean": counts.tested & ~counts.overlapping,
        "overlapping": counts.tested & counts.overlapping,
        "not_tested": ~counts.tested,
    }
    log_likelihoods = [name for name in metrics if name.lower() in _LOG_LIKELIHOODS]
    rows = []
    for name, scores in metrics.items():
        means = {group: _mean(scores[is_member]) for group, is_member in groups.items()}
        not_scored = int(np.isnan(scores).sum())
        rows.append({"metric": name, **means, "not_scored": not_scored})
        if name in log_likelihoods:
            title = "perplexity" if len(log_likelihoods) == 1 else f"perplexity of {name}"
            perplexities = {group: _perplexity(mean) for group, mean in means.items()}
            rows.append({"metric": title, **perplexities, "not_scored": not_scored})
    return rows


def _mean(scores: npt.NDArray[np.float64]) -> dict[str, Any]:
    values = scores[~np.isnan(scores)]
    return {"examples": len(values), "mean": math.fsum(values) / len(values) if len(values) else None}


def _perplexity(logarithm: Mapping[str, Any]) -> dict[str, Any]:
    mean = logarithm["mean"]
    fits = mean is not None and mean < math.log(np.finfo(np.float64).max)
    return {**logarithm, "mean": math.exp(mean) if fits else None}


def _read_metrics(path: str, label: str, examples: int) -> Metrics:
    columns = _read_columns(path)
    numbers = columns.pop(_NUMBER, None)
    if not columns:
        raise InputError(f"{path}: contains no metric: no field of numbers or truth values except {_NUMBER!r}")
    for name, scores in columns.items():
        if np.isinf(scores).any():
            record = int(np.flatnonzero(np.isinf(scores))[0]) + 1
            raise InputError(f"{path}: {name!r} is infinite in record {record}; write null for missing scores")
    records = len(next(iter(columns.values())))
    example_numbers = np.arange(records) if numbers is None else _check_integers(path, numbers)
    _check_complete(path, label, example_numbers, examples)
    order = np.argsort(example_numbers)
    return {name: scores[order] for name, scores in columns.items()}


def _check_integers(path: str, numbers: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    # A null is NaN, which is neither equal to itself nor less than anything.
    wrong = np.flatnonzero(~(numbers == np.floor(numbers)) | ~(numbers < 2**53) | (numbers < 0))
    if len(wrong):
        raise InputError(f"{path}: record {int(wrong[0]) + 1} has no example number, from 0, in {_NUMBER!r}")
    return numbers.astype(np.int64)


def _check_complete(path: str, label: str, example_numbers: npt.NDArray[np.int64], examples: int) -> None:
    """Raise InputError if an example is unknown, repeated, or missing; name the first."""
    unknown = example_numbers[example_numbers >= examples]
    if len(unknown):
        raise InputError(
            f"{path}: scores example {int(unknown[0])}, but {label} has {examples:,} examples, 0 to {examples - 1}; "
            "check that these are scores of this file, and that --example is the same as for scoring"
        )
    repetitions = np.bincount(example_numbers, minlength=examples)
    if (wrong := np.flatnonzero(repetitions != 1)).size:
        raise InputError(
            f"{path}: has {plural(int(repetitions[wrong[0]]), 'record')} of example {wrong[0]} of {label}; write one "
            f"per example ({examples:,} in all), with null for missing scores"
        )


def _read_columns(path: str) -> Metrics:
    """Return the fields of numbers and truth values of a file in order of appearance, NaN for null."""
    if (form := file_format(path)) == "text":
        suffixes = [suffix for suffix, form in FORMATS.items() if form != "text"]
        raise InputError(f"{path}: unknown file type; scores are {', '.join(suffixes)} (text also compressed)")
    is_csv = form in ("csv", "tsv")
    columns: dict[str, array[float]] = {}
    numbers: set[str] = set()
    texts: dict[str, int] = {}
    records = 0
    for place, record in require_records(path, read_records(path)):
        if not isinstance(record, dict):
            raise InputError(f'{path}:{place}: is not a JSON object such as {{"accuracy": 1}}')
        for name, value in record.items():
            score = _parse_cell(value) if is_csv else value
            if isinstance(score, int | float):
                numbers.add(name)
            elif score is not None:
                texts.setdefault(name, place)
            scores = columns.setdefault(name, array("d"))
            scores.extend([math.nan] * (records - len(scores)))
            scores.append(_as_float(score) if isinstance(score, int | float) else math.nan)
        records += 1
    # In CSV, numbers among texts are texts.
    mixed = [] if is_csv else sorted(numbers & texts.keys(), key=texts.__getitem__)
    if mixed:
        raise InputError(f"{path}:{texts[mixed[0]]}: {mixed[0]!r} is not a number, but it is in other records")
    metrics = {name: scores for name, scores in columns.items() if name in numbers and name not in texts}
    return {name: np.array([*scores, *[math.nan] * (records - len(scores))]) for name, scores in metrics.items()}


def _parse_cell(cell: str) -> float | str | None:
    """Return the number or truth value of a cell of CSV, None for a missing one, or the text that it is."""
    if cell.lower() in _MISSING:
        return None
    if cell.lower() in ("true", "false"):
        return float(cell.lower() == "true")
    try:
        return cell if "_" in cell else float(cell)  # Python reads 1_000 as a number
    except ValueError:
        return cell


def _as_float(number: float) -> float:
    try:
        return float(number)
    except OverflowError:  # an integer with more digits than a float can have
        return math.inf
