"""`webtext status`."""

from __future__ import annotations

import dataclasses
import json

import click

from pipelines.build import StageStatus, status
from webtext_cli.console import amount, print_table, say
from webtext_cli.options import corpus_option, debug_option, json_option


@click.command("status")
@corpus_option
@click.option("--verify", is_flag=True, help="Also compare every file with its checksum; exit code 1 if one differs.")
@json_option
@debug_option
def command(corpus: str, verify: bool, as_json: bool) -> int:
    """Show what each stage of a corpus has made.

    All of it comes from the manifests: a stage is done when its manifest is there.

    \b
    Example:
      webtext status --corpus my-corpus
      webtext status --corpus my-corpus --verify
    """
    from pipelines.core import storage
    from pipelines.core.errors import InputError

    if not storage.is_folder(corpus):
        raise InputError(f"{corpus}: no such folder; `webtext init {corpus}` makes a new corpus")
    stages = status(corpus, verify)
    if as_json:
        say(json.dumps({"corpus": corpus, "stages": [dataclasses.asdict(stage) for stage in stages]}))
    else:
        print_table(["stage", "state", "in", "dropped", "out", "shards", "size"], [_row(stage) for stage in stages])
    damaged = [problem for stage in stages for problem in stage.problems]
    for problem in damaged:
        click.echo(f"error: {problem}", err=True)
    if damaged:
        click.echo("run the stage again: it makes what is named above anew", err=True)
    elif verify and not as_json:
        say("every file is as its manifest says")
    return 1 if damaged else 0


def _row(stage: StageStatus) -> list[str]:
    if stage.state != "done":
        return [stage.stage, stage.state, "", "", "", "", ""]
    counts = (stage.records_in, sum(stage.dropped.values()), stage.records_out, stage.shards)
    state = "damaged" if stage.problems else stage.state
    return [stage.stage, state, *(f"{count:,}" for count in counts), amount(stage.size_bytes, "bytes")]
