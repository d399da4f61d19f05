"""Benchmarks as columns of text: their names, their splits, their fields, and the examples against plain references."""

from __future__ import annotations

import bz2
import gzip
import json
import random
import re
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from pipelines.benchmark_sets import benchmarks, examples
from pipelines.benchmark_sets.benchmarks import (
    Benchmark,
    ExampleBatch,
    parse_benchmarks,
    read_example_batches,
    separate_train_splits,
    split_role,
)
from pipelines.errors import InputError, UsageError


def _one(value: str) -> Benchmark:
    (benchmark,) = parse_benchmarks([value])
    return benchmark


def _batches(value: str, example: str = "auto") -> list[ExampleBatch]:
    batches = list(read_example_batches(_one(value), example))
    number = 0
    for batch in batches:
        assert batch.first == number
        assert batch.texts.type == pa.string()
        assert batch.texts.null_count == 0
        assert 0 < len(batch.texts) == len(batch.places) <= 8192
        number += len(batch.texts)
    return batches


def _examples(value: str, example: str = "auto") -> list[tuple[str, str]]:
    batches = _batches(value, example)
    return [pair for batch in batches for pair in zip(batch.places, batch.texts.to_pylist(), strict=True)]


def _texts(value: str, example: str = "auto") -> list[str]:
    return [text for _, text in _examples(value, example)]


def _jsonl(path: Path, *records: Any) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def _plain_examples(text: str, example: str) -> list[tuple[int, str]]:
    """Return the line and the text of each example of a plain text: the definition, line by line."""
    lines = [line.rstrip("\r") for line in text.split("\n")]
    if example == "document":
        kept = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
        return [(kept[0][0], "\n".join(line for _, line in kept))] if kept else []
    found: list[tuple[int, str]] = []
    before_blank = True
    for number, line in enumerate(lines, 1):
        if line.strip() and (before_blank or example == "line"):
            found.append((number, line))
        elif line.strip():
            found[-1] = (found[-1][0], found[-1][1] + "\n" + line)
        before_blank = not line.strip()
    return found


@pytest.mark.parametrize("example", ["line", "paragraph", "document"])
@pytest.mark.parametrize("seed", range(6))
def test_plain_text_is_split_like_the_reference(tmp_path: Path, example: str, seed: int) -> None:
    chosen = random.Random(seed)
    pieces = ["one", " two", "\n", "\n\n", "\r\n", " \t", "\u00e9\u4e2d", "\n \n", "x" * 40, "\u3000"]
    text = "".join(chosen.choices(pieces, k=400))
    (tmp_path / "b.txt").write_bytes(text.encode())
    expected = [(f"b.txt:{line}", each) for line, each in _plain_examples(text, example)]
    assert _examples(f"b={tmp_path / 'b.txt'}", example) == expected


def test_auto_is_a_line_of_text_and_a_record_of_the_others(tmp_path: Path) -> None:
    records = ["one\ntwo\n\nthree\n", None, "", "four"]
    (tmp_path / "b.txt").write_text("one\ntwo\n\n  \nthree\n")
    _jsonl(tmp_path / "b.jsonl", *({"text": text} for text in records))
    pq.write_table(pa.table({"n": range(4), "text": records}), tmp_path / "b.parquet")
    assert _examples(f"b={tmp_path / 'b.txt'}") == [("b.txt:1", "one"), ("b.txt:2", "two"), ("b.txt:5", "three")]
    for name in ("b.jsonl", "b.parquet"):
        value = f"b={tmp_path / name}"
        assert _examples(value) == [
            (f"{name}:1", "one\ntwo\n\nthree\n"),
            (f"{name}:2", ""),
            (f"{name}:3", ""),
            (f"{name}:4", "four"),
        ]
        assert _examples(value, "line") == [
            (f"{name}:1", "one"),
            (f"{name}:1", "two"),
            (f"{name}:1", "three"),
            (f"{name}:4", "four"),
        ]
        assert [(place, text.strip()) for place, text in _examples(value, "paragraph")] == [
            (f"{name}:1", "one\ntwo"),
            (f"{name}:1", "three"),
            (f"{name}:4", "four"),
        ]
        ((place, text),) = _examples(value, "document")
        assert (place, text.split()) == (f"{name}:1", ["one", "two", "three", "four"])


def test_compressed_files_folders_and_globs(tmp_path: Path) -> None:
    data = b"one two\n\nthree\n"
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(data))
    (tmp_path / "b.txt.bz2").write_bytes(bz2.compress(data))
    (tmp_path / "c.txt.zst").write_bytes(zstandard.compress(data))
    (tmp_path / "d.tokens").write_bytes(data)
    (tmp_path / "news.en.heldout-00000-of-00050").write_bytes(data)
    (tmp_path / "enwik8").write_bytes(data)
    for path in tmp_path.iterdir():
        assert _texts(f"b={path}") == ["one two", "three"]
    assert [place for place, _ in _examples(f"b={tmp_path}")] == [
        f"{name}:{line}" for name in ("a.txt.gz", "b.txt.bz2", "c.txt.zst", "d.tokens") for line in (1, 3)
    ]
    assert len(_texts(f"b={tmp_path}/*.txt.*")) == 6


def test_a_byte_order_mark_and_a_missing_last_line_end(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo")
    assert _texts(f"b={tmp_path / 'b.txt'}") == ["one", "two"]
    (tmp_path / "empty.txt").write_bytes(b"")
    assert _examples(f"b={tmp_path / 'empty.txt'}") == []
    assert _examples(f"b={tmp_path / 'empty.txt'}", "document") == []


def test_batches_are_bounded_and_no_example_is_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmarks, "_BATCH_BYTES", 1000)
    texts = [f"{number} " + "x" * (number % 50) for number in range(20_000)]
    (tmp_path / "b.txt").write_text("\n".join(texts))
    _jsonl(tmp_path / "b.jsonl", *({"text": text} for text in texts))
    pq.write_table(pa.table({"text": texts}), tmp_path / "b.parquet")
    for name in ("b.txt", "b.jsonl", "b.parquet"):
        batches = _batches(f"b={tmp_path / name}")
        assert [text for each in batches for text in each.texts.to_pylist()] == texts
        assert max(sum(map(len, each.texts.to_pylist())) for each in batches) <= 1000
    (tmp_path / "long.txt").write_text("y" * 5000 + "\nz\n")
    assert [len(batch.texts) for batch in _batches(f"b={tmp_path / 'long.txt'}")] == [1, 1]


def test_memory_does_not_grow_with_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmarks, "_BATCH_BYTES", 1 << 19)
    path = tmp_path / "b.txt"
    with path.open("wb") as stream:
        for number in range(8):
            stream.write(f"{number} some words of an example that is a line\n".encode() * 30_000)
    assert path.stat().st_size > 10_000_000
    tracemalloc.start()
    arrow = lines = 0
    for batch in read_example_batches(_one(f"b={path}"), "auto"):
        lines += len(batch.texts)
        arrow = max(arrow, pa.total_allocated_bytes())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert lines == 240_000
    assert peak + arrow < 8 << 20


def test_two_gigabytes_in_one_example_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examples, "MAX_EXAMPLE_BYTES", 1000)
    (tmp_path / "b.txt").write_text("word\n" * 500)
    assert len(_texts(f"b={tmp_path / 'b.txt'}")) == 500
    for example in ("document", "paragraph"):
        with pytest.raises(InputError, match=r"b\.txt: has an example of 2 GiB or more; split the file, or use"):
            _texts(f"b={tmp_path / 'b.txt'}", example)
    _jsonl(tmp_path / "long.jsonl", {"text": "w" * 2000})
    pq.write_table(pa.table({"text": ["w" * 2000]}), tmp_path / "long.parquet")
    for name in ("long.jsonl", "long.parquet"):
        with pytest.raises(InputError, match=r"long\.\w+: has an example of 2 GiB or more"):
            _texts(f"b={tmp_path / name}")


RECORDS = [
    {
        "id": 1,
        "story": "a story",
        "question": "who?",
        "answers": {"text": ["he", "she"], "start": [0, 4]},
        "turns": [{"said": "hello", "by": {"name": "Ann"}}, {"said": None, "by": {"name": "Bob"}}],
        "a.b": "dotted",
    },
    {"id": 2, "story": None, "question": "why?", "answers": None, "turns": [], "a.b": "again"},
]
FIELDS = {
    "story": ["a story", ""],
    "answers.text": ["he\nshe", ""],
    "turns.said": ["hello\n", ""],
    "turns.by.name": ["Ann\nBob", ""],
    "question+answers.text": ["who?\nhe\nshe", "why?\n"],
    "story+question+story": ["a story\nwho?\na story", "\nwhy?\n"],
    "a.b": ["dotted", "again"],
    "a.b+question": ["dotted\nwho?", "again\nwhy?"],
}


@pytest.mark.parametrize("field", FIELDS)
def test_nested_fields_lists_and_combined_fields(tmp_path: Path, field: str) -> None:
    _jsonl(tmp_path / "b.jsonl", *RECORDS)
    pq.write_table(pa.Table.from_pylist(RECORDS), tmp_path / "b.parquet")
    for name in ("b.jsonl", "b.parquet"):
        assert _texts(f"b:{field}={tmp_path / name}") == FIELDS[field]


@pytest.mark.parametrize("kind", [pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())])
def test_every_type_of_text_in_parquet(tmp_path: Path, kind: pa.DataType) -> None:
    pq.write_table(pa.table({"text": pa.array(["one", None, "two"], pa.string()).cast(kind)}), tmp_path / "b.parquet")
    assert _texts(f"b={tmp_path / 'b.parquet'}") == ["one", "", "two"]


@pytest.mark.parametrize(
    ("field", "message"),
    [
        (
            "text",
            r"has no text 'text'; its texts are: story, question, answers\.text, turns\.said, turns\.by\.name, a\.b",
        ),
        ("id", "has no text 'id'; its texts are: story"),
        ("answers", "has no text 'answers'"),
        ("answers.start", r"has no text 'answers\.start'"),
        ("question+nothing", r"has no text 'question\+nothing'; .*choose one with --benchmark b:FIELD=PATH"),
    ],
)
def test_a_missing_field_is_reported_with_the_existing_ones(tmp_path: Path, field: str, message: str) -> None:
    _jsonl(tmp_path / "b.jsonl", *RECORDS)
    pq.write_table(pa.Table.from_pylist(RECORDS), tmp_path / "b.parquet")
    for name, place in (("b.jsonl", "b.jsonl:1: "), ("b.parquet", "b.parquet: ")):
        with pytest.raises(InputError, match=re.escape(place) + message):
            _texts(f"b:{field}={tmp_path / name}")


def test_a_column_without_rows_or_texts_is_checked(tmp_path: Path) -> None:
    path = tmp_path / "b.parquet"
    pq.write_table(pa.table({"other": pa.array([], pa.string())}), path)
    with pytest.raises(InputError, match=r"b\.parquet: has no text 'text'; its texts are: other"):
        _texts(f"b={path}")
    assert _texts(f"b:other={path}") == []
    pq.write_table(pa.table({"text": pa.nulls(2)}), path)
    with pytest.raises(InputError, match=r"b\.parquet: has no text 'text'; it contains no text at all"):
        _texts(f"b={path}")
    pq.write_table(pa.table({"text": pa.array([["one"], ["two", None]], pa.list_(pa.string()))}), path)
    assert _texts(f"b={path}") == ["one", "two\n"]


def test_unreadable_examples_are_reported_with_their_place(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_bytes(b"one\ntwo\n\xff three\n")
    with pytest.raises(InputError, match=r"b\.txt:3: is not UTF-8 \("):
        _texts(f"b={tmp_path / 'b.txt'}")
    (tmp_path / "b.jsonl").write_bytes(b'{"text": "x"}\n\n{"text"\n')
    with pytest.raises(InputError, match=r"b\.jsonl:3: is not valid JSON"):
        _texts(f"b={tmp_path / 'b.jsonl'}")
    bad = pa.array([b"one", b"\xff", b"two"]).cast(pa.binary())
    texts = pa.StringArray.from_buffers(3, *bad.buffers()[1:])
    pq.write_table(pa.table({"text": texts}), tmp_path / "b.parquet")
    with pytest.raises(InputError, match=r"b\.parquet:2: is not UTF-8"):
        _texts(f"b={tmp_path / 'b.parquet'}")
    (tmp_path / "b.json").write_text("{}")
    with pytest.raises(InputError, match=r"b\.json: is a single JSON value; write one record per line"):
        _texts(f"b={tmp_path / 'b.json'}")


def test_names_splits_and_fields(tmp_path: Path) -> None:
    path = tmp_path / "b.jsonl"
    path.write_text('{"text": "x"}\n')

    def parts(left: str) -> tuple[str, str | None, str]:
        benchmark = _one(f"{left}={path}")
        return benchmark.name, benchmark.split, benchmark.field

    assert parts("b") == ("b", None, "text")
    assert parts("b:question") == ("b", None, "question")
    assert parts("b:train") == ("b", "train", "text")
    assert parts("b:valid:question+answer") == ("b", "valid", "question+answer")
    assert parts("b/extra:question") == ("b", "extra", "question")
    assert parts("b/test") == ("b", "test", "text")
    assert _one(f"b:dev={path}").label == "b/dev"
    (tmp_path / "b.txt").write_text("x\n")
    with pytest.raises(UsageError, match=r"the field .trian., but plain text has no fields; .* as b/trian=PATH"):
        _one(f"b:trian={tmp_path / 'b.txt'}")
    assert _one(f"b={tmp_path}/b.js?nl").files == (str(path),)
    assert [
        split_role(_one(f"{left}={path}").split) for left in ("b", "b:dev", "b:validation", "b:Train", "b/extra")
    ] == [
        "test",
        "valid",
        "valid",
        "train",
        "extra",
    ]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("b:=x", "'b:=x' is neither of the form NAME=PATH"),
        ("b:train:=x", "is neither of the form"),
        ("b:one:two=x", "is neither of the form"),
        ("b/=x", "is neither of the form"),
        ("b/one/two=x", "is neither of the form"),
        ("=x", "is neither of the form"),
        ("b=", "is neither of the form"),
        ("b/test:train=x", "names two splits, test and train"),
    ],
)
def test_a_name_of_another_form_is_refused(value: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_benchmarks([value])


def test_train_splits_are_separated_from_the_others_of_their_name(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("x\n")
    lefts = ("a/test", "A:train", "a:valid", "b:train", "c", "c/train", "d")
    benchmarks = parse_benchmarks([f"{left}={tmp_path / 'b.txt'}" for left in lefts])
    audited, own = separate_train_splits(benchmarks)
    assert [each.label for each in audited] == ["a/test", "a/valid", "b/train", "c", "d"]
    assert {label: [each.label for each in trains] for label, trains in own.items()} == {
        "a/test": ["A/train"],
        "a/valid": ["A/train"],
        "c": ["c/train"],
    }


def test_the_fingerprint_depends_on_content_and_field(tmp_path: Path) -> None:
    path = _jsonl(tmp_path / "b.jsonl", {"text": "one", "other": "two"})
    first = _one(f"b={path}").fingerprint
    assert first == _one(f"c={path}").fingerprint != _one(f"b:other={path}").fingerprint
    _jsonl(path, {"text": "two", "other": "two"})
    assert first != _one(f"b={path}").fingerprint


def test_real_benchmarks_equal_the_reference(shared_data: Path) -> None:
    folder = shared_data / "benchmarks"
    for name, example in (("wikitext2-test.txt", "line"), ("tinyshakespeare.txt", "paragraph")):
        expected = _plain_examples((folder / name).read_text(), example)
        assert _examples(f"b={folder / name}", example) == [(f"{name}:{line}", text) for line, text in expected]
    records = [json.loads(line) for line in (folder / "gsm8k-test.jsonl").read_text().splitlines()]
    found = _texts(f"gsm8k:question+answer={folder / 'gsm8k-test.jsonl'}")
    assert found == [f"{record['question']}\n{record['answer']}" for record in records]


def test_real_records_with_texts_in_lists(shared_data: Path, tmp_path: Path) -> None:
    samples = shared_data / "benchmarks" / "samples"
    with zipfile.ZipFile(samples / "coqa" / "dummy" / "1.0.0" / "dummy_data.zip") as archive:
        records = json.loads(archive.read("dummy_data/coqa-dev-v1.0.json"))["data"]
    path = _jsonl(tmp_path / "coqa.jsonl", *records)
    pq.write_table(pa.Table.from_pylist(records), tmp_path / "coqa.parquet")
    expected = ["\n".join([each["story"], *(turn["input_text"] for turn in each["questions"])]) for each in records]
    assert len(expected) > 0
    assert _texts(f"coqa:story+questions.input_text={path}") == expected
    assert _texts(f"coqa:story+questions.input_text={tmp_path / 'coqa.parquet'}") == expected
    with zipfile.ZipFile(samples / "lm1b" / "dummy" / "plain_text" / "1.0.0" / "dummy_data.zip") as archive:
        (name,) = [each for each in archive.namelist() if each.endswith("/news.en-00016-of-00100")]
        (tmp_path / "news.en-00016-of-00100").write_bytes(archive.read(name))
    lines = (tmp_path / "news.en-00016-of-00100").read_text().splitlines()
    assert _texts(f"1bw/test={tmp_path}/news.en-*") == lines
