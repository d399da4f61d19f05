"""Drops documents of Wikipedia and its mirrors by their URL, by a reference, or by signs in their text."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from pipelines import storage
from pipelines.algorithms.web.urls import registered_domain
from pipelines.engine.config import read_toml
from pipelines.engine.run import RunOptions, Stage, Summary, TaskResult, stage_run
from pipelines.errors import UsageError
from pipelines.records import inputs
from pipelines.records.data_card import DATA_CARD, write_data_card
from pipelines.records.document_filter import DropReason, filter_shard
from pipelines.records.text_columns import urls_of
from pipelines.stages.remove_wikipedia.config import RemoveWikipediaConfig
from pipelines.storage.resources import data_path

if TYPE_CHECKING:
    from pipelines.stages.remove_wikipedia.reference import Reference, ReferenceSource

STAGE = Stage("remove-wikipedia", 4, (DATA_CARD,))

# A copy in the Internet Archive counts as the original page.
_ARCHIVED = re.compile(r"https?://web\.archive\.org/web/[^/]+/(?:https?:/{1,2})?(.+)", re.IGNORECASE)
_SISTER = "sister"


_Count = Annotated[int, msgspec.Meta(ge=1, le=1000)]


class Sign(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A notice or link that copies of Wikipedia articles contain; it counts if it occurs `count` times."""

    name: str
    pattern: re.Pattern[str]
    count: _Count = 1
    weight: _Count = 1
    source: str = ""


class MirrorSigns(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Signs that a text is a copy of a Wikipedia article: it is one if their weights add up to `min_weight`."""

    sign: tuple[Sign, ...]
    min_weight: _Count

    def drop_reasons(self, texts: pa.StringArray) -> list[DropReason | None]:
        """Return the reason to drop each text that is a copy; a text without the word Wikipedia is not."""
        reasons: list[DropReason | None] = [None] * len(texts)
        for row in pc.indices_nonzero(pc.match_substring(texts, "ikipedia")).to_pylist():
            text = texts[row].as_py()
            present = {
                sign.name: sign.weight
                for sign in self.sign
                if sum(1 for _ in itertools.islice(sign.pattern.finditer(text), sign.count)) == sign.count
            }
            if sum(present.values()) >= self.min_weight:
                reasons[row] = DropReason("wikipedia_mirror_text", ", ".join(present))
        return reasons


@dataclasses.dataclass(frozen=True)
class _Rules:
    """The context of the tasks: domains to drop, and a reference or signs by which copies are recognized."""

    domains: frozenset[str]
    reference: Reference | None
    share: float
    signs: MirrorSigns | None
    output: str


def remove_wikipedia(
    config: RemoveWikipediaConfig,
    *,
    documents: str | Sequence[str],
    output: str,
    options: RunOptions,
    reference: Sequence[str] = (),
    reference_index: str | None = None,
    domains_file: str | None = None,
) -> Summary:
    """Write the documents that are not from Wikipedia or a mirror, and a list of those that are.

    `documents` is the folder of a stage, or files, folders or globs as `inputs` reads them. A document is dropped:

    - `wikipedia_domain`: the registered domain of its URL is listed in `domains_file` (default:
      data/wikipedia-domains.txt) or in the config; of an archived copy, the domain of the original counts;
    - `wikipedia_content`: at least `reference_share` of its words are in passages of the `reference` (dumps of
      MediaWiki, Parquet, JSONL or .txt), or of that of an earlier result, the folder `reference_index`;
    - `wikipedia_mirror_text`: by the signs of a mirror in the text, in data/wikipedia-mirror-signs.toml.

    Documents without a URL are counted (`documents_without_url`), and only dropped by their text.

    Raises UsageError for a domain that is not registered. Paper, section 2.1.
    """
    lines = storage.read_bytes(domains_file or data_path("wikipedia-domains.txt")).decode().splitlines()
    # A domain per line, followed by its kind and source.
    rows = [line.split() for line in lines if line.strip() and not line.startswith("#")]
    listed = [domain for domain, *kind in rows if config.sister_projects or kind[:1] != [_SISTER]]
    domains = frozenset((*listed, *map(_check_domain, config.extra_domain)))
    source = inputs.open_configured(documents, config, options, output)
    # The lists are not options, but they determine the result, too.
    fingerprints = {"documents": source.fingerprint, "domains": " ".join(sorted(domains))}
    indexed = _open_reference(reference, reference_index)
    signs = None
    if indexed:
        fingerprints["reference"] = indexed.fingerprint
    if config.mirror_text:
        signs_path = data_path("wikipedia-mirror-signs.toml")
        signs, fingerprints["mirror_signs"] = read_toml(signs_path, MirrorSigns), storage.sha256_of(signs_path)
    options = options.for_input(inputs.size_on_disk(source.files) + (indexed.size_bytes if indexed else 0))
    with stage_run(STAGE, config, inputs=fingerprints, output=output, options=options, texts=source.files) as run:
        if not run.finished:
            with options.executor.persistent_workers() if indexed else contextlib.nullcontext():
                index = indexed.prepare(run) if indexed else None
                rules = _Rules(domains, index, config.reference_share, signs, run.output)
                entries = run.map(_filter_shard, source.shards, rules, total=source.records)
            run.once("card", lambda: write_data_card(run.output, STAGE.name))
            without_url = sum(entry.counts["documents_without_url"] for entry in entries)
            if without_url and not indexed:
                read = sum(entry.records_in for entry in entries)
                run.note(
                    f"documents without a URL: {without_url:,} of {read:,}; their domains were not checked; "
                    "--reference recognizes copies of Wikipedia by their text"
                )
        return run.finish()


def _open_reference(reference: Sequence[str], index: str | None) -> ReferenceSource | None:
    if not reference and not index:
        return None
    if reference and index:
        raise UsageError("--reference and --reference-index cannot be combined: the index replaces the reference")
    # Deferred: its kernels need numba, which takes half a second.
    from pipelines.stages.remove_wikipedia.reference import open_source, open_stored

    return open_stored(index, STAGE.name, STAGE.version) if index else open_source(reference)


def _check_domain(domain: str) -> str:
    """Return a domain in lower case; raise UsageError if it is not a registered domain, which would match nothing."""
    registered = registered_domain(domain if "://" in domain else f"http://{domain}")
    if registered != domain.lower():
        hint = f"; did you mean {registered}?" if registered else ""
        raise UsageError(f"--extra-domain {domain}: is not a registered domain{hint}")
    return registered


def _filter_shard(shard: inputs.DocumentShard, rules: _Rules) -> TaskResult:
    without_url = 0

    def decide(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, list[DropReason | None]]:
        nonlocal without_url
        urls, texts = urls_of(batch), batch.column("text")
        without_url += urls.count(None)
        # Only the final URL of a shortened link shows its target.
        final_urls = urls_of(batch, "final_url")
        none: list[DropReason | None] = [None] * batch.num_rows
        copies = rules.reference.drop_reasons(texts, rules.share) if rules.reference else none
        signs = rules.signs.drop_reasons(texts) if rules.signs else none
        return batch, [
            _drop_reason(url, rules.domains) or _drop_reason(final_url, rules.domains) or copy or sign
            for url, final_url, copy, sign in zip(urls, final_urls, copies, signs, strict=True)
        ]

    result = filter_shard(shard, rules.output, decide)
    return dataclasses.replace(result, counts={"documents_without_url": without_url})


def _drop_reason(url: str | None, domains: frozenset[str]) -> DropReason | None:
    if url is None:
        return None
    archived = _ARCHIVED.match(url)
    domain = registered_domain(f"http://{archived[1]}" if archived else url)
    return DropReason("wikipedia_domain", domain) if domain in domains else None
