"""The Arrow schemas of the records that pass from stage to stage; `docs/formats.md` defines each field."""

from __future__ import annotations

import pyarrow as pa

STRINGS = pa.list_(pa.string())
INSTANT = pa.timestamp("ms", tz="UTC")

LINK_SCHEMA = pa.schema(
    [
        pa.field("url", pa.string(), nullable=False),
        pa.field("original_url", pa.string(), nullable=False),
        pa.field("domain", pa.string(), nullable=False),
        pa.field("score", pa.int64(), nullable=False),
        pa.field("submission_ids", STRINGS, nullable=False),
        pa.field("subreddits", STRINGS, nullable=False),
        pa.field("title", pa.string(), nullable=False),
        pa.field("created_utc", pa.int64(), nullable=False),
        pa.field("over_18", pa.bool_(), nullable=False),
    ]
)

PAGE_SCHEMA = pa.schema(
    [
        pa.field("url", pa.string(), nullable=False),
        pa.field("final_url", pa.string()),
        pa.field("status", pa.int32()),
        pa.field("outcome", pa.string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("fetched_at", INSTANT, nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
        pa.field("warc_file", pa.string()),
        pa.field("warc_offset", pa.int64()),
        pa.field("captured_at", INSTANT),
        pa.field("captured_days", pa.int32()),
        pa.field("archives", pa.string()),
    ]
)

DOCUMENT_SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("url", pa.string()),
        pa.field("final_url", pa.string()),
        pa.field("domain", pa.string()),
        pa.field("title", pa.string()),
        pa.field("author", pa.string()),
        pa.field("published", pa.string()),
        pa.field("site_name", pa.string()),
        pa.field("declared_type", pa.string()),
        pa.field("page_type", pa.string()),
        pa.field("confidence", pa.float32()),
        pa.field("text", pa.string(), nullable=False),
        pa.field("language", pa.string()),
        pa.field("score", pa.int64()),
        pa.field("submission_ids", STRINGS),
        pa.field("subreddits", STRINGS),
        pa.field("created_utc", pa.int64()),
        pa.field("fetched_at", INSTANT),
        pa.field("extractor", pa.string()),
        pa.field("words", pa.int64()),
        pa.field("warc_file", pa.string()),
        pa.field("warc_offset", pa.int64()),
    ]
)

DROPPED_SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("url", pa.string()),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("detail", pa.string()),
    ]
)
