"""The tasks of a removal: find documents in the files of a stage, and write these files without them."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines import storage
from pipelines.algorithms.web.urls import id_of_url
from pipelines.engine.manifest import FileEntry, require_files
from pipelines.records import shards
from pipelines.records.reader import table_schema
from pipelines.records.removals import Removals
from pipelines.stages.fetch.warc import blank_records

KEPT = ""  # the reason of rows of documents that were kept
# The columns that name the document of a row in these stages, where the id follows from the URL; else it is `id`.
_KEYS = {"scrape": "url", "fetch": "url"}
_COUNTED = ("links-", "pages-", "documents-", "dropped-")
_COPY_BYTES = 1 << 20
Place = tuple[str, int]  # of a page: the WARC file, and the offset of the response
Rewritten = tuple[FileEntry, Counter[str]]  # a new file, with the number of rows that it lacks by reason


@dataclasses.dataclass(frozen=True)
class RemovalContext:
    """What the tasks of a stage share; `offsets` are those of the responses to blank, by WARC file."""

    stage: str
    folder: str
    output: str
    ids: Mapping[str, int]
    tokens: Mapping[str, Any]
    offsets: Mapping[str, set[int]] = dataclasses.field(default_factory=dict)

    def verified(self, file: FileEntry) -> str:
        """Return the path of a file; raise DamagedShardError if it does not match its checksum."""
        require_files(self.folder, [file], self.stage)
        return storage.join(self.folder, file.name)

    def write_patched(self, file: FileEntry, patches: Iterable[tuple[int, bytes]]) -> FileEntry:
        """Write a file with other bytes at some offsets, in order."""
        path = storage.join(self.output, file.name)
        with storage.open_read(self.verified(file)) as source, storage.atomic_write(path) as stream:
            for offset, data in itertools.chain(patches, [(file.size_bytes, b"")]):
                while block := source.read(min(_COPY_BYTES, offset - source.tell())):
                    stream.write(block)
                stream.write(data)
                source.seek(len(data), 1)
        return FileEntry(file.name, stream.size_bytes, stream.checksum)


def find_documents(item: tuple[str, str], removals: Removals) -> list[tuple[str, int]]:
    """Return the documents in a table (stage, path) that requests name, with the number of the request."""
    (stage, path), names = item, table_schema(item[1]).names
    if stage == "scrape" and "url" in names and "author" in removals.kinds:
        shards.require_columns(path, names, ["authors"])
    matches: list[tuple[str, int]] = []
    for batch in shards.read_batches(path, removals.columns(names)) if _KEYS.get(stage, "id") in names else ():
        rows = zip(_document_ids(batch, stage), removals.find(batch, by_url=stage in _KEYS), strict=True)
        matches += [(id, number) for id, number in rows if number is not None]
    return matches


def find_pages(path: str, wanted: tuple[set[str], set[Place]]) -> list[tuple[str, str, int]]:
    """Return id, WARC file and offset of the pages in a table that have some ids, or are at some places."""
    ids, places = wanted
    rows = shards.read_rows(path, ["url", "warc_file", "warc_offset"])
    pages = ((id_of_url(row["url"]), row["warc_file"], row["warc_offset"]) for row in rows if row["warc_file"])
    return [page for page in pages if page[0] in ids or page[1:] in places]


def rewrite_files(files: Sequence[FileEntry], context: RemovalContext) -> list[Rewritten]:
    """Write those files of a shard again that name a removed document."""
    rewritten = list[Rewritten]()
    for file in files:
        if file.name.endswith(".parquet") and _names_removed(file, context):
            spans = list[tuple[int, int]]()
            rewritten.append(_rewrite_table(file, context, spans))
            stem = file.name.removesuffix("-documents.parquet")
            for tokens in (other for other in files if spans and other.name.startswith(f"{stem}.")):
                rewritten.append((context.write_patched(tokens, _fills(spans, context.tokens)), Counter()))
        elif context.stage in ("extract", "filter") and re.fullmatch(r"report(-\d+)?\.json", file.name):
            report = storage.read_json(storage.join(context.folder, file.name))
            if (kept := without_samples(report, context.ids)) != report:
                entry = shards.write_file(context.output, file.name, json.dumps(kept, sort_keys=True).encode())
                rewritten.append((entry, Counter()))
    return rewritten


def _names_removed(file: FileEntry, context: RemovalContext) -> bool:
    path, key = storage.join(context.folder, file.name), _KEYS.get(context.stage, "id")
    batches = shards.read_batches(path, [key]) if key in table_schema(path).names else ()
    return any(context.ids.keys() & _document_ids(batch, context.stage) for batch in batches)


def _rewrite_table(file: FileEntry, context: RemovalContext, spans: list[tuple[int, int]]) -> Rewritten:
    """Write a table without the rows of removed documents.

    Rows of token shards lose id and URL only, since all tokens keep their positions; `spans` receives start and number
    of their tokens.
    """
    path, reasons = context.verified(file), Counter[str]()
    with shards.write_shard(context.output, file.name, table_schema(path)) as written:
        for batch in shards.read_batches(path):
            is_token_table = "document_offset" in batch.schema.names
            is_counted = is_token_table or file.name.startswith(_COUNTED)
            is_removed = pa.array([id in context.ids for id in _document_ids(batch, context.stage)], pa.bool_())
            for row in batch.filter(is_removed).to_pylist():
                if is_token_table:
                    spans.append((row["offset"], row["tokens"]))
                if is_counted and row.get("document_offset", 0) == 0 and row.get("outcome", "ok") == "ok":
                    reasons[row.get("reason", KEPT)] += 1
            if is_token_table:
                columns = dict(zip(batch.schema.names, batch.columns, strict=True))
                for name, value in (("id", ""), ("url", None)):
                    columns[name] = pc.if_else(is_removed, pa.scalar(value, pa.string()), columns[name])
                written.write_batch(pa.record_batch(columns, batch.schema))
            else:
                written.write_batch(batch.filter(pc.invert(is_removed)))
    return written.entry, reasons


def _fills(spans: Sequence[tuple[int, int]], tokens: Mapping[str, Any]) -> Iterator[tuple[int, bytes]]:
    """Yield `<|endoftext|>` for each token of spans, with the offset in bytes."""
    fill = np.array([tokens["end_of_text"]], np.dtype(tokens["dtype"]).newbyteorder("<")).tobytes()
    for start, count in spans:
        yield tokens["header_bytes"] + start * len(fill), fill * count


def without_samples(report: Any, ids: Mapping[str, int]) -> Any:
    """Return a JSON value whose lists lack the objects that have one of these ids, alone or after a key."""
    if isinstance(report, dict):
        return {key: without_samples(value, ids) for key, value in report.items()}
    if not isinstance(report, list):
        return report
    is_pair = [isinstance(item, list) and len(item) == 2 and not isinstance(item[0], dict) for item in report]
    samples = [item[1] if pair else item for item, pair in zip(report, is_pair, strict=True)]
    is_kept = [not (isinstance(sample, dict) and sample.get("id") in ids) for sample in samples]
    return [without_samples(item, ids) for item in itertools.compress(report, is_kept)]


def _document_ids(rows: pa.RecordBatch, stage: str) -> list[str]:
    keys: list[str] = rows.column(_KEYS.get(stage, "id")).to_pylist()
    return [*map(id_of_url, keys)] if stage in _KEYS else keys


def describe_tokens(context: RemovalContext, files: dict[str, FileEntry], rows: dict[str, Counter[str]]) -> FileEntry:
    """Write `tokens.json` with the number of documents that are left, and the checksums of the new files."""
    tokens: dict[str, Any] = {**context.tokens}
    for split, listed in tokens["splits"].items():
        for shard in listed:
            tokens["totals"][split]["documents"] -= rows.get(shard["documents_file"], Counter()).total()
            if file := files.get(shard["name"]):
                shard |= {"size_bytes": file.size_bytes, "sha256": file.sha256}
    return shards.write_file(context.output, "tokens.json", storage.json_bytes(tokens))


def blank_pages(file: FileEntry, context: RemovalContext) -> FileEntry:
    """Write a WARC file with blank records of removed pages."""
    patches = blank_records(storage.join(context.folder, file.name), context.ids, context.offsets[file.name])
    return context.write_patched(file, patches)
