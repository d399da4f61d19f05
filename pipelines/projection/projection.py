"""Projects time, disk, memory and money per stage from a workload, the rates of a machine, and what is available."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import pyarrow as pa

from pipelines.algorithms.bloom.sizing import size_for
from pipelines.format import plural
from pipelines.projection.calibration import Rate
from pipelines.projection.crawl import Crawl, CrawlLimits, zipf_sites
from pipelines.projection.workload import Workload
from pipelines.stages.fetch.config import FetchConfig
from pipelines.stages.overlap_index.config import OverlapIndexConfig
from pipelines.stages.train_bpe.config import TrainBpeConfig
from pipelines.stages.train_bpe.estimate import TrainingEstimate, estimate_training

_DRIVER_BYTES = 400_000_000  # Python with the libraries, whatever the input
_BYTES_PER_WORD = 6  # of English text, with the space
# Of the process that distributes the tasks, per document; and of joining the filter's parts in overlap-index, per byte:
# benchmarks/driver.md.
_DRIVER_S_PER_DOCUMENT, _DRIVER_BYTES_PER_DOCUMENT, _JOIN_S_PER_BYTE = 0.7e-6, 6, 4e-9
# Of the hashes of ids, by which it finds repeated ones: per document, and at most.
_BYTES_PER_ID, _MOST_BYTES_OF_IDS = 16, 67_000_000 * 16
_LINK_BYTES = 300  # 41,842 links of 2013 took 12.9 MB, with their drops
# Requests of a task in an object store besides those for its data, by dedup and the others; of data, bytes per request.
_DEDUP_REQUESTS, _TASK_REQUESTS, _REQUEST_BYTES = 150, 60, 16 << 20
_HOURS_PER_MONTH = 730


@dataclasses.dataclass(frozen=True)
class Resources:
    """The machines: `memory_bytes` and `cores` are those of a node; prices are None if they are not known."""

    nodes: int
    cores: int
    memory_bytes: int
    price_core_hour: float | None = None
    price_gb_month: float | None = None
    price_1000_requests: float | None = None

    @property
    def has_prices(self) -> bool:
        """Whether any price is known."""
        return any(price is not None for price in (self.price_core_hour, self.price_gb_month, self.price_1000_requests))


@dataclasses.dataclass(frozen=True)
class StageProjection:
    """What a stage takes. `disk_bytes` is its peak, of which `kept_bytes` remain; `memory_bytes` is that of a node.

    `workers` is the number of worker processes of a node, `core_hours` the time of all cores, also idle ones.
    """

    stage: str
    amount: float
    unit: str
    seconds: float
    disk_bytes: float
    kept_bytes: float
    memory_bytes: float
    workers: int
    core_hours: float
    requests: float
    bottleneck: str
    money: float | None = None


@dataclasses.dataclass(frozen=True)
class _Step:
    """A stage with the amounts that it reads and the bytes that it keeps.

    `driver_s` and `driver_bytes` are time and memory of what one process does, without what it does per document.
    """

    stage: str
    amount: float
    unit: str
    input_bytes: float
    kept_bytes: float
    documents: float = 0.0
    driver_s: float = 0.0
    driver_bytes: float = 0.0


def project(
    work: Workload, rates: Mapping[str, Rate], available: Resources, crawl: Crawl | None
) -> list[StageProjection]:
    """Return the projection of every stage that has something to do, in order; `crawl` is that of the links, if any."""
    stages, kept = [], 0.0
    for step in _steps(work, rates):
        rate = rates[step.stage]
        projection = _project_step(step, rate, work.shards, available)
        if crawl and step.stage == "fetch":
            projection = _with_crawl(projection, crawl, available)
        stages.append(dataclasses.replace(projection, money=_price(projection, kept, available)))
        kept += projection.kept_bytes
    return stages


def _steps(work: Workload, rates: Mapping[str, Rate]) -> list[_Step]:
    text, filtered, unique, kept = work.text_bytes, work.filtered_bytes, work.unique_bytes, work.unique_documents
    sample = "".join(work.sample.sample).encode()
    ratio = len(pa.Codec("zstd", 1).compress(sample)) / len(sample)  # as documents are stored
    links, warc = _LINK_BYTES * work.links, work.page_bytes * work.pages
    merging = _estimate_merging(work)
    # Proportional, so that a corpus can be planned for which the filter is refused: its n-grams exceed 64-bit hashes.
    index = unique / _BYTES_PER_WORD * size_for(10**9, OverlapIndexConfig().error_rate).size_bytes / 1e9
    tokens, counts, report = (unique * rates[name].output_bytes for name in ("tokenize", "train-bpe", "overlap-report"))
    steps = [
        _Step("scrape", work.submissions, "submissions", 0.0, links),
        _Step("fetch", work.links, "links", links, warc),
        _Step("extract", work.pages, "pages", warc, ratio * text),
        _Step("filter", text, "bytes", ratio * text, ratio * filtered, work.documents),
        _Step("dedup", filtered, "bytes", ratio * filtered, ratio * unique, work.filtered_documents),
        _Step("remove-wikipedia", unique, "bytes", ratio * unique, ratio * unique, kept),
        _Step("train-bpe", unique, "bytes", ratio * unique, counts, kept, merging.merging_s, merging.merging_bytes),
        _Step("tokenize", unique, "bytes", ratio * unique, tokens, kept),
        _Step("overlap-index", unique, "bytes", ratio * unique, index, kept, _JOIN_S_PER_BYTE * index),
        _Step("overlap-report", unique, "bytes", ratio * unique, report, kept),
    ]
    return [step for step in steps if step.amount and step.stage not in work.skipped]


def _project_step(step: _Step, rate: Rate, shards: int, available: Resources) -> StageProjection:
    driver_bytes = _DRIVER_BYTES + step.driver_bytes + _DRIVER_BYTES_PER_DOCUMENT * step.documents
    driver_bytes += min(_MOST_BYTES_OF_IDS, _BYTES_PER_ID * step.documents)
    alone_s = step.driver_s + _DRIVER_S_PER_DOCUMENT * step.documents
    fitting = int((available.memory_bytes - driver_bytes) // rate.worker_bytes)
    workers = max(1, min(available.cores, fitting))
    busy = min(available.nodes * workers, shards)
    shared_s = step.amount * rate.core_s / busy
    seconds = rate.fixed_s + alone_s + shared_s
    if fitting < 1:
        bottleneck = "lacks memory"
    elif rate.fixed_s > alone_s + shared_s:
        bottleneck = "start"
    elif alone_s > shared_s:
        bottleneck = "one process"
    elif fitting < available.cores:
        bottleneck = "memory"
    else:
        bottleneck = plural(shards, "shard") if shards < available.nodes * workers else "cores"
    disk = step.kept_bytes + step.amount * rate.work_bytes
    tasks = shards * (_DEDUP_REQUESTS if step.stage == "dedup" else _TASK_REQUESTS)
    return StageProjection(
        stage=step.stage,
        amount=step.amount,
        unit=step.unit,
        seconds=seconds,
        disk_bytes=disk,
        kept_bytes=step.kept_bytes,
        memory_bytes=driver_bytes + workers * rate.worker_bytes,
        workers=workers,
        core_hours=seconds / 3600 * available.nodes * available.cores,
        requests=tasks + (step.input_bytes + disk) / _REQUEST_BYTES,
        bottleneck=bottleneck,
    )


def simulate_crawl(work: Workload, rate: Rate, fetch: FetchConfig, latency_s: float) -> Crawl:
    """Return the crawl of the links."""
    limits = CrawlLimits(fetch.per_host_delay, fetch.concurrency, latency_s, rate.core_s)
    return Crawl(zipf_sites(round(work.links)), work.shards, limits)


def _with_crawl(stage: StageProjection, crawl: Crawl, available: Resources) -> StageProjection:
    """Return the projection of fetch with the time of a simulated crawl."""
    processes = available.nodes * stage.workers
    seconds = crawl.seconds(processes)
    return dataclasses.replace(
        stage,
        seconds=seconds,
        core_hours=seconds / 3600 * available.nodes * available.cores,
        bottleneck=crawl.describe_limit(processes),
    )


def total_disk(stages: Sequence[StageProjection]) -> float:
    """Return the peak of the disk space: what the stages before keep, and what a stage needs while it runs."""
    peak = kept = 0.0
    for stage in stages:
        peak = max(peak, kept + stage.disk_bytes)
        kept += stage.kept_bytes
    return peak


def _estimate_merging(work: Workload) -> TrainingEstimate:
    """Return what train-bpe estimates for so much text like the sample."""
    estimate = dataclasses.replace(work.sample, text_bytes=round(work.unique_bytes))
    training = estimate_training(estimate, TrainBpeConfig(), 1, None)
    assert training is not None  # the sample has text
    return training


def _price(stage: StageProjection, kept_bytes: float, available: Resources) -> float | None:
    """Return what a stage costs: all cores while it runs, all files that are there for as long, and its requests."""
    if not available.has_prices:
        return None
    return (
        (available.price_core_hour or 0) * stage.core_hours
        + (available.price_gb_month or 0)
        * (kept_bytes + stage.disk_bytes)
        / 1e9
        * stage.seconds
        / 3600
        / _HOURS_PER_MONTH
        + (available.price_1000_requests or 0) * stage.requests / 1000
    )
