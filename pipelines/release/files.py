"""The Parquet files of a release: the texts of each shard of documents, and a row for each link."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import zlib
from collections import Counter
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from pipelines import progress, storage
from pipelines.algorithms.minhash.sketch import SKETCH_TYPE, sketches
from pipelines.algorithms.quality.redaction import KINDS, redact_texts
from pipelines.corpus.tables import CorpusTables, parquet_files
from pipelines.engine.journal import WORK
from pipelines.engine.stage import TaskResult
from pipelines.errors import InputError
from pipelines.pipeline import DOCUMENT_STAGES
from pipelines.records import inputs, shards
from pipelines.records.document_filter import count_words, with_domains
from pipelines.records.drops import Drops
from pipelines.records.schemas import make_schema
from pipelines.release.config import ReleaseConfig

# `data/` has these columns of documents, as far as they have them: none names a user of Reddit or a file of the corpus.
_RELEASED = (
    "id", "url", "final_url", "domain", "title", "published", "site_name", "declared_type", "page_type", "confidence",
    "language", "language_score", "quality", "license", "license_url", "license_location", "signals", "score",
    "submission_ids", "subreddits", "created_utc", "fetched_at", "extractor", "words", "text",
)  # fmt: skip
_COLUMNS = make_schema(
    id="string", url="string?", domain="string?", title="string?", score="int64?", submission_ids="strings?",
    subreddits="strings?", created_utc="int64?", source="string?", fetched_at="instant?", captured_at="instant?",
    outcome="string", words="int64?",
)  # fmt: skip
URL_SCHEMA = pa.schema([*_COLUMNS, pa.field("text_sha256", pa.binary(32)), pa.field("sketch", SKETCH_TYPE)])
# The work file of the documents of a shard: what later phases need of them.
_TEXT_SCHEMA = pa.schema([*URL_SCHEMA, *make_schema(language="string?", bytes="int64")])
# fetch has a row per link; what it did not drop is a document, or a later stage's drop. Links of rehydrate have an id.
_OF_LINKS = """SELECT pages.id, pages.url, links.domain, links.title, links.score, coalesce(links.submission_ids, []),
coalesce(links.subreddits, []), links.created_utc, pages.source, pages.fetched_at, pages.captured_at,
if(pages.outcome = 'ok', coalesce(texts.outcome, drops.outcome), replace(pages.outcome, 'dropped', 'fetch')) AS outcome,
texts.words, text_sha256, sketch FROM (SELECT left(sha256(url), 32) AS id, *, file_row_number FROM {pages}) AS pages
LEFT JOIN (SELECT url, domain, title, score, submission_ids, subreddits, created_utc FROM {links}) AS links USING (url)
LEFT JOIN {texts} AS texts USING (id) LEFT JOIN ({drops}) AS drops USING (id) ORDER BY pages.file_row_number"""
_OF_DOCUMENTS = "SELECT * EXCLUDE (language, bytes) FROM {texts} UNION ALL BY NAME ({drops})"
# An index of pages; and if a later version lacks a row, only the pages around it differ, so that storage which divides
# files by their content keeps the others once.
_CHUNKS = {"min_chunk_size": 16 << 10, "max_chunk_size": 64 << 10}
_PUBLISHED: dict[str, Any] = {"write_page_index": True, "use_content_defined_chunking": _CHUNKS}
_GROUP_ROWS = 1024


def write_published(writer: shards.ShardWriter, batch: pa.RecordBatch) -> None:
    """Write rows in groups of about 1,024 that end where the hash of an id says: a removed row changes its group."""
    ends = [row + 1 for row, id in enumerate(batch["id"].to_pylist()) if zlib.crc32(id.encode()) % _GROUP_ROWS == 0]
    for start, end in itertools.pairwise((0, *ends, batch.num_rows)):
        if start < end:
            writer.write_batch(batch.slice(start, end - start))
        if end in ends:
            writer.flush()


# A shard of documents, and the file of that number of each stage: its links, its pages, or what it dropped.
ReleaseShard = tuple[inputs.DocumentShard, dict[str, inputs.InputFile]]


class ReleaseContext(NamedTuple):
    """What all tasks share."""

    config: ReleaseConfig
    output: str

    def redacted(self, batch: pa.RecordBatch, counts: Counter[str]) -> pa.RecordBatch:
        """Return a batch without personal data in texts and titles; count the placeholders by kind."""
        for name in {"title", "text"}.intersection(batch.schema.names) if self.config.redact else ():
            index = batch.schema.get_field_index(name)
            texts, spans = redact_texts(batch.column(index), KINDS)
            batch = batch.set_column(index, batch.schema.field(index), texts)
            kinds = pc.struct_field(pc.list_flatten(spans), "kind")
            counts.update(f"redacted_{kind}" for kind in kinds.to_pylist())
        return batch


def released_schema(documents: inputs.DocumentShard) -> pa.Schema:
    """Return the columns of documents that are published."""
    schema = inputs.document_schema(documents)
    return pa.schema([schema.field(name) for name in _RELEASED if name in schema.names])


def write_texts(shard: ReleaseShard, context: ReleaseContext) -> TaskResult:
    """Write what identifies the text of each document into a work file and, if texts are published, the documents."""
    documents, counts = shard[0], Counter[str]()
    released, name = released_schema(documents), f"{documents.name}.parquet"
    with contextlib.ExitStack() as stack:
        writers = [stack.enter_context(shards.write_shard(context.output, f"{WORK}/{name}", _TEXT_SCHEMA))]
        if context.config.texts:
            data = shards.write_shard(context.output, f"data/{name}", released, **_PUBLISHED)
            writers.append(stack.enter_context(data))
        for batch in inputs.read_documents(documents, Drops()):
            writers[0].write_batch(rows := _text_rows(batch))
            if (index := batch.schema.get_field_index("words")) >= 0:  # null in documents from elsewhere
                batch = batch.set_column(index, batch.schema.field(index), rows["words"].cast(batch["words"].type))
            for writer in writers[1:]:
                write_published(writer, context.redacted(batch.select(released.names), counts))
            progress.advance(batch.num_rows)
    return TaskResult(counts=counts, files=tuple(writer.entry for writer in writers))


def _text_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    batch = with_domains(batch)
    rows, texts = batch.num_rows, batch.column("text").cast(pa.string())
    encoded = [text.encode() for text in texts.to_pylist()]
    # A column of another type, of documents from elsewhere, has another meaning.
    types = dict(zip(batch.schema.names, batch.schema.types, strict=True))
    columns = {field.name: batch[field.name] for field in _TEXT_SCHEMA if types.get(field.name) == field.type}
    columns |= {
        "outcome": pa.array(["kept"] * rows, pa.string()),
        "bytes": pa.array(map(len, encoded), pa.int64()),
        "text_sha256": pa.array((hashlib.sha256(text).digest() for text in encoded), pa.binary(32)),
        "sketch": sketches(texts),
        "words": pa.array(map(count_words, texts.to_pylist()), pa.int64()),
    }
    arrays = [columns.get(field.name, pa.nulls(rows, field.type)) for field in _TEXT_SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=_TEXT_SCHEMA)


def write_urls(shard: ReleaseShard, context: ReleaseContext, tables: CorpusTables) -> TaskResult:
    """Write a row for each link of a shard, or for each document that is of none; removed ones are only counted."""
    documents, files = shard
    for file in files.values():
        file.verify()
    sources = {stage: parquet_files([file.path]) for stage, file in files.items()}
    texts = parquet_files([storage.join(context.output, WORK, f"{documents.name}.parquet")])
    drop = "SELECT id, url, '{0}.' || reason AS outcome FROM {1}"
    drops = " UNION ALL ".join(drop.format(stage, sources[stage]) for stage in DOCUMENT_STAGES if stage in files)
    links = sources.get("scrape", f"(FROM {texts} WHERE false)")
    query = _OF_LINKS if "fetch" in files else _OF_DOCUMENTS
    name, read, repetitive = shards.shard_name("urls/urls", documents.index), 0, ["domain", "source", "outcome"]
    with shards.write_shard(context.output, name, URL_SCHEMA, repetitive=repetitive, **_PUBLISHED) as writer:
        for batch in tables.batches(query.format(texts=texts, drops=drops, links=links, pages=sources.get("fetch"))):
            if batch["outcome"].null_count:
                url = batch["url"].filter(pc.is_null(batch["outcome"]))[0]
                raise InputError(f"{tables.name}: {url} is neither a document nor dropped; run `webtext build`")
            read += batch.num_rows
            arrays = [array.cast(field.type) for array, field in zip(batch.columns, URL_SCHEMA, strict=True)]
            batch = with_domains(pa.RecordBatch.from_arrays(arrays, schema=URL_SCHEMA))
            batch = batch.filter(pc.invert(pc.ends_with(batch["outcome"], ".removed")))
            write_published(writer, context.redacted(batch, Counter()))
            progress.advance(batch.num_rows)
    dropped = {"removed": count} if (count := read - writer.records) else {}
    return TaskResult(read, writer.records, dropped, files=(writer.entry,))
