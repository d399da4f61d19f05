"""The version of a release, what changed since the one before, and which documents are no longer in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from pipelines import storage
from pipelines.corpus.tables import CorpusTables, parquet_files
from pipelines.engine.stage import TaskResult
from pipelines.errors import UsageError
from pipelines.format import plural
from pipelines.records import shards
from pipelines.records.inputs import StageFolder
from pipelines.release.config import ReleaseConfig
from pipelines.release.files import KEPT, REDACTED_KINDS, REMOVED, REMOVED_SCHEMA
from pipelines.release.sources import RELEASE, previous_files

_FORMAT = 1
# Days (UTC) between which pages were captured and links submitted; null if unknown.
_DAY = "strftime(make_timestamp({}), '%Y-%m-%d')"
TIMES = ", ".join(
    f"{_DAY.format(f'{function}({microseconds})')} AS {name}"
    for name, function, microseconds in (
        ("first", "min", "epoch_us(fetched_at)"),
        ("last", "max", "epoch_us(fetched_at)"),
        ("first_created", "min", "nullif(created_utc, 0) * 1000000"),
        ("last_created", "max", "nullif(created_utc, 0) * 1000000"),
    )
)
_REMOVED_FILE = "removed/removed.parquet"
_REMOVALS = "removals.jsonl"


def write_history(
    config: ReleaseConfig,
    lineage: Mapping[str, StageFolder],
    tables: CorpusTables,
    urls: Sequence[str],
    output: str,
    previous: str | None,
    text_format: str | None,
) -> TaskResult:
    """Write `release.json`, and the list of the documents that were removed since the first release.

    `urls` are the files of this release, `previous` is the folder of the one that it replaces. Raises UsageError for a
    date that is not one, or if there is none in the corpus.
    """
    earlier: dict[str, Any] | None = None
    old, old_removed = "(FROM urls WHERE false)", ""
    tables.rows(f"CREATE OR REPLACE TEMP VIEW urls AS FROM {parquet_files(urls)}")
    if previous:
        earlier = storage.read_json(*previous_files(previous, RELEASE))
        old = parquet_files(previous_files(previous, "urls/"))
        old_removed = f"UNION ALL FROM {parquet_files(previous_files(previous, _REMOVED_FILE))}"
    for name, source in (("old", old), ("new", "urls")):
        kept = f"SELECT id, min(text_sha256) AS text_sha256 FROM {source} WHERE outcome = '{KEPT}' GROUP BY id"
        tables.rows(f"CREATE OR REPLACE TEMP VIEW {name} AS {kept}")
    [changes] = tables.rows(
        "SELECT count(*) FILTER (old.id IS NULL) AS added, count(*) FILTER (new.id IS NULL) AS removed, "
        "count(*) FILTER (old.text_sha256 <> new.text_sha256) AS changed FROM old FULL JOIN new USING (id)"
    )
    date = _release_date(config, tables, storage.parent(next(iter(lineage.values())).path), earlier)
    release = {
        "format": _FORMAT,
        "name": config.name,
        "version": next_version(earlier, changes, config.texts),
        "previous": earlier and _name_version(earlier, previous),
        "history": earlier and [*earlier["history"], _history_entry(earlier)] or [],
        "why": config.why or describe_changes(earlier, changes),
        "changes": changes,
        "license": config.license,
        "date": date,
        "texts": config.texts,
        "redacted": list(REDACTED_KINDS) if config.redact else [],
        "stages": {name: _describe_stage(folder) for name, folder in lineage.items()},
        "text_format": text_format,
    }
    files = [shards.write_file(output, RELEASE, storage.json_bytes(release))]
    removed = tables.batches(
        "SELECT id, arg_min(reason, (date, reason)) AS reason, min(date) AS date FROM ("
        f"SELECT id, coalesce(outcome, '{REMOVED}') AS reason, '{date}' AS date FROM old LEFT JOIN urls USING (id) "
        f"UNION ALL SELECT id, reason, '{date}' FROM dropped WHERE reason = '{REMOVED}' {old_removed}"
        ") WHERE id NOT IN (SELECT id FROM new) GROUP BY id ORDER BY id"
    )
    with shards.write_shard(output, _REMOVED_FILE, REMOVED_SCHEMA, is_published=True) as writer:
        for batch in removed:
            writer.write_batch(batch.cast(REMOVED_SCHEMA))
    return TaskResult(counts={"removed_since_first_release": writer.records}, files=(*files, writer.entry))


def next_version(earlier: Mapping[str, Any] | None, changes: Mapping[str, int], has_texts: bool) -> str:
    """Return the version after an earlier release: removals raise the major number, additions the minor one."""
    if earlier is None:
        return "1.0.0"
    major, minor, patch = map(int, earlier["version"].split("."))
    if changes["removed"] or (earlier["texts"] and not has_texts):
        return f"{major + 1}.0.0"
    if changes["added"] or (has_texts and not earlier["texts"]):
        return f"{major}.{minor + 1}.0"
    return f"{major}.{minor}.{patch + 1}"


def describe_changes(earlier: Mapping[str, Any] | None, changes: Mapping[str, int]) -> str:
    """Return the reason of a release for which its maker names none."""
    if earlier is None:
        return "first release"
    counts = [f"{plural(count, 'document')} {change}" for change, count in changes.items() if count]
    return ", ".join(counts) or "the same documents, described or built anew"


def _name_version(release: Mapping[str, Any], folder: str | None) -> dict[str, str]:
    return {"version": release["version"], "sha256": storage.sha256_of(storage.join(folder or "", RELEASE))}


def _history_entry(release: Mapping[str, Any]) -> dict[str, Any]:
    return {name: release[name] for name in ("version", "date", "why", "changes")}


def _describe_stage(folder: StageFolder) -> dict[str, Any]:
    manifest = folder.manifest
    return {
        "version": manifest.identity.version,
        "config": manifest.identity.config,
        "inputs": manifest.identity.inputs,
        "records_in": manifest.records_in,
        "records_out": manifest.records_out,
        "dropped": manifest.dropped,
    }


def _release_date(
    config: ReleaseConfig, tables: CorpusTables, corpus: str, earlier: Mapping[str, Any] | None
) -> str:
    """Return the day that was named, or the latest one in what is released: it does not depend on the clock."""
    if config.date:
        return config.date
    removals = storage.join(corpus, _REMOVALS)
    lines = storage.read_bytes(removals).splitlines() if storage.exists(removals) else []
    [times] = tables.rows(f"SELECT {TIMES} FROM urls")
    days = [times["last"] or times["last_created"], earlier and earlier["date"]]
    days += [msgspec.json.decode(line)["date"] for line in lines]
    if not any(days):
        raise UsageError("the documents have no dates; name that of the release with --date")
    return max(filter(None, days))
