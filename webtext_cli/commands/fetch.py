"""`webtext fetch`."""

from __future__ import annotations

import click

from webtext_cli.console import print_table
from webtext_cli.options import StageCall, discard_pages_option, stage_command


@stage_command("fetch", "Links: scrape's folder, Parquet, CSV or JSONL with a column url, .txt of URLs, or globs")
@click.option(
    "--retry",
    metavar="REASON",
    multiple=True,
    help="Retry links that a finished fetch dropped for this reason, such as timeout.",
)
@discard_pages_option
def command(call: StageCall, retry: tuple[str, ...]) -> None:
    """Download the pages behind the links as WARC.

    Each link gets an outcome: ok, or dropped for a named reason. Obeys robots.txt, sends each host at most one request
    per second, and refuses private addresses. Re-run the same command to resume an interrupted fetch, or to fetch links
    that were added since.

    \b
    Examples:
      webtext fetch --corpus my-corpus --contact mailto:me@example.org
      webtext fetch --corpus my-corpus --retry dns --retry timeout
      webtext fetch --corpus my-corpus --source warc --pages 'crawl/*.warc.gz'
      webtext fetch urls.txt -o pages --per-host-delay 2 --concurrency 64
    """
    from pipelines.stages.fetch.report import read_domains

    summary = call.run(retry=retry)
    if not call.as_json and any(summary.dropped.values()) and (domains := read_domains(summary.output)):
        rows = [[domain or "–", f"{links:,}", f"{drops:,}", reason] for domain, links, drops, reason in domains]
        print_table(["domain", "links", "dropped", "most frequent reason"], rows, title="Domains with the most drops")
