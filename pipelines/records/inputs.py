"""Inputs of stages: the folder of a finished stage, or documents from elsewhere.

These are tables (Parquet, Arrow), records (JSON, JSONL, CSV) and texts (.txt, .md, WET), by name, folder or glob. Their
records are read by `reader`, and become documents in `documents`.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import json
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa

from pipelines import storage
from pipelines.engine.journal import OutputFolder, is_unfinished
from pipelines.engine.manifest import (
    FileEntry,
    Manifest,
    common_text_format,
    has_manifest,
    read_manifest,
    require_files,
)
from pipelines.engine.stage import RunOptions
from pipelines.errors import InputError
from pipelines.records import shards
from pipelines.records.document_options import DocumentConfig
from pipelines.records.documents import (
    JSONL_SCHEMA,
    SourceFile,
    conform,
    has_document_lines,
    record_batches,
    table_document_schema,
    table_documents,
    union_schema,
)
from pipelines.records.drops import Drops
from pipelines.records.file_parts import FilePart, split_lines, split_rows
from pipelines.records.input_paths import TEXT_SUFFIXES, expand_globs, expand_paths
from pipelines.records.reader import TABLES, file_format, table_batches, table_schema
from pipelines.records.removals import REMOVED, Removals, read_removals
from pipelines.storage.compression import SUFFIXES

# Small files are grouped and large ones split, so that a task is neither tiny nor the whole input.
_GROUP_BYTES = 64 << 20
_DEFAULTS = DocumentConfig()

# Bytes of text per byte of a file of prose: Parquet and compressed lines (benchmarks/plan.md), and plain lines.
_TEXT_PER_COMPRESSED_BYTE, _TEXT_PER_BYTE = 3.5, 0.9


@dataclasses.dataclass(frozen=True)
class InputFile:
    """One file to read; `entry` is its entry in the manifest of `stage`, if a stage wrote it.

    Several tasks read a `part` each of a large file.
    """

    path: str
    size_bytes: int
    entry: FileEntry | None = None
    stage: str | None = None
    part: FilePart | None = None
    relative_path: str | None = None

    @property
    def name(self) -> str:
        """The path below the common folder of the input, with which generated ids begin."""
        return self.relative_path or storage.basename(self.path)

    def verify(self) -> None:
        """Raise DamagedShardError if the file does not match its manifest."""
        if self.entry is not None and self.stage is not None:
            folder = self.path[: -len(self.entry.name)].rstrip("/")
            require_files(folder, [self.entry], self.stage)


@dataclasses.dataclass(frozen=True)
class StageFolder:
    """The folder of a finished stage."""

    path: str
    manifest: Manifest

    def file(self, name: str) -> InputFile:
        """Return one file of the folder; raise InputError if the manifest has none of that name."""
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
    options: DocumentConfig = dataclasses.field(default_factory=DocumentConfig)
    schema: pa.Schema | None = None
    removals: Removals | None = None

    @property
    def name(self) -> str:
        """The name of the task."""
        return f"documents-{self.index:05d}"

    @functools.cached_property
    def file_names(self) -> frozenset[str]:
        """The names with which generated ids begin; computed once, since each of 100,000 small files is a batch."""
        return frozenset(file.name for file in self.files)


@dataclasses.dataclass(frozen=True)
class DocumentInput:
    """Documents to read: their shards, a hash of their content, and their number if it is known.

    `notes` say what the input contains that is not read.
    """

    shards: tuple[DocumentShard, ...]
    fingerprint: str
    records: int | None
    notes: tuple[str, ...] = ()

    @property
    def files(self) -> list[InputFile]:
        """The files of all shards, each once."""
        return [file for shard in self.undivided for file in shard.files]

    @property
    def undivided(self) -> list[DocumentShard]:
        """The shards for a task that reads all of them: the first part of a file becomes the file, the others go."""
        undivided = []
        for shard in self.shards:
            file = shard.files[0]
            if file.part and file.part.start == 0:
                shard = dataclasses.replace(shard, files=(dataclasses.replace(file, part=None),))
            if not (file.part and file.part.start):
                undivided.append(shard)
        return undivided


def open_stage(folder: str, stages: Sequence[str]) -> StageFolder:
    """Open the folder of a finished stage; raise InputError if it is absent, unfinished or another stage's."""
    check_finished(folder, stages[0])
    if not has_manifest(folder):
        problem = f"has no manifest, so it is not the output of {' or '.join(stages)}"
        raise InputError(f"{folder}: {problem}; run `webtext {stages[0]}` first")
    manifest = read_manifest(folder)
    if manifest.identity.stage not in stages:
        texts = storage.join(folder, "data")  # of a release
        hint = f"; its texts are in {texts}" if storage.is_folder(texts) else ""
        raise InputError(f"{folder}: is the output of {manifest.identity.stage}, expected {' or '.join(stages)}{hint}")
    return StageFolder(folder, manifest)


def check_finished(folder: str, stage: str, otherwise: str = "") -> None:
    """Raise InputError, with the command to run, if the folder of a stage is absent or its run has not finished.

    `otherwise` says how to do without it.
    """
    if not storage.is_folder(folder):
        problem = "is a file, expected a folder" if storage.exists(folder) else "no such folder"
        raise InputError(f"{folder}: {problem}; run `webtext {stage}` first{otherwise}")
    if is_unfinished(folder) and not has_manifest(folder):
        identity = OutputFolder(folder).recorded_identity()
        stage = identity.stage if identity else stage
        command = f"`webtext {stage}`" if storage.basename(folder) == stage else f"the command that wrote {folder}"
        raise InputError(f"{folder}: {stage} has not finished; re-run {command} to resume it{otherwise}")


def separate_stages(paths: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the folders of stages, finished or not, among paths and the matches of globs; and the other paths."""
    expanded = list({storage.absolute_path(path): path for path in expand_globs(paths)}.values())
    stages = {path for path in expanded if storage.is_folder(path) and (has_manifest(path) or is_unfinished(path))}
    return [path for path in expanded if path in stages], [path for path in expanded if path not in stages]


def size_on_disk(files: Sequence[InputFile]) -> int:
    """Return the total size of files in bytes, counting each once."""
    return sum({file.path: file.size_bytes for file in files}.values())


def estimate_text_bytes(files: Sequence[InputFile]) -> int:
    """Estimate the bytes of text in files of documents; for prose, the result is right within a factor of two or so."""
    text_bytes = 0.0
    for path, size in {file.path.lower(): file.size_bytes for file in files}.items():
        is_compressed = path.endswith(SUFFIXES) or file_format(path) in TABLES
        text_bytes += size * (_TEXT_PER_COMPRESSED_BYTE if is_compressed else _TEXT_PER_BYTE)
    return round(text_bytes)


def fingerprint_files(paths: Sequence[str], names: Sequence[str] | None = None) -> str:
    """Return a hash of files: their `names` (None: without folders) and contents, in order.

    The order matters because shards are numbered by it.
    """
    contents = storage.map_files(storage.content_fingerprint, paths, local_threads=storage.HASHING_THREADS)
    names = names or [storage.basename(path) for path in paths]
    parts = [[name, content] for name, content in zip(names, contents, strict=True)]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def open_configured(
    documents: str | Sequence[str], config: DocumentConfig, options: RunOptions, output: str = ""
) -> DocumentInput:
    """Open documents as the config says, without those removed from the corpus of `output`; note what is not read."""
    source = open_documents(documents, config)
    if output and (removals := read_removals(storage.parent(output))):
        checked = tuple(dataclasses.replace(shard, removals=removals) for shard in source.shards)
        source = dataclasses.replace(source, shards=checked)
    for note in source.notes:
        options.progress.note(note)
    return source


def open_documents(paths: str | Sequence[str], config: DocumentConfig = _DEFAULTS) -> DocumentInput:
    """Open documents: the folder of a stage or several, or inputs of TEXT_SUFFIXES by name, folder or glob.

    Small files are grouped into shards of at most 64 MiB, large ones split into parts, see `file_parts`.

    Raises InputError if there are none, or if a Parquet or Arrow file lacks the text column.
    """
    paths = [paths] if isinstance(paths, str) else list(paths)
    if len(paths) == 1 and has_manifest(paths[0]):
        manifest = read_manifest(paths[0])
        files_of_stage = StageFolder(paths[0], manifest).files("documents-", ".parquet")
        if not files_of_stage:
            raise InputError(f"{paths[0]}: is the output of {manifest.identity.stage}, which contains no documents")
        document_shards = tuple(DocumentShard(index, (file,)) for index, file in enumerate(files_of_stage))
        return DocumentInput(document_shards, manifest.fingerprint(), manifest.records_out)
    for path in paths:
        if is_unfinished(path):
            check_finished(path, storage.basename(path), ", or name other documents")
    pattern = "documents-*.parquet"
    paths = [storage.join(storage.escape_pattern(path), pattern) if has_manifest(path) else path for path in paths]
    notes: list[str] = []
    files = expand_paths(paths, TEXT_SUFFIXES, notes=notes)
    names = storage.names_below_common_folder(files)
    # Without the other options of a stage, which its tasks get anyway.
    options = DocumentConfig(*(getattr(config, field.name) for field in dataclasses.fields(DocumentConfig)))
    described = storage.map_files(functools.partial(_describe, options), files, local_threads=storage.HASHING_THREADS)
    if not any(description.size_bytes for description in described):
        raise InputError(f"{', '.join(paths)}: is empty (0 bytes); check that the copy is complete")
    groups = list(_group_files(list(zip(files, names, described, strict=True)), options))
    schema = union_schema([description.schema for description in described])
    document_shards = tuple(DocumentShard(index, tuple(group), options, schema) for index, group in enumerate(groups))
    fingerprint = fingerprint_files(files, names)
    if parts := [(file.name, file.part) for file in itertools.chain.from_iterable(groups) if file.part]:
        # A run that began with other parts must not be resumed with these.
        fingerprint = hashlib.sha256(json.dumps([fingerprint, parts]).encode()).hexdigest()
    source = DocumentInput(document_shards, fingerprint, None, tuple(notes))
    common_text_format(source.files)
    return source


def read_documents(shard: DocumentShard, drops: Drops, *, batch_bytes: int | None = None) -> Iterator[pa.RecordBatch]:
    """Yield the documents of a shard as batches with at least `id` and `text`; other columns are kept.

    Batches of tables have about 16 MiB, or `batch_bytes`. A record without text, or a line that is not a JSON object,
    is counted in `drops`. All batches of a shard have the same schema. Raises InputError if no record of a file has
    the text field.
    """
    for is_table, files in itertools.groupby(shard.files, lambda file: file_format(file.path) in TABLES):
        if not is_table:
            sources = (SourceFile(file.path, file.name, file.part) for file in files)
            batches = record_batches(sources, drops, shard.options)
            yield from _unified(batches, shard, drops)
            continue
        for file in files:
            file.verify()
            tables = table_batches(
                file.path, part=file.part, batch_bytes=batch_bytes, is_verified=file.stage is not None
            )
            first_row = file.part.start if file.part else 0
            batches = table_documents(tables, file.path, file.name, first_row, shard.options, drops)
            # The documents in a folder of a stage were checked when they came in.
            yield from batches if file.stage is not None else _unified(batches, shard, drops, file.path)


def _unified(
    batches: Iterator[pa.RecordBatch], shard: DocumentShard, drops: Drops, path: str = ""
) -> Iterator[pa.RecordBatch]:
    """Yield documents in the schema of all files of the input."""
    for batch in batches:
        documents = conform(batch, shard.schema, path) if shard.schema is not None else batch
        kept, removed = shard.removals.split(documents) if shard.removals else (documents, documents[:0])
        for id in removed.column("id").to_pylist():
            drops.add(REMOVED, id)
        yield kept


def document_schema(shard: DocumentShard) -> pa.Schema:
    """Return the schema of the batches that `read_documents` yields for a shard; verify its first file."""
    if shard.schema is not None:
        return shard.schema
    first = shard.files[0]
    first.verify()
    return _describe(shard.options, first.path).schema


class _Description(NamedTuple):
    """What is known of a file of documents before it is read; of Parquet, also the rows of each row group."""

    size_bytes: int
    schema: pa.Schema
    group_rows: Sequence[int] | None = None


def _describe(options: DocumentConfig, path: str) -> _Description:
    size = storage.size_bytes(path)
    form = file_format(path)
    if form not in TABLES:
        return _Description(size, JSONL_SCHEMA)
    if form == "arrow":
        return _Description(size, table_document_schema(table_schema(path), options, path))
    with shards.open_stream(path) as stream:
        parquet = shards.open_parquet(stream, path, lambda schema: table_document_schema(schema, options, path))
        schema = table_document_schema(parquet.schema_arrow, options, path)
        groups = map(parquet.metadata.row_group, range(parquet.metadata.num_row_groups))
        return _Description(size, schema, [group.num_rows for group in groups])


def _group_files(files: Sequence[tuple[str, str, _Description]], options: DocumentConfig) -> Iterator[list[InputFile]]:
    """Group files (path, name, description) into tasks: small ones together, large ones and Parquet by themselves."""
    group: list[InputFile] = []
    size_bytes = 0
    total = estimate_text_bytes([InputFile(path, description.size_bytes) for path, _, description in files])
    for path, name, description in files:
        file = InputFile(path, description.size_bytes, relative_path=name)
        text_bytes = estimate_text_bytes([file])
        parts: Sequence[FilePart] = ()
        if description.group_rows is not None:
            parts = split_rows(description.group_rows, text_bytes, total)
        elif group and size_bytes + file.size_bytes > _GROUP_BYTES:
            yield group
            group, size_bytes = [], 0
        if has_document_lines(path, options):
            parts = split_lines(path, file.size_bytes, text_bytes, total)
        if parts:
            yield from ([dataclasses.replace(file, part=part)] for part in parts)
        elif description.group_rows is not None:
            yield [file]
        else:
            group.append(file)
            size_bytes += file.size_bytes
    if group:
        yield group
