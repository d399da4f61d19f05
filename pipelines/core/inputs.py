"""Inputs of stages: the folder of a finished stage, or text files from elsewhere.

Text inputs are Parquet (column `text`), JSONL (`.jsonl`, `.ndjson`, also compressed; field `text`) or plain `.txt`
(one document per file), by name, folder or glob.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa

from pipelines.core import shards, storage
from pipelines.core.compression import open_decompressed, strip_compression
from pipelines.core.drops import Drops
from pipelines.core.errors import InputError
from pipelines.core.journal import is_unfinished
from pipelines.core.manifest import FileEntry, Manifest, has_manifest, read_manifest, require_files
from pipelines.core.records import DOCUMENT_SCHEMA
from pipelines.core.text_columns import drop_invalid_text

# Small files are grouped and large Parquet files split, so that a task is neither tiny nor the whole input.
_GROUP_BYTES = 64 << 20
_PARQUET_PART_BYTES = 256 << 20
_BATCH_ROWS = 1024
_BATCH_BYTES = 4 << 20
_PARQUET_BATCH_BYTES = 16 << 20
_HASHING_THREADS = 4

# A surrogate escaped in JSON; only lines with one are searched for unpaired surrogates.
_ESCAPED_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
# The same as raw bytes, which UTF-8 forbids and json.loads accepts. A pattern of its own, tried only where its first
# byte occurs: one pattern for both takes many times as long on every line.
_RAW_SURROGATE = re.compile(rb"\xed[\xa0-\xbf]")

_LINE_SUFFIXES = (".jsonl", ".ndjson")
TEXT_SUFFIXES = (".parquet", *_LINE_SUFFIXES, ".txt")

# JSONL may have fields that are not part of a document; they are kept, as JSON, in this column.
JSONL_SCHEMA = DOCUMENT_SCHEMA.append(pa.field("metadata", pa.string()))


@dataclasses.dataclass(frozen=True)
class InputFile:
    """One file to read; `entry` is its entry in the manifest of `stage`, where a stage wrote it."""

    path: str
    size_bytes: int
    entry: FileEntry | None = None
    stage: str | None = None
    row_groups: tuple[int, ...] | None = None

    def verify(self) -> None:
        """Raise DamagedShardError where the file does not match its manifest."""
        if self.entry is not None and self.stage is not None:
            folder = self.path[: -len(self.entry.name)].rstrip("/")
            require_files(folder, [self.entry], self.stage)


@dataclasses.dataclass(frozen=True)
class StageFolder:
    """The folder of a finished stage."""

    path: str
    manifest: Manifest

    @property
    def fingerprint(self) -> str:
        """Hash of the identity of the folder and of all its bytes."""
        return self.manifest.fingerprint()

    def file(self, name: str) -> InputFile:
        """Return one file of the folder; raise InputError where the manifest has none of that name."""
        for file in self.files(name):
            return file
        raise InputError(f"{self.path}: the manifest of {self.manifest.identity.stage} lists no {name}")

    def files(self, prefix: str, suffix: str = "") -> list[InputFile]:
        """Return the files whose names have this prefix and suffix, in order of name."""
        files = [
            InputFile(storage.join(self.path, file.name), file.size_bytes, file, self.manifest.identity.stage)
            for file in self.manifest.files
            if file.name.startswith(prefix) and file.name.endswith(suffix)
        ]
        return sorted(files, key=lambda file: file.path)


@dataclasses.dataclass(frozen=True)
class DocumentShard:
    """The documents that one task reads."""

    index: int
    files: tuple[InputFile, ...]
    text_field: str = "text"

    @property
    def name(self) -> str:
        """The name of the task."""
        return f"documents-{self.index:05d}"


@dataclasses.dataclass(frozen=True)
class DocumentInput:
    """Documents to read: their shards, a hash of their content, and their number where it is known."""

    shards: tuple[DocumentShard, ...]
    fingerprint: str
    records: int | None

    @property
    def files(self) -> list[InputFile]:
        """The files of all shards; a file that several shards read in part appears once for each."""
        return [file for shard in self.shards for file in shard.files]


def open_stage(folder: str, stages: Sequence[str]) -> StageFolder:
    """Open the folder of a finished stage; raise InputError where it is absent, unfinished or another stage's."""
    hint = f"run `webtext {stages[0]}` first"
    if not storage.is_folder(folder):
        raise InputError(f"{folder}: no such folder; {hint}")
    if not has_manifest(folder):
        if is_unfinished(folder):
            raise InputError(f"{folder}: {stages[0]} has not finished; re-run `webtext {stages[0]}` to resume it")
        raise InputError(f"{folder}: has no manifest, so it is not the output of {' or '.join(stages)}; {hint}")
    manifest = read_manifest(folder)
    if manifest.identity.stage not in stages:
        raise InputError(f"{folder}: is the output of {manifest.identity.stage}, expected {' or '.join(stages)}")
    return StageFolder(folder, manifest)


def expand_paths(paths: Sequence[str], suffixes: Sequence[str]) -> list[str]:
    """Return the files that names, folders and globs refer to, in order; raise InputError for one that matches none.

    `suffixes` (without compression) select the files of a folder.
    """
    files: list[str] = []
    for path in paths:
        if storage.is_glob(path):
            matches = storage.glob(path)
            problem = "matches no files"
        elif storage.is_folder(path):
            matches = [file for file in storage.walk_files(path) if strip_compression(file).endswith(tuple(suffixes))]
            problem = f"contains no {', '.join('*' + suffix for suffix in suffixes)} files (compressed or not)"
        else:
            matches = [path] if storage.exists(path) else []
            problem = "no such file or folder (if a stage writes it, run that stage first)"
        if not matches:
            raise InputError(f"{path}: {problem}")
        files.extend(matches)
    return list(dict.fromkeys(files))


def size_on_disk(files: Sequence[InputFile]) -> int:
    """Return the total size of files in bytes, counting each once."""
    return sum({file.path: file.size_bytes for file in files}.values())


def fingerprint_files(paths: Sequence[str]) -> str:
    """Return a hash of foreign files: their names (without folders) and contents, in order.

    The order matters because shards are numbered by it.
    """
    with ThreadPoolExecutor(_HASHING_THREADS) as threads:
        contents = list(threads.map(storage.content_fingerprint, paths))
    parts = [[storage.basename(path), content] for path, content in zip(paths, contents, strict=True)]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def open_documents(paths: str | Sequence[str], text_field: str = "text") -> DocumentInput:
    """Open documents: the folder of a stage, or text inputs by name, folder or glob.

    Raises InputError where there are none, or where a Parquet file lacks the text column.
    """
    paths = [paths] if isinstance(paths, str) else list(paths)
    if len(paths) == 1 and has_manifest(paths[0]):
        return _stage_documents(paths[0])
    for path in paths:
        if is_unfinished(path):
            raise InputError(f"{path}: the stage that writes it has not finished; re-run that command to resume it")
        if has_manifest(path):
            raise InputError(
                f"{path}: is the output of a stage, which cannot be combined with other inputs; "
                f"name its files instead: {storage.join(path, 'documents-*.parquet')}"
            )
    files = expand_paths(paths, TEXT_SUFFIXES)
    groups = _group_files(files, text_field)
    document_shards = tuple(DocumentShard(index, tuple(group), text_field) for index, group in enumerate(groups))
    return DocumentInput(document_shards, fingerprint_files(files), None)


def read_documents(shard: DocumentShard, drops: Drops, *, batch_bytes: int | None = None) -> Iterator[pa.RecordBatch]:
    """Yield the documents of a shard as batches with at least `id` and `text`; other columns are kept.

    Batches of Parquet have about 16 MiB, or `batch_bytes`. A record without text, or a line that is not a JSON object,
    is counted in `drops`. All batches of a shard have the same schema. Raises InputError where no record of a file has
    the text field.
    """
    for file in shard.files:
        file.verify()
        if _kind(file.path) == ".parquet":
            yield from _parquet_documents(file, shard.text_field, drops, batch_bytes or _PARQUET_BATCH_BYTES)
        elif _kind(file.path) == ".txt":
            yield from _plain_documents(file, drops)
        else:
            yield from _jsonl_documents(file, shard.text_field, drops)


def document_schema(shard: DocumentShard) -> pa.Schema:
    """Return the schema of the batches that `read_documents` yields for a shard; verify its first file."""
    first = shard.files[0]
    if _kind(first.path) != ".parquet":
        return JSONL_SCHEMA
    first.verify()
    with storage.open_read(first.path) as stream:
        schema = shards.open_parquet(stream, first.path).schema_arrow
    shards.require_columns(first.path, schema.names, [shard.text_field])
    return _with_id_and_text(schema, shard.text_field, first.path)


def count_records_in(drops: Drops, kept: int) -> int:
    """Return the number of records read: those dropped and those kept."""
    return sum(drops.counts.values()) + kept


def _stage_documents(folder: str) -> DocumentInput:
    manifest = read_manifest(folder)
    files = StageFolder(folder, manifest).files("documents-", ".parquet")
    if not files:
        raise InputError(f"{folder}: is the output of {manifest.identity.stage}, which contains no documents")
    document_shards = tuple(DocumentShard(index, (file,)) for index, file in enumerate(files))
    return DocumentInput(document_shards, manifest.fingerprint(), manifest.records_out)


def _kind(path: str) -> str:
    name = strip_compression(path)
    for suffix in TEXT_SUFFIXES:
        if name.endswith(suffix):
            return suffix
    raise InputError(f"{path}: unknown file type; supported are {', '.join(TEXT_SUFFIXES)} (JSONL also compressed)")


def _group_files(paths: Sequence[str], text_field: str) -> Iterator[list[InputFile]]:
    """Group files into tasks: small text files together, each Parquet file alone or in parts."""
    group: list[InputFile] = []
    group_bytes = 0
    for path in paths:
        size = storage.size_bytes(path)
        if _kind(path) == ".parquet":
            yield from ([part] for part in _parquet_parts(path, size, text_field))
            continue
        if group and group_bytes + size > _GROUP_BYTES:
            yield group
            group, group_bytes = [], 0
        group.append(InputFile(path, size))
        group_bytes += size
    if group:
        yield group


def _parquet_parts(path: str, size: int, text_field: str) -> Iterator[InputFile]:
    with storage.open_read(path) as stream:
        file = shards.open_parquet(stream, path)
        shards.require_columns(path, file.schema_arrow.names, [text_field])
        groups = file.metadata.num_row_groups
    parts = max(1, min(groups, -(-size // _PARQUET_PART_BYTES)))
    for part in range(parts):
        row_groups = tuple(range(groups * part // parts, groups * (part + 1) // parts))
        yield InputFile(path, size, row_groups=row_groups if parts > 1 else None)


def _with_id_and_text(schema: pa.Schema, text_field: str, path: str) -> pa.Schema:
    kind = schema.field(text_field).type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)):
        raise InputError(f"{path}: column {text_field!r} is {kind}, not text; choose another with --text-field")
    fields = [pa.field("id", pa.string(), nullable=False)] + [field for field in schema if field.name != "id"]
    renamed = [
        pa.field("text", pa.string(), nullable=False) if field.name == text_field else field
        for field in fields
        if field.name == text_field or field.name != "text"
    ]
    return pa.schema(renamed)


def _parquet_documents(file: InputFile, text_field: str, drops: Drops, batch_bytes: int) -> Iterator[pa.RecordBatch]:
    name = storage.basename(file.path)
    schema = None
    row, batches = _parquet_batches(file, batch_bytes)
    for batch in batches:
        schema = schema or _with_id_and_text(batch.schema, text_field, file.path)
        columns = {field.name: batch.column(field.name) for field in batch.schema}
        texts = columns.pop(text_field).cast(pa.string())
        default_ids = [f"{name}:{row + offset}" for offset in range(batch.num_rows)]
        row += batch.num_rows
        ids = columns.pop("id").cast(pa.string()).to_pylist() if "id" in columns else default_ids
        ids = [default if id is None else id for id, default in zip(ids, default_ids, strict=True)]
        columns |= {"id": pa.array(ids, pa.string()), "text": texts}
        documents = pa.RecordBatch.from_arrays([columns[field.name] for field in schema], schema=schema)
        yield drop_invalid_text(documents, drops)


def _parquet_batches(file: InputFile, batch_bytes: int) -> tuple[int, Iterator[pa.RecordBatch]]:
    """Return the number of the first row to read, and the rows in batches of limited size (a row is never split)."""
    groups = None if file.row_groups is None else list(file.row_groups)
    with storage.open_read(file.path) as stream:
        metadata = shards.open_parquet(stream, file.path).metadata
    first_row = sum(metadata.row_group(group).num_rows for group in range(groups[0])) if groups else 0
    rows = shards.rows_per_batch(metadata, groups, batch_bytes)
    batches = shards.read_batches(file.path, row_groups=groups, rows=rows)
    # The footer understates texts that repeat, which a dictionary stores once, and single large rows.
    return first_row, (part for batch in batches for part in shards.split_by_bytes(batch, 4 * batch_bytes))


def _plain_documents(file: InputFile, drops: Drops) -> Iterator[pa.RecordBatch]:
    name = storage.basename(file.path)
    with open_decompressed(file.path) as stream:
        data = stream.read()
    try:
        yield _batch([{"id": name, "text": data.decode("utf-8-sig")}])
    except UnicodeDecodeError as error:
        drops.add("not_utf8", name, detail=str(error))


def _jsonl_documents(file: InputFile, text_field: str, drops: Drops) -> Iterator[pa.RecordBatch]:
    rows: list[dict[str, Any]] = []
    pending_bytes = kept = lines = 0
    name = storage.basename(file.path)
    with open_decompressed(file.path) as stream:
        for number, line in enumerate(stream, 1):
            if not line.strip():
                continue
            lines += 1
            row = _jsonl_row(line, f"{name}:{number}", text_field, drops)
            if row is None:
                continue
            kept += 1
            rows.append(row)
            pending_bytes += len(line)
            if len(rows) >= _BATCH_ROWS or pending_bytes >= _BATCH_BYTES:
                yield _batch(rows)
                rows, pending_bytes = [], 0
    if rows:
        yield _batch(rows)
    if lines and not kept:
        raise InputError(
            f"{file.path}: none of its {lines:,} records has the field {text_field!r}; choose another with --text-field"
        )


def _jsonl_row(line: bytes, default_id: str, text_field: str, drops: Drops) -> dict[str, Any] | None:
    """Return a row of JSONL_SCHEMA, or None, counted in `drops`, for a line without a document."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        drops.add("bad_json", default_id, detail=str(error))
        return None
    if _ESCAPED_SURROGATE.search(line) or (b"\xed" in line and _RAW_SURROGATE.search(line)):
        record = replace_surrogates(record)
    if not isinstance(record, dict):
        drops.add("bad_json", default_id, detail="the line is not a JSON object")
        return None
    text = record.pop(text_field, None)
    id = record.pop("id", None)
    row: dict[str, Any] = {"id": default_id if id is None else str(id), "text": text}
    if not isinstance(text, str):
        drops.add("missing_text", row["id"])
        return None
    rest = {}
    for key, value in record.items():
        if key in DOCUMENT_SCHEMA.names and key not in row and _fits(value, DOCUMENT_SCHEMA.field(key).type):
            row[key] = value
        else:
            rest[key] = value
    if rest:
        row["metadata"] = json.dumps(rest, ensure_ascii=False, sort_keys=True)
    return row


def replace_surrogates(value: Any) -> Any:
    """Replace unpaired surrogates, which JSON can express and UTF-8 cannot, by U+FFFD."""
    if isinstance(value, str):
        return value if _is_valid(value) else value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [replace_surrogates(item) for item in value]
    if isinstance(value, dict):
        return {replace_surrogates(key): replace_surrogates(item) for key, item in value.items()}
    return value


def _is_valid(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _fits(value: Any, kind: pa.DataType) -> bool:
    if value is None:
        return True
    if pa.types.is_string(kind):
        return isinstance(value, str)
    if pa.types.is_integer(kind):
        return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63
    return pa.types.is_list(kind) and isinstance(value, list) and all(isinstance(item, str) for item in value)


def _batch(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, schema=JSONL_SCHEMA)
