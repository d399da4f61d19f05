"""Reads the articles of MediaWiki dumps (`enwiki-*-pages-articles.xml.bz2`), multistream or not, as plain text."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple
from xml.etree.ElementTree import Element, ParseError, XMLPullParser

from pipelines import storage
from pipelines.errors import InputError
from pipelines.extras import require_extra
from pipelines.storage.bounded import MAX_LINE_BYTES
from pipelines.storage.compression import find_bzip2_stream, open_decompressed, read_bzip2_streams, strip_compression

_DUMP_NAME = re.compile(r"\.xml(-p\d+p\d+)?$")
_PART_BYTES = 64 << 20
_READ_BYTES = 1 << 20
# Templates of disambiguation pages in English, and the magic word of all languages.
_DISAMBIGUATION = re.compile(r"\{\{\s*(?:[\w -]+ )?(?:disambig(?:uation)?|dab|hndis|geodis)\s*[|}]|__DISAMBIG__", re.I)


class DumpPart(NamedTuple):
    """The bytes of a dump that one task reads: the whole dump, or some streams of a multistream dump."""

    path: str
    begin: int
    end: int
    is_last: bool


def is_dump(path: str) -> bool:
    """Return whether a file is a dump by its name."""
    return _DUMP_NAME.search(strip_compression(path)) is not None


def dump_parts(paths: Sequence[str], part_bytes: int = _PART_BYTES) -> list[DumpPart]:
    """Return the parts of dumps, each for one task; raise WebtextError if the parser of wikitext is not installed."""
    if paths:
        require_extra(
            "wikipedia",
            f"{paths[0]}: reading a dump",
            "mwparserfromhell",
            otherwise="use a --reference of Parquet or JSONL",
        )
    parts: list[DumpPart] = []
    for path in paths:
        size = storage.size_bytes(path)
        begins = _find_parts(path, size, part_bytes) if path.endswith(".bz2") else [0]
        parts += [DumpPart(path, begin, end, end == size) for begin, end in itertools.pairwise([*begins, size])]
    return parts


def _find_parts(path: str, size: int, part_bytes: int) -> list[int]:
    """Return the starts of the parts of a dump, which is one part if its streams do not begin with pages."""
    begins = [0]
    # The streams of a multistream dump have 100 pages, about 1 MB.
    while begin := find_bzip2_stream(path, begins[-1] + part_bytes, min(size, begins[-1] + 2 * part_bytes)):
        if not next(read_bzip2_streams(path, begin, begin + 1)).lstrip().startswith((b"<page>", b"</mediawiki>")):
            return [0]  # written by a program that compresses blocks on several cores
        begins.append(begin)
    return begins


def read_articles(part: DumpPart, counts: Counter[str]) -> Iterator[tuple[str, str]]:
    """Yield the title and the text without markup of each article; count what is skipped.

    Skipped are redirects, disambiguation pages, and pages of other namespaces. Raises InputError if the file is not a
    dump of MediaWiki, DamagedFileError if it is truncated or corrupt.
    """
    import mwparserfromhell  # deferred: only dumps need it

    for page in _read_pages(part):
        wikitext = page.findtext("{*}revision/{*}text") or ""
        if page.findtext("{*}ns") != "0":
            counts["reference_other_pages"] += 1
        elif page.find("{*}redirect") is not None:
            counts["reference_redirects"] += 1
        elif _DISAMBIGUATION.search(wikitext):
            counts["reference_disambiguations"] += 1
        else:
            try:
                yield page.findtext("{*}title") or "", mwparserfromhell.parse(wikitext).strip_code()
            except (mwparserfromhell.parser.ParserError, RecursionError):
                counts["reference_unreadable"] += 1


def _read_pages(part: DumpPart) -> Iterator[Element]:
    """Yield the `page` elements; only the last part of a dump has the end of the root element."""
    parser: Any = XMLPullParser(("start", "end"))
    root: Any = None
    pending = 0
    for chunk in itertools.chain([b"<mediawiki>"] if part.begin else [], _read_chunks(part), [b""]):
        if root is None and (b"<mediawiki" not in chunk or b"<!" in chunk.partition(b"<mediawiki")[0]):
            # Entities can only be declared before the root element.
            raise InputError(f"{part.path}: is not a MediaWiki dump; its XML does not begin with <mediawiki>")
        pending += len(chunk)
        try:
            parser.feed(chunk)
            if not chunk and part.is_last:
                parser.close()
            events = list(parser.read_events())
        except ParseError as error:
            raise InputError(f"{part.path}: is truncated, or not the XML of a MediaWiki dump ({error})") from error
        for event, element in events:
            root = element if root is None else root
            if event == "end" and element.tag.endswith("page"):
                yield element
                root.clear()
                pending = 0
        if pending > MAX_LINE_BYTES:
            raise InputError(f"{part.path}: has a page of more than {MAX_LINE_BYTES:,} bytes; download the dump again")


def _read_chunks(part: DumpPart) -> Iterator[bytes]:
    if part.path.endswith(".bz2"):
        yield from read_bzip2_streams(part.path, part.begin, part.end)
        return
    with open_decompressed(part.path) as stream:
        yield from iter(lambda: stream.read(_READ_BYTES), b"")
