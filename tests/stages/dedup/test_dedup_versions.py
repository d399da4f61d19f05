from __future__ import annotations

import itertools
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from dedup_run import shingles_of

from pipelines.engine.executor import make_executor
from pipelines.engine.run import RunOptions
from pipelines.stages.dedup.config import DedupConfig
from pipelines.stages.dedup.stage import dedup
from pipelines.storage.compression import open_decompressed


@pytest.mark.slow
def test_versions_of_real_documents_are_found(shared_data, tmp_path):
    """Pages of PowerShell's documentation, versions 5.1 to 7.7: each pair of versions is compared in the plain way."""
    documents, output = shared_data / "text" / "docs.jsonl.zst", tmp_path / "out"
    options = RunOptions(make_executor(2))
    summary = dedup(DedupConfig(), documents=str(documents), output=str(output), options=options)
    assert summary.records_in == summary.records_out + sum(summary.dropped.values())
    listed = {row["id"]: row for row in pq.read_table(output / "clusters.parquet").to_pylist()}
    dropped = {id for id, row in listed.items() if row["kind"] != "kept"}
    near = both_kept = 0
    for versions in _versions(documents):
        sets = {id: set(shingles_of(text, 5)) for id, text in versions.items()}
        for one, other in itertools.combinations(sets, 2):
            if sets[one] and len(sets[one] & sets[other]) / len(sets[one] | sets[other]) >= 0.8:
                near += 1
                both_kept += one not in dropped and other not in dropped
    assert near > 1000
    assert both_kept <= 0.002 * near


def _versions(path: Path) -> Iterator[dict[str, str]]:
    by_page: dict[str, dict[str, str]] = defaultdict(dict)
    with open_decompressed(str(path)) as lines:
        for line in lines:
            row = json.loads(line)
            if row["id"].startswith("powershell-docs/reference/"):
                by_page[row["id"].split("/", 3)[-1]][row["id"]] = row["text"]
    yield from by_page.values()
