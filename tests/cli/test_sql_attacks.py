"""Attacks by the SQL of `webtext sql` and `webtext show --where`, which people paste from elsewhere."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pipelines import storage
from pipelines.corpus import tables as corpus_tables
from pipelines.corpus.documents import choose_documents
from pipelines.corpus.tables import CorpusTables
from pipelines.engine.run import RunOptions
from pipelines.errors import UsageError
from pipelines.format import to_json
from pipelines.records.document_options import DocumentConfig
from pipelines.stages.dedup.config import DedupConfig
from pipelines.stages.dedup.stage import dedup
from webtext_cli.main import main

Run = Callable[..., str]
_CANARY = "c4n4ry"
_COPY = "COPY (SELECT 1) TO 'out.csv'"
_QUOTED = _COPY.replace("'", "''")
_WITH_COPY = f"WITH x AS ({_COPY}) FROM x"

# Each is wrong usage. SHARD is a file of the corpus.
_STATEMENTS = [
    # More than one statement, or another one.
    "SELECT 1; SELECT 2",
    f"SELECT 1; {_COPY}",
    f"{_COPY}; SELECT 1",
    _COPY,
    "COPY documents TO 'SHARD'",
    "COPY documents FROM 'canary.csv'",
    "EXPORT DATABASE 'out'",
    "IMPORT DATABASE '.'",
    "ATTACH 'out.db'",
    "CREATE TABLE t AS SELECT 1",
    "CREATE OR REPLACE VIEW documents AS SELECT 1",
    "CREATE MACRO words_of(x) AS 1",
    "CREATE PERSISTENT SECRET s (TYPE http, BEARER_TOKEN 'x')",
    "DROP VIEW documents",
    "INSERT INTO input_kept VALUES (1)",
    "DELETE FROM documents",
    "UPDATE documents SET words = 1",
    "SET enable_external_access = true",
    "SET temp_directory = 'out'",
    "RESET lock_configuration",
    "PRAGMA version",
    "CALL pragma_version()",
    "INSTALL httpfs",
    "LOAD 'out.duckdb_extension'",
    "PREPARE p AS SELECT 1",
    "CHECKPOINT",
    # Of what looks like a query.
    f"EXPLAIN {_COPY}",
    f"EXPLAIN ANALYZE {_COPY}",
    f"EXPLAIN /* */ ANALYZE -- \n {_COPY}",
    f"EXPLAIN (ANALYZE, FORMAT json) {_COPY}",
    f"EXPLAIN ANALYZE {_WITH_COPY}",
    f"EXPLAIN SELECT 1; {_COPY}",
    "/* /* */ EXPLAIN SELECT 1 -- */ COPY (SELECT 1) TO 'out.csv'",
    f"/* x */ EXPLAIN (FORMAT 'json') {_COPY}",
    "EXPLAIN (FORMAT 'json) SELECT 1, ') COPY (SELECT 1) TO 'out.csv'",
    _WITH_COPY,
    f"FROM ({_WITH_COPY})",
    "WITH x AS (COPY (SELECT 1) TO 'SHARD' (USE_TMP_FILE false)) FROM x",
    "WITH x AS (INSERT INTO measured VALUES (1) RETURNING *) FROM x",
    f"FROM query('{_WITH_COPY.replace(chr(39), chr(39) * 2)}')",
    f"FROM json_execute_serialized_sql(json_serialize_sql('WITH x AS ({_QUOTED}) FROM x'))",
    f"FROM system.main.\"Json_Execute_Serialized_SQL\"(json_serialize_sql('WITH x AS ({_QUOTED}) FROM x'))",
    "FROM query('FROM json_execute_serialized_sql(''{}'')')",
    "FROM enable_logging(storage = 'file', storage_path = 'out')",
    "FROM enable_profiling(save_location = 'out.json')",
    "FROM destroy_external_resource('json_execute_serialized_sql', '{}')",
    # Files outside the corpus.
    "FROM 'canary.csv'",
    'FROM "canary.csv"',
    "FROM query_table('canary.csv')",
    "FROM query_table('\"documents\"; COPY documents TO ''out.csv''')",
    "FROM query_table(['documents', '(WITH x AS (COPY documents TO ''out.csv'') FROM x)'], true)",
    "FROM histogram_values('canary.csv', a)",
    "FROM histogram_values('(WITH x AS (COPY documents TO ''out.csv'') FROM x)', id)",
    "FROM pragma_table_info('documents; COPY documents TO ''out.csv''')",
    "FROM read_csv_auto('canary.csv')",
    "FROM parquet_scan('other.parquet')",
    "FROM parquet_kv_metadata('other.parquet')",
    "FROM read_json_objects('canary.csv')",
    "FROM read_text('canary.csv')",
    "FROM read_blob('SHARD/../../canary.csv')",
    "FROM read_csv('canary.*')",
    "FROM read_json('canary.csv')",
    "FROM sniff_csv('canary.csv')",
    "FROM glob('*')",
    "FROM read_text('/proc/self/environ')",
    "FROM parquet_metadata('other.parquet')",
    "FROM read_parquet(['SHARD', 'other.parquet'], union_by_name = true)",
    "SELECT (SELECT content FROM read_text('canary.csv')) FROM documents",
    "WITH x AS (FROM read_text('canary.csv')) FROM x",
    "DESCRIBE FROM 'canary.csv'",
    "SUMMARIZE 'canary.csv'",
    "FROM json_execute_serialized_sql(json_serialize_sql('FROM ''canary.csv'''))",
    "FROM read_text('memory://canary')",
    "FROM read_csv('http://127.0.0.1:9/c4n4ry')",
    "SELECT getenv('CANARY')",
    "FROM duckdb_secrets()",
    "FROM which_secret('s3://a/b', 's3')",
    "FROM canary",  # a variable of Python
    # Resources.
    "SELECT list(i) FROM range(1000000000000000000) t(i)",
    "SELECT range(i) FROM (VALUES (40000000)) t(i)",
    "SELECT CASE WHEN i = 5000 THEN error('late') END FROM range(1000000000000000000) t(i)",
    "SELECT range(1000000000000000000)",
    "WITH RECURSIVE a(x) AS (SELECT 'x' UNION ALL SELECT x || x FROM a) SELECT count(*) FROM a",
    "SELECT " + "(" * 100_000 + "1" + ")" * 100_000,
    "SELECT " + "(" * 2_000,
    "SELECT '" + "x" * 200_000 + "'",
    "SELECT '\udcff'",
]
_CONDITIONS = [
    f"true); {_COPY}; SELECT (1",
    f"true; {_COPY}",
    "true;",
    "true) OR (true",
    "1) OR (SELECT true",
    "true) UNION ALL FROM (FROM documents",
    "true) ORDER BY (1",
    "true) LIMIT 1 --",
    "true) -- ",
    "true) /*",
    "true LIMIT 1",
    "true ORDER BY 1",
    "true AS x",
    "true FROM documents",
    "true UNION SELECT true",
    "$$",
    "'",
    ")",
    "words >",
    "SELECT true",
    f"({_COPY})",
    f"id IN ({_WITH_COPY})",
    "id IN (FROM read_text('canary.csv') SELECT content)",
    "(SELECT content FROM read_text('canary.csv')) > '' AND error((SELECT content FROM read_text('canary.csv')))",
    "EXISTS (FROM 'canary.csv')",
    "EXISTS (FROM query('SELECT 1'))",
    "id = ?",
    "$1 = 'exact_duplicate'",
    "true, false",
    "*",
    "(" * 100_000 + "true" + ")" * 100_000,
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("attacks")
    rows = [{"id": f"d{number}", "text": f"text {number}"} for number in range(3)]
    (folder / "docs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        dedup(DedupConfig(), documents="docs.jsonl", output="unique", options=RunOptions())
        storage.write_bytes("memory://canary", _CANARY.encode())
    (folder / "canary.csv").write_text(f"a,b\n{_CANARY},1\n")
    (folder / "other.parquet").write_bytes(next((folder / "unique").glob("documents-*")).read_bytes())
    return folder


@pytest.fixture
def run(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    def attack(*arguments: str, code: int = 2) -> str:
        canary = _CANARY  # noqa: F841 - no table
        assert main([*arguments]) == code
        captured = capsys.readouterr()
        return captured.out + captured.err

    monkeypatch.chdir(folder)
    monkeypatch.setenv("CANARY", _CANARY)
    monkeypatch.setattr(corpus_tables, "available_memory_bytes", lambda: 1 << 28)
    return attack


@pytest.fixture(scope="module")
def opened(folder: Path) -> dict[bool, CorpusTables]:
    """The tables that all statements share, as each has the same views; by whether files are allowed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(corpus_tables, "available_memory_bytes", lambda: 1 << 28)
        return {allowed: CorpusTables(["unique"], DocumentConfig(), RunOptions(), allowed) for allowed in (False, True)}


def _refuse(tables: CorpusTables, statement: str) -> str:
    """Return the error of a statement, which may come after some rows."""
    canary = _CANARY  # noqa: F841 - no table
    with pytest.raises(UsageError) as error:
        to_json([batch.to_pylist() for batch in tables.select(statement)])
    return str(error.value)


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def _shard(folder: Path) -> str:
    return str(next((folder / "unique").glob("documents-*")).relative_to(folder))


def test_no_statement_writes_or_reads_anything_else(opened: dict[bool, CorpusTables], folder: Path, run: Run) -> None:
    before, shard = _files(folder), _shard(folder)
    for statement in _STATEMENTS:
        message = _refuse(opened[False], statement.replace("SHARD", shard))
        assert _CANARY not in message.replace(statement, "").replace("9/c4n4ry", ""), statement
        assert _files(folder) == before, statement


def test_a_refused_statement_about_own_documents_is_answered_in_one_line(folder: Path, run: Run) -> None:
    before, shard = _files(folder), _shard(folder)
    for statement in _STATEMENTS[::5]:
        message = run("sql", statement.replace("SHARD", shard), "-i", "docs.jsonl", "--format", "jsonl")
        assert message.rpartition("\n{")[2].count("\n") <= 2, statement
        assert "report it" not in message, statement
        assert _CANARY not in message.replace(statement, "").replace("9/c4n4ry", ""), statement
        assert _files(folder) == before, statement


@pytest.mark.parametrize("reason", [None, "exact_duplicate"])
def test_no_condition_is_more_than_an_expression(
    reason: str | None, opened: dict[bool, CorpusTables], folder: Path, run: Run
) -> None:
    before = _files(folder)
    for condition in _CONDITIONS:
        with pytest.raises(UsageError) as error:
            choose_documents(opened[False], where=condition, reason=reason)
        assert _CANARY not in str(error.value), condition
        assert _files(folder) == before, condition
    message = run("show", "--where", _CONDITIONS[0], "-i", "unique", *(("--dropped", reason) if reason else ()))
    assert "report it" not in message
    assert _files(folder) == before


def test_local_files_are_read_only_if_allowed(opened: dict[bool, CorpusTables], folder: Path, run: Run) -> None:
    query = ("sql", "FROM 'canary.csv'", "-i", "unique")
    assert "--allow-files lets the query read other local files" in run(*query)
    assert _CANARY in run(*query, "--allow-files", code=0)
    condition = "EXISTS (FROM 'canary.csv')"
    assert "--allow-files" in run("show", "--where", condition, "-i", "unique")
    assert "text 0" in run("show", "--where", condition, "-i", "unique", "--allow-files", code=0)
    before = _files(folder)
    writing = [statement for statement in _STATEMENTS if "out" in statement and "SHARD" not in statement]
    for statement in writing:
        _refuse(opened[True], statement)
        assert _files(folder) == before, statement
    for condition in _CONDITIONS[:3]:
        with pytest.raises(UsageError):
            choose_documents(opened[True], where=condition)
    assert _files(folder) == before


@pytest.mark.parametrize(
    "query",
    [
        "FROM documents",
        "(SELECT 1);",
        "/* a comment */ -- and another one\nVALUES (1)",
        "WITH RECURSIVE a(x) AS (SELECT 1 UNION SELECT x + 1 FROM a WHERE x < 3) FROM a",
        "DESCRIBE documents",
        "SUMMARIZE documents",
        "SHOW TABLES",
        "EXPLAIN FROM documents",
        "explain analyze SELECT 1",
        "EXPLAIN (FORMAT json) (SELECT 1) UNION (SELECT 2)",
        "/* x */ EXPLAIN (FORMAT 'json') SELECT 1",
        "FROM duckdb_settings()",
        "FROM duckdb_views(), pragma_table_info('documents'), histogram_values('documents', id)",
        "FROM query_table('documents')",
        "SELECT * FROM summary((FROM documents))",
        "PIVOT documents ON words IN (1, 2) USING count(*)",
        "SELECT unnest(range(3)), domain_of('http://www.a.org/'), words_of('a b')",
        "SELECT * FROM range(3) t(i), LATERAL (SELECT i), generate_series(1, 2)",
        'SELECT \'"type":"COPY_NODE" COPY x TO y\' AS "COPY"',
    ],
)
@pytest.mark.usefixtures("run")
def test_queries_that_only_read_are_answered(query: str, opened: dict[bool, CorpusTables]) -> None:
    for tables in opened.values():
        assert sum(batch.num_rows for batch in tables.select(query))


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("FROM query('SELECT 1')", "error: the function query is not available in queries\n"),
        ("SELECT $1", "(not allowed: PARAMETER)"),
        ("FROM '/etc/passwd'", "no table /etc/passwd (see --allow-files); the tables"),
        ("SELECT 1" + "+1" * 1200, "Max expression depth limit of 1000 exceeded)\n"),
    ],
)
def test_a_refused_query_is_explained(query: str, message: str, run: Run) -> None:
    assert message in run("sql", query, "-i", "unique")


def test_a_damaged_file_is_named_with_its_remedy(folder: Path, run: Run) -> None:
    for name in (Path(_shard(folder)).name, "clusters.parquet"):
        copy = shutil.copytree(folder / "unique", folder / f"copy of {name}")
        (copy / name).write_bytes(b"x")
        message = run("sql", "FROM documents", "-i", copy.name, code=1)
        assert f"error: {copy.name}/{name}: is damaged (1 bytes, expected " in message
        assert "re-run `webtext dedup` to rebuild it" in message
        shutil.rmtree(copy)


def test_a_folder_whose_name_is_a_pattern_is_read_itself(run: Run) -> None:
    for name in ("g1", "ga*", "g[1a]*'?"):
        storage.write_bytes("pattern.jsonl", to_json({"id": name, "text": "a"}).encode())
        dedup(DedupConfig(), documents="pattern.jsonl", output=f"{name}/d", options=RunOptions())
        tables = CorpusTables([f"{name}/d"], DocumentConfig(), RunOptions())
        assert [row["id"] for row in tables.rows("FROM documents")] == [name]


def test_a_condition_may_have_a_comment_and_a_query_of_the_corpus(run: Run) -> None:
    condition = "id IN (SELECT max(id) FROM documents) -- the last one"
    assert "text 2" in run("show", "--where", condition, "-i", "unique", code=0)


def test_a_corpus_in_an_object_store_is_read_and_nothing_else_there(run: Run, bucket: str) -> None:
    for store in ("memory://bucket", bucket):
        dedup(DedupConfig(), documents="docs.jsonl", output=f"{store}/unique", options=RunOptions(overwrite=True))
        storage.write_bytes(f"{store}/canary", _CANARY.encode())
        tables = CorpusTables([f"{store}/unique"], DocumentConfig(), RunOptions())
        assert [row["id"] for row in tables.rows("FROM documents")] == ["d0", "d1", "d2"]
        with pytest.raises(UsageError, match="--allow-files"):
            tables.rows(f"FROM read_text('{store}/canary')")


def test_rows_that_do_not_fit_into_memory_are_spilled(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus_tables, "available_memory_bytes", lambda: 1 << 26)
    query = "SELECT count(*) AS rows FROM (SELECT DISTINCT repeat(i::TEXT, 20) FROM range(500_000) t(i))"
    assert '{"rows":500000}' in run("sql", query, "-i", "unique", "--json", code=0).replace(" ", "")


def test_a_row_that_is_too_large_is_refused(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus_tables, "_MAX_ROW_BYTES", 1 << 20)
    query = "SELECT range(i) FROM (VALUES (1000000)) t(i)"
    assert "a row has 8.13 MB; select a part of it" in run("sql", query, "-i", "unique")


def test_ctrl_c_ends_a_query(folder: Path) -> None:
    script = "import os, signal, sys, threading; from webtext_cli.main import main; import pipelines.corpus.tables\n"
    script += "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    script += "threading.Timer(2, os.kill, (os.getpid(), signal.SIGINT)).start(); sys.exit(main(sys.argv[1:]))"
    query = "SELECT count(*) FROM range(100_000_000_000_000)"
    command = [sys.executable, "-c", script, "sql", query, "-i", "unique"]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 130
    assert ended.stderr.strip().startswith("interrupted; ")
