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
from pipelines.records.removals import REMOVED, Removals
from pipelines.stages.fetch.warc import blank_records

# The reason of rows of documents that were kept.
KEPT = ""
_COUNTED = ("links-", "pages-", "documents-", "dropped-")
_COPY_BYTES = 1 << 20
# The number of removed rows by reason and request, and a new file with those that it lacks.
Rows = Counter[tuple[str, int]]
Rewritten = tuple[FileEntry, Rows]


@dataclasses.dataclass(frozen=True)
class RemovalContext:
    """What the tasks of a stage share: its folder, where to write, and the number of a request by document id.

    A stage `is_root` if it reads the documents from outside of the corpus, so that it counts them as dropped. `tokens`
    is the content of `tokens.json`, `offsets` are those of the responses to blank, by WARC file.
    """

    stage: str
    folder: str
    output: str
    ids: Mapping[str, int]
    is_root: bool
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


def document_ids(rows: pa.RecordBatch, stage: str) -> list[str] | None:
    """Return the ids of the documents of rows; those of links and pages follow from their URLs. None without any."""
    key = "url" if stage in ("scrape", "fetch") else "id"
    keys: list[str] | None = rows.column(key).to_pylist() if key in rows.schema.names else None
    return [*map(id_of_url, keys)] if keys and key == "url" else keys


def find_documents(item: tuple[str, str], removals: Removals) -> list[tuple[str, int]]:
    """Return the documents in a table (stage, path) that requests name, with the number of the request.

    Raises MissingColumnError for links without authors, if a request names one.
    """
    (stage, path), names = item, _schema(item[1]).names
    if stage == "scrape" and "url" in names and "author" in removals.kinds:
        shards.require_columns(path, names, ["authors"])
    matches: list[tuple[str, int]] = []
    for batch in shards.read_batches(path, removals.columns(names)) if removals.columns(names) else ():
        if (ids := document_ids(batch, stage)) is not None:
            numbers = removals.find(batch, by_url=stage in ("scrape", "fetch"))
            matches += [(id, number) for id, number in zip(ids, numbers, strict=True) if number is not None]
    return matches


def rewrite_files(files: Sequence[FileEntry], context: RemovalContext) -> list[Rewritten]:
    """Write those files of a shard again that name a removed document."""
    rewritten, dropped = list[Rewritten](), list[str]()
    for file in sorted(files, key=lambda file: file.name.startswith("dropped-")):
        if file.name.endswith(".parquet") and _is_affected(file, context, dropped):
            spans = list[tuple[int, int]]()
            rewritten.append(_rewrite_table(file, context, dropped, spans))
            stem = file.name.removesuffix("-documents.parquet")
            tokens = next((other for other in files if spans and other.name.startswith(f"{stem}.")), None)
            rewritten += [(context.write_patched(tokens, _fills(spans, context.tokens)), Rows())] if tokens else []
        elif context.stage != "fetch" and re.fullmatch(r"report-\d+\.json", file.name):
            rewritten += _rewrite_tally(file, context)
    return rewritten


def _is_affected(file: FileEntry, context: RemovalContext, dropped: Sequence[str]) -> bool:
    path = storage.join(context.folder, file.name)
    if context.is_root and dropped and file.name.startswith("dropped-"):
        return True
    keys = [name for name in ("url" if context.stage in ("scrape", "fetch") else "id",) if name in _schema(path).names]
    batches = shards.read_batches(path, keys) if keys else ()
    return any(context.ids.keys() & (document_ids(batch, context.stage) or ()) for batch in batches)


def _rewrite_table(
    file: FileEntry, context: RemovalContext, dropped: list[str], spans: list[tuple[int, int]]
) -> Rewritten:
    """Write a table without the rows of removed documents, whose ids are added to `dropped`.

    In the first stage, the drops get these ids. Rows of token shards lose id and URL only, since all tokens keep their
    positions; `spans` receives start and number of their tokens.
    """
    path, counts = context.verified(file), Rows()
    with shards.write_shard(context.output, file.name, _schema(path)) as written:
        for batch in shards.read_batches(path):
            ids = document_ids(batch, context.stage) or []
            is_removed = pa.array([id in context.ids for id in ids], pa.bool_())
            for row in batch.append_column("_id", pa.array(ids)).filter(is_removed).to_pylist():
                if "document_offset" in row:
                    spans.append((row["offset"], row["tokens"]))
                    counts[KEPT, context.ids[row["_id"]]] += row["document_offset"] == 0
                elif file.name.startswith(_COUNTED) and row.get("outcome", "ok") == "ok":
                    counts[row.get("reason", KEPT), context.ids[row["_id"]]] += 1
                    dropped.append(row["_id"])
            if "document_offset" in batch.schema.names:
                columns = {name: batch.column(name) for name in batch.schema.names}
                for name, value in (("id", ""), ("url", None)):
                    columns[name] = pc.if_else(is_removed, pa.scalar(value, pa.string()), columns[name])
                written.write_batch(pa.record_batch(columns, batch.schema))
            else:
                written.write_batch(batch.filter(pc.invert(is_removed)))
        for id in dropped if context.is_root and file.name.startswith("dropped-") else ():
            written.write({"id": id, "url": None, "reason": REMOVED, "detail": None})
    return written.entry, counts


def _fills(spans: Sequence[tuple[int, int]], tokens: Mapping[str, Any]) -> Iterator[tuple[int, bytes]]:
    """Yield `<|endoftext|>` for each token of spans, with the offset in bytes."""
    fill = np.array([tokens["end_of_text"]], np.dtype(tokens["dtype"]).newbyteorder("<")).tobytes()
    for start, count in spans:
        yield tokens["header_bytes"] + start * len(fill), fill * count


def _rewrite_tally(file: FileEntry, context: RemovalContext) -> Iterator[Rewritten]:
    """Write the part of a report of a shard without the samples of removed documents, if it has any."""
    tally = storage.read_json(storage.join(context.folder, file.name))
    before = json.dumps(tally)
    for sample in tally["samples"].values():
        sample[1] = [pair for pair in sample[1] if pair[1]["id"] not in context.ids]
    if json.dumps(tally) != before:
        yield shards.write_file(context.output, file.name, json.dumps(tally, sort_keys=True).encode()), Rows()


def _schema(path: str) -> pa.Schema:
    with shards.open_stream(path) as stream:
        return shards.open_parquet(stream, path).schema_arrow


def summed(rows: Rows, field: int) -> Counter[Any]:
    """Return the number of rows by reason (field 0) or by request (1)."""
    counts = Counter[Any]()
    for key, count in rows.items():
        counts[key[field]] += count
    return counts


def describe_tokens(context: RemovalContext, files: Mapping[str, FileEntry], rows: Mapping[str, Rows]) -> FileEntry:
    """Write `tokens.json` with the number of documents that are left, and the checksums of the new files."""
    tokens: dict[str, Any] = {**context.tokens}
    for split, listed in tokens["splits"].items():
        for shard in listed:
            tokens["totals"][split]["documents"] -= rows.get(shard["documents_file"], Rows()).total()
            if file := files.get(shard["name"]):
                shard |= {"size_bytes": file.size_bytes, "sha256": file.sha256}
    return shards.write_file(context.output, "tokens.json", storage.json_bytes(tokens))


def blank_pages(file: FileEntry, context: RemovalContext) -> FileEntry:
    """Write a WARC file with blank records of removed pages."""
    patches = blank_records(storage.join(context.folder, file.name), context.ids, context.offsets[file.name])
    return context.write_patched(file, patches)
