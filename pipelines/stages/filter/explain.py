"""What a filter would do, without writing anything: with one document, and with a sample."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.core import inputs
from pipelines.core.document_filter import urls_of
from pipelines.core.drops import Drops
from pipelines.core.errors import InputError
from pipelines.core.run import RunOptions
from pipelines.stages.filter.config import FilterConfig
from pipelines.stages.filter.rules import Rule
from pipelines.stages.filter.stage import decide, open_filter


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


def explain(
    config: FilterConfig,
    query: str,
    *,
    documents: str | Sequence[str],
    options: RunOptions,
    rules: str | None = None,
    quality_model: str | None = None,
) -> Explanation:
    """Return what the rules say of the document with an id or URL; raise InputError if there is none."""
    context, _ = open_filter(config, rules, quality_model)
    for shard, batch in _batches(config, documents, options):
        is_url = pa.array([url == query for url in urls_of(batch)], pa.bool_())
        matches = pc.or_(pc.equal(batch.column("id"), query), is_url)
        if pc.any(matches).as_py():
            batch = batch.filter(matches)[:1]
            decided, [reason], judgement = decide(context, batch, shard)
            [row] = decided.drop_columns(["text"]).to_pylist()
            names = ["removed_lines", "language", "language_score", *(["quality"] if quality_model else [])]
            return Explanation(
                row["id"],
                urls_of(batch)[0],
                [(rule, float(values[0]), bool(rule.fails(values)[0])) for rule, values in judgement.values],
                {name: row[name] for name in names},
                reason.reason if reason else None,
                reason.detail if reason else None,
            )
    raise InputError(f"{query}: no document has this id or URL")


def sample_funnel(
    config: FilterConfig,
    count: int,
    *,
    documents: str | Sequence[str],
    options: RunOptions,
    rules: str | None = None,
    quality_model: str | None = None,
) -> Funnel:
    """Return what would be dropped of the first `count` documents, taken evenly from all shards."""
    context, _ = open_filter(config, rules, quality_model)
    order = [rule.name for rule in context.rules.rules] + ["language", "low_quality"]
    dropped: Counter[str] = Counter()
    total = size = kept = 0
    for shard, batch in _batches(config, documents, options, count):
        decided, reasons, _ = decide(context, batch, shard)
        dropped.update(reason.reason for reason in reasons if reason)
        lengths = pc.binary_length(decided.column("text"))
        is_kept = pa.array([reason is None for reason in reasons], pa.bool_())
        total += batch.num_rows
        size += pc.sum(pc.binary_length(batch.column("text"))).as_py() or 0
        kept += pc.sum(lengths.filter(is_kept)).as_py() or 0
    if not total:
        raise InputError(f"{documents}: no documents")
    return Funnel(total, size, kept, {name: dropped[name] for name in dict.fromkeys(order) if dropped[name]})


def _batches(
    config: FilterConfig, documents: str | Sequence[str], options: RunOptions, count: int | None = None
) -> Iterator[tuple[inputs.DocumentShard, pa.RecordBatch]]:
    """Yield the documents of all shards; with a count, that many in all, from each shard its share."""
    source = inputs.open_configured(documents, config, options)
    share = None if count is None else -(-count // max(1, len(source.shards)))
    for shard in source.shards:
        left = share
        for batch in inputs.read_documents(shard, Drops()):
            batch = batch if left is None else batch[:left]
            yield shard, batch
            left = None if left is None else left - batch.num_rows
            if left == 0:
                break
