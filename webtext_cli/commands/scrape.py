"""`webtext scrape`."""

from __future__ import annotations

from typing import Any

import click

from pipelines.build import CorpusConfig
from pipelines.errors import UsageError
from pipelines.stages.scrape.config import ScrapeConfig
from webtext_cli.console import print_summary
from webtext_cli.options import Shared, config_options, stage_config, stage_options


@click.command("scrape")
@click.argument("dumps", nargs=-1, metavar="[DUMP]...")
@click.option(
    "--explain", metavar="URL", help="Show which submissions link to this URL and which rule drops it; write nothing."
)
@click.option(
    "--lint",
    is_flag=True,
    help="Show statistics of the dumps by month; exit code 1 if a scrape would refuse a file or month; write nothing.",
)
@config_options(ScrapeConfig)
@stage_options("Dumps, as the arguments: files, folders, - for standard input")
def command(shared: Shared, dumps: tuple[str, ...], explain: str | None, lint: bool, **flags: Any) -> int:
    """Collect the links that Reddit users gave at least 3 karma.

    DUMP is a monthly dump of Reddit's submissions (.zst .xz .bz2 .gz or plain NDJSON), a folder or glob of them, or -
    for NDJSON on standard input. Without arguments, the `dumps` under [scrape] in webtext.toml are read.

    \b
    Examples:
      webtext scrape RS_2017-11.zst RS_2017-12.zst --corpus my-corpus
      webtext scrape dumps/ --karma sum --after 2016-01-01
      webtext scrape urls.txt --source urls --profile none
      webtext scrape --source praw --subreddit python --listing top --profile none
      webtext scrape --source arctic-shift --subreddit programming --before 2017-01-01
      webtext scrape --lint dumps/
      webtext scrape --explain http://example.com/page dumps/
    """
    if explain is not None and lint:
        raise UsageError("--explain and --lint exclude each other")
    config = stage_config(ScrapeConfig, "scrape", shared.corpus, flags)
    paths = [*dumps, *shared.input]
    if not paths and config.needs_files:
        paths = CorpusConfig(shared.corpus).files("scrape")
    call: dict[str, Any] = {"dumps": paths, "output": shared.stage_output("scrape"), "options": shared.run_options()}
    if explain is not None:
        from pipelines.stages.scrape.explain import explain as explain_url
        from webtext_cli.tables.scrape import print_explanation

        print_explanation(explain_url(config, explain, **call), shared.as_json)
        return 0
    if lint:
        from pipelines.stages.scrape.explain import lint as lint_dumps
        from webtext_cli.tables.scrape import print_lint

        report = lint_dumps(config, **call)
        print_lint(report, shared.as_json)
        return 1 if report["refused"] else 0
    from pipelines.stages.scrape.stage import scrape

    print_summary(scrape(config, **call), shared.as_json)
    return 0
