"""`webtext build`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from pipelines import storage
from pipelines.build import build
from pipelines.format import format_bytes, to_json
from webtext_cli.console import print_result, print_summary, print_table, say
from webtext_cli.options import StageCall, discard_pages_option, stage_command

if TYPE_CHECKING:
    from pipelines.dry_run import StageDecision


@stage_command("build")
@click.option("--from", "first", metavar="STAGE", help="First stage to run.")
@click.option("--to", "last", metavar="STAGE", help="Last stage to run.")
@click.option(
    "--dry-run",
    is_flag=True,
    help="Show which stages would run, why, and the disk space they need; exit code 1 if a stage is refused.",
)
@discard_pages_option
def command(call: StageCall, first: str | None, last: str | None, dry_run: bool) -> int:
    """Run the stages listed in webtext.toml, in order.

    Finished stages are only verified by checksum; an interrupted stage resumes. New dumps, links and pages are added,
    and the stages downstream are rebuilt. A stage whose options changed is refused; --overwrite rebuilds it. Fetched
    pages are replaced only with --discard-pages as well.

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
    rows = [[one.stage, one.action, one.reason, _disk(one)] for one in decisions]
    print_table(["stage", "action", "reason", "disk space"], rows, text_columns=True)
    free = storage.free_bytes(corpus)
    available = f", {format_bytes(free)} free" if free is not None else ""
    total = format_bytes(sum(decision.disk_bytes or 0 for decision in decisions))
    say(f"disk space: about {total} (without work files){available}")


def _disk(decision: StageDecision) -> str:
    if decision.action in ("keep", "refuse"):
        return ""
    size, basis = decision.disk_bytes, decision.basis
    return basis if size is None else f"about {format_bytes(size)} ({basis})"
