"""The table of `webtext plan`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

from pipelines.format import format_bytes, format_duration, format_quantity, plural
from pipelines.projection.calibration import Calibration
from pipelines.projection.crawl import Crawl
from pipelines.projection.projection import Resources, StageProjection, total_disk
from pipelines.projection.workload import Workload
from webtext_cli.console import say


def print_projection(
    stages: Sequence[StageProjection],
    work: Workload,
    measured: Calibration,
    resources: Resources,
    crawl: Crawl | None,
    as_json: bool,
) -> None:
    """Print a line per stage, the sums and what they are based on, or one JSON object."""
    seconds, disk = sum(stage.seconds for stage in stages), total_disk(stages)
    money = sum(stage.money or 0.0 for stage in stages) if resources.has_prices else None
    workers = crawl.useful_processes() if crawl else 0
    slowest = max(stages, key=lambda stage: stage.seconds)
    if as_json:
        amounts = {key: value for key, value in vars(work).items() if key != "sample"}
        calibration = {"machine": measured.machine, "cores": measured.cores, "date": measured.date}
        totals = {"seconds": seconds, "disk_bytes": disk, "money": money, "slowest": slowest.stage}
        result = {
            "workload": amounts,
            "calibration": calibration,
            "resources": vars(resources),
            "stages": [dataclasses.asdict(stage) for stage in stages],
            "total": totals,
            "fastest_fetch": crawl and {"workers": workers, "seconds": crawl.seconds(workers)},
        }
        say(json.dumps(result, ensure_ascii=False))
        return
    heading = f"{'stage':<15} {'input':>18} {'time':>12} {'disk':>8} {'memory':>8}"
    say(f"{heading}  {'bottleneck':<14}{'money':>12}" if resources.has_prices else f"{heading}  bottleneck")
    for stage in stages:
        line = f"{stage.stage:<15} {_amount(stage):>18} {format_duration(stage.seconds):>12} "
        line += f"{format_bytes(stage.disk_bytes):>8} {format_bytes(stage.memory_bytes):>8}  {stage.bottleneck}"
        say(line if stage.money is None else f"{line:<80}{stage.money:>12,.2f}")
    cost = f"; money: {money:,.2f}" if money is not None else ""
    say(f"total: {format_duration(seconds)}, most of it {slowest.stage}; disk: {format_bytes(disk)} at the peak{cost}")
    say(f"with {plural(resources.nodes, 'machine')} of {plural(resources.cores, 'core')} and "
        f"{format_bytes(resources.memory_bytes)} of memory; the memory is per machine")  # fmt: skip
    if crawl:
        say(f"fetch: {format_duration(crawl.seconds(workers))} with --workers {workers:,} in all; more hardly help")
    say(f"amounts: {work.basis}")
    say(f"rates: measured {measured.date} on {measured.machine} ({plural(measured.cores, 'core')})")


def _amount(stage: StageProjection) -> str:
    if stage.amount < 1e6 or stage.unit == "bytes":
        return format_quantity(stage.amount, stage.unit)
    return f"{stage.amount / 1e6:,.4g}M {stage.unit}"
