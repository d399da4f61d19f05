"""The records that pass from stage to stage; `docs/formats.md` says what each field means.

Each record is a frozen dataclass and an Arrow schema with the same fields in the same order.
"""

from __future__ import annotations

import dataclasses
import datetime as dt

import pyarrow as pa

STRINGS = pa.list_(pa.string())
INSTANT = pa.timestamp("ms", tz="UTC")


@dataclasses.dataclass(frozen=True, slots=True)
class Submission:
    """One Reddit submission, as far as the corpus needs it; times in seconds since 1970, UTC."""

    id: str
    url: str
    score: int
    subreddit: str
    title: str
    created_utc: int
    over_18: bool
    is_self: bool
    author: str


@dataclasses.dataclass(frozen=True, slots=True)
class Link:
    """One canonical URL with all that Reddit said of it."""

    url: str
    original_url: str
    domain: str
    score: int
    submission_ids: list[str]
    subreddits: list[str]
    title: str
    created_utc: int
    over_18: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Page:
    """What became of one link: the outcome, and where the WARC record stands if there is one."""

    url: str
    final_url: str | None
    status: int | None
    outcome: str
    source: str
    fetched_at: dt.datetime
    bytes: int
    warc_file: str | None
    warc_offset: int | None


@dataclasses.dataclass(frozen=True, slots=True)
class Document:
    """The text of one page, and whence it came."""

    id: str
    url: str | None
    final_url: str | None
    domain: str | None
    title: str | None
    text: str
    language: str | None
    score: int | None
    submission_ids: list[str] | None
    subreddits: list[str] | None
    created_utc: int | None
    fetched_at: dt.datetime | None
    extractor: str | None
    words: int | None
    warc_file: str | None
    warc_offset: int | None


@dataclasses.dataclass(frozen=True, slots=True)
class Dropped:
    """A record that a stage left out, and why: the answer to "where is my document?"."""

    id: str
    url: str | None
    reason: str
    detail: str | None


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
    ]
)

DOCUMENT_SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("url", pa.string()),
        pa.field("final_url", pa.string()),
        pa.field("domain", pa.string()),
        pa.field("title", pa.string()),
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
