"""The pages of a source, in its order; a page that cannot be read carries the problem instead of its bytes."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import re
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

from warcio.exceptions import ArchiveLoadFailed

from pipelines import storage
from pipelines.algorithms.web.charset import HTML_TYPES, PLAIN_TYPES, media_type
from pipelines.algorithms.web.urls import id_of_url
from pipelines.errors import InputError
from pipelines.records.archives import RECORD_DAMAGE, BoundedArchiveIterator, damaged_archive, read_archive
from pipelines.records.inputs import InputFile
from pipelines.stages.extract.child import MAX_PAGE_BYTES, PageText, RawPage, too_large
from pipelines.stages.extract.earlier import EarlierShard, is_current
from pipelines.stages.extract.sources import FetchedShard, Row, Source, rows_with_links
from pipelines.storage.compression import open_decompressed

_NO_CONTENT = PageText()
_ENCODING_HEADERS = ("Content-Encoding", "Transfer-Encoding")
# Crawlers archive the robots.txt of a host next to its pages.
_ROBOTS_URL = re.compile(r"https?://[^/?#]+/robots\.txt([?#].*)?", re.IGNORECASE | re.DOTALL)


@dataclasses.dataclass(frozen=True, slots=True)
class SourcePage:
    """A page of a source: its bytes, or the problem; and what the source knows about it."""

    id: str
    url: str | None
    content: RawPage | PageText
    link: Mapping[str, Any] | None = None
    final_url: str | None = None
    fetched_at: dt.datetime | None = None
    warc_file: str | None = None
    warc_offset: int | None = None
    # The document or drop of an earlier result. If the page has other `content` than none, its document is replaced.
    earlier: Row | None = None

    @property
    def is_known(self) -> bool:
        """Whether the document or drop of an earlier result is kept."""
        return self.earlier is not None and self.content is _NO_CONTENT


def read_pages(source: Source, only: str | None = None, earlier: EarlierShard | None = None) -> Iterator[SourcePage]:
    """Yield the pages of a source in order; of a fetch, `only` the one with this URL if that is given.

    The content of pages that an `earlier` result knows is not read.
    """
    if isinstance(source, FetchedShard):
        yield from _read_fetched(source, only, earlier)
    elif isinstance(source, InputFile):
        yield from _read_warc(source)
    else:
        yield from (SourcePage(id, None, _read_html(path)) for path, id in source)


def _read_fetched(source: FetchedShard, only: str | None, earlier: EarlierShard | None) -> Iterator[SourcePage]:
    source.pages.verify()
    warcs = {storage.basename(file.path): file for file in source.warcs}
    with contextlib.ExitStack() as open_files:
        streams: dict[str, BinaryIO] = {}
        for row, link in rows_with_links(source):
            if row["outcome"] != "ok" or only not in (None, row["url"]):
                continue
            name = row["warc_file"]
            if name not in warcs:
                raise InputError(f"{source.pages.path}: names {name}, which the manifest of {source.folder} lacks")
            known = earlier.take(row["url"]) if earlier else None
            is_known = known is not None and is_current(known, link)
            if name not in streams and not is_known:
                warcs[name].verify()
                streams[name] = open_files.enter_context(storage.open_read(warcs[name].path))
            yield SourcePage(
                id=id_of_url(row["url"]),
                url=row["url"],
                content=_NO_CONTENT if is_known else _record(streams[name], row),
                earlier=known,
                link=link,
                final_url=row["final_url"],
                fetched_at=row["fetched_at"],
                warc_file=warcs[name].name,
                warc_offset=row["warc_offset"],
            )


def _record(stream: BinaryIO, row: Row) -> RawPage | PageText:
    """Return the page in the response record of a row, or the problem."""
    url, requested_url = row["final_url"] or row["url"], row["url"]
    stream.seek(row["warc_offset"] or 0)
    try:
        record = next(BoundedArchiveIterator(stream))
        if record.rec_type != "response":
            return _damaged(f"the record at the offset is of type {record.rec_type}")
        return _response(record, url, requested_url)
    except StopIteration:
        return _damaged("no record at the offset")
    except RECORD_DAMAGE as error:
        return _damaged(type(error).__name__)


def _damaged(detail: str) -> PageText:
    return PageText(problem="damaged_record", detail=detail)


def _response(record: Any, url: str | None, requested_url: str | None = None) -> RawPage | PageText:
    """Return the payload of a response record as a page, or the problem."""
    headers = record.http_headers
    content_type = headers.get_header("Content-Type") if headers else None
    data = record.raw_stream.read(MAX_PAGE_BYTES + 1)
    if len(data) > MAX_PAGE_BYTES:
        return too_large()
    # warcio returns what there is of a truncated record.
    if getattr(record.raw_stream, "limit", 0) > 0:
        return _damaged("the record is truncated")
    kind = media_type(content_type)
    is_plain = kind in PLAIN_TYPES
    is_html = kind in HTML_TYPES if kind else data[:1024].lstrip().startswith(b"<")
    if not is_plain and not is_html:
        return PageText(problem="not_html", detail=(content_type or "no Content-Type")[:100])
    encodings = {name: headers.get_header(name) for name in _ENCODING_HEADERS} if headers else {}
    return RawPage(data, content_type, url, encodings, is_plain, requested_url)


def _read_warc(file: InputFile) -> Iterator[SourcePage]:
    """Yield every response record of a WARC or ARC; raise InputError, with the offset, if the file is damaged."""
    for record in read_archive(file.path, _page_of_record):
        page = record.content
        if page is None:
            continue
        if isinstance(page.content, PageText) and page.content.problem == "damaged_record":
            raise damaged_archive(file.path, record.offset, ArchiveLoadFailed(page.content.detail))
        if not record.is_intact:
            page = dataclasses.replace(page, content=_damaged("the length of the record is wrong"))
        yield dataclasses.replace(page, warc_file=file.name, warc_offset=record.offset)


def _page_of_record(record: Any) -> SourcePage | None:
    """Return the page of a response record, None of another one."""
    if record.rec_type != "response":
        return None
    url = record.rec_headers.get_header("WARC-Target-URI")
    status = record.http_headers.get_statuscode() if record.http_headers else None
    if _ROBOTS_URL.fullmatch(url or ""):
        content: RawPage | PageText = PageText(problem="robots_txt")
    else:
        content = _response(record, url) if status == "200" else PageText(problem="http_status", detail=status)
    fetched_at = None
    with contextlib.suppress(ValueError):
        fetched_at = dt.datetime.fromisoformat(record.rec_headers.get_header("WARC-Date") or "")
    return SourcePage(id_of_url(url), url, content, fetched_at=fetched_at)


def _read_html(path: str) -> RawPage | PageText:
    try:
        with open_decompressed(path) as stream:
            data = stream.read(MAX_PAGE_BYTES + 1)
    except InputError as error:
        if not storage.exists(path):
            raise
        # Not the message: it contains the path, which is not part of a result.
        return _damaged(f"the compressed file cannot be read ({type(error.__cause__).__name__})")
    return RawPage(data, None, None) if len(data) <= MAX_PAGE_BYTES else too_large()
