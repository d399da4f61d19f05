"""`webtext plan`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from pipelines.errors import UsageError
from pipelines.format import format_bytes, format_duration, format_number, format_quantity, plural, to_json
from webtext_cli.console import print_table, say
from webtext_cli.options import DOCUMENTS_HELP, input_option, inputs_or_corpus, output_options
from webtext_cli.parameters import Command, Number

# A worker of fetch then needs less than 1 GB: docs/scaling.md.
_MAX_SHARD_LINKS, _MAX_SHARDS = 500_000, 10_000

if TYPE_CHECKING:
    from pipelines.plan import Resources, StageCost, Workload


@click.command("plan", cls=Command)
@click.option(
    "--corpus",
    metavar="DIR",
    help="Extrapolate from this sample corpus; it must be finished at least through extract. [default: WebText's own "
    "numbers]",
)
@input_option(DOCUMENTS_HELP)
@click.option(
    "--target-links", type=Number(float, 1, 1e15), metavar="NUMBER", help="Scale to this number of links, such as 1e9."
)
@click.option(
    "--target-documents", type=Number(float, 1, 1e15), metavar="NUMBER", help="Scale to this number of documents."
)
@click.option("--nodes", type=Number(int, 1), default=1, show_default=True, help="Number of machines.")
@click.option("--cores", type=Number(int, 1), show_default="those of this machine", help="Cores per machine.")
@click.option(
    "--memory-gb",
    type=Number(float, 0.5),
    metavar="GB",
    show_default="available here",
    help="Memory per machine, in GB.",
)
@click.option("--price-core-hour", type=Number(float, 0), metavar="AMOUNT", help="Price of a core for an hour.")
@click.option("--price-gb-month", type=Number(float, 0), metavar="AMOUNT", help="Price of a GB stored for a month.")
@output_options(has_progress=False)
def command(
    corpus: str | None, input: tuple[str, ...], target_links: float | None, target_documents: float | None, nodes: int,
    cores: int | None, memory_gb: float | None, as_json: bool, **prices: float | None,
) -> None:  # fmt: skip
    """Estimate time, disk space, memory and cost of a corpus.

    Uses the throughput of each stage's last run in the corpus, or webtext's measured rates.

    \b
    Examples:
      webtext plan
      webtext plan --target-links 1e9 --nodes 16 --cores 32 --price-core-hour 0.05
      webtext plan --corpus my-sample --target-links 45e6
      webtext plan my-documents.jsonl.zst --target-documents 1e8
    """
    from pipelines import plan
    from pipelines.engine.executor import default_workers
    from pipelines.engine.machine import available_memory_bytes

    if target_links and target_documents:
        raise UsageError("--target-documents cannot be combined with --target-links; use one")
    memory_bytes = memory_gb * 1e9 if memory_gb else available_memory_bytes()
    if memory_bytes is None:
        raise UsageError("the memory of this machine is unknown; name it with --memory-gb")
    work = plan.WEBTEXT
    if source := inputs_or_corpus(input, corpus):
        work = plan.read_corpus_workload(source) if isinstance(source, str) else plan.read_documents_workload(source)
    rates = plan.read_rates(corpus, work)
    if target := target_links or target_documents:
        work = work.scaled("links" if target_links else "documents", target)
    resources = plan.Resources(nodes, cores or default_workers(), int(memory_bytes), **prices)
    _print_costs(plan.estimate_costs(work, rates, resources), work, resources, as_json)


def _print_costs(costs: list[StageCost], work: Workload, resources: Resources, as_json: bool) -> None:
    """Print a line per stage, the totals and what they are based on, or one JSON object."""
    from pipelines.plan import describe_rates, peak_disk_bytes

    seconds, disk = sum(cost.seconds for cost in costs), peak_disk_bytes(costs)
    prices = [cost.money for cost in costs if cost.money is not None]
    money = sum(prices) if prices else None
    slowest = max(costs, key=lambda cost: cost.seconds).stage
    if as_json:
        total = {"seconds": seconds, "disk_bytes": disk, "money": money, "slowest": slowest}
        parts = {"workload": work, "rates": describe_rates(costs), "resources": resources}
        say(to_json({**parts, "stages": costs, "total": total}))
        return
    rows = [
        [
            cost.stage,
            f"{format_number(round(cost.amount / 1e6, 1), 12)}M {cost.unit}"
            if cost.amount >= 1e6 and cost.unit != "bytes"
            else format_quantity(cost.amount, cost.unit),
            format_duration(cost.seconds),
            *map(format_bytes, (cost.disk_bytes, cost.memory_bytes)),
            cost.bottleneck,
            *([] if cost.money is None else [f"{cost.money:,.2f}"]),
        ]
        for cost in costs
    ]
    headings = ["stage", "input", "time", "disk", "memory", "bottleneck", *(["cost"] if prices else [])]
    print_table(headings, rows, narrow=True)
    price = f"; cost: {money:,.2f}" if money is not None else ""
    say(f"total: {format_duration(seconds)}, most of it {slowest}; disk: {format_bytes(disk)} at the peak{price}")
    machines, cores = plural(resources.nodes, "machine"), plural(resources.cores, "core")
    say(f"with {machines} of {cores} and {format_bytes(resources.memory_bytes)} of memory; the memory is per machine")
    say(f"amounts: {work.basis}")
    size, unit = (work.links, "links") if work.links else (work.documents, "documents")
    more = min(_MAX_SHARDS, -(-int(work.links) // _MAX_SHARD_LINKS))
    advice = f"; `scrape --shards {more}` would need less memory" if more > work.shards else ""
    say(f"shards: {work.shards:,}, of about {format_quantity(round(size / work.shards), unit)} each{advice}")
    say(f"rates: {describe_rates(costs)}")
