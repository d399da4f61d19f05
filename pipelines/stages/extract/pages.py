"""Reads the pages of one task: those of a shard of `webtext fetch`, of a WARC from elsewhere, or of HTML files.

A page that cannot be read has a problem instead of its bytes; a page of an earlier result has its text.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import functools
import io
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO
from urllib.parse import urljoin

import pyarrow as pa
from warcio.exceptions import ArchiveLoadFailed

from pipelines import storage
from pipelines.algorithms.web.charset import HTML_TYPES, PLAIN_TYPES, media_type
from pipelines.algorithms.web.metadata import Metadata
from pipelines.algorithms.web.signals import MAX_BYTES, page_signals, parse_site
from pipelines.algorithms.web.urls import id_of_url
from pipelines.engine.manifest import check_file
from pipelines.errors import InputError
from pipelines.records import archives, shards
from pipelines.records.documents import parse_instant
from pipelines.records.inputs import InputFile, open_stage
from pipelines.stages.extract.child import MAX_PAGE_BYTES, PageText, RawPage, too_large
from pipelines.storage.compression import open_decompressed

_PAGE_COLUMNS = ["url", "final_url", "outcome", "fetched_at", "warc_file", "warc_offset"]
_LINK_COLUMNS = ["url", "domain", "score", "submission_ids", "subreddits", "title", "created_utc"]
# The fields of a document that are those of its page, its text, the metadata of its text, and its link.
OF_PAGE = ("id", "url", "url_source", "final_url", "fetched_at", "warc_file", "warc_offset")
OF_TEXT = ("text", "page_type", "confidence", "language", "signals")
OF_METADATA = ("author", "published", "site_name", "declared_type", "license", "license_url", "license_location")
OF_LINK = ("score", "submission_ids", "subreddits", "created_utc")
# The `extractor` of plain text, which is kept as it is.
PLAIN = "plain"
_ENCODING_HEADERS = ("Content-Encoding", "Transfer-Encoding")
# Crawlers archive the robots.txt of a host with its pages.
_ROBOTS_URL = re.compile(r"https?://[^/?#]+/robots\.txt([?#].*)?", re.IGNORECASE | re.DOTALL)
_SITE_FILES = ("/robots.txt", "/.well-known/tdmrep.json")
_SITE_URL = rf"https?://[^/?#\s]+(?:{'|'.join(map(re.escape, _SITE_FILES))})"
_SITE_RECORD = re.compile(
    rb"WARC/1\.1\r\nWARC-Type: response\r\n(?:[^\r\n]+\r\n){0,9}?WARC-Target-URI: (%b)\r\n" % _SITE_URL.encode()
)
# Pages are in the order of their URLs, so those of a site follow each other.
_MAX_REDIRECTS, _MAX_RECORD_BYTES, _CACHED_SITES = 5, 1 << 20, 32

Row = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class FetchedShard:
    """One shard of `webtext fetch` with its WARC files and, if given, the links.

    `in_order` means that there is one file of links, with the same rows as the shard.
    """

    folder: str
    pages: InputFile
    warcs: tuple[InputFile, ...]
    links: tuple[InputFile, ...] = ()
    in_order: bool = False


# A shard of a fetch, a WARC from elsewhere, or HTML files, whose names are the ids of their documents.
Source = FetchedShard | InputFile | tuple[InputFile, ...]


def rows_with_links(source: FetchedShard) -> Iterator[tuple[Row, Row | None]]:
    """Yield the rows of a shard of pages, each with its link, None if the links do not contain its URL.

    Raises InputError if pages that were fetched from these links do not have the same URLs, row by row.
    """
    for file in source.links:
        file.verify()
    pages = shards.read_rows(source.pages.path, _PAGE_COLUMNS)
    if not source.in_order:
        links_by_url = _read_links_by_url(source)
        yield from ((page, links_by_url.get(page["url"])) for page in pages)
        return
    # fetch writes a row per link, in the same order, so neither side has to be in memory.
    [file] = source.links
    links = shards.read_rows(file.path, _LINK_COLUMNS)
    for number, (page, link) in enumerate(itertools.zip_longest(pages, links)):
        if page is None or link is None or page["url"] != link["url"]:
            raise InputError(
                f"{source.pages.path}: row {number} is {_url_of(page)}, but in {file.path} it is {_url_of(link)}; "
                "one of the two files was changed; restore it, or fetch the links again into another --output"
            )
        yield page, link


def _url_of(row: Row | None) -> str:
    return str(row["url"])[:200] if row is not None else "missing"


def _read_links_by_url(source: FetchedShard) -> dict[str, Row]:
    """Return the links of the shard's pages by URL; only these are kept in memory, although all links are read."""
    if not source.links:
        return {}
    pages = shards.read_rows(source.pages.path, ["url", "outcome"])
    urls = {page["url"] for page in pages if page["outcome"] == "ok"}
    links: dict[str, Row] = {}
    for file in source.links:
        for batch in shards.read_batches(file.path, _LINK_COLUMNS):
            is_needed = pa.array([url in urls for url in batch.column("url").to_pylist()], pa.bool_())
            for row in batch.filter(is_needed).to_pylist():
                links.setdefault(row["url"], row)
    return links


def contain_documents(folder: str, sources: Sequence[Source]) -> bool:
    """Return whether the pages contain those of all documents of an earlier result, unchanged and in its shards."""
    files = open_stage(folder, ["extract"]).files("documents-", ".parquet")
    with contextlib.suppress(InputError):  # a file is missing or damaged
        return len(files) == len(sources) and all(
            isinstance(source, FetchedShard) and _requests(file.path) <= _requests(source.pages.path)
            for file, source in zip(files, sources, strict=True)
        )
    return False


def known_documents(folder: str, index: int, source: Source) -> Iterator[Row]:
    """Yield the documents of a shard of an earlier result whose pages are in a shard of pages, unchanged."""
    files = open_stage(folder, ["extract"]).files(shards.shard_name("documents", index))
    if not files or not isinstance(source, FetchedShard) or (files[0].entry and check_file(folder, files[0].entry)):
        return  # a damaged file is not used
    requests = _requests(source.pages.path)
    for row in shards.read_rows(files[0].path):
        if (row["url"], row["fetched_at"]) in requests:
            yield row


def _requests(path: str) -> set[tuple[str, dt.datetime]]:
    """Return the URL and time of each page of a file: a page that was fetched again has another time."""
    return {(row["url"], row["fetched_at"]) for row in shards.read_rows(path, ["url", "fetched_at"])}


def _known_text(document: Row, link: Mapping[str, Any] | None) -> PageText | None:
    """Return what an earlier run extracted from a page; None if its link, which may give the title, has changed."""
    if any(document[name] != (link or {}).get(name) for name in OF_LINK):
        return None
    return PageText(
        metadata=Metadata(**{name: document[name] for name in OF_METADATA}),
        plain=document["extractor"] == PLAIN,
        **{name: document[name] for name in ("title", *OF_TEXT)},
    )


class SiteFiles:
    """The site files of one WARC file, by URL; of several at one URL, the last one that was added counts."""

    def __init__(self, path: str, is_fetched: bool) -> None:
        self._path = path
        members = archives.find_members(path, _SITE_RECORD) if is_fetched else ()
        self._places = {match[1].decode("ascii", "replace"): place for match, *place in members}
        self._sites = functools.lru_cache(_CACHED_SITES)(
            lambda robots, tdmrep, agents: parse_site(self._read(robots), self._read(tdmrep), agents)
        )

    def add(self, url: str | None, offset: int, length: int) -> None:
        """Add a record if it is of a site file and can be read at its offset."""
        if url and re.fullmatch(_SITE_URL, url) and archives.has_members(self._path):
            self._places[url] = [offset, length]
            self._sites.cache_clear()

    def signals(self, url: str, agents: tuple[str, ...]) -> Iterator[str]:
        """Yield the signals for a page in the files of its site."""
        with contextlib.suppress(ValueError):  # of an invalid IPv6 address
            yield from self._sites(*(urljoin(url, path) for path in _SITE_FILES), agents)(url)

    def _read(self, url: str, redirects: int = 0) -> bytes:
        """Return the body of a site file, also of one that it redirects to; empty if there is none."""
        if url not in self._places or redirects > _MAX_REDIRECTS:
            return b""
        offset, length = self._places[url]
        try:
            data = storage.read_range(self._path, offset, min(length, _MAX_RECORD_BYTES))
            record: Any = next(archives.BoundedArchiveIterator(io.BytesIO(data), archives.is_arc(self._path)))
            head = record.http_headers
            if head and head.get_statuscode().startswith("2"):
                return bytes(record.content_stream().read(MAX_BYTES))
            return self._read(urljoin(url, head.get_header("Location") or ""), redirects + 1) if head else b""
        except (*archives.RECORD_DAMAGE, StopIteration):  # a damaged WARC file is an error when its pages are read
            return b""


@dataclasses.dataclass(frozen=True, slots=True)
class SourcePage:
    """A page of a source: its bytes, text or problem, and its fields from the source."""

    id: str
    url: str | None
    content: RawPage | PageText
    link: Mapping[str, Any] | None = None
    final_url: str | None = None
    fetched_at: dt.datetime | None = None
    warc_file: str | None = None
    warc_offset: int | None = None
    url_source: str | None = None
    site_files: SiteFiles | None = None

    def with_declared_url(self, text: PageText) -> SourcePage:
        """Return the page, with the URL that its text declares if its source has none."""
        url, url_source = text.declared_url
        return self if self.url else dataclasses.replace(self, url=url, url_source=url_source)

    def add_signals(self, text: PageText, agents: tuple[str, ...]) -> PageText:
        """Return the text of the page with the wishes of its owner; the text of an earlier result has them."""
        if isinstance(self.content, PageText):
            return text
        site = self.site_files.signals(self.final_url or self.url or "", agents) if self.site_files else ()
        return dataclasses.replace(text, signals=page_signals(self.content.headers, text.meta, agents, site))


def read_pages(source: Source, only: str | None = None, known: Iterable[Row] = ()) -> Iterator[SourcePage]:
    """Yield the pages of a source in order; of a fetch, only the page with the URL `only` if that is given.

    Pages of `known` documents, which are in the order of the pages, have the text of the document.
    """
    if isinstance(source, FetchedShard):
        yield from _read_fetched(source, only, iter(known))
    elif isinstance(source, InputFile):
        yield from _read_warc(source)
    else:
        yield from (SourcePage(file.name, None, _read_html(file.path)) for file in source)


def _read_fetched(source: FetchedShard, only: str | None, known: Iterator[Row]) -> Iterator[SourcePage]:
    source.pages.verify()
    document = next(known, None)
    warcs = {storage.basename(file.path): file for file in source.warcs}
    with contextlib.ExitStack() as open_files:
        streams: dict[str, BinaryIO] = {}
        site_files: dict[str, SiteFiles] = {}
        for row, link in rows_with_links(source):
            if row["outcome"] != "ok" or only not in (None, row["url"]):
                continue
            name = row["warc_file"]
            if name not in warcs:
                raise InputError(f"{source.pages.path}: names {name}, which is not in the manifest of {source.folder}")
            content: RawPage | PageText | None = None
            if document and document["url"] == row["url"]:
                content, document = _known_text(document, link), next(known, None)
            if name not in streams and content is None:
                warcs[name].verify()
                streams[name] = open_files.enter_context(storage.open_read(warcs[name].path))
                site_files[name] = SiteFiles(warcs[name].path, is_fetched=True)
            yield SourcePage(
                id=id_of_url(row["url"]),
                url=row["url"],
                content=content or _record(streams[name], row),
                link=link,
                final_url=row["final_url"],
                fetched_at=row["fetched_at"],
                warc_file=warcs[name].name,
                warc_offset=row["warc_offset"],
                url_source="fetch",
                site_files=site_files.get(name),
            )


def _record(stream: BinaryIO, row: Mapping[str, Any]) -> RawPage | PageText:
    """Return the page in the response record of a row, or the problem."""
    url, requested_url = row["final_url"] or row["url"], row["url"]
    try:
        stream.seek(row["warc_offset"] or 0)
    except (OSError, ValueError):  # it is negative, or no file can be so large
        return _damaged("no record at this offset")
    try:
        record = next(archives.BoundedArchiveIterator(stream))
        if record.rec_type != "response":
            return _damaged(f"the record at this offset is of type {record.rec_type}")
        return _response(record, url, requested_url)
    except StopIteration:
        return _damaged("no record at this offset")
    except archives.RECORD_DAMAGE as error:
        return _damaged(type(error).__name__)


def read_exchange(path: str, row: Mapping[str, Any]) -> tuple[RawPage | PageText, list[str]]:
    """Return the page of a row of `webtext fetch` in a WARC file, and the headers of its response and request.

    Headers are those of the WARC record and of HTTP. The response of an archive has no request.
    """
    headers: list[str] = []
    with storage.open_read(path) as stream:
        page = _record(stream, row)
        with contextlib.suppress(OSError, *archives.RECORD_DAMAGE):
            stream.seek(row["warc_offset"] or 0)
            for kind, record in zip(("response", "request"), archives.BoundedArchiveIterator(stream), strict=False):
                if record.rec_type == kind:
                    headers.append("\n".join(map(str, filter(None, (record.rec_headers, record.http_headers)))))
    return page, headers


def _damaged(detail: str) -> PageText:
    return PageText(problem="damaged_record", detail=detail)


def _response(record: Any, url: str | None, requested_url: str | None = None) -> RawPage | PageText:
    """Return the payload of a response record as a page, or the problem."""
    headers = record.http_headers
    content_type = headers.get_header("Content-Type") if headers else None
    data = record.raw_stream.read(MAX_PAGE_BYTES + 1)
    if len(data) > MAX_PAGE_BYTES:
        return too_large()
    # warcio returns the part that exists of a truncated record.
    if getattr(record.raw_stream, "limit", 0) > 0:
        return _damaged("the record is truncated")
    kind = media_type(content_type)
    is_plain = kind in PLAIN_TYPES
    is_html = kind in HTML_TYPES if kind else data[:1024].lstrip().startswith(b"<")
    if not is_plain and not is_html:
        return PageText(problem="not_html", detail=(content_type or "no Content-Type")[:100])
    encodings = {name: headers.get_header(name) for name in _ENCODING_HEADERS} if headers else {}
    fields = tuple(headers.headers) if headers else ()
    return RawPage(data, content_type, url, encodings, is_plain, requested_url, headers=fields)


def _read_warc(file: InputFile) -> Iterator[SourcePage]:
    """Yield every response record of a WARC or ARC; raise InputError, with the offset, if the file is damaged.

    Crawlers store the files of a site before its pages.
    """
    site_files = SiteFiles(file.path, is_fetched=False)
    for record in archives.read_archive(file.path, _page_of_record):
        page = record.content
        if page is None:
            continue
        if isinstance(page.content, PageText) and page.content.problem == "damaged_record":
            raise archives.damaged_archive(file.path, record.offset, ArchiveLoadFailed(page.content.detail))
        if not record.is_intact:
            page = dataclasses.replace(page, content=_damaged("the length of the record is wrong"))
        site_files.add(page.url, record.offset, record.length)
        yield dataclasses.replace(page, warc_file=file.name, warc_offset=record.offset, site_files=site_files)


def _page_of_record(record: Any) -> SourcePage | None:
    """Return the page of a response record, or None for another record."""
    if record.rec_type != "response":
        return None
    url = record.rec_headers.get_header("WARC-Target-URI")
    status = record.http_headers.get_statuscode() if record.http_headers else None
    if _ROBOTS_URL.fullmatch(url or ""):
        content: RawPage | PageText = PageText(problem="robots_txt")
    else:
        content = _response(record, url) if status == "200" else PageText(problem="http_status", detail=status)
    fetched_at = parse_instant(record.rec_headers.get_header("WARC-Date") or "")
    return SourcePage(id_of_url(url), url, content, fetched_at=fetched_at, url_source="warc")


def _read_html(path: str) -> RawPage | PageText:
    try:
        with open_decompressed(path) as stream:
            data = stream.read(MAX_PAGE_BYTES + 1)
    except InputError as error:
        if not storage.exists(path):
            raise
        # Without the message, which contains the path: results do not depend on paths.
        return _damaged(f"the compressed file cannot be read ({type(error.__cause__).__name__})")
    return RawPage(data, None, None) if len(data) <= MAX_PAGE_BYTES else too_large()
