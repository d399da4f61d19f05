"""`webtext build`."""

from __future__ import annotations

import json

import click

from webtext_cli.console import print_summary, say
from webtext_cli.options import Shared, discard_pages_option, stage_options


@click.command("build")
@click.option("--from", "first", metavar="STAGE", help="First stage to run.")
@click.option("--to", "last", metavar="STAGE", help="Last stage to run.")
@click.option(
    "--dry-run", is_flag=True, help="Show what would run, why, and the disk space; exit code 1 if a stage is refused."
)
@discard_pages_option
@stage_options(only_corpus=True)
def command(shared: Shared, first: str | None, last: str | None, dry_run: bool) -> int:
    """Run the stages listed in webtext.toml, in order.

    Finished stages are only verified by their checksums; an interrupted stage resumes. New dumps, links and pages are
    added, and the stages downstream of them rebuilt. A stage whose options have changed is refused; with --overwrite,
    it is rebuilt. Fetched pages are only replaced with --discard-pages as well.

    \b
    Examples:
      webtext init my-corpus
      webtext build --corpus my-corpus
      webtext build --corpus my-corpus --dry-run
      webtext build --corpus my-corpus --from dedup --to tokenize --overwrite
    """
    from pipelines.build import CorpusConfig, build

    stages = CorpusConfig(shared.corpus).stages(first, last)
    if dry_run:
        from pipelines.dry_run import decide_build
        from webtext_cli.tables.build import print_decisions

        decisions = decide_build(shared.corpus, stages, shared.run_options())
        print_decisions(decisions, shared.corpus, shared.as_json)
        return 1 if any(decision.action == "refuse" for decision in decisions) else 0
    if shared.as_json:
        summaries = build(shared.corpus, stages, shared.run_options())
        say(json.dumps({"stages": [summary.to_json() for summary in summaries]}, ensure_ascii=False))
    else:
        build(shared.corpus, stages, shared.run_options(), lambda summary: print_summary(summary, as_json=False))
    return 0
