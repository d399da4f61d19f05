"""Archived pages: which links are looked up in an archive, what counts as a page, and how its outcome is recorded."""

from __future__ import annotations

import dataclasses
import datetime as dt
import io
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec
from warcio.bufferedreaders import ChunkedDataReader

from pipelines import storage
from pipelines.algorithms.web.urls import canonical_url
from pipelines.errors import InputError
from pipelines.records import shards
from pipelines.records.archives import MAX_HEADER_BYTES, RECORD_DAMAGE, BoundedArchiveIterator, is_arc
from pipelines.records.documents import parse_instant
from pipelines.records.reader import table_schema
from pipelines.stages.fetch.config import FetchConfig
from pipelines.stages.fetch.exchange import Response, content_coding, decode_body
from pipelines.stages.fetch.links import LinkShard, read_links, redirect_url
from pipelines.stages.fetch.outcomes import DETAIL_CHARACTERS, OK, REDIRECTS, Failure, Outcome, is_missing
from pipelines.stages.fetch.segments import FetchContext, SegmentWriter
from pipelines.stages.fetch.visit import page_failure, wish_failure
from pipelines.stages.fetch.warc import response_record

_HEAD_BYTES = 1 << 16
_TITLE = re.compile(r"<title[^>]*>(.{0,300}?)</title", re.IGNORECASE | re.DOTALL)
_NOT_FOUND = re.compile(
    r"^\W*(error\W*)?(404|410)\b|\b(404|410)\W*$|^\W*not found"
    r"|\b(page|file|document|article|site|url)\b.{0,20}\bnot found",
    re.IGNORECASE,
)
_SAME_PAGE = re.compile(r"^https?://(www\.)?|/$")


class Wanted(NamedTuple):
    """A link to look up in an archive, the time that its capture should be near to, and its outcome so far."""

    url: str
    at: int | None
    outcome: Outcome


class Capture(NamedTuple):
    """An archived response; `record` is where it was read."""

    url: str
    captured_at: dt.datetime
    response: Response
    record: str


def wanted_links(context: FetchContext, shard: LinkShard, token: str) -> Iterator[Wanted]:
    """Yield the links of a shard to look up in an archive, by their latest outcomes."""
    links = read_links(shard, context.output)
    times: list[int | None] = [None] * len(links) if shard.is_list else []
    for file in () if shard.is_list else shard.files:
        # Links of a release have the time of its page; those of a list without times have 0.
        names = [name for name in ("captured_at", "created_utc") if name in table_schema(file.path).names]
        for row in shards.read_rows(file.path, names):
            times += [int(at.timestamp()) if (at := row.get("captured_at")) else row["created_utc"] or None]
    for outcome in context.latest(shard).values():
        is_done = token in (outcome.archives or "").split(",")
        if not is_done and is_missing(outcome, context.config.archive_for == "all"):
            yield Wanted(links[outcome.link], times[outcome.link], outcome)


def record_answer(
    writer: SegmentWriter, wanted: Wanted, token: str, capture: Capture | None, refused: Mapping[str, int]
) -> None:
    """Store the page that an archive has of a link; without one, the link keeps its outcome, with what was refused."""
    archive, outcome = token.partition(":")[0], wanted.outcome
    archives = ",".join(filter(None, (outcome.archives, token)))
    if capture is None:
        why = ", ".join(f"{reason} {count}" for reason, count in sorted(refused.items())) or "no capture"
        # An archive may have several indexes.
        parts = dict.fromkeys(filter(None, (*(outcome.detail or "").split("; "), f"{archive}: {why}")))
        detail = "; ".join(parts)[:DETAIL_CHARACTERS]
        writer.add(msgspec.structs.replace(outcome, archives=archives, detail=detail))
        return
    response, at = capture.response, capture.captured_at
    origin = {"WARC-Source-URI": capture.record, "WARC-Source-Archive": token, "WARC-Truncated": response.truncated}
    place = writer.append(response_record(capture.url, f"{at:%Y-%m-%dT%H:%M:%SZ}", response, origin))
    days = None if wanted.at is None else round((at.timestamp() - wanted.at) / 86400)
    now = dt.datetime.now(dt.UTC)
    page = Outcome(outcome.link, OK, capture.url, response.status, now, response.decoded_bytes, *place)
    writer.add(msgspec.structs.replace(page, source=archive, captured_at=at, captured_days=days, archives=archives))


def find_page(
    rows: Iterable[Mapping[str, Any]], read: Callable[[Any], Capture], wanted: Wanted, url: str, config: FetchConfig
) -> tuple[Capture | None, Capture | None, Counter[str]]:
    """Return the first capture of a URL that is a page, or the first redirect, with its target as URL.

    The others are counted by the reason for which they were refused. `rows` have the `url` of a capture.
    """
    refused: Counter[str] = Counter()
    for row in rows:
        try:
            if not is_same_page(row["url"], url):
                raise Failure("other_page")
            capture = read(row)
            if capture.response.status not in REDIRECTS:
                return _usable_capture(capture, wanted, config), None, refused
            location = redirect_url(capture.url, capture.response.header("location") or "")
            if is_same_page(location, capture.url) and location == url:
                raise Failure("redirect_loop")
            return None, capture._replace(url=location), refused
        except Failure as failure:
            refused[failure.reason] += 1
    return None, None, refused


def _usable_capture(capture: Capture, wanted: Wanted, config: FetchConfig) -> Capture:
    """Return a capture with the coding of its body; raise Failure if it is not a page of the link."""
    days = config.archive_window
    # A redirect within an archive can lead to another time.
    if days is not None and wanted.at is not None and abs(capture.captured_at.timestamp() - wanted.at) > days * 86400:
        raise Failure("outside_window")
    response, body = capture.response, capture.response.body or b""
    limit, coding = config.max_page_bytes, None
    try:
        coding = content_coding(response.header("content-encoding"))
        decoded = decode_body(body, coding, limit + 1)
    except Failure as failure:
        if failure.reason != "bad_encoding":
            raise
        coding, decoded = None, body  # archives decode bodies, and some keep the header
    if len(decoded) > limit:
        raise Failure("too_large")
    response = dataclasses.replace(response, coding=coding, decoded_bytes=len(decoded))
    if problem := page_failure(response) or wish_failure(response, config):
        raise problem
    title = _TITLE.search(decoded[:_HEAD_BYTES].decode("utf-8", "replace"))
    path, captured_path = (page_of(url).partition("?")[0].partition("/")[2] for url in (wanted.url, capture.url))
    if (title and _NOT_FOUND.search(" ".join(title[1].split()))) or (path and not captured_path):
        raise Failure("soft_not_found")  # its title says so, or it is the home page of its site
    return capture._replace(response=response)


def is_same_page(url: str, other: str) -> bool:
    """Return whether two URLs differ at most in scheme, `www.` and a final slash; keys of archives also ignore case."""
    return page_of(url) == page_of(other)


def page_of(url: str) -> str:
    """Return the canonical URL without scheme, `www.` and final slash."""
    return _SAME_PAGE.sub("", canonical_url(url) or url)


def read_record(path_of: Callable[[str], str], max_bytes: int, row: Mapping[str, Any]) -> Capture:
    """Return the response of a row of an index in its WARC or ARC file, of which `path_of` returns the path.

    Raises Failure if there is none, StorageError if the file cannot be read now.
    """
    path, offset, length = path_of(row["warc_filename"]), row["warc_record_offset"], row["warc_record_length"]
    if length > max_bytes + MAX_HEADER_BYTES:
        raise Failure("too_large")
    try:
        data = storage.read_range(path, offset, length)
        record = next(BoundedArchiveIterator(io.BytesIO(data), is_arc(path)))
        if (capture := capture_of(record, max_bytes)) is None:
            raise Failure("no_response_record")
        response = capture.response
        if response.truncated and not response.body and response.status not in REDIRECTS:
            raise Failure("truncated")
        if not is_same_page(capture.url, row["url"]):
            raise Failure("other_page")  # the index does not belong to these files
        return capture._replace(captured_at=row["fetch_time"], record=f"{path}#{offset}+{length}")
    except InputError as error:
        raise Failure("no_file") from error
    except (*RECORD_DAMAGE, StopIteration, TypeError, zlib.error, OSError) as error:
        raise Failure("damaged_record") from error


def capture_of(record: Any, max_bytes: int = -1) -> Capture | None:
    """Return the response in a record, with at most one byte more than `max_bytes` of its body.

    None if the record is not a response or has no date. Raises what warcio does for damaged records.
    """
    head, at = record.http_headers, parse_instant(record.rec_headers.get_header("WARC-Date") or "")
    if record.rec_type != "response" or head is None or at is None:
        return None
    code = head.get_statuscode()
    response = Response(
        int(code) if code.isascii() and code.isdigit() else 0,
        head.statusline.partition(" ")[2],
        head.protocol if head.protocol in ("HTTP/1.0", "HTTP/1.1") else "HTTP/1.1",
        tuple((name, value) for name, value in head.headers),
        truncated=record.rec_headers.get_header("WARC-Truncated"),
    )
    if "chunked" in response.values("transfer-encoding"):
        body = ChunkedDataReader(record.raw_stream).read(max_bytes + 1)  # also one without chunks, as of Common Crawl
    else:
        body = record.raw_stream.read(max_bytes + 1)
        if len(body) <= max_bytes and getattr(record.raw_stream, "limit", 0) > 0:
            raise EOFError("the record is truncated")
    url = record.rec_headers.get_header("WARC-Target-URI")
    return Capture(url, at, dataclasses.replace(response, body=body), "")
