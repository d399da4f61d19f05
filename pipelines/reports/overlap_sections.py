"""The sections of the overlap page beside those of the benchmarks; each is empty where the report has none of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipelines.reports.overlap_html import Cell, count_cell, note, percent_cell, row, table, text_cell
from pipelines.reports.overlap_plots import samples_plot
from pipelines.reports.overlap_words import (
    KINDS,
    Range,
    certificate_in_words,
    certificate_rows,
    distribution_rows,
    ignored_in_words,
    is_this_report,
    label,
    percent,
    range_in_words,
    ranges,
    self_test_in_words,
)
from pipelines.reports.tokenizer_plots import escaped

Report = Mapping[str, Any]

_SHARES = ("percent_positions", "percent_distinct")


def boilerplate(report: Report) -> str:
    """Return the n-grams that the most documents share, and what was left out for being common."""
    shared, ignored, n = report["common_ngrams"], ignored_in_words(report), report["n"]
    if not shared and ignored is None:
        return ""
    parts = ['<section id="boilerplate"><h2>Boilerplate</h2>']
    if ignored is not None:
        parts.append(f"<p>{escaped(ignored)}</p>")
    if shared:
        rows = [
            row(
                f"<code>{escaped(each['ngram'])}</code>",
                [count_cell(each["documents"]), count_cell(each["count"]), text_cell(", ".join(each["benchmarks"]))],
            )
            for each in shared
        ]
        about = (
            f"The {n}-grams of the benchmarks that the most documents of the corpus hold. What hundreds of documents "
            "share is a stock phrase or a site’s own text rather than a leak; <code>--ignore-common 10</code> leaves "
            "out of the figures what stands in more than 10 documents."
        )
        heads = (f"{n}-gram", "Documents", "Times", "In the benchmarks")
        parts += [note(about), table(heads, rows, "Shared n-grams", is_sorted=True, style="texts")]
    return "".join([*parts, "</section>"])


def certificate(report: Report) -> str:
    """Return what bounds the error of a Bloom filter."""
    proved = report["certificate"]
    if proved is None:
        return ""
    said = "".join(f"<p>{escaped(sentence)}</p>" for sentence in certificate_in_words(proved))
    rows = [row(escaped(name), [Cell(escaped(value))]) for name, value in certificate_rows(proved)]
    return (
        f'<section id="certificate"><h2>Certificate of the Bloom filter</h2>{said}'
        f"{table(('Figure', 'Value'), rows, 'Certificate', style='figures')}</section>"
    )


def sensitivity(report: Report) -> str:
    """Return the shares by every choice that the paper leaves open."""
    settings = report["sensitivity"]
    if not settings:
        return ""
    names = [label(each) for each in settings[0]["benchmarks"]]
    spread = [list(pair) for pair in zip(*(ranges(settings, key) for key in _SHARES), strict=True)]
    rows = [_setting(setting, spread, report) for setting in settings]
    heads = ["n", "Apostrophes", "Letters", "Lines", *(["positions", "distinct"] * len(names))]
    groups = [("", 4), *((f"{name}, % of", 2) for name in names)]
    said = "".join(f"<li>{escaped(range_in_words(settings, number))}</li>" for number in range(len(names)))
    about = (
        "The paper does not say how it treats apostrophes, letters of other scripts and line ends, nor whether its "
        "shares are of positions or of distinct n-grams. ▼ is the smallest and ▲ the largest share of a column."
    )
    if not any(is_this_report(setting, report) for setting in settings):
        about += f" The choices of this report, with n = {report['n']}, are not among these rows."
    return (
        f'<section id="sensitivity"><h2>How much the choices matter</h2>{note(about)}'
        f"{table(heads, rows, 'Sensitivity', groups=groups, style='settings')}"
        f'<p>Shares of positions lie:</p><ul class="ranges">{said}</ul></section>'
    )


def _setting(setting: Mapping[str, Any], spread: Sequence[Sequence[Range]], report: Report) -> str:
    cells = [text_cell(setting[name]) for name in ("apostrophes", "letters", "lines")]
    for each, benchmark in zip(spread, setting["benchmarks"], strict=True):
        cells += [_marked(benchmark[key], range_of) for key, range_of in zip(_SHARES, each, strict=True)]
    is_this = is_this_report(setting, report)
    head = f"{setting['n']}{' <small>this report</small>' if is_this else ''}"
    return row(head, cells, "this" if is_this else "")


def _marked(value: float, spread: Range) -> Cell:
    sign = ""
    if spread.low < spread.high and value in spread:
        is_low = value == spread.low
        sign = f'<span class="extreme" title="{"smallest" if is_low else "largest"}">{"▼" if is_low else "▲"}</span> '
    return Cell(f"{sign}{percent(value)}", value)


def self_test(report: Report) -> str:
    """Return the recall of copies that were planted."""
    test = report["self_test"]
    if test is None:
        return ""
    rows = [row(escaped(KINDS.get(kind["kind"], kind["kind"])), _recall_cells(kind)) for kind in test["kinds"]]
    heads = ("Copies", "Planted", "Found", "Recall, %", "N-grams", "Found of them", "%")
    said = "".join(f"<p>{escaped(sentence)}</p>" for sentence in self_test_in_words(test))
    about = "A copy is found when any n-gram of it is; the last columns count all n-grams of the copies."
    return (
        f'<section id="self-test"><h2>Self-test: planted copies</h2>{said}'
        f"{table(heads, rows, 'Self-test')}{note(about)}</section>"
    )


def _recall_cells(kind: Mapping[str, Any]) -> list[Cell]:
    of_ngrams = 100 * kind["ngrams_found"] / kind["ngrams"] if kind["ngrams"] else None
    return [
        count_cell(kind["planted"]),
        count_cell(kind["found"]),
        percent_cell(100 * kind["recall"] if kind["planted"] else None),
        count_cell(kind["ngrams"]),
        count_cell(kind["ngrams_found"]),
        percent_cell(of_ngrams),
    ]


def samples(report: Report) -> str:
    """Return how the model's own samples overlap with the corpus. Paper, appendix, figure 5."""
    given = report["samples"]
    if given is None:
        return ""
    keys = ("none_percent", "under_1_percent", "median_percent", "mean_percent")
    rows = [
        row(
            escaped(name.capitalize()),
            [
                count_cell(each["examples"]),
                count_cell(each["too_short"]),
                *(Cell(percent(each[key]), each[key]) for key in keys),
            ],
        )
        for name, each in distribution_rows(given)
    ]
    heads = ("Texts of", "Number", "Too short", "None, % of texts", "Under 1%, % of texts", "Median, %", "Mean, %")
    about = (
        "How much of each text is in the corpus; texts too short to test are in none of the shares. The paper’s own "
        "model: most samples overlap by less than 1%, over 30% of them not at all; its test set’s median is 2.6%."
    )
    return (
        f'<section id="samples"><h2>The model’s own samples</h2>{note(about)}<div class="plots one">'
        f"{samples_plot(given)}</div>{table(heads, rows, 'Samples')}</section>"
    )
