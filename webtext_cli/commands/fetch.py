"""`webtext fetch`."""

from __future__ import annotations

from typing import Any

import click

from pipelines.stages.fetch.config import FetchConfig
from webtext_cli.console import print_summary, print_table
from webtext_cli.options import Shared, config_options, discard_pages_option, stage_config, stage_options


@click.command("fetch")
@config_options(FetchConfig)
@click.option(
    "--retry",
    metavar="REASON",
    multiple=True,
    help="Request the links again that a finished fetch dropped for this reason, such as timeout (repeatable).",
)
@discard_pages_option
@stage_options("Links: scrape's folder, Parquet with a column url, or .txt with one URL per line")
def command(shared: Shared, retry: tuple[str, ...], **flags: Any) -> None:
    """Download the pages behind the links as WARC.

    Each link gets an outcome: ok, or dropped for a named reason. Obeys robots.txt, sends each host at most one request
    per second, and refuses private addresses. Re-run the same command to resume an interrupted fetch, or to fetch links
    that were added since.

    \b
    Examples:
      webtext fetch --corpus my-corpus --contact mailto:me@example.org
      webtext fetch --corpus my-corpus --retry dns --retry timeout
      webtext fetch --corpus my-corpus --source warc --pages 'crawl/*.warc.gz'
      webtext fetch -i urls.txt -o pages --per-host-delay 2 --concurrency 64
    """
    from pipelines.stages.fetch.report import read_domains
    from pipelines.stages.fetch.stage import fetch

    config = stage_config(FetchConfig, "fetch", shared.corpus, flags)
    summary = fetch(
        config,
        links=shared.input_of("fetch"),
        output=shared.stage_output("fetch"),
        options=shared.run_options(),
        retry=retry,
    )
    print_summary(summary, shared.as_json)
    if not shared.as_json and any(summary.dropped.values()) and (domains := read_domains(summary.output)):
        rows = [[domain or "-", f"{links:,}", f"{drops:,}", reason] for domain, links, drops, reason in domains]
        print_table(["domain", "links", "dropped", "most frequent reason"], rows, title="domains with the most drops")
