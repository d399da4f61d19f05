"""Extraction in a child process that can be killed, since pages hang, exhaust or crash the parsers.

The parent sends one page at a time over a pipe and waits for its answer as long as the time limit allows. A child that
hangs or dies is replaced by a fresh one, and the page is given up, with the reason.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import logging
import multiprocessing
import re
import signal
import sys
import warnings
from collections.abc import Iterator, Mapping
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from warcio.recordloader import ArcWarcRecord
from warcio.statusandheaders import StatusAndHeaders

from pipelines.algorithms.web.charset import decode_page
from pipelines.core.errors import WebtextError
from pipelines.core.executor import exit_with_parent
from pipelines.stages.extract.extractors import Extracted, Extractor

# Parsers leak and caches grow; a fresh child now and then keeps the memory of a long task flat.
_PAGES_A_CHILD = 1000
_START_TIMEOUT_S = 120.0
_WATCHDOG_GRACE_S = 2.0

_HTML_LANG = re.compile(r"<html[^>]{0,1000}?\slang\s*=\s*[\"']?\s*([A-Za-z]{2,8})(?![A-Za-z])", re.IGNORECASE)
_META_LANG = re.compile(
    r"<meta[^>]{0,200}?http-equiv\s*=\s*[\"']?content-language[\"']?[^>]{0,200}?content\s*=\s*[\"']?\s*([A-Za-z]{2,8})"
    r"(?![A-Za-z])",
    re.IGNORECASE,
)
_LANG_PRESCAN_CHARACTERS = 1 << 16
_XML_DECLARATION = re.compile(r"^\s*<\?xml[^>]{0,200}\?>")
_BEGINS_AS_HTML = re.compile(r"\s*<(!doctype html|html)[\s>]", re.IGNORECASE)
_NOT_IN_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")
_WARM_UP_PAGE = "<html><head><title>.</title></head><body><p>Parsed before the first page.</p></body></html>"


# What is larger is no page that a person reads, and parsers need many times its size.
MOST_PAGE_BYTES = 20 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class RawPage:
    """The bytes of a page as received, its Content-Type header, its URL, and the headers that say how it is encoded.

    `plain` tells that its type is plain text, not HTML.

    Content and transfer encodings are undone in the child, under its limits: a small body can hold gigabytes.
    """

    data: bytes
    content_type: str | None
    url: str | None
    encodings: Mapping[str, str | None] = dataclasses.field(default_factory=dict)
    plain: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class PageText:
    """What became of a page: its title, text and declared language, or the reason why there are none.

    `plain` tells that the text is the page itself.
    """

    title: str | None = None
    text: str = ""
    language: str | None = None
    problem: str | None = None
    detail: str | None = None
    plain: bool = False


@dataclasses.dataclass(frozen=True)
class Limits:
    """What one page may take: seconds, and the child's address space in MiB."""

    timeout_s: float
    memory_mb: int
    pages_a_child: int = _PAGES_A_CHILD


class PageReader:
    """Extracts page after page in a child process, and replaces the child when a page breaks it."""

    def __init__(self, extractor: Extractor, limits: Limits) -> None:
        self._extractor = extractor
        self._limits = limits
        self._child: _Child | None = None

    def read(self, page: RawPage) -> PageText:
        """Return the text of a page, or the problem: undecodable, timeout, out_of_memory or crashed."""
        if self._child is None:
            self._child = _Child(self._extractor, self._limits)
        answer = self._child.ask(page)
        if self._child.worn:
            self.close()
        return answer

    def close(self) -> None:
        """End the child."""
        if self._child is not None:
            self._child.end()
            self._child = None


@contextlib.contextmanager
def page_reader(extractor: Extractor, limits: Limits) -> Iterator[PageReader]:
    """Yield a `PageReader` whose child is gone after the block."""
    reader = PageReader(extractor, limits)
    try:
        yield reader
    finally:
        reader.close()


class _Child:
    """The parent's side of one child process; `worn` once it must be replaced."""

    def __init__(self, extractor: Extractor, limits: Limits) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._limits = limits
        self._pages = 0
        self.worn = False
        self._process: BaseProcess = context.Process(target=_serve, args=(theirs, extractor, limits), daemon=True)
        self._process.start()
        theirs.close()
        self._await_start()

    def ask(self, page: RawPage) -> PageText:
        self._pages += 1
        try:
            self._connection.send(page)
            if not self._connection.poll(self._limits.timeout_s):
                self.worn = True
                return PageText(problem="timeout", detail=f"more than {self._limits.timeout_s:g} s")
            answer: PageText = self._connection.recv()
        except (EOFError, ConnectionError):
            self.worn = True
            self._process.join()
            return PageText(problem="crashed", detail=_death_in_words(self._process.exitcode))
        self.worn = self._pages >= self._limits.pages_a_child or answer.problem == "out_of_memory"
        return answer

    def end(self) -> None:
        self._connection.close()
        self._process.kill()
        self._process.join()
        self._process.close()

    def _await_start(self) -> None:
        try:
            started = self._connection.poll(_START_TIMEOUT_S) and self._connection.recv() == "ready"
        except (EOFError, ConnectionError):
            started = False
        if not started:
            self.end()
            raise WebtextError("the extractor does not start; what it printed above says why")


def _death_in_words(exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        return f"ended by {signal.Signals(-exit_code).name}"
    return f"ended with exit code {exit_code}"


def _serve(connection: Connection, extractor: Extractor, limits: Limits) -> None:
    """Answer pages in the child process until the parent ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the parent, which ends its child
    exit_with_parent()
    # This process holds nothing but third-party parsers, and what they say of odd pages is no news.
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    extractor(_WARM_UP_PAGE, None)
    _limit_memory(limits.memory_mb)
    connection.send("ready")
    while True:
        try:
            page = connection.recv()
        except (EOFError, ConnectionError):
            return
        _watchdog(limits.timeout_s + _WATCHDOG_GRACE_S)
        connection.send(_page_text(extractor, page))
        _watchdog(0)


def _watchdog(seconds: float) -> None:
    """Have the kernel end this process after a time (0: never).

    The thread that watches for the parent's death cannot run while a parser holds the interpreter.
    """
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, seconds)


def _limit_memory(memory_mb: int) -> None:
    if sys.platform == "win32":
        return
    import resource

    # Some systems (macOS) refuse the limit; a page then may take what there is.
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (memory_mb << 20, memory_mb << 20))


def _page_text(extractor: Extractor, page: RawPage) -> PageText:
    try:
        data = _body(page)
        if len(data) > MOST_PAGE_BYTES:
            return PageText(problem="too_large", detail=f"more than {MOST_PAGE_BYTES} bytes")
        html = html_of(data, page.content_type)
        if html is None:
            return PageText(problem="undecodable")
        # Servers name HTML so too when they do not know its suffix.
        if page.plain and not _BEGINS_AS_HTML.match(html):
            return dataclasses.replace(_cleaned(Extracted(None, html), None), plain=True)
        return _cleaned(extractor(html, page.url), declared_language(html))
    except MemoryError:
        return PageText(problem="out_of_memory")
    except Exception as error:  # noqa: BLE001 - on hostile input a parser raises anything; the page is counted
        # The type alone: messages hold addresses, which differ from run to run.
        return PageText(problem="crashed", detail=type(error).__name__)


def html_of(data: bytes, content_type: str | None) -> str | None:
    """Return the characters of a page as parsers take them, or None where the bytes are no text.

    An XML declaration goes, since the encoding that it names no longer holds, and so do characters that XML forbids.
    """
    decoded = decode_page(data, content_type)
    if decoded is None:
        return None
    return _XML_DECLARATION.sub("", _NOT_IN_XML.sub(" ", decoded.text), count=1)


def _body(page: RawPage) -> bytes:
    """Return the bytes of a page without content and transfer encodings, at most one more than is allowed."""
    headers = [(name, value) for name, value in page.encodings.items() if value]
    if not headers:
        return page.data
    record = ArcWarcRecord(
        "warc", "response", None, io.BytesIO(page.data), StatusAndHeaders("200 OK", headers), None, len(page.data)
    )
    body: bytes = record.content_stream().read(MOST_PAGE_BYTES + 1)
    return body


def _cleaned(found: Extracted, language: str | None) -> PageText:
    title = " ".join(_encodable(found.title).split()) if found.title else None
    text = _encodable(found.text).replace("\r\n", "\n").replace("\r", "\n").strip()
    return PageText(title or None, text, language)


def _encodable(text: str) -> str:
    """Return text without NUL and lone surrogates, which character references smuggle in."""
    return text.replace("\x00", "").encode("utf-8", "ignore").decode()


def declared_language(html: str) -> str | None:
    """Return the primary language tag, lower-cased, that the HTML declares by `<html lang>` or `<meta>`, or None."""
    head = html[:_LANG_PRESCAN_CHARACTERS]
    match = _HTML_LANG.search(head) or _META_LANG.search(head)
    return match[1].lower() if match else None
