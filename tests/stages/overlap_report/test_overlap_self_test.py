"""The copies that the self-test plants: each differs as it says, and what is found of them is what is there."""

from __future__ import annotations

import json
import random
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.algorithms.ngrams.index_builder import IndexBuilder
from pipelines.algorithms.ngrams.words import Normalization, text_ngrams, words
from pipelines.engine.run import RunOptions
from pipelines.records.text_columns import text_arrays
from pipelines.stages.overlap_report import self_test
from pipelines.stages.overlap_report.config import OverlapReportConfig
from pipelines.stages.overlap_report.stage import overlap_report

_DEFAULT = Normalization()


def _self_test(folder: Path, examples: Sequence[str], documents: Sequence[str] = ("nothing of it",)) -> dict[str, Any]:
    """Return what the self-test of a report says, the kinds of copies by name."""
    folder.mkdir()
    (folder / "b.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in examples))
    ids = [f"d-{number}" for number in range(len(documents))]
    pq.write_table(pa.table({"id": ids, "text": list(documents)}), folder / "d.parquet")
    overlap_report(
        OverlapReportConfig(self_test=True),
        documents=str(folder / "d.parquet"),
        benchmarks=[f"b={folder / 'b.jsonl'}"],
        output=str(folder / "out"),
        options=RunOptions(),
    )
    tested: dict[str, Any] = json.loads((folder / "out" / "report.json").read_text())["self_test"]
    return tested | {"kinds": {row["kind"]: row for row in tested["kinds"]}}


def _numbered(count: int, name: str = "w") -> str:
    return " ".join(f"{name}{number}" for number in range(count))


@pytest.mark.parametrize("count", [*range(1, 40), 120])
def test_every_twelfth_word_is_replaced_or_the_middle_one(count: int) -> None:
    before = [f"w{number}" for number in range(count)]
    after = words(self_test._edited(", ".join(before), _DEFAULT))
    changed = [number for number, word in enumerate(after) if word != before[number]]
    assert len(after) == count
    assert changed == (list(range(11, count, 12)) if count >= 12 else [count // 2])
    assert {after[number] for number in changed} == {"edited"}


def test_words_are_those_of_the_audit_not_split_at_spaces() -> None:
    dashed = "-".join(f"w{number}" for number in range(24))
    assert self_test._edited(dashed, _DEFAULT) == dashed.replace("w11", "edited").replace("w23", "edited")
    assert self_test._edited("it’s\nso", Normalization(apostrophes="drop")) == "it’s\nedited"
    assert self_test._edited("漢字，漢，字。", _DEFAULT) == "漢字，edited，字。"
    assert self_test._edited("é a", Normalization(letters="ascii")) == "é edited"
    assert self_test._edited(" … ", _DEFAULT) == " … "


def test_lines_are_wrapped_as_textwrap_does() -> None:
    chosen = random.Random(1)
    for _ in range(300):
        text = " ".join("x" * chosen.choice([1, 2, 5, 10, 38, 39, 40, 41, 60]) for _ in range(chosen.randrange(40)))
        expected = textwrap.wrap(text, 40, break_long_words=False, break_on_hyphens=False)
        assert self_test._wrapped(text.replace(" ", chosen.choice([" ", "\n", " \t "])), _DEFAULT) == "\n".join(
            expected
        )


def test_copies_of_short_examples_are_edited_too(tmp_path: Path) -> None:
    tested = _self_test(tmp_path / "r", [_numbered(count, f"x{count}y") for count in range(8, 12)])
    recalls = {kind: row["recall"] for kind, row in tested["kinds"].items()}
    assert recalls == {"verbatim": 1, "wrapped": 1, "embedded": 1, "edited": 0}
    assert tested["kinds"]["edited"]["planted"] == 4


def test_of_a_long_example_the_beginning_is_planted(tmp_path: Path) -> None:
    long = _numbered(10_000, "long")
    beginning = long[:20_000].rpartition(" ")[0]
    assert len(beginning) > 19_980
    short, no_ngram = _numbered(30, "short"), f"{'x' * 30_000} {_numbered(50, 'late')}"
    tested = _self_test(tmp_path / "r", [long, short, no_ngram])
    assert (tested["examples"], tested["too_short"], tested["unplanted_found"]) == (2, 1, 0)
    expected = len(text_ngrams(beginning, 8)) + len(text_ngrams(short, 8))
    for kind in ("verbatim", "wrapped", "embedded"):
        row = tested["kinds"][kind]
        assert (row["planted"], row["found"], row["ngrams"], row["ngrams_found"]) == (2, 2, expected, expected)


def test_texts_are_cut_at_a_space_where_there_is_one() -> None:
    assert self_test._beginning("a" * 20_000) == ("a" * 20_000, False)
    assert self_test._beginning("a b " * 6_000) == (("a b " * 5_000)[:-1], True)
    assert self_test._beginning("a" * 20_001) == ("a" * 20_000, True)
    assert self_test._beginning("a\nb " + "a\n" * 12_000) == (("a\nb " + "a\n" * 9_998)[:-1], True)
    assert self_test._beginning(" " + "a" * 20_001) == (" " + "a" * 19_999, True)


def test_texts_are_scanned_in_batches(tmp_path: Path) -> None:
    examples = [_numbered(8 + number % 5, f"e{number}y") for number in range(150)]
    documents = [f"other words and {example} and more" for example in examples[:7]]
    whole = _self_test(tmp_path / "whole", examples, documents)
    assert [row["recall"] for row in whole["kinds"].values()][:3] == [1] * 3
    builder = IndexBuilder(8, _DEFAULT)
    builder.add(*text_arrays(pa.array(examples)))
    index, _ = builder.finish()
    at_once, in_batches = (self_test.find_ngrams(index, [*documents, *examples], size) for size in (1000, 7))
    assert [ids.tolist() for ids in in_batches] == [ids.tolist() for ids in at_once]
    assert [len(ids) for ids in at_once] == [1 + number % 5 for number in (*range(7), *range(150))]


def test_copies_of_long_texts_are_fast() -> None:
    text = _numbered(3_000)
    for copy in self_test.COPIES.values():
        start = time.perf_counter()
        copy(text, _DEFAULT)
        assert time.perf_counter() - start < 0.25
