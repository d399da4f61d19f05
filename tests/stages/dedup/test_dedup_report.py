"""`report.html` of dedup: the counts of all documents, and what is shown, which depends on the texts alone."""

from __future__ import annotations

import functools
import random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dedup_run import SCHEMA, Row, changed, result_files, run, text_of, write_corpus

from pipelines.engine.manifest import read_manifest
from pipelines.stages.dedup import report

pytestmark = pytest.mark.usefixtures("warm_processes")

WITH_URL = SCHEMA.append(pa.field("url", pa.string()))


def corpus() -> list[Row]:
    """Return 20 documents, near copies of the first ten of them, twice of three, and two equal copies of the first."""
    rng = random.Random(3)
    texts = [text_of(rng, 200) for _ in range(20)]
    rows = [row(f"original{number}", text, "a.example.com", 9) for number, text in enumerate(texts)]
    rows += [row(f"near{number}", changed(texts[number], rng, 3), "b.example.com", 5) for number in range(10)]
    rows += [row(f"again{number}", changed(texts[number], rng, 3), "b.example.com", 4) for number in range(3)]
    rows += [row(f"equal{number}", texts[0], "c.example.co.uk", 1) for number in range(2)]
    return rows


def row(id: str, text: str, host: str, score: int) -> Row:
    return {"id": id, "text": text, "score": score, "created_utc": 1, "url": f"https://{host}/{id}"}


write = functools.partial(write_corpus, schema=WITH_URL)


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Return the reports that are rendered."""
    reports: list[dict[str, Any]] = []
    monkeypatch.setattr(
        "pipelines.reports.dedup.render_dedup_report", lambda values: str(reports.append(values) or values)
    )
    return reports


def test_the_report_counts_all_documents(captured, tmp_path):
    rows = corpus()
    run(write(tmp_path / "in", rows), tmp_path / "out")
    [values] = captured
    listed = {row["id"]: row for row in pq.read_table(tmp_path / "out" / "clusters.parquet").to_pylist()}
    near = [row["jaccard"] for row in listed.values() if row["kind"] == "near"]
    assert (values["records"], values["dropped"]) == (35, {"near_duplicate": 13, "exact_duplicate": 2})
    assert sum(values["similarities"]) == len(near) == 13
    for step, count in enumerate(values["similarities"]):
        assert count == sum(step / 20 <= similarity < (step + 1) / 20 for similarity in near)
    # Seven clusters of two documents, two of three, and one of five.
    assert values["sizes"] == [[1, 9, 20], [2, 1, 5]]
    assert values["domains"] == [("example.com", 33, 13), ("example.co.uk", 2, 2)]
    size, head, members = values["clusters"][0]
    assert (size, head["id"], head["url"]) == (5, "original0", "https://a.example.com/original0")
    # The least similar first; of equal texts one.
    assert {member["id"] for member, _ in members[:2]} == {"near0", "again0"}
    assert [jaccard for _, jaccard in members] == sorted(jaccard for _, jaccard in members)
    assert [(member["id"], jaccard) for member, jaccard in members[2:]] == [("equal0", 1.0)]
    assert len(values["clusters"]) == len(values["pairs"]) == 10
    texts = {row["id"]: row["text"] for row in rows}
    similarities = [jaccard for jaccard, *_ in values["pairs"]]
    assert similarities == sorted(similarities)
    # One pair per cluster, of the lowest step.
    assert len({kept["id"] for _, kept, _ in values["pairs"]}) == 10
    for jaccard, kept, dropped in values["pairs"]:
        assert listed[dropped["id"]]["jaccard"] == jaccard
        assert listed[dropped["id"]]["cluster"] == kept["id"]
        in_cluster = [row["jaccard"] for row in listed.values() if row["cluster"] == kept["id"] and row["jaccard"]]
        assert int(jaccard * 20 + 1e-9) == int(min(in_cluster) * 20 + 1e-9)
        for document in (kept, dropped):
            assert document["text"] == texts[document["id"]]
            assert document["characters"] == len(document["text"])


def test_the_page_is_part_of_the_result_and_has_the_same_bytes_for_any_workers_and_parts(tmp_path, monkeypatch):
    documents = write(tmp_path / "in", corpus())
    run(documents, tmp_path / "one")
    page = (tmp_path / "one" / "report.html").read_text()
    assert page.count('<article class="pair">') == 10
    assert page.count("<mark>") > 20
    assert "report.html" in {file.name for file in read_manifest(str(tmp_path / "one")).files}
    run(documents, tmp_path / "three", workers=3)
    monkeypatch.setattr(report, "_BUCKETS_PER_DOMAIN_BUCKET", 2)
    run(documents, tmp_path / "parts", buckets=7)
    for name in ("three", "parts"):
        assert (tmp_path / name / "report.html").read_text() == page


def test_what_is_shown_depends_on_the_texts_alone(captured, tmp_path, monkeypatch):
    monkeypatch.setattr(report, "PAIRS", 4)
    monkeypatch.setattr(report, "CLUSTERS", 3)
    rows = corpus()
    for number in range(3):
        run(write(tmp_path / f"in{number}", rows, shards=number + 1), tmp_path / f"out{number}")
        random.Random(number).shuffle(rows)
    assert [len(captured[0][name]) for name in ("pairs", "clusters")] == [4, 3]
    for values in captured:
        assert values["pairs"] == captured[0]["pairs"]
        assert [head for _, head, _ in values["clusters"]] == [head for _, head, _ in captured[0]["clusters"]]
    # Those of the lowest step come first.
    similarities = [jaccard for jaccard, *_ in captured[0]["pairs"]]
    counts = captured[0]["similarities"]
    assert sum(int(jaccard * 20) == 16 for jaccard in similarities) == min(4, counts[16])


def test_long_texts_are_cut(captured, tmp_path, monkeypatch):
    monkeypatch.setattr(report, "SHOWN_CHARACTERS", 50)
    run(write(tmp_path / "in", corpus()), tmp_path / "out")
    for _, kept, dropped in captured[0]["pairs"]:
        assert len(kept["text"]) == len(dropped["text"]) == 50 < min(kept["characters"], dropped["characters"])


def test_kept_documents_of_an_earlier_corpus_are_shown_if_their_texts_are_there(captured, tmp_path):
    rows = corpus()
    later = write(tmp_path / "later", [*rows[20:], row("new", text_of(random.Random(8), 90), "new.org", 1)])
    signed = tmp_path / "signed"
    run(write(tmp_path / "earlier", rows[:20]), signed, write_signatures=True)
    run(later, tmp_path / "read", against=(str(tmp_path / "earlier"),))
    run(later, tmp_path / "signatures", against=(str(signed),))
    for path in signed.glob("documents-*.parquet"):
        path.unlink()
    summary = run(later, tmp_path / "unread", against=(str(signed),))
    figures = ("clusters", "largest_cluster", "estimated_near_duplicate_pairs")
    assert [summary.extra[name] for name in figures] == [10, 5, 13]
    texts = {row["id"]: row["text"] for row in rows}
    for values in captured[1:3]:
        assert [kept["text"] for _, kept, _ in values["pairs"]] == [texts[kept["id"]] for _, kept, _ in values["pairs"]]
    unread = captured[3]
    assert len(unread["pairs"]) == 10
    for _, kept, dropped in unread["pairs"]:
        assert (kept["text"], kept["url"]) == (None, None)
        assert kept["id"].startswith("original")
        assert dropped["text"] == texts[dropped["id"]]
    # The kept documents count for the size of a cluster, but not as documents of the input.
    assert (unread["records"], unread["sizes"]) == (16, [[1, 9, 20], [2, 1, 5]])


def test_removed_paragraphs_are_not_shown(captured, tmp_path):
    notice = "All rights reserved by the publisher of these pages."
    rows = [row | {"text": f"{notice}\n{row['text']}"} for row in corpus()]
    run(write(tmp_path / "in", rows), tmp_path / "out", paragraphs=20)
    assert len(captured[0]["pairs"]) == 10
    assert not any("rights" in document["text"] for pair in captured[0]["pairs"] for document in pair[1:])


@pytest.mark.parametrize("settings", [{}, {"paragraphs": 20}])
def test_a_finished_run_is_complete_and_a_lost_report_is_rebuilt(tmp_path, monkeypatch, settings):
    documents = write(tmp_path / "in", corpus())
    run(documents, tmp_path / "out", **settings)
    result = result_files(tmp_path / "out")
    with monkeypatch.context() as patch:
        patch.setattr("pipelines.stages.dedup.stage._run_phases", None)
        run(documents, tmp_path / "out", **settings)
    (tmp_path / "out" / "report.html").unlink()
    run(documents, tmp_path / "out", **settings)
    assert result_files(tmp_path / "out") == result


def test_documents_without_duplicates_and_urls(captured, tmp_path):
    rows = [{key: value for key, value in row.items() if key != "url"} for row in corpus()[:5]]
    run(write_corpus(tmp_path / "in", rows), tmp_path / "out")
    [values] = captured
    assert (values["records"], values["dropped"], sum(values["similarities"])) == (5, {}, 0)
    assert [values[name] for name in ("sizes", "clusters", "pairs", "domains")] == [[], [], [], []]
