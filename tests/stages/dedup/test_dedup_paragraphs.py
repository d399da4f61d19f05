"""Paragraphs that occur in many documents are removed before documents are compared."""

from __future__ import annotations

import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dedup_run import outcome, result_files, rows_of, run, text_of, write_corpus

from pipelines.stages.dedup.paragraphs import find_paragraphs

pytestmark = pytest.mark.usefixtures("warm_processes")

NOTICE = "All rights reserved by the publisher of these pages in 2017."


@pytest.fixture
def rows():
    rng = random.Random(1)
    texts = [f"{text_of(rng, 40)}\n\n{NOTICE}\n\n{text_of(rng, 40)}" for _ in range(4)]
    texts += [f"{text_of(rng, 30)}\nshort line", f"{text_of(rng, 30)}\nshort line", NOTICE, f"  {NOTICE.upper()}!\n"]
    return [{"id": f"d{n}", "text": text, "score": n, "created_utc": 1} for n, text in enumerate(texts)]


def test_paragraphs_of_more_than_n_documents_are_removed_and_listed(rows, tmp_path):
    documents = write_corpus(tmp_path / "in", rows)
    summary = run(documents, tmp_path / "out", paragraphs=5)
    kept = {row["id"]: row["text"] for row in rows_of(tmp_path / "out", "documents")}
    assert kept == {
        row["id"]: row["text"].replace(f"{NOTICE}\n\n", "") for row in rows[:6]
    }  # fmt: skip
    assert outcome(tmp_path / "out")[1] == [("d6", "repeated_paragraphs", None), ("d7", "repeated_paragraphs", None)]
    listed = pq.read_table(tmp_path / "out" / "paragraphs.parquet").to_pylist()
    assert listed == [{"paragraph": NOTICE, "documents": 6}]
    figures = [summary.extra[name] for name in ("paragraphs_removed", "documents_with_removed_paragraphs")]
    assert (figures, summary.extra["distinct_paragraphs"]) == ([6, 6], 1)
    run(documents, tmp_path / "three", workers=3, paragraphs=5, buckets=4)
    one, three = (result_files(tmp_path / name) for name in ("out", "three"))
    one.pop("manifest.json"), three.pop("manifest.json")
    assert one == three


def test_paragraphs_stay_by_default_and_up_to_the_limit_and_if_short(rows, tmp_path):
    documents = write_corpus(tmp_path / "in", rows)
    run(documents, tmp_path / "default")
    run(documents, tmp_path / "limit", paragraphs=6)
    for name in ("default", "limit"):
        assert {row["id"] for row in rows_of(tmp_path / name, "documents")} == {f"d{n}" for n in (0, 1, 2, 3, 4, 5, 7)}
    run(documents, tmp_path / "short", paragraphs=1, min_paragraph_words=2)
    texts = [row["text"] for row in rows_of(tmp_path / "short", "documents")]
    assert not any("short line" in text or "rights reserved" in text for text in texts)


def test_documents_that_differ_in_repeated_paragraphs_only_are_duplicates(tmp_path):
    rng = random.Random(2)
    text, notices = text_of(rng, 30), [text_of(rng, 40) for _ in range(2)]
    texts = [text, text, *(text_of(rng, 20) for _ in range(4))]
    rows = [
        {"id": f"{n}", "text": f"{text}\n{notices[n % 2]}", "score": n, "created_utc": 1}
        for n, text in enumerate(texts)
    ]
    documents = write_corpus(tmp_path / "in", rows)
    run(documents, tmp_path / "with")
    assert len(outcome(tmp_path / "with")[0]) == 6
    run(documents, tmp_path / "without", paragraphs=2)
    assert outcome(tmp_path / "without")[1] == [("0", "exact_duplicate", "1")]


def test_the_paragraphs_of_texts_have_their_positions():
    texts = pa.array(["zero", "", "One two three.\n\nfour\nONE, two; three", "\n", "one two three"])[1:]
    paragraphs = find_paragraphs(texts, 3)
    assert paragraphs.texts.tolist() == [1, 1, 3]
    assert len(set(paragraphs.hashes.tolist())) == 1
    data = b"".join(text.encode() for text in ["zero", *texts.to_pylist()])
    spans = zip(paragraphs.starts.tolist(), paragraphs.ends.tolist(), strict=True)
    assert [data[start:end] for start, end in spans] == [b"One two three.\n", b"ONE, two; three", b"one two three"]
