"""`webtext scrape`."""

from __future__ import annotations

import click

from webtext_cli.console import print_result
from webtext_cli.options import StageCall, stage_command


@stage_command("scrape", "Dumps or lists of URLs: files, folders or globs; - is standard input")
@click.option(
    "--explain",
    metavar="URL",
    help="Show what this stage does with one URL: its submissions, and the rule that drops it; write nothing.",
)
def command(call: StageCall, explain: str | None) -> None:
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
      webtext scrape --explain http://example.com/page dumps/
    """
    config, paths = call.config(), [*call.input]
    if not paths and config.needs_files:
        paths = list(call.settings.files("scrape"))
    if explain is not None:
        from pipelines.stages.scrape.explain import explain as explain_url
        from webtext_cli.tables.scrape import print_explanation

        output, options = call.output_folder(), call.run_options()
        explanation = explain_url(config, explain, dumps=paths, output=output, options=options)
        print_result(explanation, call.as_json, print_explanation)
        return
    call.run(dumps=paths)
