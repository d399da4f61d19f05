"""The overlap report as one page of HTML, drawn from `report.json` alone: no network, light and dark."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from pipelines.reports import overlap_sections as sections
from pipelines.reports.overlap_benchmarks import benchmark_section
from pipelines.reports.overlap_html import Cell, count_cell, note, percent_cell, row, table, text_cell
from pipelines.reports.overlap_style import SCRIPT, STYLE
from pipelines.reports.overlap_words import (
    NO_PROOF,
    PAPER_MEAN,
    Mean,
    documents_in_words,
    mean_of_tests,
    method_in_words,
    options_in_words,
    percent,
    split_in_words,
)
from pipelines.reports.tokenizer_plots import escaped

Report = Mapping[str, Any]
Row = Mapping[str, Any]

_FINGERPRINT_CHARACTERS = 16


def render_report(report: Report) -> str:
    """Return the page for a `report.json`; every text in it is escaped. Paper, section 4."""
    after = [
        (sections.boilerplate(report), "boilerplate", "Boilerplate"),
        (sections.certificate(report), "certificate", "Certificate"),
        (sections.sensitivity(report), "sensitivity", "Sensitivity"),
        (sections.self_test(report), "self-test", "Self-test"),
        (sections.samples(report), "samples", "Samples"),
    ]
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'\">",
        f"<title>Overlap report</title><style>{STYLE}</style></head><body><main>",
        _heading(report),
        _contents([(id, name) for drawn, id, name in after if drawn]),
        _table_6(report),
        *(benchmark_section(each, number, report["n"]) for number, each in enumerate(report["benchmarks"])),
        *(drawn for drawn, _, _ in after if drawn),
        f"</main><script>{SCRIPT}</script></body></html>",
    ]
    return "\n".join(part for part in parts if part) + "\n"


def _heading(report: Report) -> str:
    n, corpus = report["n"], report["corpus"]
    shown = corpus if len(corpus) <= _FINGERPRINT_CHARACTERS else f"{corpus[:_FINGERPRINT_CHARACTERS]}…"
    facts = [
        ("Corpus", f'<code title="{escaped(corpus)}">{escaped(shown)}</code>'),
        ("Documents read", escaped(documents_in_words(report))),
        ("Method", escaped(method_in_words(report))),
        ("N-gram", f"{n} words in a row: {escaped(report['normalisation'])}"),
    ]
    listed = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in facts)
    options = "".join(
        f"<li><code>{escaped(name)}</code> {escaped(meaning)}</li>" for name, meaning in options_in_words(report)
    )
    return (
        f'<h1>Overlap report</h1><p class="lead">How many of each benchmark’s {n}-grams, runs of {n} words, the corpus '
        f'holds.</p><p class="warning">{escaped(NO_PROOF)}</p><dl class="facts">{listed}<div><dt>Options</dt><dd>'
        f'<ul class="options">{options}</ul></dd></div></dl>'
    )


def _contents(drawn: Sequence[tuple[str, str]]) -> str:
    links = "".join(f'<a href="#{id}">{name}</a>' for id, name in [("benchmarks", "Benchmarks"), *drawn])
    return f'<nav aria-label="On this page">{links}</nav>' if drawn else ""


class _Column(NamedTuple):
    """A column of the main table: its heading, the group it stands in, and its cell for a benchmark."""

    title: str
    group: str
    cell: Callable[[Row], Cell]
    mean: Callable[[Mean], float | None] | None = None
    paper: str = ""


def _columns(report: Report) -> list[_Column]:
    """Return the columns; those of training splits and of the paper only where a benchmark has such a figure."""
    rows = report["benchmarks"]
    has_own = any(each["own_train"] for each in rows)
    has_paper = any(each["paper"] for each in rows)
    here, own, of = "In this corpus", "In its own training split", "Examples"
    positions, distinct, paper = "% of positions", "% of distinct", "paper’s %"
    columns = [
        _Column("Split", "", lambda each: text_cell(split_in_words(each))),
        # A hyphen at which no line ends.
        _Column(f"{report['n']}‑grams", "", lambda each: count_cell(each["ngrams"])),
        _Column(
            positions, here, lambda each: percent_cell(each["percent_positions"]), lambda mean: mean.percent_positions
        ),
        _Column(
            distinct, here, lambda each: percent_cell(each["percent_distinct"]), lambda mean: mean.percent_distinct
        ),
    ]
    if has_paper:
        columns.append(_Column(f"{paper} in WebText", here, lambda each: _paper_cell(each, "webtext"), paper="webtext"))
    if has_own:
        columns += [
            _Column(positions, own, lambda each: _own_cell(each, "percent_positions"), lambda mean: mean.own_train),
            _Column(
                distinct, own, lambda each: _own_cell(each, "percent_distinct"), lambda mean: mean.own_train_distinct
            ),
        ]
    if has_paper:
        columns.append(_Column(paper, own, lambda each: _paper_cell(each, "own_train"), paper="own_train"))
    return [
        *columns,
        _Column("all", of, lambda each: count_cell(each["examples"])),
        _Column("any overlap", of, lambda each: count_cell(each["examples_any"])),
        _Column("≥15%", of, lambda each: count_cell(each["examples_15"])),
        _Column("≥50%", of, lambda each: count_cell(each["examples_50"])),
        _Column("too short", of, lambda each: count_cell(each["too_short"])),
    ]


def _own_cell(each: Row, key: str) -> Cell:
    own = each["own_train"]
    return percent_cell(None if own is None else own[key])


def _paper_cell(each: Row, key: str) -> Cell:
    paper = each["paper"]
    if paper is None:
        return Cell("–")
    name = f"<small>{escaped(paper['name'])}</small>" if key == "webtext" else ""
    return Cell(f"{percent(paper[key])}{name}", paper[key])


def _table_6(report: Report) -> str:
    columns, rows = _columns(report), report["benchmarks"]
    drawn = [
        row(
            f'<a href="#benchmark-{number}">{escaped(each["name"])}</a>',
            [column.cell(each) for column in columns],
        )
        for number, each in enumerate(rows)
    ]
    heads = ["Benchmark", *(column.title for column in columns)]
    mean = mean_of_tests(rows)
    return (
        '<section id="benchmarks"><h2>Benchmarks</h2>'
        + table(
            heads, drawn, "Benchmarks", groups=_groups(columns), foot=_feet(columns, mean), is_sorted=True, style="main"
        )
        + note(_about(report, mean))
        + "</section>"
    )


def _groups(columns: Sequence[_Column]) -> list[tuple[str, int]]:
    groups: list[tuple[str, int]] = [("", 1)]
    for column in columns:
        name, width = groups[-1]
        if column.group == name:
            groups[-1] = (name, width + 1)
        else:
            groups.append((column.group, 1))
    return groups


def _feet(columns: Sequence[_Column], mean: Mean | None) -> list[str]:
    feet = []
    if mean is not None:
        cells = [_mean_cell(column.mean(mean) if column.mean else None) for column in columns]
        feet.append(row(mean.name, cells))
    if any(column.paper for column in columns):
        # One digit, as the paper gives them.
        cells = [Cell(f"{PAPER_MEAN[column.paper]:.1f}" if column.paper else "") for column in columns]
        feet.append(row("The paper’s mean, of its six", cells))
    return feet


def _mean_cell(value: float | None) -> Cell:
    return Cell("" if value is None else percent(value))


def _about(report: Report, mean: Mean | None) -> str:
    n = report["n"]
    sentences = [
        "Positions count an n-gram each time it stands in the benchmark, distinct ones once. “Any overlap” are the "
        "examples with at least one n-gram in the corpus; “≥15%” and “≥50%” those with that share of their n-grams "
        f"in it. “Too short” are examples without an {n}-gram: they cannot be tested, and are among all examples all "
        "the same."
    ]
    if any(each["paper"] for each in report["benchmarks"]):
        sentences.append(
            "“Paper’s” are not our figures: they are those of Radford et al., “Language Models are Unsupervised "
            "Multitask Learners” (2019), section 4, Table 6, of its test sets in WebText and in their own training "
            "splits; it does not say whether they are of positions or of distinct 8-grams."
        )
    if mean is not None and 0 < mean.own_trains < mean.splits:
        sentences.append(
            f"The mean in the own training split is over the {mean.own_trains} of these {mean.splits} that one was "
            "given for."
        )
    return " ".join(sentences)
