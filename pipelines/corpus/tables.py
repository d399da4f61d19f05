"""The Parquet files of finished stages as tables of DuckDB, local or in an object store.

`links`, `pages` and `clusters` are the files of a stage; `documents` those of the last stage that wrote documents, and
`extract_documents` and so on those of one stage; `dropped` has the drops of all stages, with a column `stage`; `tokens`
has the position of each document in the token shards. Stages of `[build] skip` have no tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pipelines import storage
from pipelines.algorithms.web.urls import canonical_url, is_url_id
from pipelines.build import finished_stages
from pipelines.errors import InputError, UsageError
from pipelines.extras import require_extra
from pipelines.pipeline import DOCUMENT_STAGES
from pipelines.records.inputs import StageFolder, open_stage
from pipelines.storage.object_store import ObjectStore, ThreadedObjectStore

if TYPE_CHECKING:
    import duckdb

_BATCH_ROWS = 1024
# Split and prefix of its files; `val` is the name in nanoGPT's format.
_SPLITS = (("train", "train"), ("held-out", "held-out"), ("held-out", "val"))
# View -> the stage and the beginning of the names of its files.
_FILES = {"links": ("scrape", "links-"), "pages": ("fetch", "pages-"), "clusters": ("dedup", "clusters.parquet")}
_UNIONS = {"documents": " or ".join(DOCUMENT_STAGES), "dropped": "any stage", "tokens": "tokenize"}


class CorpusTables:
    """A connection to the tables of a corpus. Raises InputError for a corpus without any finished stage."""

    def __init__(self, corpus: str) -> None:
        require_extra("sql", f"{corpus}: a query", "duckdb")
        import duckdb  # deferred: only queries need it

        self._failures = (duckdb.Error, pa.ArrowException)
        self.corpus = corpus
        # Rows are spilled to the folder of temporary files, not to the current folder; nothing is downloaded.
        self._connection: duckdb.DuckDBPyConnection = duckdb.connect(
            config={
                "temp_directory": storage.temporary_path("webtext-duckdb"),
                "autoinstall_known_extensions": False,
                # Up to this many rows are sorted without their texts, which are read at the end.
                "late_materialization_max_rows": 100_000,
            }
        )
        self.stages = {name: open_stage(storage.join(corpus, name), (name,)) for name in finished_stages(corpus)}
        if not self.stages:
            raise InputError(
                f"{corpus}: has no finished stage; run `webtext build`, or name another folder with --corpus"
            )
        if "://" in corpus:
            file_system = storage.file_system(corpus)
            self._connection.register_filesystem(
                ThreadedObjectStore(file_system.protocol) if isinstance(file_system, ObjectStore) else file_system
            )
        self.views: list[str] = []
        self._create_views()

    @property
    def document_stages(self) -> list[str]:
        """The finished stages that wrote documents, in order."""
        return [stage for stage in DOCUMENT_STAGES if stage in self.stages]

    def rows(self, query: str, parameters: Sequence[Any] = ()) -> list[dict[str, Any]]:
        """Return all rows of a query; raise UsageError if there is no such table or column."""
        return [row for batch in self.batches(query, parameters) for row in batch.to_pylist()]

    def first(self, view: str, where: str, values: Sequence[Any], columns: str = "*") -> dict[str, Any] | None:
        """Return the first row that meets a condition, if there is one."""
        return next(iter(self.rows(f"SELECT {columns} FROM {view} WHERE {where} LIMIT 1", values)), None)

    def select(self, query: str) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a user's query; raise UsageError for anything but one SELECT, which changes nothing."""
        import duckdb

        try:
            kinds = [statement.type for statement in duckdb.extract_statements(query)]
        except duckdb.Error as error:
            raise UsageError(self._explain(str(error))) from error
        if kinds not in ([duckdb.StatementType.SELECT], [duckdb.StatementType.EXPLAIN]):
            raise UsageError("the query is not a single SELECT, FROM, DESCRIBE or SUMMARIZE; the corpus is read-only")
        return self.batches(query)

    def columns(self, view: str) -> list[str]:
        """Return the names of the columns of a table; raise UsageError if it is not there."""
        [schema] = {batch.schema for batch in self.batches(f"SELECT * FROM {view} LIMIT 0")}
        return list(schema.names)

    def batches(self, query: str, parameters: Sequence[Any] = ()) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a query, an empty batch first; raise UsageError if there is no such table or column."""
        try:
            relation: duckdb.DuckDBPyRelation | None = self._connection.sql(query, params=list(parameters))
            if relation is None:  # a statement that is no query
                return
            reader = relation.to_arrow_reader(_BATCH_ROWS)
            yield pa.RecordBatch.from_pylist([], schema=reader.schema)
            yield from reader
        except self._failures as error:
            raise UsageError(self._explain(str(error))) from error

    def _create_views(self) -> None:
        for view, (stage, prefix) in _FILES.items():
            if stage in self.stages:
                self._create(view, _scan(self.stages[stage], prefix))
        for stage in self.document_stages:
            documents = f"({_scan(self.stages[stage], 'documents-')})"
            url = "" if "url" in self.columns(documents) else ", NULL::VARCHAR AS url"  # foreign ones may have none
            self._create(documents_of(stage), f"SELECT *{url} FROM {documents}")
        if self.document_stages:
            self._create("documents", f"SELECT * FROM {documents_of(self.document_stages[-1])}")
        dropped = [
            f"SELECT '{name}' AS stage, id, url, reason, detail FROM ({scan})"
            for name, folder in self.stages.items()
            if (scan := _scan(folder, "dropped-"))
        ]
        self._create("dropped", " UNION ALL ".join(dropped))
        if "tokenize" in self.stages:
            tokens = [
                f"SELECT '{split}' AS split, replace(parse_filename(filename), '-documents.parquet', '') AS shard, "
                f"* EXCLUDE (filename) FROM ({scan})"
                for split, name in _SPLITS
                if (scan := _scan(self.stages["tokenize"], f"{name}-", "-documents.parquet", ", filename = true"))
            ]
            self._create("tokens", " UNION ALL ".join(tokens))

    def _create(self, view: str, query: str) -> None:
        if query:
            self._connection.execute(f'CREATE VIEW "{view}" AS {query}')
            self.views.append(view)

    def _explain(self, message: str) -> str:
        """Return DuckDB's message in one line; about an absent table with those that there are, and why it is not."""
        line, _, rest = message.partition("\n")
        candidates = next((line for line in rest.split("\n") if line.startswith("Candidate bindings")), None)
        if candidates:
            return f"{line} {candidates}"
        if "Table with name" not in line:
            return line
        for view in {*_FILES, *_UNIONS, *map(documents_of, DOCUMENT_STAGES)} - {*self.views}:
            if f"Table with name {view} does not exist" in line:
                stage = _FILES[view][0] if view in _FILES else _UNIONS.get(view, view.removesuffix("_documents"))
                line = (
                    f"{self.corpus}: no table {view}, because {stage.replace('_', '-')} has not finished or is skipped"
                )
        return f"{line}; the tables are {', '.join(self.views)}"


def documents_of(stage: str) -> str:
    """Return the view of the documents of a stage."""
    return f"{stage.replace('-', '_')}_documents"


def resolve(target: str) -> tuple[str, tuple[str, ...]]:
    """Return the column that tells which document a user means, `id` or `url`, and its values, the likeliest first.

    A URL is compared as it is, since lists of URLs and texts from elsewhere have it in any form, then in its canonical
    form. Raises UsageError for a URL that is not http(s).
    """
    if "://" not in target:
        if canonical_url(f"http://{target}") and "." in target.partition("/")[0] and "/" in target:
            raise UsageError(f"{target}: is neither an id nor a complete URL; begin it with http:// or https://")
        if not target:
            raise UsageError("the id or URL is empty")
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


def _scan(folder: StageFolder, prefix: str, suffix: str = ".parquet", options: str = "") -> str:
    """Return a query of the files of a stage with such names; empty if there are none."""
    paths = [file.path for file in folder.files(prefix, suffix)]
    names = ", ".join("'" + path.replace("'", "''") + "'" for path in paths)
    return f"SELECT * FROM read_parquet([{names}]{options})" if paths else ""
