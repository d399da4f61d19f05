"""The documents of a release as links: the folder that fetch reads, with what each text is to be compared with.

Links of one registered domain are in one shard, as fetch needs them to be polite; a release may be divided otherwise.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipelines import progress, storage
from pipelines.algorithms.minhash.sketch import SKETCH_TYPE
from pipelines.algorithms.web.urls import registered_domain
from pipelines.engine.journal import WORK
from pipelines.engine.run import RunOptions, Stage, Summary, TaskResult, stage_run
from pipelines.errors import InputError
from pipelines.records import shards
from pipelines.records.buckets import read_bucket, write_buckets
from pipelines.records.schemas import LINK_SCHEMA, make_schema
from pipelines.stages.rehydrate.config import ReleaseLinksConfig
from pipelines.stages.rehydrate.release import Release

# Fetch and extract read the folder as that of scrape.
STAGE = Stage("scrape", 1)
KEPT = "kept"
# What a release has of each link; rows of documents that it does not contain are not requested.
_URL_SCHEMA = make_schema(
    id="string", url="string", outcome="string", text_sha256=pa.binary(32), sketch=SKETCH_TYPE, title="string?",
    score="int64?", submission_ids="strings?", subreddits="strings?", created_utc="int64?", fetched_at="instant?",
    captured_at="instant?",
)  # fmt: skip
_REQUIRED = ("id", "url", "text_sha256", "sketch")
EXPECTED_SCHEMA = pa.schema([_URL_SCHEMA.field(name) for name in _REQUIRED])
_LINK_SCHEMA = LINK_SCHEMA.append(_URL_SCHEMA.field("captured_at"))
# What scrape writes where a source does not tell.
_UNKNOWN: dict[str, Any] = {"score": 0, "submission_ids": [], "subreddits": [], "title": "", "created_utc": 0}
_BATCH_ROWS = 4096


@dataclasses.dataclass(frozen=True)
class _Context:
    """The context of the tasks: the tables of the release, the number of shards, and where to write."""

    urls: list[str]
    shards: int
    output: str

    def bucket_file(self, number: int) -> str:
        """Return the name of the work file with the rows of a table."""
        return f"{WORK}/{shards.shard_name('urls', number, 'buckets')}"


def write_release_links(release: Release, config: ReleaseLinksConfig, *, output: str, options: RunOptions) -> Summary:
    """Write the links of the documents of a release, and next to them the hashes and sketches of their texts.

    The links have the date of the page that the release was made from as `captured_at`. Raises InputError for tables
    that lack a column, or that have a document without the hash of its text.
    """
    config = ReleaseLinksConfig(config.shards)
    with stage_run(STAGE, config, inputs={"release": release.fingerprint}, output=output, options=options) as run:
        if not run.finished:
            context = _Context(release.urls, config.shards, run.output)
            numbers, total = range(len(release.urls)), sum(storage.map_files(shards.count_rows, release.urls))
            run.map(_divide_urls, numbers, context, name=str, phase="urls", work=True, total=total)
            run.map(_write_links, range(config.shards), context, name=lambda number: f"links-{number:05d}")
        return run.finish()


def _divide_urls(number: int, context: _Context) -> TaskResult:
    """Write the rows of a table, in a bucket per shard."""
    records_in = records_out = 0
    name = context.bucket_file(number)
    with write_buckets(storage.join(context.output, name), _URL_SCHEMA) as buckets:
        for rows, batch in _read_documents(context.urls[number]):
            domains = _domains(batch)
            buckets.write(batch, [zlib.crc32(domain.encode()) % context.shards for domain in domains])
            records_in, records_out = records_in + rows, records_out + batch.num_rows
            progress.advance(rows)
    dropped = {"not_in_release": records_in - records_out} if records_in > records_out else {}
    return TaskResult(records_in=records_in, dropped=dropped, files=(buckets.entry(name),))


def _read_documents(path: str) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the number of rows of each batch, and the rows of documents in the release."""
    first_row = 0
    for batch in shards.read_batches(path, _URL_SCHEMA.names):
        shards.check_values(path, batch, first_row)
        with shards.damage_reported(path, "has a column of another type than that of a release"):
            documents = batch.filter(pc.equal(batch.column("outcome"), KEPT))
            columns = [documents.column(field.name).cast(field.type) for field in _URL_SCHEMA]
        documents = pa.RecordBatch.from_arrays(columns, schema=_URL_SCHEMA)
        for name in _REQUIRED:
            if documents.column(name).null_count:
                raise InputError(f"{path}: has a document without {name}; download the release again")
        yield batch.num_rows, documents
        first_row += batch.num_rows


def _write_links(number: int, context: _Context) -> TaskResult:
    """Write the links of a shard, sorted by URL, and the expected texts in the same order."""
    paths = [storage.join(context.output, context.bucket_file(table)) for table in range(len(context.urls))]
    rows = pa.Table.from_batches(read_bucket(paths, _URL_SCHEMA, number), _URL_SCHEMA)
    rows = rows.sort_by([("url", "ascending"), ("id", "ascending")])
    with (
        shards.write_shard(context.output, shards.shard_name("links", number), _LINK_SCHEMA) as links,
        shards.write_shard(context.output, shards.shard_name("expected", number), EXPECTED_SCHEMA) as expected,
    ):
        for batch in rows.combine_chunks().to_batches(max_chunksize=_BATCH_ROWS):
            links.write_batch(_links(batch))
            expected.write_batch(batch.select(EXPECTED_SCHEMA.names))
    return TaskResult(records_out=rows.num_rows, files=(links.entry, expected.entry))


def _links(batch: pa.RecordBatch) -> pa.RecordBatch:
    urls = batch.column("url")
    columns = {
        "url": urls,
        "original_url": urls,
        "domain": pa.array(_domains(batch), pa.string()),
        "over_18": pa.repeat(False, len(urls)),
        "captured_at": pc.coalesce(batch.column("captured_at"), batch.column("fetched_at")),
    }
    for name, value in _UNKNOWN.items():
        columns[name] = pc.coalesce(batch.column(name), pa.scalar(value, batch.column(name).type))
    return pa.RecordBatch.from_arrays([columns[name] for name in _LINK_SCHEMA.names], schema=_LINK_SCHEMA)


def _domains(batch: pa.RecordBatch) -> list[str]:
    return [registered_domain(url) or "" for url in batch.column("url").to_pylist()]
