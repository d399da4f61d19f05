"""`webtext scrape`."""

from __future__ import annotations

from typing import Any

import click

from pipelines.core.errors import UsageError
from pipelines.stages.scrape.config import ScrapeConfig
from webtext_cli.console import print_summary
from webtext_cli.options import Shared, config_files, config_options, stage_config, stage_options


@click.command("scrape")
@click.argument("dumps", nargs=-1, metavar="[DUMP]...")
@click.option(
    "--explain", metavar="URL", help="Write nothing: tell which rule takes or drops this URL, by which submissions."
)
@click.option(
    "--lint",
    is_flag=True,
    help="Write nothing: show what the dumps hold of each month; exit code 1 if a scrape would refuse something.",
)
@config_options(ScrapeConfig)
@stage_options("Dumps, as the arguments: files, folders, - for standard input")
def command(shared: Shared, dumps: tuple[str, ...], explain: str | None, lint: bool, **given: Any) -> int | None:
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
      webtext scrape --lint dumps/
      webtext scrape --explain http://example.com/page dumps/
    """
    if explain is not None and lint:
        raise UsageError("--explain and --lint are two ways to look at the dumps; give one of them")
    config = stage_config(ScrapeConfig, "scrape", shared.corpus, given)
    named = [*dumps, *shared.input]
    if not named and config.needs_files:
        named = config_files(shared.corpus, "scrape")
    call: dict[str, Any] = {"dumps": named, "output": shared.stage_output("scrape"), "options": shared.run_options()}
    if explain is not None:
        return _explain(config, explain, shared.as_json, call)
    if lint:
        return _lint(config, shared.as_json, call)
    from pipelines.stages.scrape.stage import scrape

    print_summary(scrape(config, **call), shared.as_json)
    return None


def _explain(config: ScrapeConfig, url: str, as_json: bool, call: dict[str, Any]) -> int:
    from pipelines.stages.scrape.explain import explain
    from webtext_cli.tables.scrape import print_explanation

    print_explanation(explain(config, url, **call), as_json)
    return 0


def _lint(config: ScrapeConfig, as_json: bool, call: dict[str, Any]) -> int:
    from pipelines.stages.scrape.lint import lint
    from webtext_cli.tables.scrape import print_lint

    report = lint(config, **call)
    print_lint(report, as_json)
    return 1 if report.refused else 0
