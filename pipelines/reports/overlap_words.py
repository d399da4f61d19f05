"""What the overlap report says in words and in sums, for its page and for the terminal alike; plain text, not HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pipelines.reports.overlap_columns import shown_columns

# A filter that holds just what it was made for may be a little over or under the rate that was asked for.
_MORE_THAN_CHANCE = 1.05
# The means of Table 6 of the paper, in percent, over the test splits of its six benchmarks.
PAPER_MEAN = {"paper.own_train": 5.9, "paper.webtext": 3.2}
SPLIT_NOT_NAMED = "split not named"
NO_PROOF = (
    "An overlap is no proof of a leak: quotations, names, stock phrases and boilerplate stand in many texts. "
    "Read the passages before you judge a figure."
)
KINDS = {
    "verbatim": "verbatim: as it stands",
    "wrapped": "wrapped: broken into short lines",
    "embedded": "embedded: in the middle of another sentence",
    "edited": "edited: a word here and there changed",
}

_OPTIONS = {
    "apostrophes": {
        "split": "an apostrophe ends a word, as any other sign does",
        "drop": "an apostrophe between two letters is left out: don’t is dont",
    },
    "letters": {
        "unicode": "letters and digits of all scripts make words",
        "ascii": "only a-z and 0-9 make words; all else ends one",
    },
    "lines": {
        "cross": "an n-gram may run on into the next line",
        "stop": "an n-gram ends where its line ends",
    },
    "example": {
        "auto": "a line of a .txt, a record of JSONL or Parquet",
        "line": "each line",
        "paragraph": "each paragraph, divided by blank lines",
        "document": "all that stands in a file, together",
    },
}

Report = Mapping[str, Any]
Row = Mapping[str, Any]


def label(row: Row) -> str:
    """Return a benchmark's name, with its split behind a slash where one was named."""
    return str(row["name"]) if row["split"] is None else f"{row['name']}/{row['split']}"


def split_in_words(row: Row) -> str:
    """Return which split a benchmark is; never nothing."""
    return SPLIT_NOT_NAMED if row["split"] is None else str(row["split"])


def count(value: int | None) -> str:
    """Write a number with separators, a dash for none."""
    return "–" if value is None else f"{value:,}"


def percent(value: float | None) -> str:
    """Write percent with two digits, without the sign; what is above 0 never as 0.00."""
    if value is None:
        return "–"
    return "<0.01" if 0 < value < 0.005 else f"{value:.2f}"


def small(value: float) -> str:
    """Write a small number as `1e-8`, `9.6e-9`; 0 and what is at least a thousandth plainly."""
    if value == 0 or value >= 1e-3:
        return f"{value:.3g}"
    digits, power = f"{value:.1e}".split("e")
    return f"{digits.removesuffix('.0')}e{int(power)}"


def times(number: int, noun: str) -> str:
    """Write a number with its noun, which gets an s where there is not just one: `1 document`, `2,000 documents`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def method_in_words(report: Report) -> str:
    """Return how the n-grams were looked up, and how often that is wrong."""
    if report["method"] == "exact":
        return "exact: the whole corpus was read; nothing is found that it does not hold (error bound 0)"
    return (
        f"Bloom filter: all that the corpus holds is found; an n-gram that it does not hold is taken for one that it "
        f"holds with a probability of at most {small(report['error_bound'])}"
    )


def documents_in_words(report: Report) -> str:
    """Return how many documents were read, and how many of them share an n-gram with a benchmark."""
    size = f", {size_in_words(report['text_bytes'])} of text" if report["text_bytes"] is not None else ""
    read = f"{times(report['documents'], 'document')}{size}"
    overlapping = report["documents_overlapping"]
    if overlapping is None:
        return read
    share = f" ({percent(100 * overlapping / report['documents'])}%)" if report["documents"] else ""
    return f"{read}; {overlapping:,} of them{share} share an n-gram with a benchmark"


def size_in_words(size_bytes: float) -> str:
    """Write a number of bytes: `512 bytes`, `1.5 MB`."""
    for name in ("bytes", "kB", "MB", "GB"):
        if size_bytes < 1000:
            return f"{size_bytes:,.0f} {name}" if name == "bytes" else f"{size_bytes:,.1f} {name}"
        size_bytes /= 1000
    return f"{size_bytes:,.1f} TB"


def options_in_words(report: Report) -> list[tuple[str, str]]:
    """Return each option of the normalization: its name with its value, and what that means."""
    options = report["options"]
    said = [
        (f"{name} = {options[name]}", meanings.get(options[name], str(options[name])))
        for name, meanings in _OPTIONS.items()
    ]
    most = options["ignore_common"]
    common = (
        "no n-gram is left out for being common"
        if most is None
        else f"n-grams that stand in more than {times(most, 'document')} are left out"
    )
    return [*said, (f"ignore-common = {'none' if most is None else most}", common)]


class Mean(NamedTuple):
    """Means over test splits, in percent, by the key of the column; over those splits that have the figure.

    A split without a name counts as a test split, as for the command; `name` says how many there are.
    """

    name: str
    splits: int
    percents: Mapping[str, float]
    own_trains: int


def mean_of_tests(rows: Sequence[Row]) -> Mean | None:
    """Return the means over the rows that are test splits, None if there are fewer than two."""
    tests = [row for row in rows if row["split"] is None or row["split"].lower() == "test"]
    if len(tests) < 2:
        return None
    unnamed = sum(row["split"] is None for row in tests)
    named = f"{len(tests) - unnamed} test, " if unnamed < len(tests) else ""
    name = f"Mean of {len(tests)}: {named}{unnamed} not named" if unnamed else f"Mean of {len(tests)} test splits"
    percents = {}
    for column in shown_columns(tests):
        if column.is_percent and not column.is_of_paper:
            values = [value for row in tests if (value := column.read(row)) is not None]
            percents[column.key] = float(sum(values)) / len(values)
    return Mean(name, len(tests), percents, sum(row["own_train"] is not None for row in tests))


def ignored_in_words(report: Report) -> str | None:
    """Return what `ignore_common` left out, None where it was not asked for."""
    ignored = report["ignored"]
    if ignored is None:
        return None
    left_out = times(ignored["ngrams"], f"distinct {report['n']}-gram")
    return (
        f"{left_out} that stand in more than {times(ignored['above_documents'], 'document')} were left out of the "
        f"figures of the benchmarks: {times(ignored['positions'], 'position')} in them. Sensitivity, samples and "
        "self-test count them."
    )


def certificate_in_words(certificate: Row) -> list[str]:
    """Return what bounds a Bloom filter's error: how full it is, and what the probe found."""
    found, probes, asked = certificate["found"], certificate["probes"], certificate["error_rate"]
    proved = f"which proves less than {small(certificate['upper_bound'])} (with a confidence of 95%)"
    sentences = [
        f"The filter is {100 * certificate['fill']:.1f}% full, so an n-gram that is not in the corpus is found with a "
        f"probability of at most {small(certificate['error_bound'])}; {small(asked)} was asked for.",
        f"{found:,} of {probes:,} made-up n-grams {'was' if found == 1 else 'were'} found, {proved}.",
    ]
    if certificate["error_bound"] > asked * _MORE_THAN_CHANCE:
        sentences.append("The filter is fuller than it was made for: its error is above what was asked for.")
    elif certificate["upper_bound"] > asked * 1.01:
        needed = round(3 / asked)
        sentences.append(
            f"The probe alone does not prove {small(asked)}: with none found that takes about {needed:,} n-grams."
            if not found
            else "The probe agrees with that; by itself it does not prove what was asked for."
        )
    return sentences


def certificate_rows(certificate: Row) -> list[tuple[str, str]]:
    """Return the figures of a Bloom filter with their names."""
    return [
        ("N-grams in the filter (distinct)", f"{certificate['keys']:,}"),
        ("Size", f"{certificate['bits']:,} bits, {size_in_words(certificate['bits'] / 8)}"),
        ("Bits per n-gram", f"{certificate['bits_a_key']:.1f}"),
        ("Hashes", f"{certificate['hashes']:,}"),
        ("Fill", f"{100 * certificate['fill']:.2f}%"),
        ("Error asked for", small(certificate["error_rate"])),
        ("Error bound from the fill", small(certificate["error_bound"])),
        ("Made-up n-grams tried", f"{certificate['probes']:,}"),
        ("Found of them", f"{certificate['found']:,}"),
        ("Error bound from the probe, 95%", small(certificate["upper_bound"])),
    ]


def is_this_report(setting: Row, report: Report) -> bool:
    """Return whether a row of the sensitivity table has the options of the report itself."""
    options = report["options"]
    return bool(setting["n"] == report["n"]) and all(
        setting[name] == options[name] for name in ("apostrophes", "letters", "lines")
    )


def setting_in_words(setting: Row) -> str:
    """Return the options of a row of the sensitivity table: `n = 8, apostrophes drop, letters ascii, lines stop`."""
    return f"n = {setting['n']}, " + ", ".join(
        f"{name} {setting[name]}" for name in ("apostrophes", "letters", "lines")
    )


class Range(NamedTuple):
    """The smallest and the largest share of one benchmark over all rows of the sensitivity table, in percent."""

    low: float
    high: float


def ranges(sensitivity: Sequence[Row], key: str) -> list[Range]:
    """Return the range of a share for each benchmark, in the order in which the rows have them."""
    columns = zip(*(setting["benchmarks"] for setting in sensitivity), strict=True)
    return [Range(min(shares), max(shares)) for shares in ([row[key] for row in column] for column in columns)]


def range_in_words(sensitivity: Sequence[Row], number: int) -> str:
    """Return between what a benchmark's share of positions lies, and by which options."""
    low, high = ranges(sensitivity, "percent_positions")[number]
    name = label(sensitivity[0]["benchmarks"][number])
    if low == high:
        return f"{name}: {percent(low)}% by every choice."
    shares = [setting["benchmarks"][number]["percent_positions"] for setting in sensitivity]
    lowest, highest = (sensitivity[shares.index(share)] for share in (low, high))
    return (
        f"{name}: from {percent(low)}% ({setting_in_words(lowest)}) to {percent(high)}% ({setting_in_words(highest)})."
    )


def self_test_in_words(self_test: Row) -> list[str]:
    """Return on what the self-test stands, and what it found that was not planted."""
    planted = (
        f"Copies of {times(self_test['examples'], 'example')} of the benchmarks were planted in "
        f"{times(self_test['documents'], 'document')} of the corpus and looked for."
    )
    short = (
        f"{times(self_test['too_short'], 'example')} {'was' if self_test['too_short'] == 1 else 'were'} too short to "
        "be found by n-grams at all, and not planted."
    )
    found = self_test["unplanted_found"]
    false = f"False ones: {times(found, 'n-gram')} {'was' if found == 1 else 'were'} found that no copy had."
    return [planted, short, false]


def distribution_rows(samples: Row) -> list[tuple[str, Row]]:
    """Return the distributions that there are, the model's samples first, with their names."""
    named = [("the model’s samples", samples["samples"]), ("held-out text", samples["held_out"])]
    return [(name, each) for name, each in named if each is not None]
