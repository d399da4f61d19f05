"""The table of `webtext build --dry-run`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

from pipelines import storage
from pipelines.dry_run import StageDecision
from pipelines.format import format_bytes
from webtext_cli.console import say


def print_decisions(decisions: Sequence[StageDecision], corpus: str, as_json: bool) -> None:
    """Print a line per stage and the sum of the disk space, or one JSON object."""
    if as_json:
        say(json.dumps({"stages": [dataclasses.asdict(decision) for decision in decisions]}, ensure_ascii=False))
        return
    width = max(len(decision.stage) for decision in decisions)
    for decision in decisions:
        disk = f"; disk: {_disk(decision)}" if decision.action not in ("keep", "refuse") else ""
        hint = " (needs --overwrite)" if decision.action == "refuse" else ""
        say(f"{decision.stage:<{width}}  {decision.action:<7}  {decision.reason}{hint}{disk}")
    free = storage.free_bytes(corpus)
    available = f", {format_bytes(free)} free" if free is not None else ""
    total = format_bytes(sum(decision.disk_bytes or 0 for decision in decisions))
    say(f"disk: about {total}, without work files{available}")


def _disk(decision: StageDecision) -> str:
    size, basis = decision.disk_bytes, decision.basis
    return basis if size is None else f"about {format_bytes(size)} ({basis})"
