"""`webtext status`."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Sequence

import click

from pipelines import storage
from pipelines.build import StageStatus, status
from pipelines.engine.run_record import LiveProgress
from pipelines.format import format_bytes, format_count, format_duration, format_quantity
from webtext_cli.console import format_done, print_table, say
from webtext_cli.options import corpus_option, debug_option, json_option

_WATCH_S = 2.0


@click.command("status")
@corpus_option
@click.option("--verify", is_flag=True, help="Verify the checksum of every file; exit code 1 if one differs.")
@click.option("--watch", is_flag=True, help="Show the progress of what is running every two seconds, until it ends.")
@json_option
@debug_option
def command(corpus: str, verify: bool, watch: bool, as_json: bool) -> int:
    """Show the state of each stage of a corpus.

    A stage is done if its manifest exists; what is shown of it is read from there. Of a stage that is running, in
    another terminal or on another machine, the progress is shown.

    \b
    Examples:
      webtext status --corpus my-corpus
      webtext status --corpus my-corpus --watch
      webtext status --corpus my-corpus --verify
    """
    stages = status(corpus, verify)
    try:
        while watch and any(stage.writer for stage in stages):
            _describe_runs(corpus, stages)
            time.sleep(_WATCH_S)
            stages = status(corpus, verify=False)
    except KeyboardInterrupt:  # not the end of a run, of which the message would speak
        return 130
    if as_json:
        say(json.dumps({"corpus": corpus, "stages": [dataclasses.asdict(stage) for stage in stages]}))
    else:
        print_table(["stage", "state", "in", "dropped", "out", "shards", "size"], [_row(stage) for stage in stages])
        _describe_runs(corpus, stages)
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


def _describe_runs(corpus: str, stages: Sequence[StageStatus]) -> None:
    for stage in stages:
        if stage.writer:
            say(_describe_run(stage))
        if stage.writer and stage.stage == "fetch":
            from pipelines.stages.fetch.report import describe_activity

            if activity := describe_activity(storage.join(corpus, stage.stage)):
                say(f"  {activity}")


def _describe_run(stage: StageStatus) -> str:
    """Describe a running stage: `dedup: signatures: 250 of 1,000 records, 17 records/s, 44 s left (process 12 ...)`."""
    progress = f"{stage.progress.label}: {_describe_progress(stage.progress)}" if stage.progress else stage.stage
    return f"{progress} ({stage.writer})"


def _describe_progress(progress: LiveProgress) -> str:
    parts = [format_done(progress.done, progress.total, progress.unit)]
    if progress.done:
        parts.append(f"{format_quantity(progress.rate, progress.unit)}/s")
    if progress.seconds_left is not None:
        parts.append(f"{format_duration(progress.seconds_left)} left")
    return ", ".join(parts)


def _row(stage: StageStatus) -> list[str]:
    if stage.state not in ("done", "damaged"):
        return [stage.stage, stage.state, "", "", "", "", ""]
    counts = (stage.records_in, sum(stage.dropped.values()), stage.records_out, stage.shards)
    return [stage.stage, stage.state, *map(format_count, counts), format_bytes(stage.size_bytes)]
