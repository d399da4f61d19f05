"""The pages that one task reads: a shard of `webtext fetch`, anybody's WARC, or files of HTML.

Each source yields a `SourcePage` a page, in the order of the source; one that cannot be read carries the problem.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import hashlib
import re
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

from warcio.archiveiterator import ArchiveIterator
from warcio.exceptions import ArchiveLoadFailed
from warcio.statusandheaders import StatusAndHeadersParserException

from pipelines.core import storage
from pipelines.core.compression import open_decompressed
from pipelines.core.errors import InputError
from pipelines.stages.extract.child import MOST_PAGE_BYTES, RawPage
from pipelines.stages.extract.joining import rows_with_links
from pipelines.stages.extract.sources import FetchedShard, Source, WarcFile

_HTML_TYPES = ("text/html", "application/xhtml+xml")
_PLAIN_TYPES = ("text/plain", "text/markdown", "text/x-markdown")
# What warcio says of a file that it cannot read quotes the file.
_REASON_CHARACTERS = 200
# What warcio raises on a record that is not as it should be (AttributeError: it has no target URI).
_DAMAGE = (ArchiveLoadFailed, StatusAndHeadersParserException, EOFError, zlib.error, ValueError, AttributeError)


@dataclasses.dataclass(frozen=True, slots=True)
class SourcePage:
    """A page as it was found: its bytes or the problem, and what is known of it beside."""

    id: str
    url: str | None
    raw: RawPage | None
    problem: str | None = None
    detail: str | None = None
    link: Mapping[str, Any] | None = None
    final_url: str | None = None
    fetched_at: dt.datetime | None = None
    warc_file: str | None = None
    warc_offset: int | None = None


def read_pages(source: Source) -> Iterator[SourcePage]:
    """Yield the pages of a source in order."""
    if isinstance(source, FetchedShard):
        yield from _fetched_pages(source)
    elif isinstance(source, WarcFile):
        yield from _foreign_records(source.path)
    else:
        yield from (_html_file(path, id) for path, id in source.files)


def id_of_url(url: str) -> str:
    """Return the document id for a URL: the first 32 hex digits of its SHA-256."""
    return hashlib.sha256(url.encode()).hexdigest()[:32]


def _fetched_pages(source: FetchedShard) -> Iterator[SourcePage]:
    for file in (source.pages, *source.warcs):
        file.verify()
    known = {storage.basename(file.path): file.path for file in source.warcs}
    with contextlib.ExitStack() as open_files:
        streams: dict[str, BinaryIO] = {}
        for row, link in rows_with_links(source):
            if row["outcome"] != "ok":
                continue
            name = row["warc_file"]
            if name not in known:
                raise InputError(f"{source.pages.path}: names {name}, which {source.folder} does not list beside it")
            if name not in streams:
                streams[name] = open_files.enter_context(storage.open_read(known[name]))
            page = SourcePage(
                id=id_of_url(row["url"]),
                url=row["url"],
                raw=None,
                link=link,
                final_url=row["final_url"],
                fetched_at=row["fetched_at"],
                warc_file=name,
                warc_offset=row["warc_offset"],
            )
            yield _with_record_at(page, streams[name])


def _with_record_at(page: SourcePage, stream: BinaryIO) -> SourcePage:
    """Return the page with the bytes of the response record at its offset, or with the problem."""
    stream.seek(page.warc_offset or 0)
    try:
        record = next(ArchiveIterator(stream))
        if record.rec_type != "response":
            return _damaged(page, f"a {record.rec_type} record stands at the offset")
        raw, problem, detail = _response(record, page.final_url or page.url)
    except StopIteration:
        return _damaged(page, "no record stands at the offset")
    except _DAMAGE as error:
        return _damaged(page, type(error).__name__)
    return dataclasses.replace(page, raw=raw, problem=problem, detail=detail)


def _damaged(page: SourcePage, detail: str) -> SourcePage:
    return dataclasses.replace(page, problem="damaged_record", detail=detail)


def _response(record: Any, url: str | None) -> tuple[RawPage | None, str | None, str | None]:
    """Return the payload of a response record as a page, or the problem and its detail."""
    headers = record.http_headers
    content_type = headers.get_header("Content-Type") if headers else None
    data = record.raw_stream.read(MOST_PAGE_BYTES + 1)
    if len(data) > MOST_PAGE_BYTES:
        return None, "too_large", f"more than {MOST_PAGE_BYTES} bytes"
    # warcio hands out what there is of a record that was cut short.
    if getattr(record.raw_stream, "limit", 0) > 0:
        return None, "damaged_record", "the record is cut short"
    kind = _kind(content_type, data)
    if kind is None:
        return None, "not_html", (content_type or "no Content-Type")[:100]
    encodings = (
        {name: headers.get_header(name) for name in ("Content-Encoding", "Transfer-Encoding")} if headers else {}
    )
    return RawPage(data, content_type, url, encodings, kind == "plain"), None, None


def _kind(content_type: str | None, data: bytes) -> str | None:
    """Return `html` or `plain`, None for a page of another type."""
    # Some servers send the header twice, and what joins the two is a comma.
    named = re.split("[;,]", content_type or "", maxsplit=1)[0].strip().lower()
    if named in _PLAIN_TYPES:
        return "plain"
    is_html = named in _HTML_TYPES if named else data[:1024].lstrip().startswith(b"<")
    return "html" if is_html else None


def _foreign_records(path: str) -> Iterator[SourcePage]:
    """Yield every response record of a WARC; raise InputError, with the offset, where the file is damaged."""
    name = storage.basename(path)
    with storage.open_read(path) as stream:
        records = ArchiveIterator(stream)
        offset = 0
        while True:
            try:
                record = next(records, None)
                if record is None:
                    return
                page = _foreign_page(record) if record.rec_type == "response" else None
                offset = records.get_record_offset()
            except _DAMAGE as error:
                way_out = "mend it with `warcio recompress`, or leave it out"
                raise InputError(f"{path}: is damaged after byte {offset} ({_reason(error)}); {way_out}") from error
            if page is not None:
                if page.problem == "damaged_record":
                    raise InputError(f"{path}: is cut short after byte {offset} ({page.detail}); is the copy complete?")
                yield dataclasses.replace(page, warc_file=name, warc_offset=offset)


def _reason(error: Exception) -> str:
    """Return the first line of a message, as far as it can be printed, or the type of one that says nothing."""
    lines = ("".join(filter(str.isprintable, line)).strip() for line in str(error).splitlines())
    return next(filter(None, lines), type(error).__name__)[:_REASON_CHARACTERS]


def _foreign_page(record: Any) -> SourcePage:
    url = record.rec_headers.get_header("WARC-Target-URI")
    page = SourcePage(id_of_url(url), url, None, fetched_at=_instant(record.rec_headers.get_header("WARC-Date")))
    status = record.http_headers.get_statuscode() if record.http_headers else None
    if status != "200":
        return dataclasses.replace(page, problem="http_status", detail=status)
    raw, problem, detail = _response(record, url)
    return dataclasses.replace(page, raw=raw, problem=problem, detail=detail)


def _instant(value: str | None) -> dt.datetime | None:
    try:
        return dt.datetime.fromisoformat(value) if value else None
    except ValueError:
        return None


def _html_file(path: str, id: str) -> SourcePage:
    page = SourcePage(id, None, None)
    try:
        with open_decompressed(path) as stream:
            data = stream.read(MOST_PAGE_BYTES + 1)
    except InputError as error:
        if not storage.exists(path):
            raise
        # Not the message: it holds the path, which is no part of a result.
        return _damaged(page, f"the compressed file cannot be read ({type(error.__cause__).__name__})")
    if len(data) > MOST_PAGE_BYTES:
        return dataclasses.replace(page, problem="too_large", detail=f"more than {MOST_PAGE_BYTES} bytes")
    return dataclasses.replace(page, raw=RawPage(data, None, None))
