"""Output of `webtext scrape --explain` and `--lint`."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from typing import Any

from pipelines.format import format_count, plural
from pipelines.stages.scrape.reports import SCORE_LABELS, days_in_month
from webtext_cli.console import print_table, say, say_wrapped, shorten

_MAX_SUBMISSIONS = 50
_MAX_CHARACTERS = 60
_MAX_DIFFERENCES = 5


def print_explanation(explanation: dict[str, Any]) -> None:
    """Print the outcome of a URL, the verdict last."""
    say(f"url     {explanation['canonical_url']}")
    shard, rule = explanation["shard"], explanation["rule"]
    say(f"domain  {explanation['domain']}{f', in {shard}' if shard else ''}")
    say(f"rule    {f'dropped by rule {rule} for every submission' if rule else 'no rule drops this URL itself'}")
    if explanation["submissions"]:
        _print_submissions(explanation)
    for note in explanation["notes"]:
        say_wrapped(f"note: {note}")
    is_list = explanation["source"] == "urls"
    for url, count in explanation["near"].items():
        times = plural(count, "time" if is_list else "submission")
        say(f"near    {url} {'is listed' if is_list else 'has'} {times}")
    if explanation["result"] is not None:
        _print_result(explanation["result"])
    say_wrapped(explanation["verdict"])


def _print_submissions(explanation: dict[str, Any]) -> None:
    shown = explanation["submissions"][:_MAX_SUBMISSIONS]
    if explanation["source"] == "urls":
        rows = [[row["file"], f"{row['line']:,}", row["outcome"]] for row in shown]
        print_table(["file", "url no.", "outcome"], rows)
    else:
        headings = ["file", "line", "id", "subreddit", "date", "score", "outcome"]
        print_table(headings, [_submission_cells(row) for row in shown], narrow=True)
    more = len(explanation["submissions"]) - len(shown)
    if more:
        outcomes = Counter(row["outcome"] for row in explanation["submissions"])
        counts = ", ".join(f"{outcome} {count:,}" for outcome, count in outcomes.items())
        say_wrapped(f"and {more:,} more; all together: {counts}")


def _submission_cells(row: dict[str, Any]) -> list[str]:
    return [
        row["file"],
        f"{row['line']:,}",
        row["id"],
        row["subreddit"],
        dt.datetime.fromtimestamp(row["created_utc"], dt.UTC).strftime("%Y-%m-%d") if row["created_utc"] else "–",
        format_count(row["score"]),
        row["outcome"],
    ]


def _print_result(result: dict[str, Any]) -> None:
    content, link = "does not contain this link", result["link"]
    if link is not None:
        count = len(link["submission_ids"])
        score = f", with score {link['score']:,} of {plural(count, 'submission')}" if count else ""
        content = f"contains it in {result['shard']}{score}"
    differences = result["differences"][:_MAX_DIFFERENCES]
    if more := len(result["differences"]) - len(differences):
        differences.append(f"{more:,} more")
    but = f"; that result was built differently: {'; '.join(differences)}" if differences else ""
    say_wrapped(f"{result['folder']} {content}{but}")


def print_lint(report: dict[str, Any]) -> None:
    """Print the months, the files with problems, and what a scrape would refuse."""
    months, files, refused = report["months"], report["files"], report["refused"]
    if months:
        headings = ["month", "submitted", "links", "days", "null", "mean", *SCORE_LABELS]
        days = [f"{(days := days_in_month(row['month'])) - row['empty_days']}/{days}" for row in months]
        print_table(headings, [*map(_cells, months, days), *_total_cells(months)], narrow=True)
        say("links, null: % of the submissions; 0 to 1000+: % of those with a score")
    for month in months:
        for problem in filter(None, (month["truncated"], month["problem"])):
            say_wrapped(f"{month['month']}: {problem}")
    for file in files:
        _print_file(file)
    for note in report["notes"]:
        say_wrapped(f"note: {note}")
    verdict = f"a scrape refuses {len(refused):,} of these" if refused else "a scrape refuses none of these"
    lines = plural(sum(file["lines"] for file in files), "line")
    say(f"{lines} of {plural(len(files), 'file')}, {plural(len(months), 'month')}: {verdict}")


def _print_file(file: dict[str, Any]) -> None:
    if file["problem"]:
        say_wrapped(file["problem"])
    if first := file["first_bad"]:
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in file["bad_reasons"].items())
        text = shorten(first["text"], _MAX_CHARACTERS)
        say_wrapped(f"{file['file']}: bad lines: {reasons}; the first, line {first['line']:,}: {text}")


def _total_cells(months: list[dict[str, Any]]) -> list[list[str]]:
    """Return the row of all months together, if there are several."""
    if len(months) < 2:
        return []
    counted = ["submissions", "links", "without_score", *(f"score_{label}" for label in SCORE_LABELS)]
    total = {name: sum(row[name] for row in months) for name in counted}
    points = sum(row["mean_score"] * (row["submissions"] - row["without_score"]) for row in months)
    mean = points / max(1, total["submissions"] - total["without_score"])
    days = sum(days_in_month(row["month"]) - row["empty_days"] for row in months)
    return [_cells({"month": "total", "mean_score": mean, **total}, f"{days:,}")]


def _cells(row: dict[str, Any], days: str) -> list[str]:
    submissions, scored = row["submissions"], row["submissions"] - row["without_score"]
    return [
        row["month"],
        f"{submissions:,}",
        _share(row["links"], submissions),
        days,
        _share(row["without_score"], submissions),
        f"{row['mean_score']:,.{0 if row['mean_score'] >= 100 else 1}f}",
        *(_share(row[f"score_{label}"], scored) for label in SCORE_LABELS),
    ]


def _share(count: int, total: int) -> str:
    """Format a share in percent without a sign: `74`, `0.3`, `0` only for none, `100` only for all."""
    if count in (0, total):
        return "0" if count == 0 else "100"
    percent = 100 * count / total
    return "<.1" if percent < 0.1 else f"{percent:.1f}" if percent < 9.95 else f"{min(percent, 99):.0f}"
