"""The overlap report as one page of HTML, drawn from `report.json` alone: no network, light and dark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipelines.reports import overlap_sections as sections
from pipelines.reports.overlap_benchmarks import benchmark_section
from pipelines.reports.overlap_columns import Column, shown_columns
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


def _cell(column: Column, benchmark: Row) -> Cell:
    value = column.read(benchmark)
    if column.is_of_paper:
        name = (
            f"<small>{escaped(benchmark['paper']['name'])}</small>" if value and column.key == "paper.webtext" else ""
        )
        return Cell(f"{percent(value)}{name}", value)
    return percent_cell(value) if column.is_percent else count_cell(value)


def _table_6(report: Report) -> str:
    rows = report["benchmarks"]
    columns = shown_columns(rows)
    drawn = [
        row(
            f'<a href="#benchmark-{number}">{escaped(each["name"])}</a>',
            [text_cell(split_in_words(each)), *(_cell(column, each) for column in columns)],
        )
        for number, each in enumerate(rows)
    ]
    heads = ["Benchmark", "Split", *(column.title.format(n=report["n"]) for column in columns)]
    mean = mean_of_tests(rows)
    return (
        '<section id="benchmarks"><h2>Benchmarks</h2>'
        + table(
            heads, drawn, "Benchmarks", groups=_groups(columns), foot=_feet(columns, mean), is_sorted=True, style="main"
        )
        + note(_about(report, mean))
        + "</section>"
    )


def _groups(columns: Sequence[Column]) -> list[tuple[str, int]]:
    groups: list[tuple[str, int]] = [("", 2)]
    for column in columns:
        name, width = groups[-1]
        if column.group == name:
            groups[-1] = (name, width + 1)
        else:
            groups.append((column.group, 1))
    return groups


def _feet(columns: Sequence[Column], mean: Mean | None) -> list[str]:
    feet = []
    if mean is not None:
        shares = [mean.percents.get(column.key) for column in columns]
        feet.append(row(mean.name, [Cell(""), *(Cell("" if share is None else percent(share)) for share in shares)]))
    if any(column.is_of_paper for column in columns):
        # One digit, as in the paper.
        means = [PAPER_MEAN.get(column.key) for column in columns]
        cells = [Cell(""), *(Cell("" if value is None else f"{value:.1f}") for value in means)]
        feet.append(row("The paper’s mean, of its six", cells))
    return feet


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
