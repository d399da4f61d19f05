"""Dedup finds altered copies, as `benchmarks/bench_dedup_recall.py` measures it; and what a fault looks like."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from benchmark_scripts import load_script
from dedup_run import Row, changed, shingles_of, text_of, write_corpus

from pipelines.engine.run import RunOptions
from pipelines.errors import InputError
from pipelines.stages.dedup.config import DedupConfig

module: Any = load_script("bench_dedup_recall")
COPIES = module.COPIES
EDITS = [kind for kind in COPIES if kind.endswith("edited")]


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = random.Random(5)
    rows: list[Row] = [
        {"id": f"d{number}", "text": text_of(rng, rng.randrange(60, 400)), "score": 1, "created_utc": 1}
        for number in range(40)
    ]
    # A near-duplicate, an exact one, and documents that are too short.
    rows.append(rows[0] | {"id": "near", "text": changed(rows[0]["text"], rng, 1)})
    rows.append(rows[1] | {"id": "equal"})
    rows += [rows[0] | {"id": f"short{number}", "text": text_of(rng, 49)} for number in range(5)]
    return write_corpus(tmp_path_factory.mktemp("recall") / "in", rows)


@pytest.fixture(scope="module")
def measured(documents: Path) -> dict[str, Any]:
    result: dict[str, Any] = _measure(DedupConfig(threshold=0.7), documents, 100)
    return result


def _measure(config: DedupConfig, documents: Path, sample: int) -> Any:
    return module.measure_recall(config, documents=str(documents), options=RunOptions(), sample=sample)


def test_recall_and_precision_by_similarity(measured):
    # Two of the 42 are near each other, and one is there twice.
    assert measured["documents"] == 41
    assert (measured["bands"], measured["rows"]) == (32, 4)
    assert [(row["from"], row["to"]) for row in measured["ranges"]] == [
        (0.0, 0.7), (0.7, 0.75), (0.75, 0.8), (0.8, 0.85), (0.85, 0.9), (0.9, 0.95), (0.95, 1.0),
    ]  # fmt: skip
    below, *ranges = measured["ranges"]
    assert (below["found"], below["recall"], below["predicted"]) == (0, None, None)
    assert below["pairs"] > 100
    for row in ranges:
        assert row["pairs"] >= 10
        assert row["recall"] == row["found"] / row["pairs"] >= 0.95
        assert 0.99 < row["predicted"] <= 1
    # Of the two near documents one is dropped, so that its copies are no pairs; nor are copies that are as near to
    # another kept document.
    assert 450 < sum(row["pairs"] for row in measured["ranges"]) <= 40 * 13
    assert measured["below_threshold"] == 0
    assert measured["precision"] == 1
    assert measured["dropped"] >= sum(row["found"] for row in ranges)


def test_recall_by_kind_of_copy(measured):
    kinds = {row["kind"]: row for row in measured["kinds"]}
    assert list(kinds) == [kind for kind in COPIES if kind != "unchanged"]
    assert [kinds[kind]["mean_similarity"] for kind in EDITS] == sorted(
        (kinds[kind]["mean_similarity"] for kind in EDITS), reverse=True
    )
    for kind in ("lines wrapped", "case changed"):
        assert kinds[kind]["mean_similarity"] == kinds[kind]["recall"] == 1
        assert kinds[kind]["pairs"] == kinds[kind]["copies"] == kinds[kind]["found"] >= 39
    assert kinds["truncated to 90%"]["mean_similarity"] == pytest.approx(0.9, abs=0.02)
    assert (kinds["truncated to 50%"]["pairs"], kinds["truncated to 50%"]["recall"]) == (0, None)


def test_the_copies_are_what_their_names_say():
    text = text_of(random.Random(1), 400)
    copies = {kind: module._copy(text, kind) for kind in COPIES}
    assert copies == {kind: module._copy(text, kind) for kind in COPIES}
    assert copies["unchanged"] == text
    assert copies["case changed"] == text.upper()
    assert text in copies["boilerplate around"]
    assert copies["truncated to 70%"].split() == text.split()[:280]
    lines = copies["lines wrapped"].split("\n")
    assert max(map(len, lines)) <= 60 < len(lines) * 60
    assert copies["lines wrapped"].split() == text.split()
    for kind, percent in zip(EDITS, (1, 2, 3, 5, 10, 20, 40), strict=True):
        # An edit changes at most five shingles.
        lost = set(shingles_of(text, 5)) - set(shingles_of(copies[kind], 5))
        assert 0 < len(lost) <= 5 * 400 * percent / 100 * 2.5
        assert 0.5 < len(copies[kind]) / len(text) < 1.5
    # Words of Chinese are characters.
    edited = module._copy("天地玄黃宇宙洪荒" * 20, "20% of the words edited")
    assert 0 < sum(edited.count(character) for character in "天地玄黃宇宙洪荒") == len(edited)


def test_the_sample_does_not_depend_on_the_order_of_the_documents(documents, tmp_path, monkeypatch):
    chosen = module._choose_documents(DedupConfig(), str(documents), RunOptions(), 7)
    assert len(chosen) == 7
    paths = [str(path) for path in sorted(documents.iterdir(), reverse=True)]
    assert module._choose_documents(DedupConfig(), paths, RunOptions(), 7) == chosen
    monkeypatch.setattr(module, "_CHARACTERS", 400)
    assert all(len(text) <= 400 for text in module._choose_documents(DedupConfig(), str(documents), RunOptions(), 7))


def test_documents_that_are_too_short_are_an_error(tmp_path):
    rows: list[Row] = [{"id": "a", "text": "one two three", "score": 1, "created_utc": 1}]
    with pytest.raises(InputError, match="no document has 50 words"):
        _measure(DedupConfig(), write_corpus(tmp_path / "in", rows, 1), 100)


def test_a_document_below_the_threshold_and_a_missed_one_are_reported(documents, monkeypatch):
    """A deduplication that drops half-truncated copies, and misses those with other lines."""

    def faulty(config, *, documents, output, options):
        rows = [
            {"id": f"{number}/{kind}", "cluster": f"{number}/unchanged", "kind": "near"}
            for number in range(4)
            for kind in ("truncated to 50%", "case changed")
        ]
        monkeypatch.setattr(module.shards, "read_rows", lambda path: rows)

    monkeypatch.setattr(module, "dedup", faulty)
    measured = _measure(DedupConfig(), documents, 4)
    assert (measured["precision"], measured["below_threshold"], measured["dropped"]) == (0.5, 4, 8)
    kinds = {row["kind"]: row for row in measured["kinds"]}
    assert (kinds["case changed"]["recall"], kinds["lines wrapped"]["recall"]) == (1, 0)
    assert measured["ranges"][0]["found"] == 4
