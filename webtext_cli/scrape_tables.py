"""What `webtext scrape --explain` and `--lint` print on standard output."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Sequence

from pipelines.stages.scrape.explain import ExplainedSubmission, Explanation, counts_of
from pipelines.stages.scrape.link_lookup import LinkInResult
from pipelines.stages.scrape.lint import FileReport, LintReport
from pipelines.stages.scrape.linter import MonthReport
from pipelines.stages.scrape.months import SCORE_LABELS, MonthCounts
from webtext_cli.console import print_table, printable, say, say_wrapped

_SHOWN = 50
_SHOWN_CHARACTERS = 60


def print_explanation(explanation: Explanation, as_json: bool) -> None:
    """Print what became of a URL, the verdict last, or one JSON object."""
    if as_json:
        say(json.dumps(explanation.to_json(), ensure_ascii=False))
        return
    rule = f"{explanation.rule} drops it, whoever submits it" if explanation.rule else "none that drops it by itself"
    say(f"url     {explanation.canonical_url}")
    say(f"domain  {explanation.domain}, in {explanation.shard}")
    say(f"rule    {rule}")
    if explanation.submissions:
        _print_submissions(explanation)
    for note in explanation.notes:
        say_wrapped(f"note: {note}")
    _print_near(explanation)
    if explanation.result is not None:
        _print_result(explanation.result)
    say_wrapped(explanation.verdict)


def _print_submissions(explanation: Explanation) -> None:
    shown = explanation.submissions[:_SHOWN]
    if explanation.source == "urls":
        print_table(["file", "url no.", "became"], [[each.file, f"{each.line:,}", each.became] for each in shown])
    else:
        headings = ["file", "line", "id", "subreddit", "date", "score", "became"]
        print_table(headings, [_submission_row(each) for each in shown], narrow=True)
    more = len(explanation.submissions) - len(shown)
    if more:
        counts = ", ".join(f"{name} {count:,}" for name, count in counts_of(explanation.submissions).items())
        say_wrapped(f"and {more:,} more; of all: {counts}")


def _submission_row(each: ExplainedSubmission) -> list[str]:
    date = dt.datetime.fromtimestamp(each.created_utc, dt.UTC).strftime("%Y-%m-%d")
    score = "null" if each.score is None else f"{each.score:,}"
    return [each.file, f"{each.line:,}", printable(each.id), printable(each.subreddit), date, score, each.became]


def _print_near(explanation: Explanation) -> None:
    is_list = explanation.source == "urls"
    for url, count in explanation.near.items():
        say(f"near    {url} {'is listed' if is_list else 'has'} {_number(count, 'time' if is_list else 'submission')}")


def _print_result(result: LinkInResult) -> None:
    if result.link is None:
        what = "holds no such link"
    else:
        count = len(result.link["submission_ids"])
        of = f", with score {result.link['score']:,} of {_number(count, 'submission')}" if count else ""
        what = f"holds it in {result.shard}{of}"
    but = f"; that result was made otherwise: {'; '.join(result.made_otherwise)}" if result.made_otherwise else ""
    say_wrapped(f"{result.folder} {what}{but}")


def print_lint(report: LintReport, as_json: bool) -> None:
    """Print the months, the files that are not sound, and what a scrape would refuse, or one JSON object."""
    if as_json:
        say(json.dumps(report.to_json(), ensure_ascii=False))
        return
    if report.months:
        headings = ["month", "submitted", "links", "days", "null", "mean", *SCORE_LABELS]
        rows = [_month_row(month.counts) for month in report.months]
        print_table(headings, [*rows, *_total_row(report.months)], narrow=True)
        say("links, null: % of the submissions; 0 to 1000+: % of those with a score")
    for month in report.months:
        for what in filter(None, (month.truncated, month.problem)):
            say_wrapped(f"{month.month}: {what}")
    for file in report.files:
        _print_file(file)
    counts = (sum(file.lines for file in report.files), len(report.files), len(report.months))
    read = "{} of {}, {}".format(*map(_number, counts, ("line", "file", "month")))
    refused = [
        _number(len(each), noun)
        for noun, each in (("month", report.refused_months), ("file", report.refused_files))
        if each
    ]
    say(f"{read}: " + (f"a scrape refuses {' and '.join(refused)}" if refused else "nothing that a scrape refuses"))


def _print_file(file: FileReport) -> None:
    if file.problem:
        say_wrapped(file.problem)
    if file.bad_lines and file.first_bad:
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in file.bad_reasons.items())
        text = printable(file.first_bad["text"])
        text = text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "..."
        say_wrapped(f"{file.file}: bad lines: {reasons}; the first, line {file.first_bad['line']:,}: {text}")


def _number(count: int, noun: str) -> str:
    return (
        f"{count:,} {noun}"
        if count == 1
        else f"{count:,} {noun.removesuffix('y') + 'ie' if noun.endswith('y') else noun}s"
    )


def _month_row(month: MonthCounts) -> list[str]:
    days = f"{month.days_in_month - month.empty_days}/{month.days_in_month}"
    return _row(month, month.month, days)


def _total_row(months: Sequence[MonthReport]) -> list[list[str]]:
    if len(months) < 2:
        return []
    days = {day: counts for month in months for day, counts in month.counts.days.items()}
    return [_row(MonthCounts("", days), "total", f"{len(days):,}")]


def _row(counts: MonthCounts, name: str, days: str) -> list[str]:
    scored = sum(counts.histogram)
    return [
        name,
        f"{counts.submissions:,}",
        _share(counts.links, counts.submissions),
        days,
        _share(counts.without_score, counts.submissions),
        f"{counts.mean_score:,.{0 if counts.mean_score >= 100 else 1}f}",
        *(_share(count, scored) for count in counts.histogram),
    ]


def _share(count: int, total: int) -> str:
    """Write a share in percent: `74`, `0.3`, `0` only for none, `100` only for all."""
    if count in (0, total):
        return "0" if count == 0 else "100"
    percent = 100 * count / total
    return "<.1" if percent < 0.1 else f"{percent:.1f}" if percent < 9.95 else f"{min(percent, 99):.0f}"
