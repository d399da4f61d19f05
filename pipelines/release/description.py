"""What describes a release: its version and what changed since the one before, the removed documents, and its pages."""

from __future__ import annotations

import pkgutil
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from pipelines import storage
from pipelines.algorithms.quality.redaction import KINDS
from pipelines.corpus.statistics import GROUPS
from pipelines.corpus.tables import CorpusTables, parquet_files
from pipelines.engine.manifest import FileEntry, ShardEntry
from pipelines.engine.run import REMOVAL, TaskResult
from pipelines.errors import UsageError
from pipelines.format import plural
from pipelines.records import inputs, shards
from pipelines.records.data_card import DATA_CARD
from pipelines.records.inputs import StageFolder
from pipelines.records.removals import LIST, read_requests
from pipelines.records.schemas import make_schema
from pipelines.release.config import ReleaseConfig
from pipelines.release.files import URL_SCHEMA, write_published
from pipelines.reports.render import render

RELEASE, SUMS = "release.json", "SHA256SUMS"
PAGES = {name: f"release/{name}" for name in (DATA_CARD, "croissant.json", "training-summary.md")}
OVERLAP = "overlap-report"
_NO_DATES = "the documents have no dates; name the day of the release with --date"
_REMOVED_SCHEMA = make_schema(id="string", reason="string", date="string")
_OF_STAGE = ("version", "config", "inputs", "records_in", "records_out", "dropped")
_TOTAL = "count(*) AS documents, coalesce(sum(words), 0)::BIGINT AS words, coalesce(sum(bytes), 0)::BIGINT AS bytes"


class Source(NamedTuple):
    """What is described: a corpus, the version before (its folder, or empty), and the files of the release."""

    config: ReleaseConfig
    lineage: Mapping[str, StageFolder]
    previous: str
    text_format: str | None
    output: str
    tables: CorpusTables
    texts: Sequence[ShardEntry]  # of the work files of the documents
    files: Sequence[FileEntry]  # of data/ and urls/
    schema: pa.Schema  # of data/


def describe(source: Source) -> TaskResult:
    """Write `release.json`, the list of removed documents, the pages, and `SHA256SUMS` of all files but itself."""
    output, tables = source.output, source.tables
    _add_views(source)
    release = _describe_release(source)
    files = [*source.files, shards.write_file(output, RELEASE, storage.json_bytes(release))]
    with shards.write_shard(output, "removed/removed.parquet", _REMOVED_SCHEMA) as writer:
        for batch in tables.batches("FROM removed_until(?)", [release["date"]]):
            write_published(writer, pa.RecordBatch.from_arrays(batch.columns, schema=_REMOVED_SCHEMA))
    query = "SELECT count(*) AS documents FROM removed_until(?) WHERE reason = 'removed'"
    figures = _read_figures(tables) | {"requested": tables.rows(query, [release["date"]])[0]["documents"]}
    files.append(writer.entry)
    rows = {"data": figures["total"]["documents"] if release["texts"] else 0}
    rows |= {"urls": sum(row["links"] for row in figures["outcomes"]), "removed": writer.records}
    schemas = {"data": source.schema, "urls": URL_SCHEMA, "removed": _REMOVED_SCHEMA}
    values = {
        **{"config": source.config, "release": release, "figures": figures, "rows": rows},
        "lineage": {name: folder.manifest for name, folder in source.lineage.items()},
        "redactions": sum((Counter(entry.counts) for entry in source.texts), Counter()),
        "sizes": {folder: sum(file.size_bytes for file in files if file.name.startswith(folder)) for folder in rows},
        # `datasets` cannot load a table without rows.
        "columns": {name: [(field.name, str(field.type)) for field in schemas[name]] for name in rows if rows[name]},
        "overlap": OVERLAP in source.lineage and storage.read_json(f"{source.lineage[OVERLAP].path}/report.json"),
    }
    files += [shards.write_file(output, name, render(PAGES[name], **values).encode()) for name in PAGES]
    sums = "".join(f"{file.sha256}  {file.name}\n" for file in sorted(files, key=lambda file: file.name)).encode()
    return TaskResult(files=(*files[len(source.files) :], shards.write_file(output, SUMS, sums)))


def _add_views(source: Source) -> None:
    """Add the tables of a release, and of the version before, whose files are verified."""
    urls = [storage.join(source.output, file.name) for file in source.files if file.name.startswith("urls/")]
    texts = parquet_files([storage.join(source.output, entry.files[0].name) for entry in source.texts])
    views = {"texts": texts, "urls": parquet_files(urls), "old_urls": "urls WHERE false"}
    views["old_removed"] = "(SELECT id, reason, reason AS date FROM dropped) WHERE false"
    folder = storage.join(source.tables.name, storage.parent(REMOVAL))
    reports = [name[:-5] for name in storage.list_folder(folder) if re.fullmatch(r"[0-9]+\.json", name)]
    lists = parquet_files([storage.join(folder, f"{name}-ids.json") for name in reports], reader="read_text")
    views["requested"] = f"(SELECT unnest(json_keys(content)) AS id FROM {lists})" if reports else "urls WHERE false"
    for prefix in ("urls", "removed") if source.previous else ():
        old = inputs.open_stage(source.previous, ["release"]).files(f"{prefix}/", ".parquet")
        for file in old:
            file.verify()
        views[f"old_{prefix}"] = parquet_files([file.path for file in old])
    queries = [f"CREATE TEMP VIEW {name} AS FROM {table}" for name, table in views.items()]
    for query in (*queries, *(pkgutil.get_data("pipelines.release", "tables.sql") or b"").decode().split(";")):
        source.tables.rows(query)


def check_dates(tables: CorpusTables) -> None:
    """Raise UsageError, before anything is built, if neither documents nor requests of removal have days."""
    names = {"fetched_at", "created_utc"}.intersection(tables.schema("documents").names)
    is_dated = any(tables.first("documents", f"{name} IS NOT NULL", (), name) for name in names)
    if not is_dated and not storage.exists(storage.join(tables.name, LIST)):
        raise UsageError(_NO_DATES)


def _describe_release(source: Source) -> dict[str, Any]:
    """Return what `release.json` says; its history has the earlier versions, the oldest first."""
    config, [changes] = source.config, source.tables.rows("FROM changes")
    release = {
        **{"format": 1, "name": config.name, "version": "1.0.0", "previous": None, "history": []},
        **{"why": config.why or "first release", "changes": changes, "license": config.license},
        **{"date": _date(source), "texts": config.texts, "redacted": KINDS if config.redact else ()},
        "stages": {
            name: {key: value for key, value in folder.manifest.to_json().items() if key in _OF_STAGE}
            for name, folder in source.lineage.items()
        },
        "text_format": source.text_format,
    }
    if source.previous:
        path = storage.join(source.previous, RELEASE)
        earlier = storage.read_json(path)
        release["version"] = next_version(earlier, changes, config.texts)
        release["previous"] = {"version": earlier["version"], "sha256": storage.sha256_of(path)}
        release["history"] = [*earlier["history"], {key: earlier[key] for key in ("version", "date", "why", "changes")}]
        counts = [f"{plural(count, 'document')} {change}" for change, count in changes.items() if count]
        counts += ["texts published" if config.texts else "texts withdrawn"] * (config.texts != earlier["texts"])
        release["why"] = config.why or ", ".join(counts) or "the same documents, described or built anew"
    return release


def next_version(earlier: Mapping[str, Any], changes: Mapping[str, int], has_texts: bool) -> str:
    """Return the version after an earlier release: removals raise the major number, additions the minor one."""
    major, minor, patch = map(int, earlier["version"].split("."))
    if changes["removed"] or earlier["texts"] > has_texts:
        return f"{major + 1}.0.0"
    is_larger = changes["added"] or earlier["texts"] < has_texts
    return f"{major}.{minor + 1}.0" if is_larger else f"{major}.{minor}.{patch + 1}"


def _date(source: Source) -> str:
    """Return the day that was named, or the latest of pages, requests of removal and earlier version: not the clock."""
    path, [days] = storage.join(source.tables.name, LIST), source.tables.rows("FROM days")
    requests = read_requests(path) if storage.exists(path) else []
    known = [days["last"] or days["last_created"] or "", *(str(request.date) for request in requests)]
    if source.previous:
        known.append(storage.read_json(storage.join(source.previous, RELEASE))["date"])
    if not source.config.date and not max(known):
        raise UsageError(_NO_DATES)
    return source.config.date or max(known)


def _read_figures(tables: CorpusTables) -> dict[str, Any]:
    """Return what the pages tell: days, and documents, words and bytes in total and by group."""
    [total] = tables.rows(f"SELECT {_TOTAL}, count(DISTINCT domain) AS domains FROM texts")

    def group(value: str, order: str, limit: int, counts: str = f"{_TOTAL} FROM texts") -> list[dict[str, Any]]:
        query = f"SELECT {value} AS value, {counts} GROUP BY value ORDER BY {order}, value NULLS LAST LIMIT {limit}"
        return tables.rows(query)

    return {
        **{"total": total, "days": tables.rows("FROM days")[0], "lengths": group(GROUPS["length"][1], "value", 64)},
        "languages": group("language", "documents DESC", 20),
        # The tenth of all domains with the most text, as the EU's template asks.
        "domains": group("domain", "bytes DESC", -(-total["domains"] // 10)),
        "outcomes": group("outcome", "links DESC", 1000, "count(*) AS links FROM urls"),
    }
