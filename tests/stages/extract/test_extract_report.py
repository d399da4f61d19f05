"""`report.html` of extract: all pages by outcome, and a sample that depends on the ids alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from extract_run import HTML_HEADERS, html_page, rows, run, write_pages
from quick_extractor import first_paragraph, paragraphs

from pipelines.engine import manifest
from pipelines.stages.extract import report
from pipelines.stages.extract.child import PageText, RawPage
from pipelines.stages.extract.extractors import EXTRACTORS
from pipelines.stages.extract.pages import SourcePage

pytestmark = pytest.mark.usefixtures("warm_processes")


@pytest.fixture(autouse=True)
def _quick_extractors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EXTRACTORS, "trafilatura", first_paragraph)
    monkeypatch.setitem(EXTRACTORS, "fast", paragraphs)
    monkeypatch.setattr("pipelines.stages.extract.stage.extractor_version", lambda name: name)


def _folder(tmp_path: Path, shards: list[range], name: str = "fetch") -> Path:
    pages = [[(f"http://e.com/{n}", html_page(str(n)).encode(), HTML_HEADERS) for n in part] for part in shards]
    return write_pages(tmp_path / name, pages)


def test_the_report_is_part_of_the_result_and_has_every_outcome(tmp_path: Path) -> None:
    pages = _folder(tmp_path, [range(3), range(3, 5)])
    run(pages, tmp_path / "out", extractor="fast")
    page = (tmp_path / "out" / "report.html").read_text()
    assert page.count("<article>") == 5
    assert "River 3" in page
    assert "The river 3 0 rises" in page
    files = {file.name for file in manifest.read_manifest(str(tmp_path / "out")).files}
    assert {"report.html", "report-00000.json", "report-00001.json"} < files
    tally = json.loads((tmp_path / "out" / "report-00000.json").read_text())
    # A confidence over 45% and up to 50%.
    assert tally["counts"] == {"outcomes": {"forum ": 3}, "confidences": {"9": 3}, "signals": {}}


def test_the_sample_does_not_depend_on_the_order_and_division_of_the_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "SAMPLES", 4)
    monkeypatch.setattr(report, "_CANDIDATES_PER_SAMPLE", 3)
    expected = None
    for number, shards in enumerate([[range(40)], [range(20, 40), range(10), range(10, 20)]]):
        output = tmp_path / str(number)
        run(_folder(tmp_path, shards, f"fetch{number}"), output, extractor="fast")
        page = (output / "report.html").read_text()
        assert page.count("<article>") == 4
        expected = expected or page
        assert page == expected
    ids = sorted((row["id"] for row in rows(tmp_path / "0", "documents")), key=report._hash)
    assert all(row["url"] in expected for row in rows(tmp_path / "0", "documents") if row["id"] in ids[:4])


def test_a_damaged_report_is_rebuilt_without_extracting_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pages = _folder(tmp_path, [range(3)])
    run(pages, tmp_path / "out", extractor="fast")
    page = (tmp_path / "out" / "report.html").read_bytes()
    (tmp_path / "out" / "report.html").write_bytes(b"other")
    monkeypatch.setattr("pipelines.stages.extract.stage._extract_source", None)
    run(pages, tmp_path / "out", extractor="fast")
    assert (tmp_path / "out" / "report.html").read_bytes() == page


def test_other_extractors_have_no_blocks(tmp_path: Path) -> None:
    run(_folder(tmp_path, [range(3)]), tmp_path / "out", extractor="trafilatura", min_words=1)
    page = (tmp_path / "out" / "report.html").read_text()
    assert "3 pages, extracted with trafilatura." in page
    assert "<article>" not in page


def test_a_tally_keeps_few_pages_and_marks_only_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    tally = report.PageTally(None)
    marked = 0
    for number in range(2000):
        page = SourcePage(f"id{number}", None, RawPage(b"<p>", None, None))
        content = tally.mark(page)
        assert isinstance(content, RawPage)
        marked += content.with_blocks
        blocks = ([("text", 0.5, True)], 1) if content.with_blocks else None
        tally.add(page, PageText(text="text", confidence=0.5, blocks=blocks), 1, None)
    assert len(tally._samples) == report.SAMPLES
    # A page has blocks if it is among the first so far: about 30 * (1 + ln(2000 / 30)).
    assert report.SAMPLES < marked < 300
    dropped = SourcePage("id", None, PageText(problem="http_status"))
    assert tally.mark(dropped) is dropped.content
    # Where the number of pages is known, fewer are candidates.
    few = report.PageTally(30_000)
    pages = [SourcePage(f"id{number}", None, RawPage(b"<p>", None, None)) for number in range(3000)]
    assert 10 < sum(few.mark(page).with_blocks for page in pages) < 60  # type: ignore[union-attr]
