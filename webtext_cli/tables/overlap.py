"""Output of `webtext overlap-report`."""

from __future__ import annotations

from collections.abc import Mapping

from pipelines.format import format_count, format_number, plural
from pipelines.reports.overlap_text import (
    COLUMNS,
    PAPER_COUNT,
    PAPER_MEAN,
    Report,
    Row,
    describe_certificate,
    describe_corpus,
    describe_ignored,
    describe_method,
    describe_options,
    describe_ranges,
    distributions,
    is_this_report,
    label,
    mean_of_tests,
    percent,
)
from webtext_cli.console import print_table, say, say_wrapped, shorten

_NAME_CHARACTERS = 18
_COMMON_NGRAMS = 10
_PASSAGE_CHARACTERS = 160
_BENCHMARKS_PER_TABLE = 3

_SHOWN = [column for column in COLUMNS if column.terminal is not None]
# The columns in which the paper's figures are shown.
_PAPER_COLUMNS = {"webtext": "percent_positions", "own_train": "own_train.percent_positions"}


def print_overlap(report: Report) -> None:
    """Print a `report.json`: the benchmarks with the paper's figures (Table 6) below them, then all other parts."""
    say_wrapped(f"corpus: {describe_corpus(report)}")
    say_wrapped(f"method: {describe_method(report)}")
    options = ", ".join(option for option, _ in describe_options(report))
    say_wrapped(f"n-gram: {report['n']} consecutive words; {options}")
    _print_benchmarks(report)
    for sentence in describe_certificate(report["certificate"]) if report["certificate"] else []:
        say_wrapped(f"certificate: {sentence}")
    if report["sensitivity"]:
        _print_sensitivity(report)
    if report["samples"]:
        _print_samples(report["samples"])
    for benchmark in report["benchmarks"]:
        if benchmark["scores"]:
            _print_scores(benchmark)
        if "clean" in benchmark:
            clean = benchmark["clean"]
            say_wrapped(f"clean {label(benchmark)}: {clean['kept']:,} kept, {clean['left_out']:,} removed")
    _print_boilerplate(report)
    for benchmark in report["benchmarks"]:
        if benchmark["passages"]:
            _print_longest_passage(benchmark)


def _print_benchmarks(report: Report) -> None:
    benchmarks, mean = report["benchmarks"], mean_of_tests(report["benchmarks"])
    headings = ["benchmark", "split", *((column.terminal or "").format(n=report["n"]) for column in _SHOWN)]
    rows = [row for benchmark in benchmarks for row in _benchmark_rows(benchmark)]
    has_paper = any(benchmark["paper"] for benchmark in benchmarks)
    if mean is not None:
        rows.append(_percent_row(f"mean of {mean.splits}", mean.percents))
        if has_paper:
            rows.append(_paper_row("  the paper's mean", {key: PAPER_MEAN[f"paper.{key}"] for key in _PAPER_COLUMNS}))
    print_table(headings, rows, title="Overlap with the corpus", narrow=True)
    say_wrapped(
        "% pos: of positions; % dist: of distinct n-grams; % own: of positions, in its own train split; short: too "
        "short to test"
    )
    if mean is not None:
        say("mean: over test splits and benchmarks without a named split")
    if has_paper:
        paper = "the paper: section 4, Table 6, WebText (% pos) and the benchmark's own train split (% own)."
        say_wrapped(f"{paper} {PAPER_COUNT}")


def _benchmark_rows(benchmark: Row) -> list[list[str]]:
    """Return the row of a benchmark, and below it the figures of the paper."""
    values = [(column, column.read(benchmark)) for column in _SHOWN]
    cells = [percent(value) if column.is_percent else format_count(value) for column, value in values]
    rows = [[shorten(benchmark["name"], _NAME_CHARACTERS), benchmark["split"] or "not named", *cells]]
    return [*rows, _paper_row("  the paper", benchmark["paper"])] if benchmark["paper"] else rows


def _paper_row(name: str, paper: Row) -> list[str]:
    return _percent_row(name, {key: paper[figure] for figure, key in _PAPER_COLUMNS.items()})


def _percent_row(name: str, percents: Mapping[str, float]) -> list[str]:
    return [name, "", *(percent(percents[column.key]) if column.key in percents else "" for column in _SHOWN)]


def _print_sensitivity(report: Report) -> None:
    settings = report["sensitivity"]
    for sentence in describe_ranges(settings):
        say_wrapped(sentence)
    for first in range(0, len(settings[0]["benchmarks"]), _BENCHMARKS_PER_TABLE):
        shown = slice(first, first + _BENCHMARKS_PER_TABLE)
        rows = [
            [
                f"{'> ' if is_this_report(setting, report) else '  '}{setting['n']}",
                *(setting[option] for option in ("apostrophes", "letters", "lines")),
                *(
                    f"{percent(shares['percent_positions'])} / {percent(shares['percent_distinct'])}"
                    for shares in setting["benchmarks"][shown]
                ),
            ]
            for setting in settings
        ]
        names = [shorten(label(row), _NAME_CHARACTERS) for row in settings[0]["benchmarks"][shown]]
        title = "Sensitivity: % of positions / % of distinct"
        if len({tuple(row[4:]) for row in rows}) > 1:
            print_table(["  n", "apostr.", "letters", "lines", *names], rows, title=title)
            say("> marks the options used in this report")


def _print_samples(samples: Row) -> None:
    keys = ("none_percent", "under_1_percent", "median_percent", "mean_percent")
    rows = [
        [name, f"{texts['examples']:,}", f"{texts['too_short']:,}", *(percent(texts[key]) for key in keys)]
        for name, texts in distributions(samples)
    ]
    headings = ["overlap of", "texts", "too short", "% none", "% under 1%", "median %", "mean %"]
    print_table(headings, rows, title="The model's own samples")


def _print_scores(benchmark: Row) -> None:
    parts = ("all", "clean", "overlapping", "not_tested")
    rows = [
        [score["metric"], *(f"{format_number(score[part]['mean'])} ({score[part]['examples']:,})" for part in parts)]
        for score in benchmark["scores"]
    ]
    headings = ["metric (examples)", "all", "clean", "overlapping", "not tested"]
    print_table(headings, rows, title=f"Scores on {label(benchmark)}")


def _print_boilerplate(report: Report) -> None:
    ignored = describe_ignored(report)
    if ignored is not None:
        say_wrapped(f"ignored: {ignored}")
    rows = [
        [shorten(common["ngram"], _PASSAGE_CHARACTERS // 2), f"{common['documents']:,}", f"{common['count']:,}"]
        for common in report["common_ngrams"][:_COMMON_NGRAMS]
    ]
    if rows:
        headings = [f"{report['n']}-gram", "documents", "occurrences"]
        print_table(headings, rows, title="In the most documents", narrow=True)


def _print_longest_passage(benchmark: Row) -> None:
    passage = benchmark["passages"][0]
    text = shorten(" ".join(passage["text"].split()), _PASSAGE_CHARACTERS)
    sources = "".join(f", in {source['url'] or source['id']}" for source in passage["sources"][:1])
    say_wrapped(
        f"longest in {label(benchmark)}: {plural(passage['words'], 'word')}, {passage['place']}{sources}: {text}"
    )
