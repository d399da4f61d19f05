"""The documents of a release as the links that fetch reads, with what their texts are to be compared with."""

from __future__ import annotations

import dataclasses
import hashlib
import re
import zlib
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines import storage
from pipelines.algorithms.minhash.sketch import SKETCH_TYPE
from pipelines.engine.journal import WORK
from pipelines.engine.manifest import Identity
from pipelines.engine.run import RunOptions, Stage, Summary, TaskResult, stage_run
from pipelines.errors import InputError, translate_format_errors
from pipelines.records import shards
from pipelines.records.buckets import bucket_part, write_buckets
from pipelines.records.removals import REMOVED, Removals, read_removals
from pipelines.records.schemas import LINK_SCHEMA, make_schema

# Fetch and extract read the folder as that of scrape.
STAGE = Stage("scrape", 1)
EXPECTED = ("id", "url", "text_sha256", "sketch")
_ADDED = make_schema(id="string", text_sha256=pa.binary(32), sketch=SKETCH_TYPE, captured_at="instant?")
# A release names no authors.
_SCHEMA = pa.schema([*(field for field in LINK_SCHEMA if field.name != "authors"), *_ADDED])
# What scrape writes where a source does not tell.
_UNKNOWN = {"domain": "", "score": 0, "title": "", "created_utc": 0, "submission_ids": [], "subreddits": []}
_COLUMNS = [*EXPECTED, *_UNKNOWN, "outcome", "fetched_at", "captured_at"]
NO_OPTIONS = dataclasses.make_dataclass("NoOptions", ())()
_TABLE = re.compile(r"urls/urls-\d+\.parquet")
_PART = WORK + "/links-{:05d}.buckets"


class Release(NamedTuple):
    """A release: its description, the stages of its corpus, the paths of its tables of URLs, and a hash of them."""

    path: str
    stages: Mapping[str, Identity]
    urls: list[str]
    fingerprint: str


def open_release(folder: str) -> Release:
    """Open a release; raise InputError if it is none, or if a file that is read does not match its checksum."""
    path, sums_path = storage.join(folder, "release.json"), storage.join(folder, "SHA256SUMS")
    if not storage.exists(path):
        raise InputError(f"{folder}: has no release.json; name a folder that `webtext release` wrote")
    with translate_format_errors(sums_path, "a list of checksums; download it again"):
        sums = dict(line.split(maxsplit=1)[::-1] for line in storage.read_bytes(sums_path).decode().splitlines())
    paths = [path, *(storage.join(folder, name) for name in sorted(filter(_TABLE.fullmatch, sums)))]
    if not paths[1:]:
        raise InputError(f"{sums_path}: lists no urls/urls-NNNNN.parquet, without which there is nothing to fetch")
    checksums = storage.map_files(storage.sha256_of, paths, local_threads=storage.HASHING_THREADS)
    if damaged := [file for file, checksum in zip(paths, checksums, strict=True) if checksum not in sums.values()]:
        raise InputError(f"{damaged[0]}: does not match its checksum in {sums_path}; download the release again")
    with translate_format_errors(path, "the description of a release; download it again"):
        value = storage.read_json(path)
        if value["format"] != 1:
            raise InputError(f"{path}: has format {value['format']}, this version reads 1; update webtext")
        stages = {name: msgspec.convert({**stage, "stage": name}, Identity) for name, stage in value["stages"].items()}
    return Release(path, stages, paths[1:], hashlib.sha256("".join(checksums).encode()).hexdigest())


def write_release_links(release: Release, *, output: str, options: RunOptions) -> Summary:
    """Write a link for each document of a release, with the hash and sketch of its text, and the date of its page.

    Raises InputError for tables that lack a column, or that have a document without its id, URL, hash or sketch.
    """
    with stage_run(STAGE, NO_OPTIONS, inputs={"release": release.fingerprint}, output=output, options=options) as run:
        if not run.finished:
            numbers = range(len(release.urls))
            context = release.urls, run.output, read_removals(storage.parent(output))
            # Fetch needs the links of a domain together, to be polite.
            run.map(_divide, numbers, context, name="links-{:05d}".format, phase="divide", work=True)
            run.map(_write_links, numbers, context, name="links-{:05d}".format)
        return run.finish()


def _divide(number: int, context: tuple[list[str], str, Removals]) -> TaskResult:
    """Write the documents of a table into a work file, with a bucket for each shard of links."""
    urls, output, removals = context
    path, name, records, dropped = urls[number], _PART.format(number), 0, Counter[str]()
    with write_buckets(storage.join(output, name), _SCHEMA) as parts:
        for batch in shards.read_batches(path, _COLUMNS):
            with shards.damage_reported(path, "is not a table of URLs of a release"):
                batch.validate(full=True)
                documents = _links(batch.filter(pc.equal(batch.column("outcome"), "kept")))
            records += batch.num_rows
            dropped["not_in_release"] += batch.num_rows - documents.num_rows
            if missing := [name for name in EXPECTED if documents.column(name).null_count]:
                raise InputError(f"{path}: has a document without {missing[0]}; download the release again")
            documents, removed = removals.split(documents) if removals else (documents, documents[:0])
            dropped[REMOVED] += removed.num_rows
            domains = documents.column("domain").dictionary_encode()
            owners = np.array([zlib.crc32(domain.encode()) % len(urls) for domain in domains.dictionary.to_pylist()])
            parts.write(documents, owners[domains.indices.to_numpy()])
    return TaskResult(records, 0, +dropped, files=(parts.entry(name),))


def _write_links(number: int, context: tuple[list[str], str, Removals]) -> TaskResult:
    """Write the links of the domains of a shard, from the work files of all tables."""
    urls, output, _ = context
    with shards.write_shard(output, shards.shard_name("links", number), _SCHEMA) as links:
        for table in range(len(urls)):
            for batch in bucket_part(storage.join(output, _PART.format(table)), _SCHEMA, number).batches():
                links.write_batch(batch)
    return TaskResult(0, links.records, files=(links.entry,))


def _links(batch: pa.RecordBatch) -> pa.RecordBatch:
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    for name, value in _UNKNOWN.items():
        columns[name] = pc.coalesce(columns[name], pa.scalar(value, _SCHEMA.field(name).type))
    columns |= {"original_url": columns["url"], "over_18": pa.repeat(False, batch.num_rows)}
    columns["captured_at"] = pc.coalesce(columns["captured_at"], columns["fetched_at"])
    return pa.RecordBatch.from_arrays([columns[field.name].cast(field.type) for field in _SCHEMA], schema=_SCHEMA)
