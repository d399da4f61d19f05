"""`webtext fetch`."""

from __future__ import annotations

from typing import Any

import click

from pipelines.stages.fetch.config import FetchConfig
from webtext_cli.console import print_summary
from webtext_cli.options import Shared, config_options, discard_pages_option, stage_config, stage_options


@click.command("fetch")
@config_options(FetchConfig)
@discard_pages_option
@stage_options("Links: scrape's folder, Parquet with a column url, or .txt with one URL per line")
def command(shared: Shared, **flags: Any) -> None:
    """Download the pages behind the links as WARC.

    Each link gets an outcome: ok, or dropped for a named reason. Obeys robots.txt, sends each host at most one request
    per second, and refuses private addresses. Re-run the same command to resume an interrupted fetch.

    \b
    Examples:
      webtext fetch --corpus my-corpus --contact mailto:me@example.org
      webtext fetch -i urls.txt -o pages --per-host-delay 2 --concurrency 64
    """
    from pipelines.stages.fetch.stage import fetch

    config = stage_config(FetchConfig, "fetch", shared.corpus, flags)
    summary = fetch(
        config,
        links=shared.input_of("fetch"),
        output=shared.stage_output("fetch"),
        options=shared.run_options(),
    )
    print_summary(summary, shared.as_json)
