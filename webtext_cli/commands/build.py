"""`webtext build`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from pipelines import storage
from pipelines.build import build
from pipelines.format import format_bytes, to_json
from webtext_cli.console import print_result, print_summary, say
from webtext_cli.options import StageCall, discard_pages_option, stage_options

if TYPE_CHECKING:
    from pipelines.dry_run import StageDecision


@click.command("build")
@click.option("--from", "first", metavar="STAGE", help="First stage to run.")
@click.option("--to", "last", metavar="STAGE", help="Last stage to run.")
@click.option(
    "--dry-run", is_flag=True, help="Show what would run, why, and the disk space; exit code 1 if a stage is refused."
)
@discard_pages_option
@stage_options()
def command(call: StageCall, first: str | None, last: str | None, dry_run: bool) -> int:
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
    stages, options = call.settings.stages(first, last), call.run_options()
    if dry_run:
        from pipelines.dry_run import decide_build

        decisions = decide_build(call.corpus, stages, options)
        print_result({"stages": decisions}, call.as_json, lambda _: _print_decisions(decisions, call.corpus))
        return 1 if any(decision.action == "refuse" for decision in decisions) else 0
    summaries = build(
        call.corpus, stages, options, None if call.as_json else lambda summary: print_summary(summary, as_json=False)
    )
    if call.as_json:
        say(to_json({"stages": [summary.to_json() for summary in summaries]}))
    return 0


def _print_decisions(decisions: Sequence[StageDecision], corpus: str) -> None:
    """Print a line per stage and the sum of the disk space."""
    width = max(len(decision.stage) for decision in decisions)
    for decision in decisions:
        disk = f"; disk: {_disk(decision)}" if decision.action not in ("keep", "refuse") else ""
        say(f"{decision.stage:<{width}}  {decision.action:<7}  {decision.reason}{disk}")
    free = storage.free_bytes(corpus)
    available = f", {format_bytes(free)} free" if free is not None else ""
    total = format_bytes(sum(decision.disk_bytes or 0 for decision in decisions))
    say(f"disk: about {total}, without work files{available}")


def _disk(decision: StageDecision) -> str:
    size, basis = decision.disk_bytes, decision.basis
    return basis if size is None else f"about {format_bytes(size)} ({basis})"
