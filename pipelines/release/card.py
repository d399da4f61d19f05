"""The pages that describe a release: its data card, Croissant metadata, and the summary that the EU's template asks for."""

from __future__ import annotations

import bisect
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from pipelines import storage
from pipelines.corpus.tables import CorpusTables, parquet_files
from pipelines.engine.manifest import FileEntry, ShardEntry
from pipelines.engine.stage import TaskResult
from pipelines.records import shards
from pipelines.records.data_card import DATA_CARD
from pipelines.records.inputs import StageFolder
from pipelines.release.config import ReleaseConfig
from pipelines.release.history import TIMES
from pipelines.release.sources import RELEASE
from pipelines.reports.render import render

CROISSANT = "croissant.json"
SUMMARY = "training-summary.md"
SUMS = "SHA256SUMS"
_PAGES = {DATA_CARD: "release/card.md", CROISSANT: "release/croissant.json", SUMMARY: "release/training_summary.md"}
# Folder of the release -> the split of its files, for `datasets.load_dataset`; the first one there is the default.
_CONFIGS = {"data": "documents", "urls": "urls", "removed": "removed"}
# Names of licenses of the Hugging Face Hub that differ from SPDX's, and those that do not but for their case.
_HUB_LICENSES = {"odc-by-1.0": "odc-by", "odbl-1.0": "odbl", "pddl-1.0": "pddl"}
_HUB_LICENSES |= {name: name for name in "cc0-1.0 cc-by-4.0 cc-by-sa-4.0 cc-by-nc-4.0 cc-by-nc-sa-4.0 mit".split()}
_SIZES = ["n<1K", "1K<n<10K", "10K<n<100K", "100K<n<1M", "1M<n<10M", "10M<n<100M", "100M<n<1B", "1B<n<10B"]
_CROISSANT_TYPES = {"string": "sc:Text", "int": "sc:Integer", "float": "sc:Float", "timestamp": "sc:DateTime"}
# Documents in a language that is named at the head of the card.
_MIN_LANGUAGE_SHARE = 0.01


def write_pages(
    config: ReleaseConfig,
    lineage: Mapping[str, StageFolder],
    tables: CorpusTables,
    work: Sequence[str],
    overlap: StageFolder | None,
    entries: Sequence[ShardEntry],
    output: str,
) -> TaskResult:
    """Write the pages and `SHA256SUMS`, which lists all files but itself.

    `work` are the files with what identifies the texts, `entries` those of the Parquet files and of `release.json`.
    """
    release = storage.read_json(storage.join(output, RELEASE))
    files = [file for entry in entries if not entry.work for file in entry.files]
    figures = read_figures(tables, work, [storage.join(output, file.name) for file in files if "urls/" in file.name])
    counts = {name: sum(entry.counts.get(name, 0) for entry in entries) for entry in entries for name in entry.counts}
    license_id = (config.license or "").lower()
    values = {
        "config": config,
        "release": release,
        "lineage": {name: folder.manifest for name, folder in lineage.items()},
        "figures": figures,
        "counts": counts,
        "configs": _describe_folders(files, output),
        "license_url": config.license if "://" in license_id else f"https://spdx.org/licenses/{config.license}.html",
        "hub_license": _HUB_LICENSES.get(license_id),
        "size": _SIZES[bisect.bisect([10**power for power in range(3, 10)], figures["total"]["documents"])],
        "overlap": storage.read_json(storage.join(overlap.path, "report.json")) if overlap else None,
    }
    pages = {name: render(template, **values) for name, template in _PAGES.items()}
    pages[CROISSANT] = json.dumps(json.loads(pages[CROISSANT]), indent=1, ensure_ascii=False) + "\n"
    files += [shards.write_file(output, name, page.encode()) for name, page in pages.items()]
    sums = "".join(f"{file.sha256}  {file.name}\n" for file in sorted(files, key=lambda file: file.name))
    return TaskResult(files=(*files[-len(pages) :], shards.write_file(output, SUMS, sums.encode())))


def read_figures(tables: CorpusTables, work: Sequence[str], urls: Sequence[str]) -> dict[str, Any]:
    """Return what the pages tell of the documents: totals, and documents, words and bytes by group."""
    tables.rows(f"CREATE OR REPLACE TEMP VIEW texts AS FROM {parquet_files(work)}")
    tables.rows(f"CREATE OR REPLACE TEMP VIEW urls AS FROM {parquet_files(urls)}")
    sums = "count(*) AS documents, sum(words)::BIGINT AS words, sum(bytes)::BIGINT AS bytes"
    [total] = tables.rows(f"SELECT {sums}, count(DISTINCT domain) AS domains FROM texts")
    [times] = tables.rows(f"SELECT {TIMES} FROM urls")

    def group(value: str, order: str, limit: int) -> list[dict[str, Any]]:
        query = f"SELECT {value} AS value, {sums} FROM texts GROUP BY value ORDER BY {order}, value NULLS LAST"
        return tables.rows(f"{query} LIMIT {limit}")

    length = "CASE WHEN words > 0 THEN 1 << CAST(floor(log2(words)) AS INTEGER) ELSE 0 END"
    languages = group("language", "documents DESC", 20)
    outcomes = tables.rows("SELECT outcome AS value, count(*) AS urls FROM urls GROUP BY outcome ORDER BY urls DESC, value")
    return {
        "total": total,
        "times": times,
        "languages": languages,
        "codes": [
            row["value"]
            for row in languages
            if re.fullmatch("[a-z]{2,3}", row["value"] or "") and row["documents"] >= _MIN_LANGUAGE_SHARE * total["documents"]
        ],
        "lengths": group(length, "value", 64),
        # The tenth of all domains with most text, as the EU's template asks.
        "domains": group("domain", "bytes DESC", -(-total["domains"] // 10)),
        "small_provider_domains": min(1000, -(-total["domains"] // 20)),
        "outcomes": outcomes,
    }


def _describe_folders(files: Sequence[FileEntry], output: str) -> list[dict[str, Any]]:
    """Return for each folder of Parquet files its name in `datasets`, its columns, rows and sizes."""
    described = []
    for folder, name in _CONFIGS.items():
        inside = [file for file in files if file.name.startswith(f"{folder}/")]
        if not inside:
            continue
        rows = text_bytes = 0
        for file in inside:
            path = storage.join(output, file.name)
            with shards.open_stream(path) as stream:
                parquet = shards.open_parquet(stream, path)
                groups = map(parquet.metadata.row_group, range(parquet.metadata.num_row_groups))
                rows += parquet.metadata.num_rows
                text_bytes += sum(group.total_byte_size for group in groups)
                schema = parquet.schema_arrow
        described.append(
            {
                "name": name,
                "folder": folder,
                "rows": rows,
                "bytes": text_bytes,
                "download_bytes": sum(file.size_bytes for file in inside),
                "features": [_feature(field) for field in schema],
                "fields": [_croissant_field(name, folder, field) for field in schema],
            }
        )
    return described


def _feature(field: pa.Field) -> dict[str, Any]:
    """Return a column as `datasets` describes it."""
    if pa.types.is_list(field.type):
        return {"name": field.name, "list": str(field.type.value_type)}
    names = {"float": "float32", "double": "float64", "timestamp[ms, tz=UTC]": "timestamp[ms, tz=UTC]"}
    return {"name": field.name, "dtype": names.get(str(field.type), str(field.type))}


def _croissant_field(record_set: str, folder: str, field: pa.Field) -> dict[str, Any]:
    is_list = pa.types.is_list(field.type)
    kind = re.match("[a-z]+", str(field.type.value_type if is_list else field.type))
    return {
        "@type": "cr:Field",
        "@id": f"{record_set}/{field.name}",
        "name": field.name,
        "dataType": _CROISSANT_TYPES.get(kind[0] if kind else "", "sc:Text"),
        "source": {"fileSet": {"@id": f"files-{folder}"}, "extract": {"column": field.name}},
        **({"isArray": True, "arrayShape": "-1"} if is_list else {}),
    }
