"""`webtext plan`."""

from __future__ import annotations

import math
from typing import Any

import click

from webtext_cli.console import make_progress
from webtext_cli.options import DOCUMENTS_HELP, debug_option, json_option, quiet_option


class _Number(click.FloatRange):
    """A number of a range: also not infinite, and not NaN, which click lets pass."""

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Any:
        number = super().convert(value, parameter, context)
        return number if math.isfinite(number) else self.fail(f"{value} is not a number", parameter, context)


@click.command("plan")
@click.option(
    "--corpus",
    metavar="DIR",
    help="A corpus that is a sample: extrapolate from its finished stages, extract at least. By default, WebText's own "
    "numbers.",
)
@click.option("--input", "-i", metavar="PATH", multiple=True, help=f"{DOCUMENTS_HELP} (repeatable; also a glob).")
@click.option("--links", type=_Number(1, 1e15), metavar="NUMBER", help="Scale to so many links, such as 1e9.")
@click.option("--nodes", type=click.IntRange(1), default=1, show_default=True, help="Number of machines.")
@click.option("--cores", type=click.IntRange(1), show_default="those of this machine", help="Cores per machine.")
@click.option(
    "--memory",
    type=_Number(0.5),
    metavar="GB",
    show_default="what is available here",
    help="Memory per machine, in GB.",
)
@click.option(
    "--latency",
    type=_Number(0.001),
    default=2.0,
    show_default=True,
    help="Mean seconds from a request of fetch to its answer, with those that time out.",
)
@click.option(
    "--per-host-delay",
    type=_Number(0),
    show_default="that of the corpus, or 1",
    help="Seconds between two requests of fetch to one host.",
)
@click.option(
    "--shards",
    type=click.IntRange(1, 10_000),
    show_default="as scrape writes",
    help="Shards, and so tasks, of every stage.",
)
@click.option("--price-core-hour", type=_Number(0), metavar="MONEY", help="Price of a core for an hour.")
@click.option("--price-gb-month", type=_Number(0), metavar="MONEY", help="Price of a GB stored for a month.")
@click.option(
    "--price-1000-requests",
    type=_Number(0),
    metavar="MONEY",
    help="Price of 1,000 requests to an object store.",
)
@click.option("--calibrate", is_flag=True, help="Measure the rates of this machine again; takes some minutes.")
@click.option(
    "--calibration", metavar="FILE", show_default="one in the user's cache", help="Where the measured rates are kept."
)
@json_option
@quiet_option
@debug_option
def command(
    corpus: str | None,
    input: tuple[str, ...],
    links: float | None,
    nodes: int,
    cores: int | None,
    memory: float | None,
    latency: float,
    per_host_delay: float | None,
    shards: int | None,
    price_core_hour: float | None,
    price_gb_month: float | None,
    price_1000_requests: float | None,
    calibrate: bool,
    calibration: str | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Project time, disk, memory and money of a corpus.

    The rates of the stages are measured on this machine, once. How long fetch takes is simulated, since it waits for
    the sites most of the time.

    \b
    Examples:
      webtext plan
      webtext plan --links 1e9 --nodes 16 --cores 32 --memory 128 --price-core-hour 0.05
      webtext plan --corpus my-sample --links 45e6
      webtext plan -i my-documents.jsonl.zst --calibrate
    """
    import dataclasses

    from pipelines import storage
    from pipelines.build import CorpusConfig
    from pipelines.engine.executor import default_workers
    from pipelines.engine.machine import available_memory_bytes
    from pipelines.errors import UsageError
    from pipelines.projection import workload
    from pipelines.projection.calibration import calibrated
    from pipelines.projection.projection import Resources, project, simulate_crawl
    from pipelines.stages.fetch.config import FetchConfig
    from webtext_cli.tables.plan import print_projection

    if corpus and input:
        raise UsageError("--corpus and --input are two samples; name one")
    work = workload.of_documents(input) if input else workload.of_corpus(corpus) if corpus else workload.webtext()
    work = work.scaled(links)
    if shards:
        work = dataclasses.replace(work, shards=shards)
    path = calibration or storage.user_cache_path("calibration.json")
    measured = calibrated(path, work.sample.sample, make_progress(quiet), again=calibrate)
    memory_bytes = memory * 1e9 if memory else available_memory_bytes()
    if memory_bytes is None:
        raise UsageError("the memory of this machine is not known; name it with --memory")
    resources = Resources(
        nodes, cores or default_workers(), int(memory_bytes), price_core_hour, price_gb_month, price_1000_requests
    )
    fetch: FetchConfig = CorpusConfig(corpus).options("fetch", FetchConfig) if corpus else FetchConfig()
    if per_host_delay is not None:
        fetch = dataclasses.replace(fetch, per_host_delay=per_host_delay)
    crawl = simulate_crawl(work, measured.rates["fetch"], fetch, latency) if work.links else None
    stages = project(work, measured.rates, resources, crawl)
    print_projection(stages, work, measured, resources, crawl, as_json)
