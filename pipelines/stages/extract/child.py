"""Extraction in a child process that can be killed, since pages hang, exhaust or crash the parsers.

The parent sends a batch of pages over a pipe, and reads the next batch while the child works. The child answers page by
page. If it hangs or dies, a new child continues with the batch. The page on which the child worked is dropped with the
reason, or retried if the page may not be the cause.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import logging
import multiprocessing
import os
import re
import signal
import sys
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from warcio.recordloader import ArcWarcRecord
from warcio.statusandheaders import StatusAndHeaders

from pipelines.algorithms.kernels import compile_events
from pipelines.algorithms.web.metadata import Metadata, read_declared, read_metadata
from pipelines.algorithms.web.text_repair import fix_mojibake, repair_text
from pipelines.engine.executor import exit_with_parent
from pipelines.engine.tasks import Item
from pipelines.errors import WebtextError
from pipelines.records.archives import ISAL_ERROR, gzip_decoder
from pipelines.stages.extract.extractors import Blocks, Extracted, Extractor
from pipelines.stages.extract.licenses import find_license
from pipelines.stages.extract.rejection import Rejection, find_rejection

# People do not read larger pages, and parsers need many times the size of a page.
MAX_PAGE_BYTES = 20 << 20
# The first run of an extractor compiles its kernels, which takes minutes on a busy machine.
_START_TIMEOUT_S = 900.0
# The child's own timer ends it when a page exceeds the timeout, since the parent may be reading meanwhile. The parent
# waits this much longer, for a child that cannot be interrupted.
_GRACE_S = 2.0
# Enough for the child to work while the parent reads; more large pages would take memory from the parser.
_BATCH_PAGES = 4

_HTML_LANG = re.compile(rb"<html[^>]{0,1000}?\slang\s*=\s*[\"']?\s*([A-Za-z]{2,8})(?![A-Za-z])", re.IGNORECASE)
_META_LANG = re.compile(
    rb"<meta[^>]{0,200}?http-equiv\s*=\s*[\"']?content-language[\"']?[^>]{0,200}?content\s*=\s*[\"']?\s*([A-Za-z]{2,8})"
    rb"(?![A-Za-z])",
    re.IGNORECASE,
)
_LANG_PRESCAN_BYTES = 1 << 16
_XML_DECLARATION = re.compile(rb"^\s*<\?xml[^>]{0,200}\?>")
_HTML_START = re.compile(rb"\s*<(!doctype html|html)[\s>]", re.IGNORECASE)
# The page need not be the cause of a child's death: the system kills processes when memory is short. Such a page is not
# dropped, since another run would keep it; the pause lets other processes end.
_TRIES = 2
_PAUSE_S = 5.0
_KILLED = "ended by SIGKILL"
_OUT_OF_TIME = "ended by SIGALRM"
_COMPILING = "compiling"
_ENVIRONMENT = {
    "OPENBLAS_NUM_THREADS": "1",
    "MALLOC_TRIM_THRESHOLD_": str(64 << 20),
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
}
_SIGNATURES = {
    b"%PDF-": "PDF", b"\x89PNG": "PNG", b"\xff\xd8\xff": "JPEG", b"GIF8": "GIF", b"PK\x03\x04": "ZIP",
    b"\x1f\x8b": "gzip",
}  # fmt: skip
_GZIP, _GZIP_NAMES = b"\x1f\x8b\x08", ("gzip", "x-gzip")
_EMPTY_LINES = re.compile(r"\A(?:[^\S\n]*\n)+")
_WARM_UP_PAGE = b"<html><head><title>.</title></head><body><p>Parsed before the first page.</p></body></html>"


@dataclasses.dataclass(frozen=True, slots=True)
class RawPage:
    """The bytes of a page as received, its Content-Type header, its URL, and its encoding headers.

    `plain` marks plain text, `with_blocks` a page whose blocks are returned, too. Content and transfer encodings are
    decoded in the child, under its limits, since a small body can expand to gigabytes.
    """

    data: bytes
    content_type: str | None
    url: str | None
    encodings: Mapping[str, str | None] = dataclasses.field(default_factory=dict)
    plain: bool = False
    requested_url: str | None = None
    with_blocks: bool = False
    headers: tuple[tuple[str, str], ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class PageText:
    """The outcome for a page: its title, text, declared language and other metadata, or why there is no text.

    `plain` means that the text is the page itself, `meta` are its meta elements. See `Extracted` for the three fields
    after `metadata`, and `Declared.url` for `declared_url`, which only a page without URL has.
    """

    title: str | None = None
    text: str = ""
    language: str | None = None
    problem: str | None = None
    detail: str | None = None
    plain: bool = False
    meta: Sequence[tuple[str, str]] = ()
    signals: list[str] | None = None
    rejection: Rejection | None = None
    metadata: Metadata = dataclasses.field(default_factory=Metadata)
    page_type: str | None = None
    confidence: float | None = None
    blocks: Blocks | None = None
    declared_url: tuple[str | None, str | None] = (None, None)


@dataclasses.dataclass(frozen=True)
class Limits:
    """What one page may use: seconds, and the child's address space in MiB.

    Parsers leak and caches grow, trafilatura's by about 25 MB per 1,000 pages; a new child takes up to a second.
    """

    timeout_s: float
    memory_limit_mib: int
    pages_per_child: int = 5000


class PageReader:
    """Extracts pages in a child process, and replaces the child after a page that breaks it."""

    def __init__(self, extractor: Extractor, limits: Limits) -> None:
        self._extractor = extractor
        self._limits = limits
        self._child: _Child | None = None

    def extract(self, pages: Iterable[tuple[Item, RawPage | PageText]]) -> Iterator[tuple[Item, PageText]]:
        """Yield the text of each page, or the problem: undecodable, timeout, out_of_memory or crashed.

        The order is that of the pages; a PageText is passed through. Raises WebtextError if the system kills the child
        again and again.
        """
        pages = iter(pages)
        batch = list(itertools.islice(pages, _BATCH_PAGES))
        try:
            while batch:
                waiting = [content for _, content in batch if isinstance(content, RawPage)]
                if waiting:
                    self._send(waiting)
                following = list(itertools.islice(pages, _BATCH_PAGES))
                for item, content in batch:
                    yield item, content if isinstance(content, PageText) else self._receive(waiting)
                batch = following
        except BaseException:
            self.close()  # the child is still working on the batch
            raise

    def _send(self, pages: list[RawPage]) -> _Child:
        child = self._child = self._child or _Child(self._extractor, self._limits)
        child.send(pages)
        return child

    def _receive(self, waiting: list[RawPage]) -> PageText:
        """Return the text of the first page that waits for an answer, and remove it from these pages."""
        for attempt in range(_TRIES + 1):
            if attempt == _TRIES:
                time.sleep(_PAUSE_S)
            child = self._child or self._send(waiting)
            text = child.receive()
            if child.is_worn:
                self.close()
            if not child.died or (attempt + 1 >= _TRIES and text.detail != _KILLED):
                waiting.pop(0)
                return text
        raise WebtextError(
            "the system keeps killing the extractor processes, probably because memory is short; re-run the same "
            "command with fewer --workers to resume, or start a new run with a lower --memory-limit-mib"
        )

    def close(self) -> None:
        """End the child."""
        if self._child is not None:
            self._child.kill()
            self._child = None


class _Child:
    """The parent's side of one child process; `is_worn` once it must be replaced, `died` if it ended by itself."""

    def __init__(self, extractor: Extractor, limits: Limits) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, child_connection = context.Pipe()
        self._limits = limits
        self._pages = 0
        self.is_worn = self.died = False
        self._process: BaseProcess = context.Process(
            target=_serve, args=(child_connection, extractor, limits), daemon=True
        )
        with _child_environment():
            self._process.start()
        child_connection.close()
        try:
            is_ready = self._answer(_START_TIMEOUT_S) == "ready"
        except (EOFError, ConnectionError):
            is_ready = False
        if not is_ready:
            self.kill()
            raise WebtextError("the extractor did not start; see its error above (without one, memory may be short)")

    def send(self, pages: list[RawPage]) -> None:
        """Send pages; if the child has died, `receive` notices."""
        with contextlib.suppress(ConnectionError):
            # The bytes of the pages are sent separately: pickling would copy them twice.
            self._connection.send([dataclasses.replace(page, data=b"") for page in pages])
            for page in pages:
                self._connection.send_bytes(page.data)

    def receive(self) -> PageText:
        """Return the answer for the next page."""
        self._pages += 1
        out_of_time = PageText(problem="timeout", detail=f"more than {self._limits.timeout_s:g} s")
        try:
            text: PageText | None = self._answer(self._limits.timeout_s + _GRACE_S)
            if text is None:
                self.is_worn = True
                return out_of_time
        except (EOFError, ConnectionError):
            self._process.join()
            code = self._process.exitcode or 0
            detail = f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            self.is_worn, self.died = True, detail != _OUT_OF_TIME
            return PageText(problem="crashed", detail=detail) if self.died else out_of_time
        self.is_worn = self._pages >= self._limits.pages_per_child or text.problem == "out_of_memory"
        return text

    def _answer(self, timeout_s: float) -> Any:
        """Return the next answer, None if there is none in time; report that the child compiles kernels."""
        while self._connection.poll(timeout_s):
            answer = self._connection.recv()
            if answer != _COMPILING:
                return answer
            compile_events.report()
        return None

    def kill(self) -> None:
        self._connection.close()
        self._process.kill()
        self._process.join()
        self._process.close()


@contextlib.contextmanager
def _child_environment() -> Iterator[None]:
    """Set the variables that NumPy and glibc of a child read when it starts.

    A child uses one thread, and keeps freed memory for the next page.
    """
    added = {name: value for name, value in _ENVIRONMENT.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


def _serve(connection: Connection, extractor: Extractor, limits: Limits) -> None:
    """Extract pages in the child process until the parent ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and ends its child
    exit_with_parent()
    # Only third-party parsers run here, and their warnings about odd pages are noise.
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    compile_events.set_listener(lambda: connection.send(_COMPILING))
    _extract_html(extractor, _WARM_UP_PAGE, RawPage(b"", None, None))
    _limit_memory(limits.memory_limit_mib)
    connection.send("ready")
    while True:
        try:
            batch = [dataclasses.replace(page, data=connection.recv_bytes()) for page in connection.recv()]
        except (EOFError, ConnectionError):
            return
        for page in batch:
            _set_timer(limits.timeout_s)
            text = extract_text(extractor, page)
            _set_timer(0)
            connection.send(text)
            if text.problem == "out_of_memory":
                return  # the memory that remains could be too little for the next page


def _set_timer(seconds: float) -> None:
    """Have the operating system end this process after a time (0: never).

    The thread that watches for the parent's death cannot run while a parser holds the interpreter.
    """
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, seconds)


def _limit_memory(memory_limit_mib: int) -> None:
    if sys.platform == "win32":
        return
    import resource

    # Some systems (macOS) refuse the limit; memory is then unlimited.
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (memory_limit_mib << 20, memory_limit_mib << 20))


def extract_text(extractor: Extractor, page: RawPage) -> PageText:
    """Decode a page and extract its text in this process."""
    try:
        data = decode_body(page)
        if len(data) > MAX_PAGE_BYTES:
            return too_large()
        signature = next(filter(data.startswith, _SIGNATURES), None)
        if signature is not None:  # some servers declare other files as HTML
            return PageText(problem="not_html", detail=_SIGNATURES[signature])
        html = html_of(data, page.content_type)
        if html is None:
            return PageText(problem="undecodable")
        # Some servers declare HTML as plain text, because they do not know its suffix.
        if page.plain and not _HTML_START.match(html):
            return dataclasses.replace(clean_text(Extracted(None, html.decode()), None), plain=True)
        return _extract_html(extractor, html, page)
    except MemoryError:
        return PageText(problem="out_of_memory")
    except ISAL_ERROR:
        return PageText(problem="undecodable", detail="damaged gzip data")
    except Exception as error:  # noqa: BLE001 - a parser can raise anything for hostile input; the page is counted
        # Only the type: messages contain addresses, which differ from run to run.
        return PageText(problem="crashed", detail=type(error).__name__)


def _extract_html(extractor: Extractor, html: bytes, page: RawPage) -> PageText:
    extracted = extractor(html, page.url)
    from pipelines.algorithms.blocks.page import parse_html

    blocks = extracted.list_blocks() if page.with_blocks and extracted.list_blocks else None
    declared = extracted.declared or read_declared(parse_html(html).tree)
    url = (page.url, None) if page.url else declared.url()
    text = dataclasses.replace(clean_text(extracted, declared_language(html)), blocks=blocks, declared_url=url)
    text = dataclasses.replace(text, meta=declared.elements)
    rejection = find_rejection(extracted.title, extracted.plain or text.text, html, page.url, page.requested_url)
    if not text.text:
        return dataclasses.replace(text, rejection=rejection, detail=extracted.why_nothing)
    metadata = dataclasses.replace(read_metadata(declared, url[0]), **find_license(declared, url[0]))
    # dataclasses.astuple copies the values.
    values = [getattr(metadata, field) for field in Metadata.__slots__]
    values = [fix_mojibake(value) if value and extracted.is_fixed else value for value in values]
    metadata = Metadata(*map(_clean_line, values))
    return dataclasses.replace(text, title=metadata.title or text.title, metadata=metadata, rejection=rejection)


def too_large() -> PageText:
    """Return the outcome for a page above the size limit."""
    return PageText(problem="too_large", detail=f"more than {MAX_PAGE_BYTES} bytes")


def html_of(data: bytes, content_type: str | None) -> bytes | None:
    """Return a page in UTF-8 as parsers accept it, or None if the bytes are not text.

    The XML declaration is removed, since the encoding that it names no longer applies.
    """
    from pipelines.algorithms.web.charset import decode_page  # by kernels, which the parent does not need

    decoded = decode_page(data, content_type)
    return None if decoded is None else _XML_DECLARATION.sub(b"", decoded.utf8, count=1)


def decode_body(page: RawPage) -> bytes:
    """Return the bytes of a page without content and transfer encodings, at most one more than the limit."""
    headers = [(name, value) for name, value in page.encodings.items() if value]
    if not headers:
        return page.data
    if page.data.startswith(_GZIP) and (page.encodings.get("Content-Encoding") or "").strip().lower() in _GZIP_NAMES:
        # warcio would keep what comes before damage. The end may be missing: archives cut large pages.
        return bytes(gzip_decoder().decompress(page.data, MAX_PAGE_BYTES + 1))
    record = ArcWarcRecord(
        "warc", "response", None, io.BytesIO(page.data), StatusAndHeaders("200 OK", headers), None, len(page.data)
    )
    return bytes(record.content_stream().read(MAX_PAGE_BYTES + 1))


def clean_text(extracted: Extracted, language: str | None) -> PageText:
    """Repair the text, and normalize its line ends and the white space around it."""
    text = repair_text(extracted.text).replace("\r\n", "\n").replace("\r", "\n").rstrip()
    text = _EMPTY_LINES.sub("", text)  # keeps the indentation of a first line of code
    title = _clean_line(extracted.title)
    return PageText(title, text, language, page_type=extracted.page_type, confidence=extracted.confidence)


def _clean_line(text: str | None) -> str | None:
    return " ".join(repair_text(text or "").split()) or None


def declared_language(html: bytes) -> str | None:
    """Return the primary language tag, lower-cased, that the HTML declares by `<html lang>` or `<meta>`, or None."""
    match = _HTML_LANG.search(html, 0, _LANG_PRESCAN_BYTES) or _META_LANG.search(html, 0, _LANG_PRESCAN_BYTES)
    return match[1].decode().lower() if match else None
