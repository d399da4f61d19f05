"""The Parquet files of a release: the texts of a shard of documents, and a row for each link."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
from collections import Counter
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from pipelines import progress, storage
from pipelines.algorithms.minhash.sketch import SKETCH_TYPE, sketches
from pipelines.algorithms.quality.redaction import redact_texts
from pipelines.algorithms.web.urls import id_of_url
from pipelines.engine.journal import WORK
from pipelines.engine.stage import TaskResult
from pipelines.errors import InputError
from pipelines.records import inputs, shards
from pipelines.records.document_filter import count_words, with_domains
from pipelines.records.drops import Drops
from pipelines.records.schemas import STRINGS, make_schema
from pipelines.release.config import ReleaseConfig
from pipelines.release.sources import ReleaseShard

# `data/` has these columns of documents, as far as they have them: none names a user of Reddit or a file of the corpus.
RELEASED_COLUMNS = (
    "id", "url", "final_url", "domain", "title", "published", "site_name", "declared_type", "page_type", "confidence",
    "text", "language", "language_score", "quality", "license", "license_url", "license_location", "signals", "score",
    "submission_ids", "subreddits", "created_utc", "fetched_at", "extractor", "words",
)  # fmt: skip
_HASH = pa.field("text_sha256", pa.binary(32))
_SKETCH = pa.field("sketch", SKETCH_TYPE)
_OF_LINK = make_schema(
    id="string", url="string?", domain="string?", title="string?", score="int64?", submission_ids="strings",
    subreddits="strings", created_utc="int64?",
)  # fmt: skip
URL_SCHEMA = pa.schema(
    [
        *_OF_LINK,
        *make_schema(source="string?", fetched_at="instant?", captured_at="instant?", outcome="string", words="int64?"),
        _HASH,
        _SKETCH,
    ]
)
# What later phases need of a document.
_TEXT_SCHEMA = pa.schema(
    [*_OF_LINK, *make_schema(fetched_at="instant?", language="string?", words="int64", bytes="int64"), _HASH, _SKETCH]
)
REMOVED_SCHEMA = make_schema(id="string", reason="string", date="string")
_LINK_COLUMNS = ["url", "domain", "title", "score", "submission_ids", "subreddits", "created_utc"]
_PAGE_COLUMNS = ["url", "outcome", "source", "fetched_at", "captured_at"]
# Rows of links that are joined at a time.
_ROWS = 1 << 16
# Dictionaries of the other columns would only take space.
_REPETITIVE = ["domain", "subreddits.list.element", "source", "outcome"]
KEPT = "kept"
REMOVED = "removed"
REDACTED_KINDS = ("email", "ip", "phone")


@dataclasses.dataclass(frozen=True)
class ReleaseContext:
    """What all tasks share."""

    config: ReleaseConfig
    output: str

    def path(self, folder: str, noun: str, index: int) -> str:
        """Return the path of a file."""
        return storage.join(self.output, folder, shards.shard_name(noun, index))


def write_texts(shard: ReleaseShard, context: ReleaseContext) -> TaskResult:
    """Write what identifies the text of each document into a work file and, for a release of texts, into `data/`."""
    documents, redactions = shard.documents, Counter[str]()
    schema = inputs.document_schema(documents)
    released = pa.schema([schema.field(name) for name in RELEASED_COLUMNS if name in schema.names])
    name = shards.shard_name("documents", documents.index)
    with contextlib.ExitStack() as stack:
        output = context.output
        work = stack.enter_context(shards.write_shard(output, storage.join(WORK, name), _TEXT_SCHEMA))
        data = None
        if context.config.texts:
            path = storage.join("data", name)
            data = stack.enter_context(shards.write_shard(output, path, released, is_published=True))
        for batch in inputs.read_documents(documents, Drops()):
            work.write_batch(_redacted(_text_rows(batch), context.config, redactions))
            if data:
                data.write_batch(_redacted(batch.select(released.names), context.config, redactions))
            progress.advance(batch.num_rows)
    files = (work.entry, *([data.entry] if data else []))
    return TaskResult(counts={f"redacted_{kind}": count for kind, count in redactions.items()}, files=files)


def _text_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return what later phases need of documents."""
    batch = with_domains(batch)
    texts = batch.column("text").cast(pa.string())
    encoded = [text.encode() for text in texts.to_pylist()]
    computed = {
        "bytes": pa.array(map(len, encoded), pa.int64()),
        "text_sha256": pa.array((hashlib.sha256(text).digest() for text in encoded), pa.binary(32)),
        "sketch": sketches(texts),
        "words": pa.array(map(count_words, texts.to_pylist()), pa.int64()),
    }
    # A column of another type, of documents from elsewhere, has another meaning.
    kinds = {field.name: field.type for field in _TEXT_SCHEMA}
    own = {field.name: batch.column(field.name) for field in batch.schema if kinds.get(field.name) == field.type}
    return _conform({**own, **computed}, batch.num_rows, _TEXT_SCHEMA)


def _redacted(batch: pa.RecordBatch, config: ReleaseConfig, redactions: Counter[str]) -> pa.RecordBatch:
    """Return a batch without personal data in texts and titles; count the placeholders of texts by kind."""
    for name in {"title", "text"}.intersection(batch.schema.names) if config.redact else ():
        index = batch.schema.get_field_index(name)
        texts, spans = redact_texts(batch.column(index), REDACTED_KINDS)
        batch = batch.set_column(index, batch.schema.field(index), texts)
        if name == "text":
            redactions.update(pc.struct_field(pc.list_flatten(spans), "kind").to_pylist())
    return batch


def write_urls(shard: ReleaseShard, context: ReleaseContext) -> TaskResult:
    """Write a row for each link of a shard, or for each document that has none; removed ones are only counted."""
    index = shard.documents.index
    kept = _read_table(context.path(WORK, "documents", index))
    rows = _link_rows(shard, kept, context.config) if shard.pages else _document_rows(shard, kept)
    read = published = 0
    name = storage.join("urls", shards.shard_name("urls", index))
    with shards.write_shard(context.output, name, URL_SCHEMA, repetitive=_REPETITIVE, is_published=True) as writer:
        for batch in rows:
            read += batch.num_rows
            published += pc.sum(pc.equal(batch.column("outcome"), KEPT)).as_py() or 0
            writer.write_batch(batch.filter(pc.invert(pc.ends_with(batch.column("outcome"), f".{REMOVED}"))))
            progress.advance(batch.num_rows)
    if published != kept.num_rows:
        path = shard.documents.files[0].path
        raise InputError(f"{path}: {kept.num_rows - published:,} of its documents are of no link; run `webtext build`")
    dropped = {REMOVED: count} if (count := read - writer.records) else {}
    return TaskResult(read, writer.records, dropped, {"documents": published}, (writer.entry,))


def _link_rows(shard: ReleaseShard, kept: pa.Table, config: ReleaseConfig) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the pages of a shard, with their links, and what became of them."""
    assert shard.pages is not None
    drops = _read_drops(shard)
    shard.pages.verify()
    pages = shards.read_batches(shard.pages.path, _PAGE_COLUMNS, rows=_ROWS)
    links: Iterator[pa.RecordBatch | None] = itertools.repeat(None)
    if shard.links:
        shard.links.verify()
        links = shards.read_batches(shard.links.path, _LINK_COLUMNS, rows=_ROWS)
    # fetch writes a row per link, in the same order.
    for page, link in zip(pages, links, strict=False):
        if link and not link.column("url").equals(page.column("url")):
            raise InputError(f"{shard.pages.path}: has other links than {shard.links}; run `webtext fetch` again")
        ids = pa.array(map(id_of_url, page.column("url").to_pylist()), pa.string())
        text = _look_up(kept, ids)
        is_kept = pc.if_else(pc.is_valid(text["text_sha256"]), KEPT, None)
        after_fetch = pc.coalesce(is_kept, _look_up(drops, ids)["outcome"])
        of_fetch = pc.replace_substring_regex(page.column("outcome"), "^dropped", "fetch")
        outcome = pc.if_else(pc.equal(of_fetch, "ok"), after_fetch, of_fetch)
        if outcome.null_count:
            url = page.column("url").filter(pc.is_null(outcome))[0]
            raise InputError(f"{shard.pages.path}: {url} is neither a document nor a drop; run `webtext build` first")
        columns = {
            **({name: link.column(name) for name in link.schema.names} if link else {}),
            **{name: page.column(name) for name in ("url", "source", "fetched_at", "captured_at")},
            **{name: text[name].combine_chunks() for name in ("words", "text_sha256", "sketch")},
        }
        rows = _conform({**columns, "id": ids, "outcome": outcome.combine_chunks()}, page.num_rows, URL_SCHEMA)
        yield _redacted(with_domains(rows), config, Counter())


def _document_rows(shard: ReleaseShard, kept: pa.Table) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the documents of a shard that are not of links, then of those that were dropped."""
    dropped = _read_drops(shard)
    for table in (kept.append_column("outcome", pa.array([KEPT] * kept.num_rows, pa.string())), dropped):
        for batch in table.to_batches(_ROWS):
            columns = {name: batch.column(name) for name in batch.schema.names if name in URL_SCHEMA.names}
            yield with_domains(_conform(columns, batch.num_rows, URL_SCHEMA))


def _read_table(path: str) -> pa.Table:
    return pa.Table.from_batches(shards.read_batches(path, rows=_ROWS), _TEXT_SCHEMA).combine_chunks()


def _read_drops(shard: ReleaseShard) -> pa.Table:
    """Return id, URL and outcome of what the stages after fetch dropped."""
    schema = make_schema(id="string", url="string?", outcome="string")
    batches = []
    for file in shard.drops:
        file.verify()
        for batch in shards.read_batches(file.path, ["id", "url", "reason"], rows=_ROWS):
            outcome = pc.binary_join_element_wise(f"{file.stage}", batch.column("reason"), ".")
            batches.append(pa.RecordBatch.from_arrays([batch.column("id"), batch.column("url"), outcome], schema=schema))
    return pa.Table.from_batches(batches, schema).combine_chunks()


def _look_up(table: pa.Table, ids: pa.Array) -> pa.Table:
    """Return the first row of each id, nulls for an id that a table does not have."""
    return table.take(pc.index_in(ids, value_set=table["id"].combine_chunks()))


def _conform(columns: dict[str, pa.Array], rows: int, schema: pa.Schema) -> pa.RecordBatch:
    """Return columns in a schema; what is missing is null, of lists empty."""
    arrays = []
    for field in schema:
        array = columns.get(field.name, pa.nulls(rows, field.type))
        is_list = field.type == STRINGS and array.null_count
        arrays.append(pc.coalesce(array, pa.scalar([], STRINGS)) if is_list else array)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
