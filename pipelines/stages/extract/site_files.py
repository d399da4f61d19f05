"""The wishes of sites: the robots.txt and tdmrep.json in a WARC file, each read when a page of its site needs it."""

from __future__ import annotations

import contextlib
import functools
import io
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import urljoin

from pipelines import storage
from pipelines.algorithms.web.signals import MAX_BYTES, parse_site
from pipelines.records.archives import RECORD_DAMAGE, BoundedArchiveIterator, find_members, has_members, is_arc

_PATHS = ("/robots.txt", "/.well-known/tdmrep.json")
_URL = rf"https?://[^/?#\s]+(?:{'|'.join(map(re.escape, _PATHS))})"
_RECORD = re.compile(
    rb"WARC/1\.1\r\nWARC-Type: response\r\n(?:[^\r\n]+\r\n){0,9}?WARC-Target-URI: (%b)\r\n" % _URL.encode()
)
_MAX_REDIRECTS, _MAX_RECORD_BYTES = 5, 1 << 20
# Pages are in the order of their URLs, so those of a site follow each other.
_CACHED_SITES = 32


class SiteFiles:
    """The site files of one WARC file, by URL; of several at one URL, the last one that was added counts."""

    def __init__(self, path: str, is_fetched: bool) -> None:
        self._path = path
        members = find_members(path, _RECORD) if is_fetched else ()
        self._places = {match[1].decode("ascii", "replace"): place for match, *place in members}
        self._sites = functools.lru_cache(_CACHED_SITES)(
            lambda robots, tdmrep, agents: parse_site(self._read(robots), self._read(tdmrep), agents)
        )

    def add(self, url: str | None, offset: int, length: int) -> None:
        """Add a record if it is of a site file and can be read at its offset."""
        if url and re.fullmatch(_URL, url) and has_members(self._path):
            self._places[url] = [offset, length]

    def signals(self, url: str, agents: tuple[str, ...]) -> Iterator[str]:
        """Yield the signals for a page in the files of its site."""
        with contextlib.suppress(ValueError):  # of an invalid IPv6 address
            yield from self._sites(*(urljoin(url, path) for path in _PATHS), agents)(url)

    def _read(self, url: str, redirects: int = 0) -> bytes:
        """Return the body of a site file, also of one that it redirects to; empty if there is none."""
        if url not in self._places or redirects > _MAX_REDIRECTS:
            return b""
        offset, length = self._places[url]
        try:
            data = storage.read_range(self._path, offset, min(length, _MAX_RECORD_BYTES))
            record: Any = next(BoundedArchiveIterator(io.BytesIO(data), is_arc(self._path)))
            head = record.http_headers
            if head and head.get_statuscode().startswith("2"):
                return bytes(record.content_stream().read(MAX_BYTES))
            return self._read(urljoin(url, head.get_header("Location") or ""), redirects + 1) if head else b""
        except (*RECORD_DAMAGE, StopIteration):  # a damaged WARC file is an error when its pages are read
            return b""
