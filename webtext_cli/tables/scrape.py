"""Output of `webtext scrape --explain` and `--lint`."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Sequence

from pipelines.format import escape_unprintable, plural
from pipelines.stages.scrape.explain import ExplainedSubmission, Explanation, outcome_counts
from pipelines.stages.scrape.link_lookup import LinkInResult
from pipelines.stages.scrape.lint import FileReport, LintReport
from pipelines.stages.scrape.month_reports import MonthReport
from pipelines.stages.scrape.months import SCORE_LABELS, MonthCounts
from webtext_cli.console import print_table, say, say_wrapped

_MAX_SUBMISSIONS = 50
_MAX_CHARACTERS = 60


def print_explanation(explanation: Explanation, as_json: bool) -> None:
    """Print the outcome of a URL, the verdict last, or one JSON object."""
    if as_json:
        say(json.dumps(explanation.to_json(), ensure_ascii=False))
        return
    say(f"url     {explanation.canonical_url}")
    say(f"domain  {explanation.domain}{f', in {explanation.shard}' if explanation.shard else ''}")
    say(f"rule    {f'dropped by {explanation.rule}, whoever submits it' if explanation.rule else 'none drops the URL'}")
    if explanation.submissions:
        _print_submissions(explanation)
    for note in explanation.notes:
        say_wrapped(f"note: {note}")
    is_list = explanation.source == "urls"
    for url, count in explanation.near.items():
        times = plural(count, "time" if is_list else "submission")
        say(f"near    {url} {'is listed' if is_list else 'has'} {times}")
    if explanation.result is not None:
        _print_result(explanation.result)
    say_wrapped(explanation.verdict)


def _print_submissions(explanation: Explanation) -> None:
    shown = explanation.submissions[:_MAX_SUBMISSIONS]
    if explanation.source == "urls":
        print_table(["file", "url no.", "outcome"], [[row.file, f"{row.line:,}", row.outcome] for row in shown])
    else:
        headings = ["file", "line", "id", "subreddit", "date", "score", "outcome"]
        print_table(headings, [_submission_row(submission) for submission in shown], narrow=True)
    more = len(explanation.submissions) - len(shown)
    if more:
        counts = ", ".join(f"{name} {count:,}" for name, count in outcome_counts(explanation.submissions).items())
        say_wrapped(f"and {more:,} more; all together: {counts}")


def _submission_row(submission: ExplainedSubmission) -> list[str]:
    return [
        submission.file,
        f"{submission.line:,}",
        escape_unprintable(submission.id),
        escape_unprintable(submission.subreddit),
        dt.datetime.fromtimestamp(submission.created_utc, dt.UTC).strftime("%Y-%m-%d"),
        "null" if submission.score is None else f"{submission.score:,}",
        submission.outcome,
    ]


def _print_result(result: LinkInResult) -> None:
    if result.link is None:
        content = "does not contain this link"
    else:
        count = len(result.link["submission_ids"])
        score = f", with score {result.link['score']:,} of {plural(count, 'submission')}" if count else ""
        content = f"contains it in {result.shard}{score}"
    but = f"; that result was built differently: {'; '.join(result.differences)}" if result.differences else ""
    say_wrapped(f"{result.folder} {content}{but}")


def print_lint(report: LintReport, as_json: bool) -> None:
    """Print the months, the files with problems, and what a scrape would refuse, or one JSON object."""
    if as_json:
        say(json.dumps(report.to_json(), ensure_ascii=False))
        return
    if report.months:
        headings = ["month", "submitted", "links", "days", "null", "mean", *SCORE_LABELS]
        rows = [_month_row(month.counts) for month in report.months]
        print_table(headings, [*rows, *_total_row(report.months)], narrow=True)
        say("links, null: % of the submissions; 0 to 1000+: % of those with a score")
    for month in report.months:
        for problem in filter(None, (month.truncated, month.problem)):
            say_wrapped(f"{month.month}: {problem}")
    for file in report.files:
        _print_file(file)
    lines = plural(sum(file.lines for file in report.files), "line")
    files, months = plural(len(report.files), "file"), plural(len(report.months), "month")
    refused = [
        plural(len(items), noun)
        for noun, items in (("month", report.refused_months), ("file", report.refused_files))
        if items
    ]
    verdict = f"a scrape refuses {' and '.join(refused)}" if refused else "nothing that a scrape refuses"
    say(f"{lines} of {files}, {months}: {verdict}")


def _print_file(file: FileReport) -> None:
    if file.problem:
        say_wrapped(file.problem)
    if file.bad_lines and file.first_bad:
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in file.bad_reasons.items())
        text = escape_unprintable(file.first_bad["text"])
        text = text if len(text) <= _MAX_CHARACTERS else text[: _MAX_CHARACTERS - 3] + "..."
        say_wrapped(f"{file.file}: bad lines: {reasons}; the first, line {file.first_bad['line']:,}: {text}")


def _month_row(month: MonthCounts) -> list[str]:
    return _row(month, month.month, f"{month.days_in_month - month.empty_days}/{month.days_in_month}")


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
    """Format a share in percent without a sign: `74`, `0.3`, `0` only for none, `100` only for all."""
    if count in (0, total):
        return "0" if count == 0 else "100"
    percent = 100 * count / total
    return "<.1" if percent < 0.1 else f"{percent:.1f}" if percent < 9.95 else f"{min(percent, 99):.0f}"
