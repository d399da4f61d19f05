"""What `webtext overlap-report` prints of a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipelines.reports.overlap_columns import COLUMNS, Column
from pipelines.reports.overlap_words import (
    PAPER_MEAN,
    certificate_in_words,
    distribution_rows,
    documents_in_words,
    ignored_in_words,
    is_this_report,
    label,
    mean_of_tests,
    method_in_words,
    options_in_words,
    percent,
    range_in_words,
    ranges,
    self_test_in_words,
    times,
)
from webtext_cli.console import print_table, printable, say, say_wrapped, shortened

_NAME_CHARACTERS = 18
_COMMON = 10
_PASSAGE_CHARACTERS = 160
_COLUMNS_A_TABLE = 3

_SHOWN = [column for column in COLUMNS if column.terminal is not None]
# Which columns the paper's figures are shown in.
_PAPER_COLUMNS = {"webtext": "percent_positions", "own_train": "own_train.percent_positions"}

Report = Mapping[str, Any]
Row = Mapping[str, Any]


def print_overlap(report: Report) -> None:
    """Print a `report.json`: Table 6 of the paper with ours beside its figures, then all else that is in it."""
    say_wrapped(f"corpus: {documents_in_words(report)}")
    say_wrapped(f"method: {method_in_words(report)}")
    options = ", ".join(name for name, _ in options_in_words(report))
    say_wrapped(f"n-gram: {report['n']} words in a row; {options}")
    _print_benchmarks(report)
    for print_part in (_print_certificate, _print_sensitivity, _print_self_test, _print_samples):
        print_part(report)
    for benchmark in report["benchmarks"]:
        _print_scores(benchmark)
        if "clean" in benchmark:
            clean = benchmark["clean"]
            say_wrapped(f"clean {label(benchmark)}: {clean['kept']:,} kept, {clean['left_out']:,} left out")
    _print_boilerplate(report)
    _print_passages(report["benchmarks"])


def _print_benchmarks(report: Report) -> None:
    headings = ["benchmark", "split", *((column.terminal or "").format(n=report["n"]) for column in _SHOWN)]
    rows = [row for benchmark in report["benchmarks"] for row in _benchmark_rows(benchmark)]
    print_table(headings, [*rows, *_mean_rows(report)], title="Overlap with the corpus", narrow=True)
    say_wrapped(
        "% pos: of positions; % dist: of distinct n-grams; % own: of positions, in its own train split; short: too "
        "short to test"
    )
    if mean_of_tests(report["benchmarks"]) is not None:
        say("mean: of the test splits, and of what has no split named")
    if any(benchmark["paper"] for benchmark in report["benchmarks"]):
        say_wrapped("the paper: its figures for WebText (% pos) and the own train split (% own), section 4, Table 6")


def _benchmark_rows(benchmark: Row) -> list[list[str]]:
    """Return the row of a benchmark, and below it the figures of the paper."""
    split = "not named" if benchmark["split"] is None else printable(benchmark["split"])
    rows = [[_short_name(benchmark["name"]), split, *(_cell(column.read(benchmark), column) for column in _SHOWN)]]
    return [*rows, _paper_row("  the paper", benchmark["paper"])] if benchmark["paper"] else rows


def _cell(value: float | None, column: Column) -> str:
    if value is None:
        return "-"
    return percent(value) if column.is_percent else f"{value:,}"


def _mean_rows(report: Report) -> list[list[str]]:
    mean = mean_of_tests(report["benchmarks"])
    if mean is None:
        return []
    rows = [_percent_row(f"mean of {mean.splits}", mean.percents)]
    if any(benchmark["paper"] for benchmark in report["benchmarks"]):
        rows.append(_paper_row("  the paper's mean", {name: PAPER_MEAN[f"paper.{name}"] for name in _PAPER_COLUMNS}))
    return rows


def _paper_row(name: str, paper: Row) -> list[str]:
    return _percent_row(name, {key: paper[figure] for figure, key in _PAPER_COLUMNS.items()})


def _percent_row(name: str, percents: Mapping[str, float]) -> list[str]:
    return [name, "", *(percent(percents[column.key]) if column.key in percents else "" for column in _SHOWN)]


def _print_certificate(report: Report) -> None:
    for sentence in certificate_in_words(report["certificate"]) if report["certificate"] else []:
        say_wrapped(f"certificate: {sentence}")


def _print_sensitivity(report: Report) -> None:
    settings = report["sensitivity"] or []
    benchmarks = settings[0]["benchmarks"] if settings else []
    for first in range(0, len(benchmarks), _COLUMNS_A_TABLE):
        _print_settings(report, range(first, min(len(benchmarks), first + _COLUMNS_A_TABLE)))
    if benchmarks:
        say("* the smallest and the largest share of a benchmark; > the choices of this report")
    for number in range(len(benchmarks)):
        say_wrapped(printable(range_in_words(settings, number)))


def _print_settings(report: Report, numbers: Sequence[int]) -> None:
    """Print the sensitivity of some of the benchmarks: % of positions / % of distinct n-grams."""
    settings = report["sensitivity"]
    names = [_short_name(label(settings[0]["benchmarks"][number])) for number in numbers]
    spread = ranges(settings, "percent_positions")
    rows = []
    for setting in settings:
        cells = []
        for number in numbers:
            each, ends = setting["benchmarks"][number], spread[number]
            is_end = ends.low < ends.high and each["percent_positions"] in ends
            cells.append(
                f"{'* ' if is_end else ''}{percent(each['percent_positions'])} / {percent(each['percent_distinct'])}"
            )
        head = f"{'> ' if is_this_report(setting, report) else '  '}{setting['n']}"
        rows.append([head, *(setting[name] for name in ("apostrophes", "letters", "lines")), *cells])
    title = "Sensitivity: % of positions / % of distinct"
    print_table(["  n", "apostr.", "letters", "lines", *names], rows, title=title)


def _print_self_test(report: Report) -> None:
    test = report["self_test"]
    if test is None:
        return
    rows = [
        [
            printable(kind["kind"]),
            f"{kind['planted']:,}",
            f"{kind['found']:,}",
            f"{100 * kind['recall']:.1f}" if kind["planted"] else "-",
            f"{kind['ngrams']:,}",
            f"{kind['ngrams_found']:,}",
        ]
        for kind in test["kinds"]
    ]
    print_table(["copies", "planted", "found", "recall, %", "n-grams", "of them found"], rows, title="Self-test")
    for sentence in self_test_in_words(test):
        say_wrapped(sentence)


def _print_samples(report: Report) -> None:
    if report["samples"] is None:
        return
    keys = ("none_percent", "under_1_percent", "median_percent", "mean_percent")
    rows = [
        [name, f"{each['examples']:,}", f"{each['too_short']:,}", *(percent(each[key]) for key in keys)]
        for name, each in distribution_rows(report["samples"])
    ]
    headings = ["overlap of", "texts", "too short", "% none", "% under 1%", "median %", "mean %"]
    print_table(headings, rows, title="The model's own samples")


def _print_scores(benchmark: Row) -> None:
    if not benchmark["scores"]:
        return
    parts = ("all", "clean", "overlapping", "not_tested")
    rows = [[printable(each["metric"]), *(_mean(each[part]) for part in parts)] for each in benchmark["scores"]]
    headings = ["metric (examples)", "all", "clean", "overlapping", "not tested"]
    print_table(headings, rows, title=f"Scores on {printable(label(benchmark))}")


def _mean(part: Row) -> str:
    mean = "-" if part["mean"] is None else f"{part['mean']:.4g}"
    return f"{mean} ({part['examples']:,})"


def _print_boilerplate(report: Report) -> None:
    ignored = ignored_in_words(report)
    if ignored is not None:
        say_wrapped(f"ignored: {ignored}")
    if not report["common_ngrams"]:
        return
    rows = [
        [
            shortened(printable(each["ngram"]), _PASSAGE_CHARACTERS // 2),
            f"{each['documents']:,}",
            f"{each['count']:,}",
        ]
        for each in report["common_ngrams"][:_COMMON]
    ]
    print_table([f"{report['n']}-gram", "documents", "times"], rows, title="In the most documents", narrow=True)


def _print_passages(benchmarks: Sequence[Row]) -> None:
    """Print the longest passage of each benchmark, shortened, with where it stands and a document that holds it."""
    for each in benchmarks:
        if not each["passages"]:
            continue
        longest = each["passages"][0]
        # One line of the terminal, whatever the lines of the passage are.
        text = shortened(printable(" ".join(longest["text"].split())), _PASSAGE_CHARACTERS)
        held = [source["url"] or source["id"] for source in longest["sources"][:1]]
        where = f", in {printable(held[0])}" if held else ""
        say_wrapped(
            f"longest in {printable(label(each))}: {times(longest['words'], 'word')}, "
            f"{printable(longest['place'])}{where}: {text}"
        )


def _short_name(name: str) -> str:
    return shortened(printable(name), _NAME_CHARACTERS)
