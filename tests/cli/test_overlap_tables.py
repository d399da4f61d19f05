"""What the terminal shows of an overlap report."""

from __future__ import annotations

import json
from typing import Any

import pytest
from small_overlap_report import LONG_TEXT, bare_report, benchmark, full_report, passage

from pipelines.reports.overlap import render_overlap_report
from webtext_cli.tables.overlap import print_overlap

_ODD = "a\x1b[2J\u202e\n:smile: [red]b"


def _shown(capsys: pytest.CaptureFixture[str], report: dict[str, Any]) -> list[str]:
    print_overlap(json.loads(json.dumps(report)))
    return capsys.readouterr().out.splitlines()


def test_the_papers_figures_follow_each_benchmark(capsys: pytest.CaptureFixture[str]) -> None:
    lines = _shown(capsys, full_report())
    cells = [line.split() for line in lines]
    starts = [row[:6] for row in cells]
    at = starts.index("wikitext2 test 82,430 1.40 1.26 0.62".split())
    assert {"2,000", "260", "41", "12", "140"} <= set(cells[at])
    assert cells[at + 1] == "the paper 1.63 0.66".split()
    assert starts[at + 2] == "gsm8k test 82,430 <0.01 <0.01 –".split()
    assert "shakespeare not named 82,430 41.00 36.90".split() in starts
    assert "mean of 3 14.13 12.72 0.62".split() in cells
    assert "the paper's mean 3.20 5.90".split() in cells
    table = lines[lines.index("Overlap with the corpus") : lines.index("Overlap with the corpus") + 10]
    assert max(map(len, table)) <= 110
    # Next to its figures, how the paper counted.
    assert "--example document" in " ".join(lines)
    # The paper's figures are in the same columns.
    row, paper = lines[cells.index(cells[at])], lines[at + 1]
    assert row.index("1.40") == paper.index("1.63")
    assert row.index("0.62") == paper.index("0.66")


def test_every_part_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    lines = _shown(capsys, full_report())
    cells = [line.split() for line in lines]
    text = "\n".join(lines)
    assert "certificate: 0 of 300,000,000 random n-grams were found, so the false-positive rate is below 1e-8" in text
    (this,) = (each for each in cells if each[:2] == [">", "8"])
    assert this == "> 8 split unicode cross 1.40 / 1.26 0.02 / 0.02 41.00 / 36.90".split()
    conclusion = "Over 16 combinations of options, no share of positions changes by more than 38.44 percentage points."
    assert text.index(conclusion) < text.index("Sensitivity:")
    assert "wikitext2/test: from 0.09% (n = 13, apostrophes drop, letters ascii, lines stop) to 1.40%" in text
    assert "held-out text 1,000 4 12.00 31.36 2.60 3.64".split() in cells
    assert "accuracy 0.632 (2,000) 0.629 (1,600) 0.71 (260) 0.55 (140)".split() in cells
    assert "perplexity 8.6 (2,000) 8.7 (2,000) – (0) – (0)".split() in cells
    assert "all rights reserved no part of this publication 120,034 130,001".split() in cells
    assert "ignored: 37 distinct 8-grams in more than 10 documents" in text
    (longest,) = (line for line in lines if line.startswith("longest in wikitext2/test: "))
    assert "680 words, wiki.test.txt:1204, in https://example.org/wildlife/sharks?page=2: Line 0 of" in longest
    assert "…" in longest
    assert LONG_TEXT.endswith(longest[-40:])


def test_a_report_older_than_a_column_shows_a_dash(capsys: pytest.CaptureFixture[str]) -> None:
    report = full_report()
    expected = _shown(capsys, report)
    for row in report["benchmarks"]:
        del row["examples_50"]
    lines = _shown(capsys, report)
    assert len(lines) == len(expected)
    (row,) = (line.split() for line in lines if line.split()[:3] == ["gsm8k", "test", "82,430"])
    assert row[-2] == "–"
    # The page shows the columns of which any benchmark has a figure.
    assert (">≥15%<" in render_overlap_report(report), ">≥50%<" in render_overlap_report(report)) == (True, False)


def test_missing_parts_are_not_printed(capsys: pytest.CaptureFixture[str]) -> None:
    text = "\n".join(_shown(capsys, bare_report()))
    assert "(error bound 0)" in text
    for part in (
        "the paper",
        "mean",
        "certificate",
        "Sensitivity",
        "samples",
        "Scores",
        "ignored",
        "longest",
    ):
        assert part not in text, part


def test_texts_cannot_control_the_terminal(terminal: pytest.CaptureFixture[str]) -> None:
    report = full_report()
    odd = {"before": _ODD, "text": _ODD, "after": _ODD, "place": _ODD, "sources": [{"id": _ODD, "url": None}]}
    report["benchmarks"] = [
        benchmark(_ODD, _ODD, 1.0, passages=[passage(**odd)], scores=report["benchmarks"][0]["scores"])
    ]
    report["benchmarks"][0]["scores"][0]["metric"] = _ODD
    report["common_ngrams"][0]["ngram"] = _ODD
    for setting in report["sensitivity"]:
        setting["benchmarks"] = [setting["benchmarks"][0] | {"name": _ODD, "split": _ODD}]
    shown = "".join(_shown(terminal, report))
    assert shown.isprintable()
    assert r"a\u001b[2J\u202e" in shown
    assert ":smile: [red]b" in shown


def test_equal_settings_are_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    report = full_report()
    for setting in report["sensitivity"]:
        setting["benchmarks"] = report["sensitivity"][0]["benchmarks"]
    lines = _shown(capsys, report)
    assert "The options do not matter: all 16 combinations of options give the same overlap." in lines
    assert not [line for line in lines if line.startswith(("Sensitivity", "> marks"))]


def test_many_benchmarks_are_split_into_tables(capsys: pytest.CaptureFixture[str]) -> None:
    report = full_report()
    for setting in report["sensitivity"]:
        setting["benchmarks"] = [setting["benchmarks"][0] | {"name": f"b{number}"} for number in range(9)]
    lines = _shown(capsys, report)
    assert lines.count("Sensitivity: % of positions / % of distinct") == 3
    assert any("b8/test" in line for line in lines)
