"""The audit: exact against plain search, Bloom never below exact, and every hit where it says it is."""

from __future__ import annotations

import json
import random
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.engine.executor import LocalExecutor
from pipelines.engine.run import RunOptions, Summary
from pipelines.errors import InputError, UsageError
from pipelines.progress import Silent
from pipelines.stages.overlap_index.config import OverlapIndexConfig
from pipelines.stages.overlap_index.stage import overlap_index
from pipelines.stages.overlap_report.config import OverlapReportConfig
from pipelines.stages.overlap_report.stage import overlap_report
from webtext_cli.main import main

pytestmark = pytest.mark.usefixtures("warm_processes")


class _Notes(Silent):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, message: str) -> None:
        self.notes.append(message)


def _write(path: Path, texts: list[Any], **fields: Any) -> Path:
    rows = [{"id": f"d{number}", "text": text, **fields} for number, text in enumerate(texts)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def _report(
    folder: Path,
    documents: Path | None,
    benchmarks: list[str],
    options: RunOptions | None = None,
    index: Path | None = None,
    **config: Any,
) -> tuple[Summary, dict[str, Any]]:
    summary = overlap_report(
        OverlapReportConfig(**config),
        documents=None if documents is None else str(documents),
        benchmarks=benchmarks,
        output=str(folder),
        options=options or RunOptions(),
        index=None if index is None else str(index),
    )
    return summary, json.loads((folder / "report.json").read_text())


def _plain_words(text: str) -> list[str]:
    return "".join(character if character.isalnum() else " " for character in text.lower()).split()


def _plain_ngrams(text: str, n: int) -> list[str]:
    each = _plain_words(text)
    return [" ".join(each[start : start + n]) for start in range(len(each) - n + 1)]


_WORD = st.sampled_from(["a", "B", "c", "it's", "D"])
_TEXT = st.lists(_WORD, min_size=3, max_size=25).map(" ".join)


@settings(deadline=None, max_examples=15)
@given(corpus=st.lists(_TEXT, min_size=1, max_size=6), examples=st.lists(_TEXT, min_size=1, max_size=6))
def test_exact_matches_plain_search(corpus: list[str], examples: list[str]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "docs").mkdir()
        for number, text in enumerate(corpus):
            pq.write_table(pa.table({"id": [f"d{number}"], "text": [text]}), folder / "docs" / f"{number}.parquet")
        _write(folder / "b.jsonl", examples)
        _, report = _report(folder / "out", folder / "docs", [f"b={folder / 'b.jsonl'}"], ngram=3)
        (row,) = report["benchmarks"]
        held = [ngram for text in corpus for ngram in _plain_ngrams(text, 3)]
        positions = [_plain_ngrams(text, 3) for text in examples]
        assert row["ngrams"] == sum(map(len, positions))
        assert row["overlapping"] == sum(ngram in held for each in positions for ngram in each)
        assert row["examples_any"] == sum(any(ngram in held for ngram in each) for each in positions)
        hits = pq.read_table(folder / "out" / "hits.parquet").to_pylist()
        expected = [
            (number, position, ngram, held.count(ngram), _first(corpus, ngram))
            for number, each in enumerate(positions)
            for position, ngram in enumerate(each)
            if ngram in held
        ]
        found = [(hit["example"], hit["position"], hit["ngram"], hit["count"], hit["document_id"]) for hit in hits]
        assert found == expected


def _first(corpus: list[str], ngram: str) -> str:
    return f"d{next(number for number, text in enumerate(corpus) if ngram in _plain_ngrams(text, 3))}"


@pytest.fixture(scope="module")
def wikitext(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, list[str]]:
    """WikiText-2's test set and a corpus with passages of it among other text."""
    folder = tmp_path_factory.mktemp("wikitext")
    benchmark = shared_data / "benchmarks" / "wikitext2-test.txt"
    chosen = random.Random(5)
    lines = [line for line in benchmark.read_text().split("\n") if len(line.split()) > 30]
    texts = []
    for line in chosen.sample(lines, 60):
        each = line.split()
        start = chosen.randrange(len(each) - 20)
        texts.append(f"Intro {start}. {' '.join(each[start : start + chosen.randrange(9, 60)]).upper()} — the end")
    texts += (shared_data / "benchmarks" / "tinyshakespeare.txt").read_text()[:50000].split("\n\n")
    (folder / "docs").mkdir()
    _write(folder / "docs" / "a.jsonl", texts[:40], url="https://example.org/a")
    rows = [{"id": f"p{number}", "text": text} for number, text in enumerate(texts[40:])]
    pq.write_table(pa.Table.from_pylist(rows), folder / "docs" / "b.parquet")
    return folder / "docs", benchmark, texts


def test_exact_matches_plain_search_on_real_text(wikitext: tuple[Path, Path, list[str]], tmp_path: Path) -> None:
    documents, benchmark, texts = wikitext
    summary, report = _report(tmp_path / "out", documents, [f"wikitext2/test={benchmark}"])
    held = {ngram for text in texts for ngram in _plain_ngrams(text, 8)}
    lines = [_plain_ngrams(line, 8) for line in benchmark.read_text().split("\n") if line.strip()]
    flat = [ngram for line in lines for ngram in line]
    (row,) = report["benchmarks"]
    assert {key: row[key] for key in ("name", "split", "ngrams", "examples", "too_short")} == {
        "name": "wikitext2",
        "split": "test",
        "ngrams": len(flat),
        "examples": len(lines),
        "too_short": sum(not line for line in lines),
    }
    assert row["overlapping"] == sum(ngram in held for ngram in flat) > 500
    assert row["percent_positions"] == pytest.approx(100 * row["overlapping"] / len(flat), abs=1e-6)
    assert row["percent_distinct"] == pytest.approx(100 * len(held & set(flat)) / len(set(flat)), abs=1e-6)
    shares = [sum(ngram in held for ngram in line) / len(line) for line in lines if line]
    assert row["examples_15"] == sum(share >= 0.15 for share in shares)
    assert row["examples_50"] == sum(share >= 0.5 for share in shares)
    assert summary.records_in == summary.records_out == len(texts)
    assert summary.extra["benchmarks"] == [{key: row[key] for key in row if key not in ("passages", "histogram")}]


def test_bloom_finds_all_that_exact_finds(wikitext: tuple[Path, Path, list[str]], tmp_path: Path) -> None:
    documents, benchmark, texts = wikitext
    overlap_index(
        OverlapIndexConfig(error_rate=1e-3),
        documents=str(documents),
        output=str(tmp_path / "index"),
        options=RunOptions(),
    )
    _, exact = _report(tmp_path / "exact", documents, [f"w={benchmark}"])
    summary, bloom = _report(tmp_path / "bloom", None, [f"w={benchmark}"], index=tmp_path / "index", probes=1_000_000)
    assert (exact["method"], exact["error_bound"]) == ("exact", 0.0)
    assert bloom["method"] == "bloom"
    assert bloom["error_bound"] == json.loads((tmp_path / "index" / "index.json").read_text())["error_bound"]
    assert bloom["corpus"] == exact["corpus"]
    found = {row["ngram"] for row in pq.read_table(tmp_path / "exact" / "hits.parquet").to_pylist()}
    claimed = {row["ngram"] for row in pq.read_table(tmp_path / "bloom" / "hits.parquet").to_pylist()}
    assert found <= claimed
    absent = exact["benchmarks"][0]["ngrams"] - len(found)
    assert len(claimed - found) <= 5 + 3 * bloom["error_bound"] * absent
    assert bloom["benchmarks"][0]["overlapping"] >= exact["benchmarks"][0]["overlapping"]
    assert summary.records_in == len(texts)


def test_three_workers_write_the_same_as_one(wikitext: tuple[Path, Path, list[str]], tmp_path: Path) -> None:
    documents, benchmark, _ = wikitext
    _report(tmp_path / "one", documents, [f"w={benchmark}"])
    _report(tmp_path / "three", documents, [f"w={benchmark}"], RunOptions(executor=LocalExecutor(3)))
    names = [path.name for path in (tmp_path / "one").iterdir() if not path.name.startswith(".")]
    assert sorted(names) == [
        "dropped-00000.parquet",
        "dropped-00001.parquet",
        "hits.parquet",
        "manifest.json",
        "matches-00000.parquet",
        "matches-00001.parquet",
        "overlapping-00000.parquet",
        "overlapping-00001.parquet",
        "report.html",
        "report.json",
    ]
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "three" / name).read_bytes(), name


def test_the_report_has_the_documented_fields(tmp_path: Path) -> None:
    documents = _write(tmp_path / "docs.jsonl", ["one two three four", None], url="https://example.org/x")
    _write(tmp_path / "b.jsonl", ["ONE, two; three!", "five six seven", "eight"])
    summary, report = _report(tmp_path / "out", documents, [f"b={tmp_path / 'b.jsonl'}"], ngram=3)
    corpus = report.pop("corpus")
    assert str(tmp_path) not in (tmp_path / "out" / "report.json").read_text()
    assert len(corpus) == 64
    assert report == {
        "method": "exact",
        "n": 3,
        "normalisation": "lower-cased alphanumeric words (Unicode), one space between words",
        "error_bound": 0.0,
        "options": {
            "apostrophes": "split",
            "letters": "unicode",
            "lines": "cross",
            "example": "auto",
            "ignore_common": None,
        },
        "corpus_files": ["docs.jsonl"],
        "documents": 1,
        "text_bytes": 18,
        "documents_overlapping": 1,
        "common_ngrams": [],
        "ignored": None,
        "certificate": None,
        "sensitivity": None,
        "samples": None,
        "benchmarks": [
            {
                "name": "b",
                "split": None,
                "ngrams": 2,
                "overlapping": 1,
                "percent_positions": 50.0,
                "percent_distinct": 50.0,
                "examples": 3,
                "examples_any": 1,
                "examples_15": 1,
                "examples_50": 1,
                "too_short": 1,
                "histogram": [1, *[0] * 19, 1],
                "own_train": None,
                "paper": None,
                "scores": [],
                "passages": [
                    {
                        "example": 0,
                        "place": "b.jsonl:1",
                        "words": 3,
                        "before": "",
                        "text": "ONE, two; three",
                        "after": "!",
                        "sources": [{"id": "d0", "url": "https://example.org/x"}],
                    }
                ],
            }
        ],
    }
    assert pq.read_table(tmp_path / "out" / "hits.parquet").to_pylist() == [
        {
            "benchmark": "b",
            "split": None,
            "example": 0,
            "place": "b.jsonl:1",
            "position": 0,
            "ngram": "one two three",
            "count": 1,
            "documents": 1,
            "document_id": "d0",
            "url": "https://example.org/x",
        }
    ]
    assert (summary.records_in, summary.records_out, summary.dropped) == (2, 1, {"missing_text": 1})
    dropped = pq.read_table(tmp_path / "out" / "dropped-00000.parquet").to_pylist()
    assert [row["id"] for row in dropped] == ["d1"]


def test_half_a_surrogate_pair_in_a_benchmark_is_replaced(tmp_path: Path) -> None:
    documents = _write(tmp_path / "docs.jsonl", ["one two three four"])
    (tmp_path / "b.jsonl").write_text('{"text": "\\ud83d one two three \\ude00"}\n')
    _, report = _report(tmp_path / "out", documents, [f"b={tmp_path / 'b.jsonl'}"], ngram=3)
    assert report["benchmarks"][0]["overlapping"] == 1
    assert "\ufffd <mark>one two three</mark> \ufffd" in (tmp_path / "out" / "report.html").read_text()


def test_lines_that_are_wrapped_are_found_as_paragraphs(tmp_path: Path) -> None:
    documents = _write(tmp_path / "docs.jsonl", ["one two three four five six"])
    (tmp_path / "b.txt").write_text("one two\nthree four\nfive six\nx y z w\n")
    notes = _Notes()
    benchmarks = [f"b={tmp_path / 'b.txt'}"]
    _, lines = _report(tmp_path / "lines", documents, benchmarks, RunOptions(progress=notes), ngram=4)
    _, whole = _report(tmp_path / "whole", documents, benchmarks, ngram=4, example="paragraph")
    assert lines["benchmarks"][0]["overlapping"] == 0
    assert whole["benchmarks"][0]["overlapping"] == 3
    assert notes.notes == [
        "b: 3 of 4 examples have fewer than 4 words, so they cannot overlap; --example paragraph joins lines"
    ]


def test_ngrams_do_not_cross_documents_or_examples(tmp_path: Path) -> None:
    documents = _write(tmp_path / "docs.jsonl", ["a b c", "d e f"])
    (tmp_path / "b.txt").write_text("b c d e\na b c\nd e f\n")
    _, report = _report(tmp_path / "out", documents, [f"b={tmp_path / 'b.txt'}"], ngram=3)
    assert (report["benchmarks"][0]["ngrams"], report["benchmarks"][0]["overlapping"]) == (4, 2)


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        ("b=absent.txt", InputError, r"absent\.txt: no such file or folder"),
        ("b=empty.txt", InputError, r"empty\.txt: the benchmark b is empty"),
        ("b=empty.jsonl", InputError, r"empty\.jsonl: the benchmark b is empty"),
        ("b=short.txt", InputError, r"all 2 examples of the benchmark b are too short: the longest has 2 words"),
    ],
)
def test_a_wrong_benchmark_is_named(tmp_path: Path, value: str, error: type[Exception], message: str) -> None:
    documents = _write(tmp_path / "docs.jsonl", ["a b c d"])
    (tmp_path / "empty.txt").write_text(" \n\n")
    (tmp_path / "empty.jsonl").write_text("\n")
    (tmp_path / "short.txt").write_text("a b\nc\n")
    with pytest.raises(error, match=message):
        _report(tmp_path / "out", documents, [value.replace("=", f"={tmp_path}/")], ngram=3)


def test_a_changed_benchmark_is_detected(tmp_path: Path) -> None:
    documents = _write(tmp_path / "docs.jsonl", ["a b c d"])
    (tmp_path / "b.txt").write_text("a b c\n")
    _report(tmp_path / "out", documents, [f"b={tmp_path / 'b.txt'}"], ngram=3)
    (tmp_path / "b.txt").write_text("a b d\n")
    with pytest.raises(Exception, match="its input 'benchmark b' has changed"):
        _report(tmp_path / "out", documents, [f"b={tmp_path / 'b.txt'}"], ngram=3)
    # In one process and one folder: what is remembered of the first benchmark must not answer for the second.
    _, report = _report(tmp_path / "out", documents, [f"b={tmp_path / 'b.txt'}"], RunOptions(overwrite=True), ngram=3)
    assert report["benchmarks"][0]["overlapping"] == 0


def test_an_index_of_other_ngrams_is_refused(tmp_path: Path) -> None:
    documents = _write(tmp_path / "docs.jsonl", ["a b c d e"])
    (tmp_path / "b.txt").write_text("a b c d\n")
    overlap_index(
        OverlapIndexConfig(ngram=4), documents=str(documents), output=str(tmp_path / "index"), options=RunOptions()
    )
    with pytest.raises(UsageError, match="--ngram 4"):
        _report(tmp_path / "out", None, [f"b={tmp_path / 'b.txt'}"], index=tmp_path / "index", ngram=3)
    _, report = _report(
        tmp_path / "out", None, [f"b={tmp_path / 'b.txt'}"], index=tmp_path / "index", ngram=4, probes=10_000
    )
    assert report["benchmarks"][0]["overlapping"] == 1
    assert pq.read_table(tmp_path / "out" / "hits.parquet").to_pylist()[0]["count"] is None


def test_the_command_prints_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    documents = _write(tmp_path / "docs.jsonl", ["a b c d e"])
    (tmp_path / "b.txt").write_text("a b c d\nx y z w\n")
    arguments = ["overlap-report", "-i", str(documents), "--ngram", "4", "-q", "--corpus", str(tmp_path)]
    assert main([*arguments, "--benchmark", f"mine/test={tmp_path / 'b.txt'}"]) == 0
    out = capsys.readouterr().out
    row = next(line.split() for line in out.splitlines() if line.split()[:2] == ["mine", "test"])
    assert row[:5] == ["mine", "test", "2", "50.00", "50.00"]
    (tmp_path / "webtext.toml").write_text('[overlap-report]\nbenchmark = { "mine/test" = "b.txt" }\n')
    assert main([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["benchmarks"][0]["percent_positions"] == 50.0


def test_the_command_refuses_contradictory_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["overlap-report", "--corpus", str(tmp_path), "-i", "x", "--index", "y", "--benchmark", "a=b"]) == 2
    assert "--index and --input cannot be combined" in capsys.readouterr().err
    assert main(["overlap-report", "--corpus", str(tmp_path)]) == 2
    assert "overlap-report: no benchmark; name one with --benchmark NAME=PATH" in capsys.readouterr().err
