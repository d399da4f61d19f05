"""Output of `webtext scrape --explain`."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from typing import Any

from pipelines.format import format_count, plural
from webtext_cli.console import print_table, say, say_wrapped

_MAX_SUBMISSIONS = 50
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
