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

# The reason of rows of documents that were kept; and of the parts of a document in further token shards.
KEPT, PART = "", "part"
_COUNTED = ("links-", "pages-", "documents-", "dropped-")
# Columns that links do not have, so that a request for these finds a link by its document only.
_LATE_COLUMNS = ("final_url", "text")
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

    def write_patched(self, file: FileEntry, patches: Iterable[tuple[int, bytes]]) -> tuple[FileEntry, int]:
        """Write a file with other bytes at some offsets, in order; return it and the number of patches."""
        require_files(self.folder, [file], self.stage)
        count, path = -1, storage.join(self.output, file.name)
        with storage.open_read(storage.join(self.folder, file.name)) as source, storage.atomic_write(path) as stream:
            for offset, data in itertools.chain(patches, [(file.size_bytes, b"")]):
                while block := source.read(min(_COPY_BYTES, offset - source.tell())):
                    stream.write(block)
                stream.write(data)
                source.seek(len(data), 1)
                count += 1
        return FileEntry(file.name, stream.size_bytes, stream.checksum), count


def key_column(stage: str) -> str:
    """Return the column that names the document of a row; of links and pages, the id follows from the URL."""
    return "url" if stage in ("scrape", "fetch") else "id"


def document_ids(rows: pa.RecordBatch, stage: str) -> list[str]:
    """Return the ids of the documents of rows."""
    keys: list[str] = rows.column(key_column(stage)).to_pylist()
    return list(map(id_of_url, keys)) if key_column(stage) == "url" else keys


def find_documents(item: tuple[str, str], removals: Removals) -> list[tuple[str, int, bool]]:
    """Return the documents of a table (stage, path) that requests name, and whether its link alone can tell.

    Raises MissingColumnError for links without authors, if a request names one.
    """
    stage, path = item
    key, by_url = key_column(stage), key_column(stage) == "url"
    names = _columns(path).names
    if stage == "scrape" and key in names and "author" in removals.kinds:
        shards.require_columns(path, names, ["authors"])
    matches: list[tuple[str, int, bool]] = []
    for batch in shards.read_batches(path, [*{key, *removals.columns(names)}]) if key in names else ():
        numbers = removals.find(batch, by_url=by_url)
        if any(number is not None for number in numbers):
            early = removals.find(
                batch.select([name for name in batch.schema.names if name not in _LATE_COLUMNS]), by_url=by_url
            )
            rows = zip(document_ids(batch, stage), numbers, early, strict=True)
            matches += [(id, number, first is not None) for id, number, first in rows if number is not None]
    return matches


def rewrite_files(files: Sequence[FileEntry], context: RemovalContext) -> list[Rewritten]:
    """Write those files of a shard again that name a removed document."""
    rewritten, dropped = list[Rewritten](), list[str]()
    for file in sorted(files, key=lambda file: file.name.startswith("dropped-")):
        if file.name.endswith(".parquet"):
            spans = list[tuple[int, int]]()
            rewritten += _rewrite_table(file, context, dropped, spans)
            stem = file.name.removesuffix("-documents.parquet")
            tokens = next((other for other in files if spans and other.name.startswith(f"{stem}.")), None)
            rewritten += [(context.write_patched(tokens, _fills(spans, context.tokens))[0], Rows())] if tokens else []
        elif context.stage != "fetch" and re.fullmatch(r"report-\d+\.json", file.name):
            rewritten += _rewrite_tally(file, context)
    return rewritten


def _rewrite_table(
    file: FileEntry, context: RemovalContext, dropped: list[str], spans: list[tuple[int, int]]
) -> Iterator[Rewritten]:
    """Write a table without the rows of removed documents, if it has any; add their ids to `dropped`.

    In the first stage, the drops get their ids. In token shards they keep rows without id and URL, since the other
    tokens keep their positions; `spans` receives theirs (start, number).
    """
    path, is_list = storage.join(context.folder, file.name), context.is_root and file.name.startswith("dropped-")
    schema, key = _columns(path), key_column(context.stage)
    batches = shards.read_batches(path, [key]) if key in schema.names else ()
    if not (is_list and dropped) and not any(
        context.ids.keys() & document_ids(each, context.stage) for each in batches
    ):
        return
    require_files(context.folder, [file], context.stage)
    counts = Rows()
    with shards.write_shard(context.output, file.name, schema) as written:
        for batch in shards.read_batches(path):
            ids = document_ids(batch, context.stage)
            is_removed = pa.array([id in context.ids for id in ids], pa.bool_())
            if "document_offset" in schema.names:
                written.write_batch(_without_names(batch, is_removed))
            else:
                written.write_batch(batch.filter(pc.invert(is_removed)))
            for row in batch.append_column("_id", pa.array(ids)).filter(is_removed).to_pylist():
                if "document_offset" in row:
                    spans.append((row["offset"], row["tokens"]))
                    counts[PART if row["document_offset"] else KEPT, context.ids[row["_id"]]] += 1
                elif file.name.startswith(_COUNTED) and row.get("outcome", "ok") == "ok":
                    counts[row.get("reason", KEPT), context.ids[row["_id"]]] += 1
                    dropped.append(row["_id"])
        for id in dropped if is_list else ():
            written.write({"id": id, "url": None, "reason": REMOVED, "detail": None})
    yield written.entry, counts


def _without_names(batch: pa.RecordBatch, is_removed: pa.BooleanArray) -> pa.RecordBatch:
    for name, value in (("id", ""), ("url", None)):
        index = batch.schema.get_field_index(name)
        column = pc.if_else(is_removed, pa.scalar(value, pa.string()), batch.column(index))
        batch = batch.set_column(index, batch.schema.field(index), column)
    return batch


def _fills(spans: Sequence[tuple[int, int]], tokens: Mapping[str, Any]) -> Iterator[tuple[int, bytes]]:
    """Yield `<|endoftext|>` for each token of spans, with the offset in bytes."""
    fill = np.array([tokens["end_of_text"]], np.dtype(tokens["dtype"]).newbyteorder("<")).tobytes()
    for start, count in spans:
        yield tokens["header_bytes"] + start * len(fill), fill * count


def _rewrite_tally(file: FileEntry, context: RemovalContext) -> Iterator[Rewritten]:
    """Write the part of a report of a shard without the samples of removed documents, if it has any."""
    tally = storage.read_json(storage.join(context.folder, file.name))
    before = sum(len(pairs) for _, pairs in tally["samples"].values())
    for sample in tally["samples"].values():
        sample[1] = [[key, item] for key, item in sample[1] if item["id"] not in context.ids]
    if sum(len(pairs) for _, pairs in tally["samples"].values()) < before:
        yield shards.write_file(context.output, file.name, json.dumps(tally, sort_keys=True).encode()), Rows()


def _columns(path: str) -> pa.Schema:
    with shards.open_stream(path) as stream:
        return shards.open_parquet(stream, path).schema_arrow


def summed(rows: Rows, field: int) -> Counter[Any]:
    """Return the number of rows by reason (field 0) or by request (1)."""
    counts = Counter[Any]()
    for key, count in rows.items():
        counts[key[field]] += count
    return counts


def describe_tokens(context: RemovalContext, files: Mapping[str, FileEntry], rows: Mapping[str, Rows]) -> FileEntry:
    """Write `tokens.json` with the documents that are left, and the checksums of the new files."""
    tokens: dict[str, Any] = {**context.tokens}
    for split, listed in tokens["splits"].items():
        for shard in listed:
            removed = summed(rows.get(shard["documents_file"], Rows()), 0)
            shard["documents"] -= removed.total()
            tokens["totals"][split]["documents"] -= removed[KEPT]
            if file := files.get(shard["name"]):
                shard |= {"size_bytes": file.size_bytes, "sha256": file.sha256}
    return shards.write_file(context.output, "tokens.json", storage.json_bytes(tokens))


def blank_pages(file: FileEntry, context: RemovalContext) -> tuple[FileEntry, int]:
    """Write a WARC file with blank records of removed pages; return it and their number."""
    path = storage.join(context.folder, file.name)
    return context.write_patched(file, blank_records(path, context.ids, context.offsets[file.name]))
