"""`webtext remove`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from pipelines.errors import format_message
from pipelines.format import plural
from webtext_cli.console import print_result, say, say_wrapped
from webtext_cli.options import StageCall, stage_command


@stage_command("remove")
@click.argument("requests", required=False)
@click.option("--pages", is_flag=True, help="Also blank the pages in the WARC files of fetch.")
@click.option("--rebuild", is_flag=True, help="Then rebuild tokens, overlap index and report, and search index.")
@click.option("--dry-run", is_flag=True, help="Show what would be removed; remove nothing.")
def command(call: StageCall, requests: str | None, pages: bool, rebuild: bool, dry_run: bool) -> None:
    """Remove documents from every stage of a corpus, on request.

    REQUESTS is a file of JSON lines or CSV with the fields kind (url, url_prefix, domain, id, text_sha256, author or
    subreddit), value, reason and date. What they name does not come back. Without it, completes a killed removal.

    \b
    Examples:
      webtext remove requests.jsonl --corpus my-corpus --dry-run
      webtext remove requests.csv --corpus my-corpus --pages
    """
    from pipelines.corpus.removal import remove

    report = remove(call.corpus, requests, call.run_options(), pages=pages, rebuild=rebuild, dry_run=dry_run)
    print_result(report, call.as_json, _print_report)


def _print_report(report: Mapping[str, Any]) -> None:
    for request in report["requests"]:
        say(format_message(f"{request['kind']} {request['value']}: {plural(request['documents'], 'document')}"))
    for note in report.get("notes", ()):
        say_wrapped(f"note: {note}")
    say(f"{plural(report['documents'], 'document')} {'to remove' if 'is_dry_run' in report else 'removed'}")
