"""Search: documents by words and phrases, and the passages of a text that occur in documents."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Sequence
from urllib.parse import parse_qs

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from pipelines.browse.site import Site, address, number_of, site_of
from pipelines.errors import InputError, UsageError, WebtextError
from pipelines.search.query import SearchIndex
from pipelines.search.trace import Passage, trace

_ROWS = 10
# A traced text, and one that fits into a URL.
MAX_CHARACTERS, _URL_CHARACTERS = 20_000, 2_000
_MAX_FORM_BYTES = 12 * MAX_CHARACTERS


def show_search(request: Request) -> Response:
    """Show the documents that a query finds, the best first."""
    site, query, start = site_of(request), request.query_params, number_of(request, "offset") or 0
    year, text = number_of(request, "year"), query.get("q", "").strip()
    names = {name: query.get(name) or None for name in ("domain", "language")}
    index = matches = problem = None
    try:
        index = open_index(site)
        matches = index.search(text, year=year, limit=_ROWS, offset=start, **names) if text else None
    except WebtextError as error:
        problem = error
    state = {"index": index, "matches": matches, "problem": problem, "start": start, "rows": _ROWS}
    return site.render(request, "search.html", 400 if isinstance(problem, UsageError) else 200, **state)


def show_trace(request: Request, text: str | None = None) -> Response:
    """Show the longest passages of a text that occur in the corpus."""
    site, text = site_of(request), request.query_params.get("text", "") if text is None else text
    index = passages = problem = None
    try:
        if len(text) > MAX_CHARACTERS:
            raise UsageError(f"the text has {len(text):,} characters; a text has at most {MAX_CHARACTERS:,}")
        index = open_index(site)
        # One request at a time reads the tables, which only a stale index needs.
        with site.tables() if index.is_stale else contextlib.nullcontext() as tables:
            passages = trace(index, tables, text) if text.strip() else None
    except WebtextError as error:
        problem = error
    state = {"index": index, "passages": passages, "problem": problem, "text": text, "limit": MAX_CHARACTERS}
    parts = mark_passages(text, passages or ())
    return site.render(request, "trace.html", 400 if isinstance(problem, UsageError) else 200, parts=parts, **state)


async def post_trace(request: Request) -> Response:
    """Trace the text of a form; a short text is moved to the URL."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MAX_FORM_BYTES:
            raise UsageError(f"the text is too long; a text has at most {MAX_CHARACTERS:,} characters")
    text = parse_qs(body.decode("ascii", "replace")).get("text", [""])[0]
    if len(text) <= _URL_CHARACTERS:
        return RedirectResponse(address("/trace", text=text), 303)
    return await run_in_threadpool(show_trace, request, text)


def mark_passages(text: str, passages: Sequence[Passage]) -> list[tuple[str, bool]]:
    """Return the parts of a text, and whether a passage contains them; passages may overlap."""
    borders = sorted({0, len(text), *(border for passage in passages for border in (passage.start, passage.end))})
    parts = [
        (text[start:end], any(passage.start <= start and end <= passage.end for passage in passages))
        for start, end in itertools.pairwise(borders)
    ]
    return [
        ("".join(part for part, _ in group), is_marked)
        for is_marked, group in itertools.groupby(parts, key=lambda part: part[1])
    ]


def open_index(site: Site) -> SearchIndex:
    """Return the index of the corpus; raise InputError, with the command that builds it, if there is none."""
    if site.corpus is None:
        raise InputError("only a corpus can be searched; start `webtext browse` with --corpus")
    with site.tables():
        version = site.version
    return _open_index(site.corpus, version)


@functools.lru_cache(maxsize=1)
def _open_index(corpus: str, _version: object) -> SearchIndex:
    return SearchIndex.open(corpus)


NAVIGATION = (("/search", "Search"), ("/trace", "Trace"))
ROUTES = (Route("/search", show_search), Route("/trace", show_trace), Route("/trace", post_trace, methods=["POST"]))
