"""What describes a release: its version and what changed since the one before, the removed documents, and its pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from pipelines import storage
from pipelines.algorithms.quality.redaction import KINDS
from pipelines.corpus.tables import CorpusTables, parquet_files
from pipelines.engine.manifest import FileEntry
from pipelines.engine.run import TaskResult
from pipelines.errors import UsageError
from pipelines.format import plural
from pipelines.records import inputs, shards
from pipelines.records.data_card import DATA_CARD
from pipelines.records.inputs import StageFolder
from pipelines.records.schemas import make_schema
from pipelines.release.config import ReleaseConfig
from pipelines.release.files import KEPT, REMOVED, URL_SCHEMA, write_published
from pipelines.reports.render import render

RELEASE, SUMS = "release.json", "SHA256SUMS"
PAGES = {name: f"release/{name}" for name in (DATA_CARD, "croissant.json", "training-summary.md")}
OVERLAP = "overlap-report"
_REMOVED_SCHEMA = make_schema(id="string", reason="string", date="string")
_OF_STAGE = ("version", "config", "inputs", "records_in", "records_out", "dropped")
_DAY = "strftime(make_timestamp({}), '%Y-%m-%d')"


def add_views(tables: CorpusTables, texts: Sequence[str], urls: Sequence[str], previous: str | None) -> None:
    """Add the tables of a release, and those of the one before in the folder `previous`, whose files are verified.

    `texts` are the work files of the documents. The documents of both releases are the tables `new` and `old`.
    """
    views = {"texts": parquet_files(texts), "urls": parquet_files(urls), "old_urls": "urls WHERE false"}
    views["old_removed"] = "(SELECT id, reason, reason AS date FROM dropped) WHERE false"
    for prefix in ("urls", "removed") if previous else ():
        files = inputs.open_stage(previous or "", ["release"]).files(f"{prefix}/", ".parquet")
        for file in files:
            file.verify()
        views[f"old_{prefix}"] = parquet_files([file.path for file in files])
    for name, source in {"old": "old_urls", "new": "urls"}.items():
        views[name] = f"(SELECT id, min(text_sha256) AS hash FROM {source} WHERE outcome = '{KEPT}' GROUP BY id)"
    for name, query in views.items():
        tables.rows(f"CREATE TEMP VIEW {name} AS FROM {query}")


def describe_release(
    config: ReleaseConfig,
    lineage: Mapping[str, StageFolder],
    tables: CorpusTables,
    previous: str | None,
    text_format: str | None,
) -> dict[str, Any]:
    """Return what `release.json` says; its history has the earlier versions, the oldest first."""
    [changes] = tables.rows(
        "SELECT count(*) FILTER (old.id IS NULL) AS added, count(*) FILTER (new.id IS NULL) AS removed, "
        "count(*) FILTER (old.hash <> new.hash) AS changed FROM old FULL JOIN new USING (id)"
    )
    release = {
        **{"format": 1, "name": config.name, "version": "1.0.0", "previous": None, "history": []},
        **{"why": config.why or "first release", "changes": changes, "license": config.license},
        **{"date": _date(config, tables), "texts": config.texts, "redacted": KINDS if config.redact else ()},
        "stages": {
            name: {key: value for key, value in folder.manifest.to_json().items() if key in _OF_STAGE}
            for name, folder in lineage.items()
        },
        "text_format": text_format,
    }
    if previous:
        path = storage.join(previous, RELEASE)
        earlier = storage.read_json(path)
        release["version"] = next_version(earlier, changes, config.texts)
        release["previous"] = {"version": earlier["version"], "sha256": storage.sha256_of(path)}
        release["history"] = [*earlier["history"], {key: earlier[key] for key in ("version", "date", "why", "changes")}]
        counts = [f"{plural(count, 'document')} {change}" for change, count in changes.items() if count]
        release["why"] = config.why or ", ".join(counts) or "the same documents, described or built anew"
    return release


def next_version(earlier: Mapping[str, Any], changes: Mapping[str, int], has_texts: bool) -> str:
    """Return the version after an earlier release: removals raise the major number, additions the minor one."""
    major, minor, patch = map(int, earlier["version"].split("."))
    if changes["removed"] or earlier["texts"] > has_texts:
        return f"{major + 1}.0.0"
    return (
        f"{major}.{minor + 1}.0" if changes["added"] or earlier["texts"] < has_texts else f"{major}.{minor}.{patch + 1}"
    )


def _date(config: ReleaseConfig, tables: CorpusTables) -> str:
    """Return the day that was named, or the latest one of pages and requests of removal: not that of the clock."""
    path = storage.join(tables.name, "removals.jsonl")
    lines = storage.read_bytes(path).splitlines() if storage.exists(path) else []
    days = _read_days(tables)
    known = [days["last"] or days["last_created"] or "", *(msgspec.json.decode(line)["date"] for line in lines)]
    if not config.date and not max(known):
        raise UsageError("the documents have no dates; name the day of the release with --date")
    return config.date or max(known)


def _read_days(tables: CorpusTables) -> dict[str, Any]:
    """Return the first and last days (UTC) on which pages were captured and links submitted; None if unknown."""
    times = {"": "epoch_us(fetched_at)", "_created": "nullif(created_utc, 0) * 1000000"}
    days = [
        f"{_DAY.format(f'{function}({time})')} AS {name}{suffix}"
        for suffix, time in times.items()
        for name, function in (("first", "min"), ("last", "max"))
    ]
    return tables.rows(f"SELECT {', '.join(days)} FROM urls")[0]


def write_description(
    release: Mapping[str, Any],
    tables: CorpusTables,
    files: Sequence[FileEntry],
    schema: pa.Schema,
    output: str,
    **values: Any,
) -> TaskResult:
    """Write `release.json`, the list of removed documents, the pages, and `SHA256SUMS` of these and of `files`.

    `schema` is that of the texts; `values` are further ones of the templates.
    """
    own = [shards.write_file(output, RELEASE, storage.json_bytes(release))]
    removed = tables.batches(
        "SELECT id, max(reason) AS reason, min(date) AS date FROM ("
        f"SELECT id, coalesce(outcome, '{REMOVED}') AS reason, '{release['date']}' AS date "
        "FROM old LEFT JOIN urls USING (id) "
        f"UNION ALL SELECT id, reason, '{release['date']}' FROM dropped WHERE reason = '{REMOVED}' "
        "UNION ALL FROM old_removed) WHERE id NOT IN (SELECT id FROM new) GROUP BY id ORDER BY id"
    )
    with shards.write_shard(output, "removed/removed.parquet", _REMOVED_SCHEMA) as writer:
        for batch in removed:
            write_published(writer, pa.RecordBatch.from_arrays(batch.columns, schema=_REMOVED_SCHEMA))
    figures = _read_figures(tables)
    rows = {"data": figures["total"]["documents"] if release["texts"] else 0, "removed": writer.records}
    rows["urls"] = sum(row["links"] for row in figures["outcomes"])
    everything = [*files, *own, writer.entry]
    sizes = {folder: sum(file.size_bytes for file in everything if file.name.startswith(folder)) for folder in rows}
    columns = {
        folder: [(field.name, str(field.type)) for field in columns]
        for folder, columns in (("data", schema), ("urls", URL_SCHEMA), ("removed", _REMOVED_SCHEMA))
        if rows[folder]  # `datasets` cannot load a table without rows
    }
    for name, template in PAGES.items():
        facts = {"release": release, "figures": figures, "rows": rows, "sizes": sizes, "columns": columns}
        page = render(template, **facts, **values)
        own.append(shards.write_file(output, name, page.encode()))
    lines = sorted((file.name, file.sha256) for file in (*files, *own, writer.entry))
    sums = "".join(f"{checksum}  {name}\n" for name, checksum in lines).encode()
    return TaskResult(files=(*own, writer.entry, shards.write_file(output, SUMS, sums)))


def _read_figures(tables: CorpusTables) -> dict[str, Any]:
    """Return what the pages tell: days, and documents, words and bytes in total and by group."""
    sums = "count(*) AS documents, sum(words)::BIGINT AS words, sum(bytes)::BIGINT AS bytes"
    [total] = tables.rows(f"SELECT {sums}, count(DISTINCT domain) AS domains FROM texts")

    def group(value: str, order: str, limit: int, counts: str = f"{sums} FROM texts") -> list[dict[str, Any]]:
        query = f"SELECT {value} AS value, {counts} GROUP BY value ORDER BY {order}, value NULLS LAST LIMIT {limit}"
        return tables.rows(query)

    return {
        **{"total": total, "days": _read_days(tables), "languages": group("language", "documents DESC", 20)},
        "lengths": group("CASE WHEN words > 0 THEN 1 << floor(log2(words))::INTEGER ELSE 0 END", "value", 64),
        # The tenth of all domains with the most text, as the EU's template asks.
        "domains": group("domain", "bytes DESC", -(-total["domains"] // 10)),
        "outcomes": group("outcome", "links DESC", 1000, "count(*) AS links FROM urls"),
    }
