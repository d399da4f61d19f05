"""The Parquet files of finished stages as tables of DuckDB, local or in an object store, or documents of any format.

`links`, `pages` and `clusters` are the files of a stage; `documents` those of the last stage that wrote documents, and
`extract_documents` and so on those of one stage; `dropped` has the drops of all stages, with a column `stage`; `tokens`
has the position of each document in the token shards. Stages of `[build] skip` have no tables. Documents that no stage
wrote are those of a stage `input`, whose drops are the records that are not documents.
"""

from __future__ import annotations

import functools
import itertools
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import duckdb
import pyarrow as pa

from pipelines import storage
from pipelines.algorithms.web.urls import canonical_url, is_url_id, registered_domain
from pipelines.corpus_config import require_finished_stages
from pipelines.engine.executor import default_workers
from pipelines.engine.machine import available_memory_bytes
from pipelines.engine.run import RunOptions
from pipelines.errors import InputError, UsageError, WebtextError
from pipelines.format import format_bytes, suggest_nearest
from pipelines.pipeline import DOCUMENT_STAGES, STAGE_FOLDERS
from pipelines.records import inputs
from pipelines.records.document_filter import count_words
from pipelines.records.document_options import DocumentConfig
from pipelines.records.drops import Drops
from pipelines.records.inputs import StageFolder
from pipelines.records.schemas import DROPPED_SCHEMA
from pipelines.storage.object_store import ObjectStore, ThreadedObjectStore

_BATCH_ROWS = 1024
_INPUT = "input"
# What DuckDB raises for a query that it cannot run; OSError for one that fails after its first rows.
_FAILURES = (duckdb.Error, pa.ArrowException, OSError)
# The share of the available memory that a query may use before it spills, and the size of a row that can be converted.
_MEMORY_SHARE, _MAX_ROW_BYTES = 0.8, 256 << 20
# DuckDB's parser takes seconds and gigabytes for more.
_MAX_BYTES, _MAX_BRACKETS = 1 << 17, 100
# What a user's query may consist of, in the JSON of its syntax tree. Since DuckDB 2.0 a WITH clause can contain COPY,
# INSERT and DELETE; some functions of a FROM clause execute a statement in a string or call other functions.
_NODE = re.compile(r'"type":"(?:VALUE_)?(\w+_NODE|PARAMETER)"')
_TABLE_FUNCTION = re.compile(r'"type":"TABLE_FUNCTION".*?"function_name":"(.*?)"')
_ALLOWED = re.compile(
    r"(SELECT|SET_OPERATION|RECURSIVE_CTE|CTE)_NODE|range|generate_series|unnest|repeat|histogram(_values)?|summary|"
    r"json_(each|tree)|query_table|pragma_table_info|duckdb_(columns|functions|settings|tables|views)|glob|sniff_csv|"
    r"read_(csv|n?json)(_auto|_objects)?|read_(parquet|text|blob)|parquet_(scan|schema|(file_|kv_)?metadata)"
)
_EXPLAIN = re.compile(r"(?i)\A\s*EXPLAIN\b(\s+ANALYZE\b)?(\s*\(\s*(ANALYZE|FORMAT)\b([\w\s,]|'\w+')*\))?")
# Split and prefix of its files; `val` is the name in nanoGPT's format.
_SPLITS = (("train", "train"), ("held-out", "held-out"), ("held-out", "val"))
# View -> the stage and the beginning of the names of its files.
_FILES = {"links": ("scrape", "links-"), "pages": ("fetch", "pages-"), "clusters": ("dedup", "clusters.parquet")}


class CorpusTables:
    """A connection to the tables of a corpus folder, or of inputs: folders of different stages, or documents.

    Documents are read for each query, as `config` says; what of them is not read is noted by the progress of `options`.
    Queries read no other files unless `allow_files`, and use `memory_bytes`, or a share of the available memory, before
    they spill. Raises InputError for a corpus without any finished stage.
    """

    def __init__(
        self,
        source: str | Sequence[str],
        config: DocumentConfig,
        options: RunOptions,
        allow_files: bool = False,
        memory_bytes: int | None = None,
    ) -> None:
        self.name = source if isinstance(source, str) else ", ".join(source)
        # Rows are spilled to a folder of temporary files, not to the current folder; nothing is downloaded, and no
        # variable of Python is a table.
        self._connection: duckdb.DuckDBPyConnection = duckdb.connect(
            config={
                "temp_directory": storage.temporary_folder_of(self),
                "memory_limit": f"{memory_bytes or int(_MEMORY_SHARE * (available_memory_bytes() or 1 << 30))}B",
                "threads": default_workers(),
                "autoinstall_known_extensions": False,
                "autoload_known_extensions": False,
                "allow_community_extensions": False,
                "python_enable_replacements": False,
                # Up to this many rows are sorted without their texts, which are read at the end.
                "late_materialization_max_rows": 100_000,
            }
        )
        self.flags = "" if isinstance(source, str) else "".join(f" -i {shlex.quote(path)}" for path in source)
        self.stages, own = _open_stages(source)
        remote = {stage.path.partition("://")[0]: stage.path for stage in self.stages.values() if "://" in stage.path}
        for path in remote.values():
            file_system = storage.file_system(path)
            self._connection.register_filesystem(
                ThreadedObjectStore(file_system.protocol) if isinstance(file_system, ObjectStore) else file_system
            )
        paths = [file.path for stage in self.stages.values() for file in stage.files("", ".parquet")]
        paths += [storage.real_path(path) for path in paths if "://" in path]  # as fsspec names them
        paths += [storage.escape_pattern(path) for path in paths]
        self._errors: list[str] = []
        list(self.batches("SET allowed_paths = ?", [paths]))
        lock = "" if allow_files else "SET enable_external_access = false; "
        # Without the footers of all files, which take longer to read than a document.
        self._connection.execute(f"SET parquet_metadata_cache = true; {lock}SET lock_configuration = true")
        self._connection.create_function("words_of", count_words, ["VARCHAR"], "BIGINT")
        # The function must not return a null.
        self._connection.create_function("domain_of", lambda url: registered_domain(url) or "", ["VARCHAR"], "VARCHAR")
        self.views: list[str] = []
        documents = {name: _scan(self.stages[name], "documents-") for name in DOCUMENT_STAGES if name in self.stages}
        dropped = {name: scan for name, folder in self.stages.items() if (scan := _scan(folder, "dropped-"))}
        if own:
            note = functools.cache(options.progress.note)  # not for each query
            if self.stages:
                note(f"{', '.join(own)}: taken as the input of {', '.join(self.stages)}, whose documents are read")
            opened = inputs.open_configured(own, config, options)
            for name, stream in _open_streams(opened, note, self._errors).items():
                self._connection.register(name, stream)
            documents, dropped = {_INPUT: "FROM input_kept", **documents}, {_INPUT: "FROM input_dropped", **dropped}
        # The stages that wrote documents, in order.
        self.document_stages = [*documents]
        self._create_views(documents, dropped)

    def rows(self, query: str, parameters: Sequence[Any] = ()) -> list[dict[str, Any]]:
        """Return all rows of a query; raise UsageError if there is no such table or column."""
        return [row for batch in self.batches(query, parameters) for row in batch.to_pylist()]

    def first(self, view: str, where: str, values: Sequence[Any], columns: str = "*") -> dict[str, Any] | None:
        """Return the first row that meets a condition, if there is one."""
        return next(iter(self.rows(f"SELECT {columns} FROM {view} WHERE {where} LIMIT 1", values)), None)

    def numbered_documents(self, stage: str) -> str:
        """Return the view of the documents of a stage as in `documents`, with `position`, a number in their order."""
        view = f"numbered_{documents_of(stage)}"
        if view not in self.views:
            scan = "SELECT *, row_number() OVER () AS position FROM input_kept"
            if stage in self.stages:
                number = "(file_index::BIGINT << 32) + file_row_number AS position"
                scan = _scan(self.stages[stage], "documents-", columns=f"*, {number}")
            self._create_documents(f"read_{view}", scan)
            self._create(view, self._fill(stage, f"read_{view}"))
        return view

    def interrupt(self) -> None:
        """End the running query, which raises UsageError; from another thread."""
        self._connection.interrupt()

    def select(self, query: str) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a user's query; raise UsageError for anything but one SELECT, which changes nothing."""
        problem = 'the query is not a single SELECT that only reads, such as "FROM documents LIMIT 5"'
        self.check_selects([query], problem)
        return self.batches(query)

    def check_selects(self, queries: Sequence[str], problem: str) -> None:
        """Raise UsageError, a problem with its cause, if one of the queries is not a single SELECT that only reads."""
        for query in queries:
            depth = max(itertools.accumulate((mark in "([{") - (mark in ")]}") for mark in query), default=0)
            try:
                if len(query.encode()) > _MAX_BYTES or depth > _MAX_BRACKETS:
                    raise ValueError(f"more than {_MAX_BYTES:,} bytes or {_MAX_BRACKETS} open brackets")
                statements = self._connection.extract_statements(query)
                selected = _EXPLAIN.sub("", "".join(statement.query for statement in statements))  # without comments
                [(tree,)] = self._connection.execute("SELECT json_serialize_sql(?::TEXT)", [selected]).fetchall()
            except (*_FAILURES, ValueError) as error:
                raise UsageError(f"{problem} ({self._explain(str(error))})") from error
            parts = [*_NODE.findall(tree), *_TABLE_FUNCTION.findall(tree)]
            refused = next((part for part in parts if not _ALLOWED.fullmatch(part)), "")
            if refused and not refused.isupper():
                raise UsageError(f"the function {refused} is not available in queries")
            if len(statements) != 1 or not parts or refused:
                raise UsageError(f"{problem} (not allowed: {refused or 'any other statement'})")

    def schema(self, view: str) -> pa.Schema:
        """Return the columns of a table; raise UsageError if it is not there."""
        [schema] = {batch.schema for batch in self.batches(f"SELECT * FROM {view} LIMIT 0")}
        return schema

    def batches(self, query: str, parameters: Sequence[Any] = ()) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a query, an empty batch first; raise UsageError if there is no such table or column."""
        # The main thread would not notice Ctrl-C while DuckDB works.
        with ThreadPoolExecutor(1) as thread:
            try:
                run = functools.partial(self._connection.sql, query, params=list(parameters))
                relation: duckdb.DuckDBPyRelation | None = thread.submit(run).result()
                if relation is None:  # a statement that is no query
                    return
                reader = thread.submit(relation.to_arrow_reader, _BATCH_ROWS).result()
                yield pa.RecordBatch.from_pylist([], schema=reader.schema)
                while (batch := thread.submit(next, reader, None).result()) is not None:
                    if batch.nbytes > _MAX_ROW_BYTES * (batch.num_rows or 1):
                        raise UsageError(f"a row has {format_bytes(batch.nbytes)}; select a part of it")
                    yield batch
            except _FAILURES as error:
                if self._errors:
                    raise InputError(self._errors.pop()) from None
                raise UsageError(self._explain(str(error))) from error
            except KeyboardInterrupt:
                self._connection.interrupt()
                raise

    def _create_views(self, documents: Mapping[str, str], dropped: Mapping[str, str]) -> None:
        for view, (stage, prefix) in _FILES.items():
            if stage in self.stages:
                self._create(view, _scan(self.stages[stage], prefix))
        for stage, scan in documents.items():
            self._create_documents(documents_of(stage), scan)
        if self.document_stages:
            self._create("documents", self._fill(self.document_stages[-1], documents_of(self.document_stages[-1])))
        if "tokenize" in self.stages:
            tokens = [
                f"SELECT '{split}' AS split, replace(parse_filename(filename), '-documents.parquet', '') AS shard, "
                f"* EXCLUDE (filename) FROM ({scan})"
                for split, name in _SPLITS
                if (scan := _scan(self.stages["tokenize"], f"{name}-", "-documents.parquet", ", filename = true"))
            ]
            self._create("tokens", " UNION ALL ".join(tokens))
        drops = [f"SELECT '{name}' AS stage, id, url, reason, detail FROM ({scan})" for name, scan in dropped.items()]
        self._create("dropped", " UNION ALL ".join(drops))

    def _create_documents(self, view: str, scan: str) -> None:
        url = "" if "url" in self.schema(f"({scan})").names else ", NULL::VARCHAR AS url"  # own files may lack it
        self._create(view, f"SELECT *{url} FROM ({scan})")

    def _fill(self, stage: str, view: str) -> str:
        """Return a query of a view of documents of a stage, with the words and domains that own documents lack."""
        schema = self.schema(view)
        has_words = stage != _INPUT and "words" in schema.names
        if has_words and not self.first(view, "words IS NULL", (), "id"):  # as of all documents of extract
            return f"FROM {view}"
        values = {"words": ("words_of(text)", pa.int64()), "domain": ("nullif(domain_of(url), '')", pa.string())}
        filled = [
            f"coalesce({key}, {value}) AS {key}"
            for key, (value, kind) in values.items()
            if pa.field(key, kind) in schema
        ]
        added = [f", {value} AS {key}" for key, (value, _) in values.items() if key not in schema.names]
        replace = f"REPLACE ({', '.join(filled)})" if filled else ""
        return f"SELECT * {replace} {' '.join(added)} FROM {view}"

    def _create(self, view: str, query: str) -> None:
        if query:
            list(self.batches(f'CREATE VIEW "{view}" AS {query}'))
            self.views.append(view)

    def _explain(self, message: str) -> str:
        """Return DuckDB's message in one line, with advice; raise DamagedShardError if a file is damaged."""
        for file in itertools.chain(*(stage.files("", ".parquet") for stage in self.stages.values())):
            if file.path in message:
                file.verify()
        line, _, rest = re.sub(r'\.( Use "SET .*)?(?=\n|\Z)', "", message).partition("\n")  # settings are locked
        if "disabled by configuration" in line:
            return f"{line}; --allow-files lets the query read other local files"
        if "Out of Memory" in line or "maximum total string size" in line:
            return f"{line}; select less, or what can be computed with less memory"
        candidates = next((line for line in rest.split("\n") if line.startswith("Candidate bindings")), None)
        if candidates:
            return f"{line} {candidates}"
        absent = line.partition("Table with name ")[2].partition(" ")[0]
        if not absent or not self.views:
            return line
        why = f", which {_FILES[absent][0]} writes" if absent in _FILES else " (see --allow-files)" * ("/" in absent)
        tables = f"the tables of {', '.join(self.stages) or 'the input'} are {', '.join(self.views)}"
        tables += f": `webtext sql{self.flags} 'FROM {self.views[0]}'`"
        return f"{self.name}: no table {absent}{why}; {suggest_nearest(absent, self.views, tables)}"


class _Stream:
    """Batches that every query reads anew, through Arrow's PyCapsule interface."""

    def __init__(self, schema: pa.Schema, read: Callable[[], Iterator[pa.RecordBatch]]) -> None:
        self._schema, self._read = schema, read

    def __arrow_c_stream__(self, _schema: object = None) -> object:
        return pa.RecordBatchReader.from_batches(self._schema, self._read()).__arrow_c_stream__()


def _open_streams(source: inputs.DocumentInput, note: Callable[[str], None], errors: list[str]) -> dict[str, _Stream]:
    """Return the documents in files, and the records in them that are not documents, for one note about each."""

    def read(drops: Drops) -> Iterator[pa.RecordBatch]:
        try:
            for shard in source.undivided:
                yield from inputs.read_documents(shard, drops)
        except WebtextError as error:  # DuckDB's message would have the traceback
            errors.append(str(error))
            raise

    def read_kept() -> Iterator[pa.RecordBatch]:
        yield from read(drops := Drops())
        if message := drops.describe_bad_records():
            note(message)

    def read_dropped() -> Iterator[pa.RecordBatch]:
        rows: list[dict[str, Any]] = []
        for _ in itertools.chain(read(Drops(rows.append)), [None]):
            yield pa.RecordBatch.from_pylist(rows, schema=DROPPED_SCHEMA)
            rows.clear()

    kept = _Stream(inputs.document_schema(source.shards[0]), read_kept)
    return {"input_kept": kept, "input_dropped": _Stream(DROPPED_SCHEMA, read_dropped)}


def _open_stages(source: str | Sequence[str]) -> tuple[dict[str, StageFolder], list[str]]:
    """Return the stages of a corpus, or those whose folders are inputs, and the other inputs, which are documents."""
    if isinstance(source, str):
        source = [storage.join(source, name) for name in require_finished_stages(source)]
    folders, own = inputs.separate_stages(source)
    stages: dict[str, StageFolder] = {}
    for folder in folders:
        stage = inputs.open_stage(folder, STAGE_FOLDERS)
        other = stages.setdefault(stage.manifest.identity.stage, stage)
        if other is not stage:
            raise UsageError(f"{folder}: is of the same stage as {other.path}; name one of them")
    return stages, own


def documents_of(stage: str) -> str:
    """Return the view of the documents of a stage."""
    return f"{stage.replace('-', '_')}_documents"


def resolve(target: str, *, is_id: bool = False) -> tuple[str, tuple[str, ...]]:
    """Return the column that tells which document a user means, `id` or `url`, and its values, the likeliest first.

    A URL is compared as it is, since lists of URLs and texts from elsewhere have it in any form, then in its canonical
    form. Raises UsageError for a URL that is not http(s).
    """
    if is_id or "://" not in target:
        return "id", (target.lower() if is_url_id(target.lower()) else target,)
    url = canonical_url(target)
    if url is None:
        raise UsageError(f"{target}: is not an http(s) URL; give a URL or the id of a document")
    return "url", tuple(dict.fromkeys((target, url)))


def place_of(id: str, url: str | None) -> tuple[str, list[str]]:
    """Return the condition that selects a document, and its values.

    It includes the URL if that is known: documents are in the order of their URLs, so that DuckDB reads few.
    """
    return ("id = ?", [id]) if url is None else ("url = ? AND id = ?", [url, id])


def _scan(folder: StageFolder, prefix: str, suffix: str = ".parquet", options: str = "", columns: str = "*") -> str:
    """Return a query of the files of a stage with such names; empty if there are none."""
    paths = [file.path for file in folder.files(prefix, suffix)]
    return f"SELECT {columns} FROM {parquet_files(paths, options)}" if paths else ""


def parquet_files(paths: Sequence[str], options: str = "", reader: str = "read_parquet") -> str:
    """Return Parquet files, or those of another reader, as a table of a query."""
    names = ", ".join("'" + storage.escape_pattern(path).replace("'", "''") + "'" for path in paths)
    return f"{reader}([{names}]{options})"
