"""Drops the documents whose URL is on Wikipedia or a known mirror."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

import pyarrow as pa

from pipelines.algorithms.web.urls import registered_domain
from pipelines.core import inputs, storage
from pipelines.core.document_filter import DropReason, filter_shard, urls_of
from pipelines.core.errors import InputError, UsageError
from pipelines.core.resources import data_path
from pipelines.core.run import RunOptions, Stage, Summary, TaskResult, stage_run
from pipelines.stages.remove_wikipedia.config import RemoveWikipediaConfig

STAGE = Stage("remove-wikipedia", 1)

# A copy in the Internet Archive is judged by the address that it is a copy of.
_ARCHIVED = re.compile(r"https?://web\.archive\.org/web/[^/]+/(?:https?:/{1,2})?(.+)", re.IGNORECASE)


@dataclasses.dataclass(frozen=True)
class _Task:
    shard: inputs.DocumentShard
    domains: frozenset[str]
    output: str

    @property
    def name(self) -> str:
        return self.shard.name


def remove_wikipedia(
    config: RemoveWikipediaConfig, *, documents: str | Sequence[str], output: str, options: RunOptions
) -> Summary:
    """Write the documents that are not Wikipedia's, and a list of those that are.

    A document is dropped (`wikipedia_domain`) when the registered domain of its URL is listed, or of the address that
    the URL is an archived copy of. One without a URL cannot be judged so; it is kept, and counted as `without_url`.
    Raises InputError where no document has a URL at all. Paper, section 2.1.
    """
    domains = frozenset((*_listed_domains(), *map(_checked_domain, config.domains)))
    source = inputs.open_documents(documents, config.text_field)
    tasks = [_Task(shard, domains, output) for shard in source.shards]
    # The list is data, not an option, but it decides the result all the same.
    fingerprints = {"documents": source.fingerprint, "domains": " ".join(sorted(domains))}
    with stage_run(STAGE, config, fingerprints, output, options) as run:
        if not run.finished:
            entries = run.map(_filter_shard, tasks, total=source.records)
            without_url = sum(entry.counts["without_url"] for entry in entries)
            if without_url and without_url == sum(entry.counts["judged"] for entry in entries):
                named = documents if isinstance(documents, str) else ", ".join(documents)
                raise InputError(f"{named}: no document has a url, so none can be told to be Wikipedia's")
        return run.finish()


def _listed_domains() -> list[str]:
    lines = storage.read_bytes(data_path("wikipedia-domains.txt")).decode().splitlines()
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


def _checked_domain(domain: str) -> str:
    """Return a domain in lower case; raise UsageError for one that no document's domain can equal."""
    registered = registered_domain(domain if "://" in domain else f"http://{domain}")
    if registered != domain.lower():
        hint = f"; did you mean {registered}?" if registered else ""
        raise UsageError(f"--domain {domain}: is not a registered domain{hint}")
    return registered


def _filter_shard(task: _Task) -> TaskResult:
    judged = without_url = 0

    def filter_batch(batch: pa.RecordBatch) -> list[DropReason | None]:
        nonlocal judged, without_url
        urls = urls_of(batch)
        judged += len(urls)
        without_url += urls.count(None)
        # A shortened link shows where it leads only in its final URL.
        ends = urls_of(batch, "final_url")
        return [_verdict(url, task.domains) or _verdict(end, task.domains) for url, end in zip(urls, ends, strict=True)]

    result = filter_shard(task.shard, task.output, filter_batch)
    return dataclasses.replace(result, counts={"judged": judged, "without_url": without_url})


def _verdict(url: str | None, domains: frozenset[str]) -> DropReason | None:
    if url is None:
        return None
    archived = _ARCHIVED.match(url)
    domain = registered_domain(f"http://{archived[1]}" if archived else url)
    return DropReason("wikipedia_domain", domain) if domain in domains else None
