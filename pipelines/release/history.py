"""The version of a release, what changed since the one before, and which documents are no longer in it."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pipelines import storage
from pipelines.corpus.tables import CorpusTables, parquet_files
from pipelines.engine.stage import TaskResult
from pipelines.errors import InputError, UsageError
from pipelines.format import plural
from pipelines.records import shards
from pipelines.records.inputs import StageFolder
from pipelines.release.config import ReleaseConfig
from pipelines.release.files import KEPT, REDACTED_KINDS, REMOVED, REMOVED_SCHEMA
from pipelines.release.sources import RELEASE, previous_files

_FORMAT = 1
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
    old, old_removed = f"(FROM urls WHERE {str(False)})", ""
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
        "SELECT id, arg_min(reason, date) AS reason, min(date) AS date FROM ("
        f"SELECT id, coalesce(outcome, '{REMOVED}') AS reason, '{date}' AS date FROM old LEFT JOIN urls USING (id) "
        f"UNION ALL SELECT id, reason, '{date}' FROM dropped WHERE reason = '{REMOVED}' {old_removed}"
        ") WHERE id NOT IN (SELECT id FROM new) GROUP BY id ORDER BY id"
    )
    with shards.write_shard(output, _REMOVED_FILE, REMOVED_SCHEMA, is_published=True) as writer:
        for batch in removed:
            writer.write_batch(batch.cast(REMOVED_SCHEMA))
    return TaskResult(counts={"removed_since_first_release": writer.records}, files=(*files, writer.entry))
