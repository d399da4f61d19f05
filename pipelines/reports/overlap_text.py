"""Columns, means and sentences of the overlap report, shared by its page and the terminal; plain text, not HTML.

To add a column, add an entry to `COLUMNS`: its `value` is computed from the counts of a benchmark and stored under its
`key` in `report.json`; the page and the terminal follow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from pipelines.algorithms.ngrams.overlap_counts import ExampleCounts
from pipelines.algorithms.ngrams.overlap_counts import percent as percent_of
from pipelines.format import format_bytes, plural

# The means of Table 6 of the paper over its six test sets, in percent, by the key of their column.
PAPER_MEAN = {"paper.own_train": 5.9, "paper.webtext": 3.2}
PAPER_COUNT = (
    "It counts the 8-grams of a whole data set (inferred), as --example document does with the other defaults."
)
SPLIT_NOT_NAMED = "split not named"
CAVEAT = (
    "An overlap does not prove a leak: quotations, names, stock phrases and boilerplate occur in many texts. "
    "Read the passages before you judge a figure."
)
# A filter that contains exactly as many n-grams as it was built for may slightly exceed its target rate.
_RATE_TOLERANCE = 1.05
_NAMED_FILES = 3
_SETTINGS = ("apostrophes", "letters", "lines")
# By value of an option; no two options share a value.
_MEANINGS = {
    "split": "an apostrophe separates words",
    "drop": "an apostrophe between two letters is removed: don’t becomes dont",
    "unicode": "letters and digits of all scripts form words",
    "ascii": "only a-z and 0-9 form words; all other characters separate them",
    "cross": "n-grams cross line ends",
    "stop": "n-grams stop at line ends",
    "auto": "an example is a line of a .txt file, or a record of other files",
    "line": "an example is a line",
    "paragraph": "an example is a paragraph; blank lines separate paragraphs",
    "document": "an example is a whole file",
    None: "no n-gram is ignored",
}
_CORPUS, _OWN_TRAIN, _EXAMPLES = "In this corpus", "In its own training split", "Examples"

Report = Mapping[str, Any]
Row = Mapping[str, Any]


class Column(NamedTuple):
    """A figure of each benchmark.

    `key` is its key in a benchmark of `report.json`, with a dot before the key of a nested object. `title` is its
    heading on the page, below that of its `group`; `terminal` its heading in the terminal, which has room for few
    columns. `{n}` stands for the words of an n-gram. Columns without a `value` are stored by other parts of the
    report.
    """

    key: str
    title: str
    value: Callable[[ExampleCounts], float] | None = None
    group: str = ""
    terminal: str | None = None
    is_percent: bool = False

    @property
    def is_of_paper(self) -> bool:
        """Whether the figure is the paper's."""
        return self.key.startswith("paper.")

    def read(self, benchmark: Row) -> Any:
        """Return the figure of a benchmark of `report.json`, None if it has none (or is older than the column)."""
        outer, _, inner = self.key.partition(".")
        value = benchmark.get(outer)
        return value.get(inner) if inner and value is not None else value


COLUMNS = (
    # With a non-breaking hyphen.
    Column("ngrams", "{n}‑grams", lambda counts: int(counts.ngrams.sum()), terminal="{n}-grams"),
    Column(
        "percent_positions",
        "% of positions",
        lambda counts: percent_of(int(counts.overlaps.sum()), int(counts.ngrams.sum())),
        group=_CORPUS,
        terminal="% pos",
        is_percent=True,
    ),
    Column(
        "percent_distinct",
        "% of distinct",
        lambda counts: percent_of(counts.distinct_found, counts.distinct),
        group=_CORPUS,
        terminal="% dist",
        is_percent=True,
    ),
    Column("paper.webtext", "paper’s % in WebText", group=_CORPUS, is_percent=True),
    Column("own_train.percent_positions", "% of positions", group=_OWN_TRAIN, terminal="% own", is_percent=True),
    Column("own_train.percent_distinct", "% of distinct", group=_OWN_TRAIN, is_percent=True),
    Column("paper.own_train", "paper’s %", group=_OWN_TRAIN, is_percent=True),
    Column("examples", "all", lambda counts: len(counts.ngrams), group=_EXAMPLES, terminal="examples"),
    Column("examples_any", "any overlap", lambda counts: counts.examples_with(0), group=_EXAMPLES, terminal="any"),
    Column("examples_15", "≥15%", lambda counts: counts.examples_with(15), group=_EXAMPLES, terminal=">=15%"),
    Column("examples_50", "≥50%", lambda counts: counts.examples_with(50), group=_EXAMPLES, terminal=">=50%"),
    Column("too_short", "too short", lambda counts: counts.too_short, group=_EXAMPLES, terminal="short"),
)


def column_values(counts: ExampleCounts) -> dict[str, float]:
    """Return the figures of a benchmark that are computed from its counts, by key."""
    return {column.key: column.value(counts) for column in COLUMNS if column.value is not None}


def shown_columns(benchmarks: Sequence[Row]) -> list[Column]:
    """Return the columns with a figure of at least one benchmark."""
    return [column for column in COLUMNS if any(column.read(benchmark) is not None for benchmark in benchmarks)]


def label(benchmark: Row) -> str:
    """Return a benchmark's name, followed by a slash and its split if it is named."""
    return str(benchmark["name"]) if benchmark["split"] is None else f"{benchmark['name']}/{benchmark['split']}"


def percent(value: float | None) -> str:
    """Format a percentage with two digits and no sign; values above 0 are never shown as 0.00."""
    if value is None:
        return "–"
    return "<0.01" if 0 < value < 0.005 else f"{value:.2f}"


def probability(value: float) -> str:
    """Format a small number as `1e-8` or `9.6e-9`; 0 and values from a thousandth without an exponent."""
    if value == 0 or value >= 1e-3:
        return f"{value:.3g}"
    digits, exponent = f"{value:.1e}".split("e")
    return f"{digits.removesuffix('.0')}e{int(exponent)}"


def describe_method(report: Report) -> str:
    """Return how n-grams were looked up, and the error of that method."""
    if report["method"] == "exact":
        return "exact: the whole corpus was read, and there are no false positives (error bound 0)"
    return (
        "Bloom filter: every n-gram of the corpus is found; an n-gram that is not in the corpus is found with a "
        f"probability of at most {probability(report['error_bound'])}"
    )


def describe_corpus(report: Report) -> str:
    """Return which files and how many documents were read, and how many of them share an n-gram with a benchmark."""
    names, others = report["corpus_files"], len(report["corpus_files"]) - _NAMED_FILES
    files = ", ".join(names[:_NAMED_FILES]) + (f" and {plural(others, 'more file')}" if others > 0 else "")
    size = f", {format_bytes(report['text_bytes'])} of text" if report["text_bytes"] is not None else ""
    overlapping = report["documents_overlapping"]
    documents = (f"{files}: " if files else "") + plural(report["documents"], "document")
    if overlapping is None:
        return f"{documents}{size}"
    share = f" ({percent(100 * overlapping / report['documents'])}%)" if report["documents"] else ""
    return f"{documents}{size}; {overlapping:,} of them{share} share an n-gram with a benchmark"


def describe_options(report: Report) -> list[tuple[str, str]]:
    """Return each option of the n-grams with its value, and what the value means."""
    return [
        (
            f"{name.replace('_', '-')} = {'none' if value is None else value}",
            f"n-grams in more than {plural(value, 'document')} are ignored"
            if isinstance(value, int)
            else _MEANINGS.get(value, ""),
        )
        for name, value in report["options"].items()
    ]


class Mean(NamedTuple):
    """Means over test splits by column, in percent; `own_trains` of the splits have a training split.

    Benchmarks without a named split count as test splits; `name` says how many there are.
    """

    name: str
    splits: int
    percents: Mapping[str, float]
    own_trains: int


def mean_of_tests(benchmarks: Sequence[Row]) -> Mean | None:
    """Return the means over the benchmarks that are test splits, None if there are fewer than two."""
    tests = [row for row in benchmarks if row["split"] is None or row["split"].lower() == "test"]
    if len(tests) < 2:
        return None
    name, without_split = f"Mean of {len(tests)} test splits", sum(row["split"] is None for row in tests)
    if without_split:
        splits = f": {len(tests) - without_split} test, {without_split} not named" if without_split < len(tests) else ""
        name = f"Mean of {len(tests)}{splits}"
    percents = {}
    for column in shown_columns(tests):
        if column.is_percent and not column.is_of_paper:
            values = [value for row in tests if (value := column.read(row)) is not None]
            percents[column.key] = float(sum(values)) / len(values)
    return Mean(name, len(tests), percents, sum(row["own_train"] is not None for row in tests))


def describe_ignored(report: Report) -> str | None:
    """Return which n-grams `ignore_common` excluded, None if it was not set."""
    ignored = report["ignored"]
    if ignored is None:
        return None
    ngrams = plural(ignored["ngrams"], f"distinct {report['n']}-gram")
    return (
        f"{ngrams} in more than "
        f"{plural(ignored['above_documents'], 'document')} were excluded from the figures of the benchmarks, at "
        f"{plural(ignored['positions'], 'position')}. Sensitivity and samples include them."
    )


def describe_certificate(certificate: Row) -> list[str]:
    """Return the bounds of a Bloom filter's false-positive rate: by its fill, and by the probe of random n-grams."""
    hits, target = certificate["found"], certificate["error_rate"]
    sentences = [
        f"The filter is {certificate['fill']:.1%} full, so an n-gram that is not in the corpus is found with a "
        f"probability of at most {probability(certificate['error_bound'])}; the target was {probability(target)}.",
        f"{hits:,} of {certificate['probes']:,} random n-grams {'was' if hits == 1 else 'were'} found, so the "
        f"false-positive rate is below {probability(certificate['upper_bound'])} (95% confidence).",
    ]
    if certificate["error_bound"] > target * _RATE_TOLERANCE:
        sentences.append("The filter contains more than it was built for: its false-positive rate exceeds the target.")
    elif certificate["upper_bound"] > target * 1.01:
        sentences.append(
            "The probe agrees with that bound, but does not prove the target on its own."
            if hits
            else f"The probe alone does not prove {probability(target)}: that takes about {round(3 / target):,} random "
            "n-grams without a hit."
        )
    return sentences


def is_this_report(setting: Row, report: Report) -> bool:
    """Return whether a row of the sensitivity table has the options of the report itself."""
    options = {"n": report["n"], **report["options"]}
    return all(setting[name] == options[name] for name in ("n", *_SETTINGS))


def describe_ranges(sensitivity: Sequence[Row]) -> list[str]:
    """Return how much the options matter, and for each benchmark the range of its share, with the options at its ends.

    Shares are of positions.
    """
    sentences, widest = [], 0.0
    for index, benchmark in enumerate(sensitivity[0]["benchmarks"]):
        shares = [setting["benchmarks"][index]["percent_positions"] for setting in sensitivity]
        low, high = min(shares), max(shares)
        widest = max(widest, high - low)
        ends = (sensitivity[shares.index(share)] for share in (low, high))
        lowest, highest = (f"n = {end['n']}, {', '.join(f'{name} {end[name]}' for name in _SETTINGS)}" for end in ends)
        sentences.append(
            f"{label(benchmark)}: {percent(low)}% with all options."
            if low == high
            else f"{label(benchmark)}: from {percent(low)}% ({lowest}) to {percent(high)}% ({highest})."
        )
    options = f"{plural(len(sensitivity), 'combination')} of options"
    change = f"Over {options}, no share of positions changes by more than {percent(widest)} percentage points."
    return [change if widest else f"The options do not matter: all {options} give the same overlap.", *sentences]


def distributions(samples: Row) -> list[tuple[str, Row]]:
    """Return the distributions of the report with their names, the model's samples first."""
    rows = [("the model’s samples", samples["samples"]), ("held-out text", samples["held_out"])]
    return [(name, distribution) for name, distribution in rows if distribution is not None]
