"""`webtext scrape`."""

from __future__ import annotations

from typing import Any

import click

from pipelines.stages.scrape.config import ScrapeConfig
from webtext_cli.console import print_summary
from webtext_cli.options import Shared, config_options, path_list, stage_config, stage_options


@click.command("scrape")
@click.argument("dumps", nargs=-1, metavar="[DUMP]...")
@config_options(ScrapeConfig)
@stage_options("Dumps, as the arguments: files, folders, - for standard input")
def command(shared: Shared, dumps: tuple[str, ...], **given: Any) -> None:
    """Collect the links that Reddit users gave at least 3 karma.

    DUMP is a monthly dump of Reddit's submissions (.zst .xz .bz2 .gz or plain NDJSON), a folder or glob of them, or -
    for NDJSON on standard input. Without any, the `dumps` under [scrape] in webtext.toml are read.

    \b
    Example:
      webtext scrape RS_2017-11.zst RS_2017-12.zst --corpus my-corpus
      webtext scrape dumps/ --karma sum --after 2016-01-01
      webtext scrape urls.txt --source urls --profile none
      webtext scrape --source praw --subreddit python --listing top --profile none
      webtext scrape --source arctic-shift --subreddit programming --before 2017-01-01
    """
    from pipelines.stages.scrape.stage import scrape

    config = stage_config(ScrapeConfig, "scrape", shared.corpus, given)
    named = [*dumps, *shared.input]
    if not named and config.needs_files:
        named = path_list(shared.corpus, "scrape")
    summary = scrape(config, dumps=named, output=shared.stage_output("scrape"), options=shared.run_options())
    print_summary(summary, shared.as_json)
