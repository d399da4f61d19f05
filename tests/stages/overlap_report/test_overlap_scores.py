"""Scores by example: every kind of file, what is refused, and the means on clean and overlapping examples."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.algorithms.ngrams.overlap_counts import ExampleCounts
from pipelines.benchmark_sets.benchmarks import Benchmark, parse_benchmarks
from pipelines.errors import InputError, UsageError
from pipelines.stages.overlap_report.scores import Metrics, parse_scores, read_scores, score_rows


@pytest.fixture
def benchmarks(tmp_path: Path) -> list[Benchmark]:
    (tmp_path / "b.txt").write_text("x\n")
    return parse_benchmarks([f"{left}={tmp_path / 'b.txt'}" for left in ("a/test", "a:valid", "b")])


COUNTS = {"a/test": 3, "a/valid": 2, "b": 4}
RECORDS: list[dict[str, Any]] = [
    {"id": "x", "accuracy": True, "nll": 1.5, "f1": 1},
    {"id": "y", "accuracy": False, "nll": None, "f1": 0},
    {"id": "z", "accuracy": None, "nll": 2, "f1": 0.25},
    {"id": "w", "accuracy": True, "nll": 0.0, "f1": 0.5},
]
EXPECTED = {"accuracy": [1, 0, math.nan, 1], "nll": [1.5, math.nan, 2, 0], "f1": [1, 0, 0.25, 0.5]}


def _jsonl(path: Path, *records: Any) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def _read(values: list[str], benchmarks: list[Benchmark]) -> dict[str, Metrics]:
    return read_scores(parse_scores(values, benchmarks), COUNTS)


def _counts(tested: Any, overlapping: Any) -> ExampleCounts:
    return ExampleCounts(np.asarray(tested, np.int64), np.asarray(overlapping, np.int64), 0, 0)


def _check(found: dict[str, Any], expected: dict[str, list[float]] = EXPECTED) -> None:
    assert list(found) == list(expected)
    for name, scores in expected.items():
        assert found[name].dtype == np.float64
        np.testing.assert_array_equal(found[name], scores)


def test_every_file_format_in_order_or_numbered(tmp_path: Path, benchmarks: list[Benchmark]) -> None:
    numbered = [{"example": number, **record} for number, record in enumerate(RECORDS)]
    for records, stem in ((RECORDS, "plain"), (numbered[2:] + numbered[:2], "numbered")):
        _jsonl(tmp_path / f"{stem}.jsonl", *records)
        (tmp_path / f"{stem}.jsonl.gz").write_bytes(gzip.compress((tmp_path / f"{stem}.jsonl").read_bytes()))
        plain = [{**record, "f1": float(record["f1"])} for record in records]
        pq.write_table(pa.Table.from_pylist(plain), tmp_path / f"{stem}.parquet")
        rows = [",".join("" if value is None else str(value) for value in record.values()) for record in records]
        text = "\n".join([",".join(records[0]), *rows]) + "\n"
        (tmp_path / f"{stem}.csv").write_text(text)
        (tmp_path / f"{stem}.tsv").write_text(text.replace(",", "\t"))
        for suffix in ("jsonl", "jsonl.gz", "parquet", "csv", "tsv"):
            _check(_read([f"b={tmp_path / f'{stem}.{suffix}'}"], benchmarks)["b"])


def test_cells_of_csv_are_missing_as_other_programs_write_it(tmp_path: Path, benchmarks: list[Benchmark]) -> None:
    cells = ["1,1", "#N/A,1_000", "-nan,1", "0,1"]
    (tmp_path / "s.csv").write_text("\n".join(["acc,text", *cells]) + "\n")
    _check(_read([f"b={tmp_path / 's.csv'}"], benchmarks)["b"], {"acc": [1, math.nan, math.nan, 0]})


def test_scores_are_joined_by_benchmark_and_split(tmp_path: Path, benchmarks: list[Benchmark]) -> None:
    test = _jsonl(tmp_path / "test.jsonl", *({"acc": number} for number in range(3)))
    valid = _jsonl(tmp_path / "valid.jsonl", {"acc": 1, "late": None}, {"acc": 0, "late": 3})
    more = _jsonl(tmp_path / "more.jsonl", *({"f1": number / 2} for number in range(3)))
    found = _read([f"a/test={test}", f"A:valid={valid}", f"a/test={more}"], benchmarks)
    _check(found["a/test"], {"acc": [0, 1, 2], "f1": [0, 0.5, 1]})
    _check(found["a/valid"], {"acc": [1, 0], "late": [math.nan, 3]})
    with pytest.raises(UsageError, match="a/test has 'acc' twice, the second time in"):
        _read([f"a/test={test}", f"a/test={test}"], benchmarks)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("b", "'b' is not of the form NAME=PATH"),
        ("=x", "is not of the form"),
        ("b/=x", "is not of the form"),
        ("c=x", r"'c' is not a benchmark of this report \(a/test, a/valid, b\)"),
        ("a=x", r"'a' matches several benchmarks of this report \(a/test, a/valid\); write NAME/SPLIT=PATH"),
        ("a/train=x", "'a/train' is not a benchmark of this report"),
    ],
)
def test_a_wrong_name_is_refused(benchmarks: list[Benchmark], value: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        _read([value], benchmarks)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"acc": 1}\n' * 3, r"s\.jsonl: has 0 records of example 3 of b; write one per example \(4 in all\)"),
        ('{"acc": 1}\n' * 5, r"scores example 4, but b has 4 examples, 0 to 3"),
        ('{"example": 0, "acc": 1}\n' * 2, "has 2 records of example 0 of b"),
        ('{"example": 3, "acc": 1}\n{"example": 1, "acc": 1}\n', "has 0 records of example 0 of b"),
        ('{"example": 1.5, "acc": 1}\n', "record 1 has no example number, from 0, in 'example'"),
        ('{"example": 1, "acc": 1}\n{"acc": 1}\n', "record 2 has no example number"),
        ('{"example": -1, "acc": 1}\n', "record 1 has no example number"),
        ('{"example": 1e300, "acc": 1}\n', "record 1 has no example number"),
        ('{"text": "x"}\n' * 4, "contains no metric: no field of numbers or truth values except 'example'"),
        ('{"acc": 1}\n{"acc": "yes"}\n', r"s\.jsonl:2: 'acc' is not a number, but it is in other records"),
        ('{"acc": 1}\n{"acc"\n', r"s\.jsonl:2: is not valid JSON"),
        ("[1]\n", r"s\.jsonl:1: is not a JSON object"),
        ('{"nll": 1}\n{"nll": Infinity}\n', "'nll' is infinite in record 2; write null"),
        ("", "contains no metric"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, benchmarks: list[Benchmark], text: str, message: str) -> None:
    (tmp_path / "s.jsonl").write_text(text)
    with pytest.raises(InputError, match=message):
        _read([f"b={tmp_path / 's.jsonl'}"], benchmarks)


def test_other_kinds_that_cannot_be_read_are_refused(tmp_path: Path, benchmarks: list[Benchmark]) -> None:
    (tmp_path / "s.csv").write_text("acc\n1\n2,3\n")
    with pytest.raises(InputError, match=r"s\.csv:3: cannot be read as CSV \("):
        _read([f"b={tmp_path / 's.csv'}"], benchmarks)
    (tmp_path / "s.txt").write_text("acc\n1\n")
    with pytest.raises(InputError, match=r"s\.txt: unknown file type; scores are"):
        _read([f"b={tmp_path / 's.txt'}"], benchmarks)


def test_means_on_clean_and_overlapping_examples() -> None:
    overlapping = np.array([True, False, False, True, False])
    tested = np.array([True, True, True, True, False])
    metrics = {"acc": np.array([1, 0, math.nan, 0, 1.0]), "nll": np.array([1.0, 2, 3, 4, math.nan])}
    acc, nll, perplexity = score_rows(metrics, _counts(tested, overlapping))
    assert acc == {
        "metric": "acc",
        "all": {"examples": 4, "mean": 0.5},
        "clean": {"examples": 1, "mean": 0.0},
        "overlapping": {"examples": 2, "mean": 0.5},
        "not_tested": {"examples": 1, "mean": 1.0},
        "not_scored": 1,
    }
    assert nll["clean"] == {"examples": 2, "mean": 2.5}
    assert nll["not_tested"] == {"examples": 0, "mean": None}
    assert perplexity["metric"] == "perplexity"
    assert perplexity["all"] == {"examples": 4, "mean": math.exp(2.5)}
    assert perplexity["not_tested"] == {"examples": 0, "mean": None}
    json.dumps([acc, nll, perplexity], allow_nan=False)


def test_perplexities_are_named_and_never_overflow() -> None:
    tested, overlapping = np.ones(1, np.bool_), np.zeros(1, np.bool_)
    rows = score_rows({"nll": np.array([1e6]), "Loss": np.array([0.0])}, _counts(tested, overlapping))
    assert [row["metric"] for row in rows] == ["nll", "perplexity of nll", "Loss", "perplexity of Loss"]
    assert [row["all"]["mean"] for row in rows] == [1e6, None, 0.0, 1.0]
    assert score_rows({}, _counts(tested, overlapping)) == []


def test_the_papers_lambada_table_is_reproduced() -> None:
    """Section 4: without the overlapping examples perplexity shifts from 8.6 to 8.7, accuracy from 63.2 to 62.9."""
    examples, overlap = 10_000, 1_000
    overlapping = np.arange(examples) < overlap
    clean_right, right = 5661, 6320
    acc = np.zeros(examples)
    acc[overlap : overlap + clean_right] = 1
    acc[: right - clean_right] = 1
    nll = np.where(overlapping, 10 * math.log(8.6) - 9 * math.log(8.7), math.log(8.7))
    acc_row, _, perplexity = score_rows({"acc": acc, "nll": nll}, _counts(np.ones(examples), overlapping))
    assert [round(100 * acc_row[group]["mean"], 1) for group in ("all", "clean")] == [63.2, 62.9]
    assert [round(perplexity[group]["mean"], 1) for group in ("all", "clean")] == [8.6, 8.7]
