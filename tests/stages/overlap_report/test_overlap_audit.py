"""What the audit does beyond its figures: normalizations, train splits, common n-grams, clean and planted copies."""

from __future__ import annotations

import json
import math
import textwrap
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from audit_run import ngrams_of, percent_found, random_texts, run_report, write_documents, write_jsonl
from reference_ngrams import text_ngrams
from reference_split import is_held_out

from pipelines.algorithms.ngrams.words import Normalization
from pipelines.errors import UsageError
from pipelines.stages.overlap_report.config import OverlapReportConfig

pytestmark = pytest.mark.usefixtures("warm_processes")


def test_the_sensitivity_table_matches_single_runs(tmp_path: Path) -> None:
    corpus = random_texts(20, 1)
    # Copies, with what only some ways to count pass over.
    examples = [
        corpus[0].replace("\n", " "),
        corpus[1].replace("'", "").replace("’", ""),
        corpus[2].replace("É", "E").replace("Σ", " "),
        *corpus[3:5],
        *random_texts(5, 2),
    ]
    documents = write_documents(tmp_path / "docs.parquet", corpus)
    benchmark = write_jsonl(tmp_path / "b.jsonl", examples)
    _, report = run_report(tmp_path / "out", documents, [f"b={benchmark}"], ngram=3, sensitivity=True)
    rows = report["sensitivity"]
    assert len({(row["n"], row["apostrophes"], row["letters"], row["lines"]) for row in rows}) == len(rows) == 17
    for row in rows:
        normalization = Normalization(row["apostrophes"], row["letters"], row["lines"])
        held = ngrams_of(corpus, row["n"], normalization)
        assert row["benchmarks"][0]["percent_positions"] == percent_found(examples, held, row["n"], normalization)
    assert rows[0]["n"] == 3
    assert rows[0]["benchmarks"][0]["percent_positions"] == report["benchmarks"][0]["percent_positions"]
    assert len({row["benchmarks"][0]["percent_positions"] for row in rows}) > 3


@pytest.mark.parametrize(
    "options", [{"apostrophes": "drop"}, {"letters": "ascii"}, {"lines": "stop"}, {"ngram": 2, "lines": "stop"}]
)
def test_normalization_options_match_the_plain_reference(tmp_path: Path, options: dict[str, Any]) -> None:
    corpus, examples = random_texts(15, 3), random_texts(8, 4)
    config = OverlapReportConfig(**{"ngram": 3, **options})
    documents = write_documents(tmp_path / "docs.parquet", corpus)
    benchmark = write_jsonl(tmp_path / "b.jsonl", examples)
    _, report = run_report(tmp_path / "out", documents, [f"b={benchmark}"], **{"ngram": 3, **options})
    held = ngrams_of(corpus, config.ngram, config.normalization)
    assert report["benchmarks"][0]["percent_positions"] == percent_found(
        examples, held, config.ngram, config.normalization
    )
    hits = pq.read_table(tmp_path / "out" / "hits.parquet").to_pylist()
    expected = [
        (number, position, ngram)
        for number, text in enumerate(examples)
        for position, ngram in text_ngrams(text, config.ngram, config.normalization)
        if ngram in held
    ]
    assert [(hit["example"], hit["position"], hit["ngram"]) for hit in hits] == expected


def test_a_test_set_is_compared_with_its_own_train_set(tmp_path: Path) -> None:
    corpus, test, train = random_texts(5, 5, 200), random_texts(8, 6), random_texts(9, 7, 200)
    documents = write_documents(tmp_path / "docs.parquet", corpus)
    named = [
        f"b:test={write_jsonl(tmp_path / 'test.jsonl', test)}",
        f"b:train={write_jsonl(tmp_path / 'train.jsonl', train)}",
    ]
    _, report = run_report(tmp_path / "out", documents, named, ngram=3)
    (row,) = report["benchmarks"]
    every = Normalization()
    assert row["split"] == "test"
    assert row["percent_positions"] == percent_found(test, ngrams_of(corpus, 3, every), 3, every)
    assert row["own_train"]["split"] == "train"
    assert row["own_train"]["percent_positions"] == percent_found(test, ngrams_of(train, 3, every), 3, every) > 0
    _, alone = run_report(tmp_path / "alone", documents, named[1:], ngram=3)
    assert (alone["benchmarks"][0]["split"], alone["benchmarks"][0]["own_train"]) == ("train", None)


def test_common_ngrams_are_listed_and_can_be_ignored(tmp_path: Path) -> None:
    corpus = [
        "all rights reserved here",
        "all rights reserved there",
        "one two three",
        "all rights reserved all rights",
    ]
    documents = write_documents(tmp_path / "docs.parquet", corpus)
    benchmark = write_jsonl(tmp_path / "b.jsonl", ["all rights reserved", "one two three", "x y z"])
    _, report = run_report(tmp_path / "all", documents, [f"b={benchmark}"], ngram=3)
    assert report["common_ngrams"] == [
        {"ngram": "all rights reserved", "documents": 3, "count": 3, "benchmarks": ["b"]}
    ]
    assert (report["benchmarks"][0]["overlapping"], report["ignored"]) == (2, None)
    assert report["documents_overlapping"] == 4
    _, report = run_report(tmp_path / "rare", documents, [f"b={benchmark}"], ngram=3, ignore_common=2)
    assert report["benchmarks"][0]["overlapping"] == 1
    assert report["ignored"] == {"above_documents": 2, "ngrams": 1, "positions": 1}
    hits = pq.read_table(tmp_path / "rare" / "hits.parquet").to_pylist()
    assert [hit["ngram"] for hit in hits] == ["one two three"]
    train = f"b:train={write_jsonl(tmp_path / 'train.jsonl', ['all rights reserved', 'x y z'])}"
    _, report = run_report(tmp_path / "train", documents, [f"b:test={benchmark}", train], ngram=3, ignore_common=2)
    assert report["benchmarks"][0]["own_train"]["overlapping"] == 1


def test_the_matches_of_each_shard_are_written(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    write_documents(
        tmp_path / "docs" / "a.parquet", ["one two three one two three", "x"], url=["https://a.example/1", None]
    )
    write_documents(
        tmp_path / "docs" / "b.parquet", ["one two three", "two three four"], url=["https://b.example/1", None]
    )
    benchmark = write_jsonl(tmp_path / "b.jsonl", ["one two three four"])
    run_report(tmp_path / "out", tmp_path / "docs", [f"b={benchmark}"], ngram=3, workers=2)
    matches = [pq.read_table(tmp_path / "out" / f"matches-0000{shard}.parquet").to_pylist() for shard in range(2)]
    by_ngram = [{row["ngram"]: (row["count"], row["documents"]) for row in rows} for rows in matches]
    assert by_ngram == [{"one two three": (2, 1)}, {"one two three": (1, 1), "two three four": (1, 1)}]
    assert matches[0][0]["sources"] == [{"id": "a-0", "url": "https://a.example/1"}]
    overlapping = pq.read_table(tmp_path / "out" / "overlapping-00000.parquet").to_pylist()
    assert overlapping == [{"id": "a-0", "url": "https://a.example/1", "ngrams": 4, "overlapping": 2}]
    hits = pq.read_table(tmp_path / "out" / "hits.parquet").to_pylist()
    assert [(hit["count"], hit["documents"], hit["document_id"]) for hit in hits] == [(3, 2, "a-0"), (1, 1, "b-1")]


def test_a_passage_names_each_document_once(tmp_path: Path) -> None:
    texts = ["zero one two three four five", "one two three four", "two three four five six", "x"]
    documents = write_documents(tmp_path / "docs.parquet", texts)
    benchmark = write_jsonl(tmp_path / "b.jsonl", ["one two three four five six"])
    _, report = run_report(tmp_path / "out", documents, [f"b={benchmark}"], ngram=3)
    (passage,) = report["benchmarks"][0]["passages"]
    assert (passage["words"], passage["text"]) == (6, "one two three four five six")
    assert passage["sources"] == [{"id": f"docs-{number}", "url": None} for number in (0, 2, 1)]


def test_a_clean_corpus_has_the_other_documents(tmp_path: Path) -> None:
    corpus = [
        "one two three",
        "all rights reserved",
        "x y z",
        "all rights reserved again",
        "",
        "with one two three in it",
    ]
    documents = write_documents(tmp_path / "docs.parquet", corpus, score=list(range(6)))
    benchmark = write_jsonl(tmp_path / "b.jsonl", ["one two three", "all rights reserved"])
    named = [f"b={benchmark}"]
    summary, _ = run_report(tmp_path / "out", documents, named, ngram=3, write_clean="corpus")
    kept = pq.read_table(tmp_path / "out" / "documents-00000.parquet")
    assert kept.column_names == ["id", "text", "score"]
    assert kept.column("score").to_pylist() == [2]
    assert summary.extra["clean_documents"] == 1
    assert summary.extra["overlapping_documents_left_out"] == 4
    assert summary.dropped == {"empty_text": 1}
    run_report(tmp_path / "rare", documents, named, ngram=3, write_clean="corpus", ignore_common=1)
    assert pq.read_table(tmp_path / "rare" / "documents-00000.parquet").column("score").to_pylist() == [0, 1, 2, 3, 5]
    removed = pq.read_table(tmp_path / "out" / "removed-00000.parquet").to_pylist()
    assert [(row["id"], row["ngrams"], row["overlapping"]) for row in removed] == [
        ("docs-0", 1, 1),
        ("docs-1", 1, 1),
        ("docs-3", 2, 1),
        ("docs-5", 4, 1),
    ]
    run_report(tmp_path / "held", documents, named, ngram=3, write_clean="corpus", held_out=0.5)
    assert pq.read_table(tmp_path / "held" / "documents-00000.parquet").equals(kept)
    _, again = run_report(tmp_path / "again", tmp_path / "out" / "documents-00000.parquet", named, ngram=3)
    assert again["benchmarks"][0]["overlapping"] == 0


def test_a_clean_benchmark_has_the_other_examples(tmp_path: Path) -> None:
    documents = write_documents(tmp_path / "docs.parquet", ["one two three four"])
    benchmark = write_jsonl(tmp_path / "b.jsonl", ["one two three", "x y z", "a two three four"])
    _, report = run_report(tmp_path / "out", documents, [f"b/test={benchmark}"], ngram=3, write_clean="benchmark")
    lines = (tmp_path / "out" / "clean" / "b-test" / "b.jsonl").read_text()
    assert lines == benchmark.read_text().splitlines(keepends=True)[1]
    assert report["benchmarks"][0]["clean"] == {"folder": "b-test", "kept": 1, "left_out": 2}
    other = write_jsonl(tmp_path / "other.jsonl", ["x y z"])
    named = [f"b/test={benchmark}", f"b-test={other}"]
    _, report = run_report(tmp_path / "two", documents, named, ngram=3, write_clean="benchmark")
    folders = [row["clean"]["folder"] for row in report["benchmarks"]]
    assert len(set(folders)) == 2
    assert all((tmp_path / "two" / "clean" / folder).is_dir() for folder in folders)


def test_scores_are_compared_on_clean_and_overlapping_examples(tmp_path: Path) -> None:
    documents = write_documents(tmp_path / "docs.parquet", ["one two three"])
    benchmark = write_jsonl(tmp_path / "b.jsonl", ["one two three", "x y z", "x y w", "short"])
    scores = tmp_path / "scores.jsonl"
    scores.write_text("".join(json.dumps({"nll": nll}) + "\n" for nll in (1.0, 2.0, 4.0, 7.0)))
    _, report = run_report(tmp_path / "out", documents, [f"b={benchmark}"], ngram=3, scores=[f"b={scores}"])
    loss, perplexity = report["benchmarks"][0]["scores"]
    groups = ("all", "clean", "overlapping", "not_tested")
    assert [(loss[group]["examples"], loss[group]["mean"]) for group in groups] == [(4, 3.5), (2, 3), (1, 1), (1, 7)]
    assert perplexity["clean"]["mean"] == pytest.approx(math.exp(3))
    with pytest.raises(UsageError, match="c"):
        run_report(tmp_path / "other", documents, [f"b={benchmark}"], ngram=3, scores=[f"c={scores}"])
    with pytest.raises(UsageError, match="is not of the form NAME=PATH"):
        run_report(tmp_path / "other", documents, [f"b={benchmark}"], ngram=3, scores=[str(scores)])


_FILLER = "words of the document around the copy"
# How a benchmark gets into a corpus: unchanged, in short lines, within a line of other text, and with a few changes.
_COPIES = {
    "verbatim": lambda text: text,
    "wrapped": lambda text: textwrap.fill(" ".join(text.split()), 40),
    "embedded": lambda text: f"{_FILLER} {' '.join(text.split())} {_FILLER}",
    "edited": lambda text: " ".join("edited" if n % 12 == 11 else word for n, word in enumerate(text.split())),
}


@pytest.mark.parametrize("kind", _COPIES)
@pytest.mark.parametrize("lines", ["cross", "stop"])
def test_planted_copies_are_found(tmp_path: Path, kind: str, lines: str) -> None:
    examples = [" ".join(f"word{number}x{place}" for place in range(30)) for number in range(40)]
    copies = [_COPIES[kind](example) for example in examples]
    texts = [f"{text}\n\n{copy}\n\n{text}" for text, copy in zip(random_texts(40, 8, 30), copies, strict=True)]
    documents = write_documents(tmp_path / "docs.parquet", texts)
    named = [
        f"planted={write_jsonl(tmp_path / 'planted.jsonl', [*examples, 'too short'])}",
        f"other={write_jsonl(tmp_path / 'other.jsonl', [example.replace('word', 'other') for example in examples])}",
    ]
    _, report = run_report(tmp_path / "out", documents, named, lines=lines)
    planted, other = report["benchmarks"]
    assert (planted["examples"], planted["too_short"], planted["ngrams"]) == (41, 1, 40 * 23)
    assert (other["ngrams"], other["overlapping"]) == (40 * 23, 0)
    if kind == "wrapped" and lines == "stop":
        assert planted["overlapping"] == 0
    elif kind == "edited":
        # Of the words before the first edit, between the two, and after the second.
        assert (planted["overlapping"], planted["examples_any"]) == (40 * (4 + 4), 40)
    else:
        assert planted["overlapping"] == 40 * 23
    assert report["documents_overlapping"] == (40 if planted["overlapping"] else 0)


def test_samples_are_compared_with_held_out_documents(tmp_path: Path) -> None:
    texts = [*random_texts(200, 9), "a sample with words of its own kind"]
    documents = write_documents(tmp_path / "docs.parquet", texts)
    ids = [f"docs-{number}" for number in range(len(texts))]
    apart = [text for id, text in zip(ids, texts, strict=True) if is_held_out(id, 0.2)]
    kept = [text for id, text in zip(ids, texts, strict=True) if not is_held_out(id, 0.2)]
    benchmark = write_jsonl(tmp_path / "b.jsonl", apart)
    sampled = write_jsonl(
        tmp_path / "samples.jsonl", ["a sample with words of its own kind", "no one wrote this before now", "x"]
    )
    summary, report = run_report(
        tmp_path / "out", documents, [f"b={benchmark}"], ngram=4, held_out=0.2, generated=sampled, workers=2
    )
    every = Normalization()
    held = ngrams_of(kept, 4, every)
    assert summary.dropped == {"held_out": len(apart)}
    dropped = pq.read_table(tmp_path / "out" / "dropped-00000.parquet")
    assert dropped.column("id").to_pylist() == [id for id in ids if is_held_out(id, 0.2)]
    assert report["documents"] == len(kept)
    assert report["benchmarks"][0]["percent_positions"] == percent_found(apart, held, 4, every)
    held_out, samples = report["samples"]["held_out"], report["samples"]["samples"]
    shares = [percent_found([text], held, 4, every) for text in apart]
    assert (held_out["examples"], held_out["too_short"]) == (len(apart), 0)
    assert held_out["mean_percent"] == pytest.approx(sum(shares) / len(shares), abs=1e-5)
    assert (samples["examples"], samples["too_short"], samples["none_percent"]) == (3, 1, 50.0)
    assert report["common_ngrams"][0]["benchmarks"] == ["b"]
    _, plain = run_report(tmp_path / "plain", documents, [f"b={benchmark}"], ngram=4, generated=sampled)
    assert plain["samples"]["held_out"] is None


def test_three_workers_write_the_same_with_all_options(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    for part in range(4):
        write_documents(tmp_path / "docs" / f"{part}.parquet", random_texts(40, 20 + part))
    named = [
        f"b:test={write_jsonl(tmp_path / 'test.jsonl', random_texts(9, 30))}",
        f"b:train={write_jsonl(tmp_path / 'train.jsonl', random_texts(9, 31))}",
    ]
    sampled = write_jsonl(tmp_path / "samples.jsonl", random_texts(5, 32))
    for folder, workers in (("one", 1), ("three", 3)):
        run_report(
            tmp_path / folder, tmp_path / "docs", named, workers=workers, generated=sampled, ngram=3, held_out=0.1,
            sensitivity=True, write_clean="corpus", ignore_common=20,
        )  # fmt: skip
    names = sorted(path.name for path in (tmp_path / "one").iterdir() if not path.name.startswith("."))
    assert {"documents-00003.parquet", "overlapping-00003.parquet", "report.html"} < set(names)
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "three" / name).read_bytes(), name
