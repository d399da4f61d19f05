"""`webtext status`."""

from __future__ import annotations

import dataclasses
import json

import click

from pipelines.build import StageStatus, status
from pipelines.core.format import format_bytes, format_count
from webtext_cli.console import print_table, say
from webtext_cli.options import corpus_option, debug_option, json_option


@click.command("status")
@corpus_option
@click.option("--verify", is_flag=True, help="Verify the checksum of every file; exit code 1 if one differs.")
@json_option
@debug_option
def command(corpus: str, verify: bool, as_json: bool) -> int:
    """Show the state of each stage of a corpus.

    Everything shown is read from the manifests: a stage is done if its manifest exists.

    \b
    Examples:
      webtext status --corpus my-corpus
      webtext status --corpus my-corpus --verify
    """
    stages = status(corpus, verify)
    if as_json:
        say(json.dumps({"corpus": corpus, "stages": [dataclasses.asdict(stage) for stage in stages]}))
    else:
        print_table(["stage", "state", "in", "dropped", "out", "shards", "size"], [_row(stage) for stage in stages])
        for replacement in filter(None, (stage.replacement for stage in stages)):
            click.echo(f"note: {replacement}", err=True)
    problems = [problem for stage in stages for problem in stage.problems]
    for problem in problems:
        click.echo(f"error: {problem}", err=True)
    if problems:
        click.echo("re-run the stage to rebuild files that are missing or damaged", err=True)
    elif verify and not as_json:
        say("all files match their checksums")
    return 1 if problems else 0


def _row(stage: StageStatus) -> list[str]:
    if stage.state not in ("done", "damaged"):
        return [stage.stage, stage.state, "", "", "", "", ""]
    counts = (stage.records_in, sum(stage.dropped.values()), stage.records_out, stage.shards)
    return [stage.stage, stage.state, *map(format_count, counts), format_bytes(stage.size_bytes)]
