"""Documents to search, in a folder as remove-wikipedia writes it, and their index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from pipelines.engine.manifest import Identity, Manifest, ShardEntry, write_manifest
from pipelines.engine.run import RunOptions, Summary
from pipelines.records import shards
from pipelines.records.schemas import DOCUMENT_SCHEMA

pytest.importorskip("tantivy", reason="needs the package tantivy: pip install '.[search]'")

from pipelines.stages.search.config import SearchConfig
from pipelines.stages.search.stage import search

TEXTS = (
    "The quick brown fox jumps over the lazy dog. The fox is quick.",
    "A lazy afternoon: the dog slept, and the quick cat did not.",
    "Don't stop! Naïve café owners in ISTANBUL say: “E=mc²” works.\n\nПривет, мир. 東京都",
    "fox " * 50 + "and a hound",
    "An evil\x1b[31m text \u202e with <b>quick</b> markup & entities",
)


def document(number: int, text: str, **fields: Any) -> dict[str, Any]:
    """Return a document with a URL."""
    row = dict.fromkeys(DOCUMENT_SCHEMA.names) | {"id": f"id{number}", "url": f"http://www.site{number}.com/page"}
    return row | {"domain": f"site{number}.com", "text": text, "words": len(text.split())} | fields


def write_documents(corpus: Path, files: Sequence[Sequence[Mapping[str, Any]]]) -> None:
    """Write the result of remove-wikipedia, each list of documents in a file, in place of an earlier one."""
    folder = str(corpus / "remove-wikipedia")
    entries = []
    for number, rows in enumerate(files):
        with shards.write_shard(folder, shards.shard_name("documents", number), DOCUMENT_SCHEMA) as writer:
            for row in rows:
                writer.write(row)
        entries.append(ShardEntry("shards", f"documents-{number:05d}", len(rows), len(rows), files=(writer.entry,)))
    write_manifest(folder, Manifest(Identity("remove-wikipedia", 1, {}, {}), tuple(entries)))


def build_index(corpus: Path, output: Path | None = None, **options: Any) -> Summary:
    """Build or update the index of a corpus."""
    documents, target = str(corpus / "remove-wikipedia"), str(output or corpus / "search")
    return search(SearchConfig(), documents=documents, output=target, options=RunOptions(**options))
