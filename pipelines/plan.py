"""`webtext plan`: the time, disk space, memory and money that the stages of a corpus will take.

The rates of a stage are those of its last run in the corpus, else those of `data/rates.json`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from pipelines import storage
from pipelines.corpus_config import CorpusConfig, check_corpus
from pipelines.engine.manifest import has_manifest, read_manifest
from pipelines.engine.run_record import read_runs
from pipelines.errors import InputError
from pipelines.format import plural
from pipelines.records import inputs
from pipelines.records.file_parts import count_parts
from pipelines.stages.fetch.config import FetchConfig
from pipelines.stages.scrape.config import ScrapeConfig
from pipelines.storage.resources import data_path

# The driver, the process that distributes the tasks: Python with the libraries, and time per document
# (benchmarks/driver.md).
_DRIVER_BYTES, _DRIVER_S_PER_DOCUMENT = 400_000_000, 0.7e-6
_LINK_BYTES = 300  # 41,842 links of 2013 took 12.9 MB, with their drops
DOCUMENT_BYTES = 5000  # the average of WebText
_STORED_SHARE = 0.4  # bytes of a shard per byte of its text: benchmarks/plan.md
_HOURS_PER_MONTH = 730
# A shorter run says more of the start of a process than of the work.
_MIN_RUN_S = 10.0


@dataclasses.dataclass(frozen=True)
class Rate:
    """What a stage takes: seconds at its start, and the rest per unit, a submission, link, page or byte of text.

    `core_s` is processor time; `output_bytes` and `work_bytes` are the sizes of its files, the latter removed at its
    end; `worker_bytes` is the peak memory of a worker, which grows by `shard_bytes` per record (submission, link, page,
    document) of its shard, and that of the driver by `driver_bytes` per record of all.
    """

    fixed_s: float
    core_s: float
    output_bytes: float
    work_bytes: float
    worker_bytes: int
    shard_bytes: float = 0.0
    driver_bytes: float = 0.0
    is_recorded: bool = False

    def memory_bytes(self, records: float, shards: int) -> tuple[float, float]:
        """Return the memory of the driver and of a worker for records in shards."""
        return _DRIVER_BYTES + self.driver_bytes * records, self.worker_bytes + self.shard_bytes * records / shards


@dataclasses.dataclass(frozen=True)
class Workload:
    """What the stages read; `filtered` and `unique` are the shares of documents kept by filter, and by all stages.

    `page_bytes` is the size of a page as WARC, `shards` the number of tasks of a stage. `basis` says where the numbers
    are from. `corpus` is the corpus whose runs give the rates. The corpus omits the `skipped` stages.
    """

    basis: str
    shards: int
    documents: float
    text_bytes: float
    submissions: float = 0
    links: float = 0
    pages: float = 0
    page_bytes: float = 0
    filtered: float = 1.0
    unique: float = 1.0
    per_host_delay_s: float = FetchConfig().per_host_delay
    skipped: tuple[str, ...] = ()

    def scaled(self, unit: str, target: float) -> Workload:
        """Return the workload of another number of `links` or `documents`."""
        if not (amount := getattr(self, unit)):
            raise InputError(f"--target-{unit}: {self.basis} contain no {unit}; name a corpus with --corpus instead")
        names = ("submissions", "links", "pages", "documents", "text_bytes")
        scaled: dict[str, Any] = {name: getattr(self, name) * target / amount for name in names}
        if not self.links:  # more text of your own is divided into more parts
            size_bytes = round(scaled["text_bytes"])
            scaled["shards"] = max(self.shards, count_parts(size_bytes, size_bytes)[0])
        return dataclasses.replace(self, **scaled, basis=f"{self.basis}, scaled to {target:,.0f} {unit}")

    def amounts(self) -> dict[str, tuple[float, str, float | None]]:
        """Return for each stage, in order, how much it reads, the unit, and the size of its result if that is known."""
        text, filtered, unique = (self.text_bytes * share for share in (1.0, self.filtered, self.unique))
        amounts: dict[str, tuple[float, str, float | None]] = {
            "scrape": (self.submissions, "submissions", _LINK_BYTES * self.links),
            "fetch": (self.links, "links", self.page_bytes * self.pages),
            "extract": (self.pages, "pages", _STORED_SHARE * text),
            "filter": (text, "bytes", _STORED_SHARE * filtered),
            "dedup": (filtered, "bytes", _STORED_SHARE * unique),
            "remove-wikipedia": (unique, "bytes", _STORED_SHARE * unique),
        }
        amounts |= dict.fromkeys(
            ("train-bpe", "tokenize", "overlap-index", "overlap-report", "search"), (unique, "bytes", None)
        )
        return {stage: amount for stage, amount in amounts.items() if amount[0] and stage not in self.skipped}


@dataclasses.dataclass(frozen=True)
class Resources:
    """The machines: `memory_bytes` and `cores` are those of a node; prices are None if they are unknown."""

    nodes: int
    cores: int
    memory_bytes: int
    price_core_hour: float | None = None
    price_gb_month: float | None = None


@dataclasses.dataclass(frozen=True)
class StageCost:
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
    bottleneck: str
    rate: str
    money: float | None = None


# Submissions: the dumps through 2017-12. Links, documents and bytes kept: the paper, section 2.1. It does not say how
# many links answered, or what was filtered and duplicate: so all answer, with a document as large as those that were
# kept, and dedup reads all of them. Bytes per page: benchmarks/pipeline.md.
WEBTEXT = Workload(
    "WebText's own numbers, as if every link answered", ScrapeConfig().shards, documents=45e6, text_bytes=225e9,
    submissions=430.6e6, links=45e6, pages=45e6, page_bytes=47_000, unique=8e6 / 45e6,
)  # fmt: skip


def read_documents_workload(paths: Sequence[str]) -> Workload:
    """Return the workload of documents that are there; all of them are assumed to be kept."""
    source = inputs.open_documents(list(paths))
    text_bytes = inputs.estimate_text_bytes(source.files)
    documents = text_bytes / DOCUMENT_BYTES if source.records is None else source.records
    if not text_bytes:
        raise InputError(f"{', '.join(paths)}: no text to extrapolate from")
    return Workload("the documents of --input", len(source.shards), documents, text_bytes)


def read_corpus_workload(corpus: str) -> Workload:
    """Return the workload of a corpus with texts of its own, or whose stages fetch and extract are finished.

    What later stages keep is taken from those that are finished; the others are assumed to keep everything.
    """
    check_corpus(corpus, "-i")
    config = CorpusConfig(corpus)
    skipped = config.skipped()
    folders = {stage: storage.join(corpus, stage) for stage in _STAGES}
    manifests = {stage: read_manifest(folder) for stage, folder in folders.items() if has_manifest(folder)}
    own = [path for stage in ("filter", "dedup") if stage not in skipped for path in config.own_input(stage)]
    if own:
        work = read_documents_workload(own)
    elif missing := [stage for stage in ("fetch", "extract") if stage not in manifests]:
        raise InputError(
            f"{corpus}: {missing[0]} has not finished; run `webtext build --to extract` first, or name documents with "
            "--input"
        )
    else:
        scrape, fetch, extract = manifests.get("scrape"), manifests["fetch"], manifests["extract"]
        warc_bytes = sum(file.size_bytes for file in fetch.files if ".warc" in file.name)
        work = dataclasses.replace(
            read_documents_workload([storage.join(corpus, "extract")]),
            submissions=scrape.records_in if scrape and "urls" not in fetch.identity.inputs else 0,
            links=fetch.records_in,
            pages=fetch.records_out,
            page_bytes=warc_bytes / max(1, fetch.records_out),
            documents=extract.records_out,
            per_host_delay_s=config.options("fetch", FetchConfig).per_host_delay,
        )
    kept = {
        stage: manifests[stage].records_out / max(1, manifests[stage].records_in)
        for stage in ("filter", "dedup", "remove-wikipedia")
        if stage in manifests and stage not in skipped
    }
    filtered = kept.get("filter", 1.0)
    unique = filtered * kept.get("dedup", 1.0) * kept.get("remove-wikipedia", 1.0)
    basis = f"the corpus {corpus}"
    return dataclasses.replace(work, filtered=filtered, unique=unique, basis=basis, skipped=tuple(skipped))


_TABLE = data_path("rates.json")
_STAGES = tuple(WEBTEXT.amounts())


def read_rates(corpus: str | None = None, work: Workload = WEBTEXT) -> dict[str, Rate]:
    """Return the measured rates; where a corpus, which read `work`, has long whole runs, the rates of the last ones."""
    rates = {stage: msgspec.convert(rate, Rate) for stage, rate in storage.read_json(_TABLE)["rates"].items()}
    amounts = work.amounts()
    for run in read_runs(corpus) if corpus is not None else ():
        stage, seconds = run["stage"], run["seconds"]
        if stage in amounts and run.get("whole") and seconds >= _MIN_RUN_S:
            busy = min(run.get("workers", 1), work.shards)
            core_s = max(0.0, seconds - rates[stage].fixed_s) * busy / amounts[stage][0]
            rates[stage] = dataclasses.replace(rates[stage], core_s=core_s, is_recorded=True)
    return rates


def describe_rates(costs: Sequence[StageCost]) -> str:
    """Return what the rates are based on, and when and on which machine those of the table were measured."""
    measured = storage.read_json(_TABLE)["measured"]
    recorded = [cost.stage for cost in costs if cost.rate == "recorded"]
    own = f"runs of this corpus ({', '.join(recorded)}); others " if recorded else ""
    return f"{own}measured {measured['date']} on {measured['machine']}"


def estimate_costs(work: Workload, rates: Mapping[str, Rate], available: Resources) -> list[StageCost]:
    """Return what every stage takes that has something to do, in order."""
    costs: list[StageCost] = []
    prices = (available.price_core_hour, available.price_gb_month)
    for stage in work.amounts():
        cost = _estimate_stage(stage, work, rates[stage], available)
        if any(price is not None for price in prices):
            stored = sum(other.kept_bytes for other in costs) + cost.disk_bytes
            gb_months = stored / 1e9 * cost.seconds / 3600 / _HOURS_PER_MONTH
            money = (prices[0] or 0) * cost.core_hours + (prices[1] or 0) * gb_months
            cost = dataclasses.replace(cost, money=money)
        costs.append(cost)
    return costs


def peak_disk_bytes(costs: Sequence[StageCost]) -> float:
    """Return the peak of the disk space: what the stages before keep, and what a stage needs while it runs."""
    peak = kept = 0.0
    for cost in costs:
        peak = max(peak, kept + cost.disk_bytes)
        kept += cost.kept_bytes
    return peak


def _estimate_stage(stage: str, work: Workload, rate: Rate, available: Resources) -> StageCost:
    amount, unit, kept = work.amounts()[stage]
    kept = amount * rate.output_bytes if kept is None else kept
    disk = kept + amount * rate.work_bytes
    documents = work.documents * (amount / work.text_bytes if unit == "bytes" else 0)
    driver_bytes, worker_bytes = rate.memory_bytes(documents or amount, work.shards)
    fitting = int((available.memory_bytes - driver_bytes) // worker_bytes)
    workers = max(1, min(available.cores, fitting))
    busy = min(available.nodes * workers, work.shards)
    shared = "cores" if workers == available.cores else "memory"
    if busy < available.nodes * workers:
        shared = plural(work.shards, "shard")
    # What the time may be limited by; of a crawl, which mostly waits, the longest, otherwise the sum.
    limits = {
        "start": rate.fixed_s,
        "one process": _DRIVER_S_PER_DOCUMENT * documents,
        shared: amount * rate.core_s / busy,
    }
    seconds = sum(limits.values())
    if stage == "fetch":
        limits |= _crawl_limits(amount, busy, work)
        seconds = max(seconds, *limits.values())
    return StageCost(
        stage, amount, unit, seconds, disk, kept,
        memory_bytes=driver_bytes + workers * worker_bytes,
        workers=workers,
        core_hours=seconds / 3600 * available.nodes * available.cores,
        bottleneck="lacks memory" if fitting < 1 else max(limits, key=limits.__getitem__),
        rate="recorded" if rate.is_recorded else "table",
    )  # fmt: skip


def _crawl_limits(links: float, processes: int, work: Workload) -> dict[str, float]:
    """Return how long a crawl waits for the largest site of all, and for sites and open requests of all shards.

    A process fetches one shard after the other, each as long as its largest site or its requests take. The shares of
    the largest sites, one per shard, follow Zipf and Mandelbrot's law.
    """
    crawl = storage.read_json(_TABLE)["crawl"]
    offset, request_s = crawl["offset"], work.per_host_delay_s + crawl["latency_s"]
    largest_s = links * crawl["largest_site_share"] * request_s
    site_s = [largest_s * ((1 + offset) / (rank + offset)) ** crawl["exponent"] for rank in range(1, work.shards + 1)]
    open_s = links / work.shards * crawl["latency_s"] / FetchConfig().concurrency
    return {"largest site": largest_s, "open requests": sum(max(site, open_s) for site in site_s) / processes}
