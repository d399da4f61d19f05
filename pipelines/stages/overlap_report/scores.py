"""Scores of a model for each example of a benchmark, and what they are on clean and on overlapping examples."""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv as pacsv

from pipelines.core import shards, storage
from pipelines.core.compression import open_decompressed, strip_compression
from pipelines.core.errors import InputError, UsageError
from pipelines.stages.overlap_report.benchmarks import Benchmark
from pipelines.stages.overlap_report.registry import loose_name

Metrics = dict[str, npt.NDArray[np.float64]]

_NUMBER = "example"
_KINDS = ".jsonl, .ndjson, .parquet, .csv"
# The mean of a negative log-likelihood, of natural logarithms, is the logarithm of a perplexity.
_LOG_LIKELIHOODS = ("nll", "loss")


def read_scores(
    values: Sequence[str], benchmarks: Sequence[Benchmark], example_counts: Mapping[str, int]
) -> dict[str, Metrics]:
    """Return, by label and metric, a score for each example as float64, NaN where there is none.

    `values` are strings `NAME[/SPLIT]=PATH`; PATH is JSONL, Parquet or CSV with a record an example, in order, or each
    with its number from 0 in `example`. Every other field of numbers or truth values is a metric; null is not scored.
    `example_counts` gives the examples of each label. Raises UsageError for a string of another form or an unknown
    benchmark, InputError, with file and record, for an example that is missing, given twice or too many. Paper,
    section 4, on LAMBADA.
    """
    found: dict[str, Metrics] = {}
    for value in values:
        benchmark, path = _parse(value, benchmarks)
        metrics = _read_metrics(path, benchmark.label, example_counts[benchmark.label])
        known = found.setdefault(benchmark.label, {})
        for name in metrics:
            if name in known:
                raise UsageError(f"--scores: {benchmark.label} has {name!r} twice, the second time in {path}")
        known.update(metrics)
    return found


def score_rows(
    metrics: Mapping[str, npt.NDArray[np.float64]],
    overlapping: npt.NDArray[np.bool_],
    tested: npt.NDArray[np.bool_],
) -> list[dict[str, Any]]:
    """Return a row for each metric: examples scored and mean over all, clean, overlapping and not tested ones.

    `overlapping` and `tested` say so of each example; one too short for an n-gram is not tested. A mean over no example
    is None, `not_scored` counts those without a score. A metric named nll or loss also gives a row of its perplexity.
    """
    groups = {
        "all": np.ones(len(tested), np.bool_),
        "clean": tested & ~overlapping,
        "overlapping": tested & overlapping,
        "not_tested": ~tested,
    }
    logarithms = [name for name in metrics if name.lower() in _LOG_LIKELIHOODS]
    rows = []
    for name, scores in metrics.items():
        means = {group: _mean(scores[chosen]) for group, chosen in groups.items()}
        not_scored = int(np.isnan(scores).sum())
        rows.append({"metric": name, **means, "not_scored": not_scored})
        if name in logarithms:
            title = "perplexity" if len(logarithms) == 1 else f"perplexity of {name}"
            powers = {group: _perplexity(mean) for group, mean in means.items()}
            rows.append({"metric": title, **powers, "not_scored": not_scored})
    return rows


def _mean(scores: npt.NDArray[np.float64]) -> dict[str, Any]:
    given = scores[~np.isnan(scores)]
    return {"examples": len(given), "mean": math.fsum(given) / len(given) if len(given) else None}


def _perplexity(logarithm: Mapping[str, Any]) -> dict[str, Any]:
    mean = logarithm["mean"]
    fits = mean is not None and mean < math.log(np.finfo(np.float64).max)
    return {**logarithm, "mean": math.exp(mean) if fits else None}


def _parse(value: str, benchmarks: Sequence[Benchmark]) -> tuple[Benchmark, str]:
    left, _, path = value.partition("=")
    name, slash, split = left.replace(":", "/").partition("/")
    if not name or not path or (slash and not split):
        raise UsageError(f"--scores: {value!r} is not of the form NAME=PATH or NAME/SPLIT=PATH")
    meant = [each for each in benchmarks if loose_name(each.name) == loose_name(name)]
    meant = [each for each in meant if each.label == f"{name}/{split}"] or [
        each for each in meant if not split or (each.split or "").lower() == split.lower()
    ]
    if len(meant) != 1:
        labels = ", ".join(each.label for each in meant or benchmarks)
        what = "means several of this report's benchmarks" if meant else "is none of this report's benchmarks"
        raise UsageError(f"--scores: {left!r} {what} ({labels}); write NAME/SPLIT=PATH as it is named there")
    return meant[0], path


def _read_metrics(path: str, label: str, examples: int) -> Metrics:
    """Return the metrics of a file, a score for each of so many examples."""
    columns = _columns(path)
    numbers = columns.pop(_NUMBER, None)
    if not columns:
        raise InputError(f"{path}: holds no metric: no field of numbers or truth values but {_NUMBER!r}")
    for name, scores in columns.items():
        if np.isinf(scores).any():
            record = int(np.flatnonzero(np.isinf(scores))[0]) + 1
            raise InputError(f"{path}: {name!r} is infinite in record {record}; write null where there is no score")
    records = len(next(iter(columns.values())))
    places = np.arange(records) if numbers is None else _whole_numbers(path, numbers)
    _require_each_once(path, label, places, examples)
    return {name: _at(places, scores) for name, scores in columns.items()}


def _at(places: npt.NDArray[np.int64], scores: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    ordered = np.empty_like(scores)
    ordered[places] = scores
    return ordered


def _whole_numbers(path: str, numbers: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    # A null is NaN, which is neither equal to itself nor below anything.
    wrong = np.flatnonzero(~(numbers == np.floor(numbers)) | ~(numbers < 2**53) | (numbers < 0))
    if len(wrong):
        raise InputError(f"{path}: record {int(wrong[0]) + 1} has no number of an example, from 0, in {_NUMBER!r}")
    return numbers.astype(np.int64)


def _require_each_once(path: str, label: str, places: npt.NDArray[np.int64], examples: int) -> None:
    """Raise InputError where an example is beyond the benchmark's, given twice, or missing; name the first."""
    beyond = places[places >= examples]
    if len(beyond):
        raise InputError(
            f"{path}: scores example {int(beyond[0])}, but {label} has {examples:,} examples, 0 to {examples - 1}; are "
            "these the scores of this file, and is --example as it was scored?"
        )
    times = np.bincount(places, minlength=examples)
    if (times > 1).any():
        raise InputError(f"{path}: scores example {int(np.argmax(times > 1))} of {label} twice")
    if not times.all():
        raise InputError(
            f"{path}: scores {len(places):,} of the {examples:,} examples of {label}; the first that is missing is "
            f"example {int(np.argmin(times))}; write a record for each, with null where there is no score"
        )


def _columns(path: str) -> Metrics:
    """Return the fields of numbers and truth values of a file, NaN for null, in the order of their coming."""
    name = strip_compression(storage.basename(path))
    if name.endswith((".jsonl", ".ndjson")):
        return _jsonl_columns(path)
    if name.endswith(".parquet"):
        return _arrow_columns(shards.read_batches(path))
    if name.endswith(".csv"):
        return _csv_columns(path)
    raise InputError(f"{path}: its kind is unknown; scores are {_KINDS} (text also compressed)")


def _csv_columns(path: str) -> Metrics:
    with open_decompressed(path) as stream:
        try:
            return _arrow_columns(pacsv.open_csv(stream))
        except pa.ArrowInvalid as error:
            raise InputError(f"{path}: cannot be read as CSV ({str(error).splitlines()[0]})") from error


def _arrow_columns(batches: Iterable[pa.RecordBatch]) -> Metrics:
    parts: dict[str, list[npt.NDArray[np.float64]]] = {}
    for batch in batches:
        for field, column in zip(batch.schema, batch.columns, strict=True):
            if _is_number(field.type):
                scores = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
                parts.setdefault(field.name, []).append(scores)
    return {name: np.concatenate(each) for name, each in parts.items()}


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def _jsonl_columns(path: str) -> Metrics:
    columns: dict[str, array[float]] = {}
    others: dict[str, int] = {}
    names: dict[str, None] = {}
    records = 0
    with open_decompressed(path) as stream:
        for line_number, line in enumerate(stream, 1):
            if not line.strip():
                continue
            for name, value in _json_record(f"{path}:{line_number}", line).items():
                names.setdefault(name)
                if isinstance(value, int | float):
                    scores = columns.setdefault(name, array("d"))
                    scores.extend([math.nan] * (records - len(scores)))
                    scores.append(value)
                elif value is not None:
                    others.setdefault(name, line_number)
            records += 1
    for name, scores in columns.items():
        if name in others:
            raise InputError(f"{path}:{others[name]}: {name!r} is no number, but it is one in other records")
        scores.extend([math.nan] * (records - len(scores)))
    return {name: np.array(columns[name], np.float64) for name in names if name in columns}


def _json_record(where: str, line: bytes) -> dict[str, Any]:
    try:
        record = json.loads(line, parse_int=float)  # an int may have more digits than a float takes
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: is not valid JSON ({error})") from error
    if not isinstance(record, dict):
        raise InputError(f'{where}: is no JSON object; a record of scores is one, such as {{"accuracy": 1}}')
    return record
