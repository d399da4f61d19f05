"""`webtext build`."""

from __future__ import annotations

import json

import click

from webtext_cli.console import print_summary, say
from webtext_cli.options import Shared, discard_pages_option, stage_options


@click.command("build")
@click.option("--from", "first", metavar="STAGE", help="First stage to run.")
@click.option("--to", "last", metavar="STAGE", help="Last stage to run.")
@discard_pages_option
@stage_options(only_corpus=True)
def command(shared: Shared, first: str | None, last: str | None) -> None:
    """Run the stages listed in webtext.toml, in order.

    Finished stages are only verified by their checksums; an interrupted stage resumes. A stage whose options or inputs
    have changed is refused; with --overwrite, it and all stages downstream of it are rebuilt. Fetched pages are only
    replaced with --discard-pages as well.

    \b
    Examples:
      webtext init my-corpus
      webtext build --corpus my-corpus
      webtext build --corpus my-corpus --from dedup --to tokenize --overwrite
    """
    from pipelines.build import CorpusConfig, build

    stages = CorpusConfig(shared.corpus).stages(first, last)
    if shared.as_json:
        summaries = build(shared.corpus, stages, shared.run_options())
        say(json.dumps({"stages": [summary.to_json() for summary in summaries]}, ensure_ascii=False))
    else:
        build(shared.corpus, stages, shared.run_options(), lambda summary: print_summary(summary, as_json=False))
