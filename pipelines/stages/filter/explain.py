"""What a filter would do, without writing anything: with one document, and with a sample."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.errors import InputError
from pipelines.records import inputs
from pipelines.records.document_filter import urls_of
from pipelines.records.drops import Drops
from pipelines.stages.filter.rules import OTHER_REASONS, Rule
from pipelines.stages.filter.stage import DocumentFilter


class Explanation(NamedTuple):
    """The value of every rule for a document, what else was measured, and why it is dropped (None: it is kept)."""

    id: str
    url: str | None
    values: list[tuple[Rule, float, bool]]
    measured: dict[str, Any]
    reason: str | None
    detail: str | None


class Funnel(NamedTuple):
    """How many documents of a sample there are, and how many of them are dropped for each reason, in order of rules."""

    documents: int
    bytes: int
    kept_bytes: int
    dropped: dict[str, int]


def explain(document_filter: DocumentFilter, source: inputs.DocumentInput, query: str) -> Explanation:
    """Return what the rules say of the document with an id or URL; raise InputError if there is none."""
    for shard in source.shards:
        for batch in inputs.read_documents(shard, Drops()):
            is_url = pa.array([url == query for url in urls_of(batch)], pa.bool_())
            matches = pc.or_(pc.equal(batch.column("id"), query), is_url)
            if not pc.any(matches).as_py():
                continue
            decided, [reason], judgement = document_filter.decide(batch.filter(matches)[:1], shard)
            [row] = decided.drop_columns(["text"]).to_pylist()
            measured = ["removed_lines", "language", "language_score", "quality"]
            return Explanation(
                row["id"],
                urls_of(decided)[0],
                [(rule, float(values[0]), bool(rule.fails(values)[0])) for rule, values in judgement.values],
                {name: row[name] for name in measured if name != "quality" or document_filter.quality_model},
                reason.reason if reason else None,
                reason.detail if reason else None,
            )
    raise InputError(f"{query}: no document has this id or URL")


def sample_funnel(document_filter: DocumentFilter, source: inputs.DocumentInput, count: int) -> Funnel:
    """Return what would be dropped of `count` documents, the first ones of each shard; raise InputError for none.

    Where a shard has fewer than its share, later ones give more.
    """
    dropped: Counter[str] = Counter()
    total = size = kept = 0
    for number, shard in enumerate(source.shards):
        share = -(-(count - total) // (len(source.shards) - number))
        for batch in inputs.read_documents(shard, Drops()) if share else ():
            batch = batch[:share]
            decided, reasons, _ = document_filter.decide(batch, shard)
            dropped.update(reason.reason for reason in reasons if reason)
            is_kept = pa.array([reason is None for reason in reasons], pa.bool_())
            size += pc.sum(pc.binary_length(batch.column("text"))).as_py() or 0
            kept += pc.sum(pc.binary_length(decided.column("text")).filter(is_kept)).as_py() or 0
            total += batch.num_rows
            share -= batch.num_rows
            if not share:
                break
    if not total:
        raise InputError("the input has no documents")
    order = [*(rule.name for rule in document_filter.rules.rules), *OTHER_REASONS]
    return Funnel(total, size, kept, {name: dropped[name] for name in dict.fromkeys(order) if dropped[name]})
