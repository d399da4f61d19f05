"""`webtext init` and `status`: a corpus folder as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from pipelines import storage
from pipelines.build import StageStatus, describe_run
from pipelines.build import status as read_status
from pipelines.engine.config import CONFIG_FILE
from pipelines.engine.run import check_removal_complete
from pipelines.errors import UsageError, format_message
from pipelines.format import format_bytes, format_count
from webtext_cli.console import complain, print_result, print_table, say
from webtext_cli.options import corpus_option, input_option, inputs_or_corpus, output_options
from webtext_cli.parameters import Command


@click.command("init", cls=Command)
@click.argument("folder", metavar="DIR")
@output_options(has_progress=False)
def init(folder: str, as_json: bool) -> None:
    """Write a commented webtext.toml for a new corpus.

    The file lists every option of every stage with its meaning, range and default, commented out.

    \b
    Example:
      webtext init my-corpus
    """
    from pipelines.template import config_template

    path = storage.join(folder, CONFIG_FILE)
    if storage.exists(path):
        raise UsageError(f"{path}: already exists; edit it, or name another folder")
    storage.write_bytes(path, config_template().encode())
    text = f"wrote {path}: name your dumps under [scrape], then run `webtext build --corpus {folder}`"
    print_result({"path": path}, as_json, lambda _: say(format_message(text)), has_paths=True)


@click.command("status", cls=Command)
@corpus_option
@input_option("Output folder of a stage")
@click.option("--verify", is_flag=True, help="Verify the checksum of every file; exit code 1 if one differs.")
@output_options(has_progress=False)
def status(corpus: str, input: tuple[str, ...], verify: bool, as_json: bool) -> int:
    """Show the state of each stage of a corpus.

    A stage is done once its manifest, which holds its counts, exists. A stage that is running in another terminal or
    on another machine is shown with its progress.

    \b
    Examples:
      webtext status --corpus my-corpus
      webtext status --corpus my-corpus --verify
      webtext status -i unique
    """
    stages = read_status(inputs_or_corpus(input, corpus), verify)
    print_result({"corpus": None if input else corpus, "stages": stages}, as_json, _print_stages, True)
    if not input:
        check_removal_complete(corpus)
    problems = [problem for stage in stages for problem in stage.problems]
    for problem in problems:
        complain(f"error: {problem}")
    if problems:
        complain("re-run the stage to rebuild files that are missing or damaged")
    elif verify and not as_json:
        say("all files match their checksums")
    return 1 if problems else 0


def _print_stages(result: Mapping[str, Any]) -> None:
    stages = result["stages"]
    print_table(["stage", "state", "in", "dropped", "out", "shards", "size"], [_row(stage) for stage in stages])
    for stage in filter(lambda stage: stage.writer, stages):
        say("\n  ".join(describe_run(stage)))
    for stage in stages:
        if stage.changed:
            complain(f"note: {stage.stage} is stale: {', '.join(stage.changed)} has changed or is stale")
    for replacement in filter(None, (stage.replacement for stage in stages)):
        complain(f"note: {replacement}")


def _row(stage: StageStatus) -> list[str]:
    if stage.state not in ("done", "stale", "damaged"):
        return [stage.stage, stage.state.replace("-", "–"), *"–––––"]
    counts = (stage.records_in, sum(stage.dropped.values()), stage.records_out, stage.shards or None)
    return [stage.stage, stage.state, *map(format_count, counts), format_bytes(stage.size_bytes)]
