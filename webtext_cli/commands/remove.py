"""`webtext remove`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from pipelines.errors import format_message
from pipelines.format import format_count, plural
from webtext_cli.console import print_result, print_table, say, say_wrapped
from webtext_cli.options import StageCall, stage_command

_SHOWN_STEPS = 10


@stage_command("remove")
@click.argument("requests", required=False)
@click.option("--pages", is_flag=True, help="Also blank the pages in the WARC files of fetch.")
@click.option(
    "--rebuild",
    is_flag=True,
    help="Then rebuild token shards and overlap index, instead of filling positions with <|endoftext|>.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be removed; remove nothing.")
def command(call: StageCall, requests: str | None, pages: bool, rebuild: bool, dry_run: bool) -> None:
    """Remove documents from every stage of a corpus, on request.

    REQUESTS is a file of JSON lines or CSV with the fields kind (url, url_prefix, domain, id, text_sha256, author or
    subreddit), value, reason and date. The requests are added to removals.jsonl of the corpus, so that what they name
    does not come back. Without REQUESTS, an interrupted removal is completed.

    \b
    Examples:
      webtext remove requests.jsonl --corpus my-corpus --dry-run
      webtext remove requests.csv --corpus my-corpus --pages
    """
    from pipelines.corpus.removal import remove

    report = remove(call.corpus, requests, call.run_options(), pages=pages, rebuild=rebuild, dry_run=dry_run)
    print_result(report, call.as_json, _print_report)


def _print_report(report: Mapping[str, Any]) -> None:
    is_dry_run = report.get("dry_run", False)
    rows = [
        [
            format_message(f"{request['kind']} {request['value']}"),
            format_count(request["documents"]),
            ", ".join(f"{stage} {count:,}" for stage, count in request["removed"].items()),
            _steps(request["steps"]),
        ]
        for request in report["requests"]
    ]
    headings = ["request", "documents", "removed from", "training steps"]
    columns = headings[: 2 if is_dry_run else 4]
    print_table(columns, [row[: len(columns)] for row in rows], text_columns=True)
    for note in report["notes"]:
        say_wrapped(note)
    what = "would be removed" if is_dry_run else f"removed; report: removals/{report['number']:04d}.json"
    say(f"{plural(report['documents'], 'document')} {what}")


def _steps(steps: list[int] | None) -> str:
    shown = ", ".join(f"{step:,}" for step in (steps or [])[:_SHOWN_STEPS])
    return f"{shown}, ..." if steps and len(steps) > _SHOWN_STEPS else shown
