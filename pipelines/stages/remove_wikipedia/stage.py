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

# A copy in the Internet Archive counts as the page that it is a copy of.
_ARCHIVED = re.compile(r"https?://web\.archive\.org/web/[^/]+/(?:https?:/{1,2})?(.+)", re.IGNORECASE)


def remove_wikipedia(
    config: RemoveWikipediaConfig,
    *,
    documents: str | Sequence[str],
    output: str,
    options: RunOptions,
    domains_file: str | None = None,
) -> Summary:
    """Write the documents that are not from Wikipedia or a mirror, and a list of those that are.

    `documents` is the folder of a stage, or files, folders or globs of Parquet, JSONL or .txt. A document is dropped
    (`wikipedia_domain`) when the registered domain of its URL is listed in `domains_file` (default:
    data/wikipedia-domains.txt) or in the config; of an archived copy, the domain of the original counts. Documents
    without a URL are kept and counted as `without_url`. Raises InputError if no document has a URL. Paper, section 2.1.
    """
    listed = _read_domains(domains_file or data_path("wikipedia-domains.txt"))
    domains = frozenset((*listed, *map(_check_domain, config.domain)))
    source = inputs.open_documents(documents, config.text_field, config.max_document_mb)
    options = options.for_input(inputs.size_on_disk(source.files))
    # The list is not an option, but it determines the result all the same.
    fingerprints = {"documents": source.fingerprint, "domains": " ".join(sorted(domains))}
    with stage_run(STAGE, config, inputs=fingerprints, output=output, options=options) as run:
        if not run.finished:
            entries = run.map(_filter_shard, source.shards, (domains, run.output), total=source.records)
            without_url = sum(entry.counts["without_url"] for entry in entries)
            if without_url and without_url == sum(entry.counts["judged"] for entry in entries):
                paths = documents if isinstance(documents, str) else ", ".join(documents)
                raise InputError(f"{paths}: no document has a url, so Wikipedia cannot be recognized")
        return run.finish()


def _read_domains(path: str) -> list[str]:
    lines = storage.read_bytes(path).decode().splitlines()
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


def _check_domain(domain: str) -> str:
    """Return a domain in lower case; raise UsageError if it is not a registered domain, which would match nothing."""
    registered = registered_domain(domain if "://" in domain else f"http://{domain}")
    if registered != domain.lower():
        hint = f"; did you mean {registered}?" if registered else ""
        raise UsageError(f"--domain {domain}: is not a registered domain{hint}")
    return registered


def _filter_shard(shard: inputs.DocumentShard, context: tuple[frozenset[str], str]) -> TaskResult:
    domains, output = context
    documents = without_url = 0

    def filter_batch(batch: pa.RecordBatch) -> list[DropReason | None]:
        nonlocal documents, without_url
        urls = urls_of(batch)
        documents += len(urls)
        without_url += urls.count(None)
        # Only the final URL of a shortened link shows where it leads.
        final_urls = urls_of(batch, "final_url")
        return [
            _drop_reason(url, domains) or _drop_reason(final_url, domains)
            for url, final_url in zip(urls, final_urls, strict=True)
        ]

    result = filter_shard(shard, output, filter_batch)
    return dataclasses.replace(result, counts={"judged": documents, "without_url": without_url})


def _drop_reason(url: str | None, domains: frozenset[str]) -> DropReason | None:
    if url is None:
        return None
    archived = _ARCHIVED.match(url)
    domain = registered_domain(f"http://{archived[1]}" if archived else url)
    return DropReason("wikipedia_domain", domain) if domain in domains else None
