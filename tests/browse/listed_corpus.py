"""A corpus of documents in two shards, some of which `dedup` and `filter` dropped, for tests of lists."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipelines.engine.manifest import Identity, Manifest, ShardEntry, write_manifest
from pipelines.records import shards
from pipelines.records.schemas import DOCUMENT_SCHEMA, DROPPED_SCHEMA

DOCUMENTS = 60
HOSTILE = '<script>alert(1)</script>"><img src=x onerror=alert(1)> \u202etxt.exe \x1b[31m'


def id_of(number: int) -> str:
    """Return the id of a document."""
    return f"{number:032x}"


def document(number: int) -> dict[str, Any]:
    """Return a document; every third one is German, every fifth one has no page type."""
    domain = "first.example" if number < 25 else "second.example"
    return {
        "id": id_of(number),
        "url": f"http://{domain}/{number}",
        "domain": domain,
        "title": HOSTILE if number == 7 else f"Title {number}",
        "text": HOSTILE if number == 7 else f"Text {number} begins here. " + "word " * 100,
        "language": "en" if number % 3 else "de",
        "page_type": "article" if number % 5 else None,
        "words": number % 10,
        "score": 100 - number,
        "subreddits": ["Python", "news"] if number % 2 else ["news"],
        "created_utc": 1483228800 + 86400 * 30 * number,  # from 2017 on
        "signals": ["noai"] if number == 8 else [],
    }


def write_corpus(folder: Path) -> Path:
    """Write the stages extract, filter and dedup, of which the last one dropped documents 50 to 59."""
    rows = [document(number) for number in range(DOCUMENTS)]
    write_stage(folder / "extract", rows, [])
    short = [drop(number, "too_short", f"words {number} is below 50") for number in range(40, 50)]
    write_stage(folder / "filter", [*rows[:40], *rows[50:]], short)
    copies = [drop(number, "near_duplicate", id_of(number - 50)) for number in range(50, 60)]
    write_stage(folder / "dedup", rows[:40], copies)
    return folder


def drop(number: int, reason: str, detail: str) -> dict[str, Any]:
    """Return the row of a dropped document."""
    return {"id": id_of(number), "url": document(number)["url"], "reason": reason, "detail": detail}


def write_stage(folder: Path, documents: Sequence[Mapping[str, Any]], dropped: Sequence[Mapping[str, Any]]) -> None:
    """Write the folder of a finished stage in two shards."""
    entries = []
    for shard in range(2):
        half = [rows[shard * len(rows) // 2 : (shard + 1) * len(rows) // 2] for rows in (documents, dropped)]
        files = []
        for noun, rows, schema in zip(("documents", "dropped"), half, (DOCUMENT_SCHEMA, DROPPED_SCHEMA), strict=True):
            with shards.write_shard(str(folder), shards.shard_name(noun, shard), schema) as file:
                file.write_batch(pa.RecordBatch.from_pylist(list(rows), schema))
            files.append(file.entry)
        read, drops = len(half[0]) + len(half[1]), Counter(row["reason"] for row in half[1])
        entries.append(ShardEntry("shards", f"documents-{shard:05d}", read, len(half[0]), drops, files=tuple(files)))
    write_manifest(str(folder), Manifest(Identity(folder.name, 1, {}, {}), tuple(entries)))
