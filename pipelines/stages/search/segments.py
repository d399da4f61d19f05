"""The segments of a search index: what tantivy indexes of a document, and what is stored to show it.

The words are those of the overlap audit. A segment is written by one thread and never merged, so its files depend on
its documents alone; they are renamed, since tantivy names them by a random id.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import zstandard

from pipelines import progress, storage
from pipelines.engine.manifest import FileEntry
from pipelines.records import shards
from pipelines.records.document_filter import count_words, with_domains

if TYPE_CHECKING:
    import tantivy

INDEX = "index"
META = "meta.json"  # of tantivy: the schema and the segments
# Fields of words; of names, which match as a whole, in lower case; and of numbers.
WORD_FIELDS = ("text", "title", "url")
NAME_FIELDS = ("domain", "language", "subreddit")
NUMBER_FIELDS = ("year", "words")
FIELDS = (*WORD_FIELDS, *NAME_FIELDS, *NUMBER_FIELDS)
_STORED = "document"
_TEXT_COLUMNS = ("id", "text", "url", "title", "domain", "language")
_COLUMNS = (*_TEXT_COLUMNS, "created_utc", "words", "subreddits")
_LAST_SECOND = 253_402_300_799  # of the year 9999
# A segment of 128 MiB of prose takes a third of this; with more words than fit, the text becomes several segments.
_HEAP_BYTES = 1 << 30


class StoredDocument(msgspec.Struct):
    """What the index stores of a document, as JSON compressed by zstd: 0.4 bytes per byte of prose."""

    id: str
    text: str
    url: str | None = None
    title: str | None = None
    domain: str | None = None
    language: str | None = None
    year: int | None = None
    words: int | None = None
    subreddits: list[str] = []


def open_index(folder: str, is_written: bool = False) -> tantivy.Index:
    """Open an index for queries; if it `is_written`, create it for normalized words instead."""
    import tantivy

    if not is_written:
        index = tantivy.Index.open(folder)
    else:
        schema = tantivy.SchemaBuilder()
        for name in WORD_FIELDS:
            schema.add_text_field(name, tokenizer_name="words")
        for name in NAME_FIELDS:
            schema.add_text_field(name, tokenizer_name="names", index_option="basic")
        for name in NUMBER_FIELDS:
            schema.add_unsigned_field(name, indexed=True, fast=True)
        schema.add_bytes_field(_STORED, stored=True)
        index = tantivy.Index(schema.build(), folder)
    # The words of documents are normalized before; those of queries by the same rule, as a regular expression.
    split = tantivy.Tokenizer.whitespace() if is_written else tantivy.Tokenizer.regex(r"[\p{L}\p{N}]+")
    for name, tokenizer in (("words", split), ("names", tantivy.Tokenizer.raw())):
        builder = tantivy.TextAnalyzerBuilder(tokenizer).filter(tantivy.Filter.lowercase())
        index.register_tokenizer(name, builder.build())
    return index


def read_stored(document: tantivy.Document) -> StoredDocument:
    """Return what the index stores of a document."""
    data = zstandard.decompress(bytes(document.get_first(_STORED) or b""))
    return msgspec.json.decode(data, type=StoredDocument)


def write_segments(batches: Iterable[pa.RecordBatch], id: str, output: str) -> tuple[int, list[FileEntry]]:
    """Write a segment of documents, several if their words need too much memory; return how many documents they have.

    The names of the files begin with `id`, 24 hex digits; `.json` is the description of a segment in `meta.json`.
    """
    documents, files = 0, list[FileEntry]()
    with storage.temporary_folder() as folder:
        index = open_index(folder, is_written=True)
        writer = index.writer(_HEAP_BYTES, num_threads=1)
        for batch in batches:
            for document in _index_documents(batch):
                writer.add_document(document)
            documents += batch.num_rows
            progress.advance(batch.num_rows)
        writer.commit()
        writer.wait_merging_threads()
        described = storage.read_json(storage.join(folder, META))["segments"]
        segments = {segment["segment_id"].replace("-", ""): segment for segment in described}
        # tantivy sorts them by their random ids.
        by_text = sorted(segments, key=lambda old: storage.read_bytes(storage.join(folder, f"{old}.store")))
        for number, old in enumerate(by_text):
            new = f"{id}{number:08x}"
            names = [name for name in storage.list_folder(folder) if name.startswith(old)]
            parts = {name.replace(old, new): storage.read_bytes(storage.join(folder, name)) for name in names}
            parts[f"{new}.json"] = storage.json_bytes({**segments[old], "segment_id": new})
            files += [shards.write_file(output, storage.join(INDEX, name), data) for name, data in parts.items()]
    return documents, files


def write_meta(output: str, segments: Iterable[str]) -> FileEntry:
    """Write `meta.json`, by which the segments, named by their descriptions in the output, are one index."""
    with storage.temporary_folder() as folder:
        open_index(folder, is_written=True)
        meta = storage.read_json(storage.join(folder, META))
    meta["segments"] = [storage.read_json(storage.join(output, name)) for name in segments]
    return shards.write_file(output, storage.join(INDEX, META), storage.json_bytes(meta))


def stored_documents(batch: pa.RecordBatch) -> Iterator[StoredDocument]:
    """Yield what is stored of documents; other files may have columns of any type, or none."""
    batch = with_domains(batch)
    # A time in nanoseconds has no Python object.
    columns = [field.name for field in batch.schema if field.name in _COLUMNS and not pa.types.is_temporal(field.type)]
    for row in batch.select(columns).to_pylist():
        fields: dict[str, Any] = {name: value for name in _TEXT_COLUMNS if isinstance(value := row.get(name), str)}
        created, words, subreddits = row.get("created_utc"), row.get("words"), row.get("subreddits")
        if isinstance(created, int) and 0 <= created <= _LAST_SECOND:
            fields["year"] = dt.datetime.fromtimestamp(created, dt.UTC).year
        yield StoredDocument(
            **fields,
            words=words if isinstance(words, int) and words >= 0 else count_words(row["text"]),
            subreddits=[*map(str, filter(None, subreddits))] if isinstance(subreddits, list) else [],
        )


def _index_documents(batch: pa.RecordBatch) -> Iterator[tantivy.Document]:
    """Yield what is indexed and stored of documents."""
    import tantivy

    # Numba takes 0.2 s, and queries need none.
    from pipelines.algorithms.ngrams.normal_words import normalize_texts

    compress = zstandard.ZstdCompressor(level=1).compress
    stored = [*stored_documents(batch)]
    columns = [normalize_texts(pa.array([getattr(row, name) or "" for row in stored])) for name in WORD_FIELDS]
    for row, words in zip(stored, zip(*columns, strict=True), strict=True):
        document = tantivy.Document()
        for name, text in zip(WORD_FIELDS, words, strict=True):
            document.add_text(name, text.words)
        subreddits = [("subreddit", name) for name in row.subreddits]
        for name, value in (("domain", row.domain), ("language", row.language), *subreddits):
            document.add_text(name, value or "")
        for name in NUMBER_FIELDS:
            if (number := getattr(row, name)) is not None:
                document.add_unsigned(name, number)
        document.add_bytes(_STORED, compress(msgspec.json.encode(row)))
        yield document
