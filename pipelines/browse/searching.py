"""Search: documents by words and phrases, and the passages of a text that occur in documents."""

from __future__ import annotations

import functools

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pipelines.browse.reading import mark_parts
from pipelines.browse.site import Site, number_of, site_of
from pipelines.errors import InputError, UsageError, WebtextError
from pipelines.search.query import SearchIndex
from pipelines.search.trace import Trace, trace

# A text of the most common words takes 8 ms per word.
_ROWS, _MAX_CHARACTERS, _TRACE_S = 10, 20_000, 20.0


def show_search(request: Request) -> Response:
    """Show the documents that a query finds, the best first."""
    site, text = site_of(request), request.query_params.get("q", "").strip()
    index, matches, problem, start = None, None, "", 0
    try:
        index, start = open_index(site), number_of(request, "offset") or 0
        matches = index.search(text, limit=_ROWS, offset=start) if text else None
    except WebtextError as error:
        problem = site.describe(error)
    state = {"index": index, "matches": matches, "problem": problem, "start": start, "rows": _ROWS}
    return site.render(request, "search.html", 400 if problem else 200, **state)


def show_trace(request: Request) -> Response:
    """Show the longest passages of a text that occur in the corpus."""
    text = request.query_params.get("text", "").replace("\r\n", "\n")  # as a form sends the end of a line
    site, result, index, problem = site_of(request), Trace([], len(text)), None, ""
    if len(text) > _MAX_CHARACTERS:
        raise UsageError(f"the text has {len(text):,} characters; at most {_MAX_CHARACTERS:,} can be traced")
    try:
        index = open_index(site)
        if text.strip():
            result = trace(index, text, max_s=_TRACE_S)
    except WebtextError as error:
        problem = site.describe(error)
    state = {"index": index, "result": result, "problem": problem, "limits": (_MAX_CHARACTERS, _TRACE_S)}
    parts = mark_parts(text, sorted((passage.start, passage.end) for passage in result.passages))
    return site.render(request, "trace.html", 400 if problem else 200, text=text, parts=parts, **state)


def open_index(site: Site) -> SearchIndex:
    """Return the index of the corpus; raise WebtextError, with the command that is needed, if there is none."""
    if site.corpus is None:
        raise InputError("only a corpus can be searched; start `webtext browse` with --corpus")
    return _open_index(site.corpus, site.read_version())


@functools.lru_cache(1)
def _open_index(corpus: str, _version: object) -> SearchIndex:
    """Return the index of a corpus; kept, since it is copied or linked file by file, until a stage has finished."""
    return SearchIndex.open(corpus)


NAVIGATION = (("/search", "Search"), ("/trace", "Trace"))
ROUTES = (Route("/search", show_search), Route("/trace", show_trace))
