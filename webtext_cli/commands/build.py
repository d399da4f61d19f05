"""`webtext build`."""

from __future__ import annotations

import json

import click

from pipelines.core.run import Summary
from webtext_cli.console import print_summary, say
from webtext_cli.options import Shared, stage_options


@click.command("build")
@click.option("--from", "first", metavar="STAGE", help="Begin with this stage.")
@click.option("--to", "last", metavar="STAGE", help="End with this stage.")
@stage_options(only_corpus=True)
def command(shared: Shared, first: str | None, last: str | None) -> None:
    """Run the stages of webtext.toml in order.

    A stage that is finished is only verified by its checksums; one that was interrupted goes on. A stage whose options
    or inputs have changed is refused, unless --overwrite: then it, and what follows from it, is made anew.

    \b
    Example:
      webtext init my-corpus
      webtext build --corpus my-corpus
      webtext build --corpus my-corpus --from dedup --to tokenize --overwrite
    """
    from pipelines.build import build, build_stages, corpus_tables

    def show(summary: Summary) -> None:
        if not shared.as_json:
            print_summary(summary, as_json=False)

    stages = build_stages(corpus_tables(shared.corpus), first, last)
    summaries = build(shared.corpus, stages, shared.run_options(), show)
    if shared.as_json:
        say(json.dumps({"stages": [summary.to_json() for summary in summaries]}, ensure_ascii=False))
