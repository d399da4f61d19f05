"""`webtext scrape`."""

from __future__ import annotations

from typing import Any

import click

from pipelines.errors import UsageError
from webtext_cli.console import print_result
from webtext_cli.options import StageCall, stage_command


@stage_command("scrape", "Dumps or lists of URLs: files, folders or globs; - is standard input")
@click.option(
    "--explain",
    metavar="URL",
    help="Show what this stage does with one URL: its submissions, and the rule that drops it; write nothing.",
)
@click.option(
    "--lint",
    is_flag=True,
    help="Show statistics of the dumps by month; exit code 1 if a scrape would refuse a file or month; write nothing.",
)
def command(call: StageCall, explain: str | None, lint: bool) -> int:
    """Collect the links that Reddit users gave at least 3 karma.

    PATH is a monthly dump of Reddit's submissions (.zst .xz .bz2 .gz or plain NDJSON), a table of them (.csv .tsv
    .parquet), a folder or glob, or - for NDJSON on standard input; with --source urls, a list of URLs. Without one, the
    `dumps` under [scrape] in webtext.toml are read.

    \b
    Examples:
      webtext scrape RS_2017-11.zst RS_2017-12.zst --corpus my-corpus
      webtext scrape dumps/ --karma sum --after 2016-01-01
      webtext scrape urls.txt --source urls --profile none
      webtext scrape --source praw --subreddit python --listing top --profile none
      webtext scrape --source arctic-shift --subreddit python --before 2017-01-01
      webtext scrape --lint dumps/
      webtext scrape --explain http://example.com/page dumps/
    """
    if explain is not None and lint:
        raise UsageError("--explain and --lint cannot be combined")
    config, paths = call.config(), [*call.input]
    if not paths and config.needs_files:
        paths = list(call.settings.files("scrape"))
    inputs: dict[str, Any] = {"dumps": paths, "output": call.output_folder(), "options": call.run_options()}
    if explain is not None:
        from pipelines.stages.scrape.explain import explain as explain_url
        from webtext_cli.tables.scrape import print_explanation

        print_result(explain_url(config, explain, **inputs), call.as_json, print_explanation)
        return 0
    if lint:
        from pipelines.stages.scrape.explain import lint as lint_dumps
        from webtext_cli.tables.scrape import print_lint

        report = lint_dumps(config, **inputs)
        print_result(report, call.as_json, print_lint)
        return 1 if report["refused"] else 0
    call.run(dumps=paths)
    return 0
