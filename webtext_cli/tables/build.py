"""The plan of `webtext build --dry-run`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

from pipelines import storage
from pipelines.build_plan import StagePlan
from pipelines.format import format_bytes
from webtext_cli.console import say


def print_plan(plans: Sequence[StagePlan], corpus: str, as_json: bool) -> None:
    """Print a line per stage and the sum of the disk space, or one JSON object."""
    if as_json:
        say(json.dumps({"stages": [dataclasses.asdict(plan) for plan in plans]}, ensure_ascii=False))
        return
    width = max(len(plan.stage) for plan in plans)
    for plan in plans:
        disk = f"; disk: {_disk(plan)}" if plan.action not in ("keep", "refuse") else ""
        hint = " (needs --overwrite)" if plan.action == "refuse" else ""
        say(f"{plan.stage:<{width}}  {plan.action:<7}  {plan.reason}{hint}{disk}")
    free = storage.free_bytes(corpus)
    available = f", {format_bytes(free)} free" if free is not None else ""
    say(f"disk: about {format_bytes(sum(plan.disk_bytes or 0 for plan in plans))}, without work files{available}")


def _disk(plan: StagePlan) -> str:
    return plan.basis if plan.disk_bytes is None else f"about {format_bytes(plan.disk_bytes)} ({plan.basis})"
