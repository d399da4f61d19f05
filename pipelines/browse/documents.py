"""Documents by a filter, with the values of their columns as links that narrow it."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pipelines.browse.site import number_of, site_of
from pipelines.corpus.selection import UNKNOWN, Selection
from pipelines.errors import UsageError

_ROWS, _CHARACTERS, _FACET_VALUES = 20, 300, 8


def show_documents(request: Request) -> Response:
    """Show a page of documents, and how many there are; with a filter that is not valid, the form and what is wrong."""
    site, query, problem = site_of(request), request.query_params, ""
    seed, after, before = (number_of(request, name) for name in ("random", "after", "before"))
    with site.tables(request) as tables:
        try:
            selection = Selection(tables, query)
        except UsageError as error:
            selection, problem = Selection(tables, {}), str(error)
        cursor, is_backward = (after, False) if before is None else (before, True)
        # One more than is shown, which tells whether there is another page.
        page = (query.get("sort", ""), seed, cursor, _ROWS + 1, _CHARACTERS)
        rows = [] if problem else selection.page(*page, is_backward=is_backward)
        count, stages = None if problem else selection.count(), tables.document_stages
    is_more = len(rows) > _ROWS
    rows = rows[-_ROWS:] if is_backward else rows[:_ROWS]
    state: Any = {"selection": selection, "state": _state(request, selection), "problem": problem, "stages": stages}
    state["has_next"] = is_backward or is_more
    state["has_previous"] = is_more if is_backward else after is not None
    status = 400 if problem else 200
    return site.render(request, "documents.html", status, rows=rows, count=count, seed=seed, **state)


def show_facet(request: Request) -> Response:
    """Show how many of the documents have each of the most frequent values of a column."""
    site, facet = site_of(request), request.query_params.get("facet", "")
    with site.tables(request) as tables:
        selection = Selection(tables, request.query_params)
        rows = selection.count_values(facet, _FACET_VALUES)
    return site.render(request, "facet.html", facet=facet, rows=rows, state=_state(request, selection), unknown=UNKNOWN)


def _state(request: Request, selection: Selection) -> dict[str, str]:
    """Return what links to other documents keep of a query: the filters and the order, but not the page."""
    return selection.active | {name: request.query_params.get(name, "") for name in ("stage", "sort", "random")}


NAVIGATION = (("/documents", "Documents"),)
ROUTES = (Route("/documents", show_documents), Route("/documents/facet", show_facet))
