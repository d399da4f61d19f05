"""The page of one document: its text, its way through the stages, and why it is missing."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pipelines.browse import document_parts
from pipelines.browse.document_parts import read_offset, read_text
from pipelines.browse.reading import find_benchmarks, set_text
from pipelines.browse.site import site_of
from pipelines.corpus.explain import DROPPED, History, explain
from pipelines.format import describe_field

# Longer texts are read in parts.
_SHOWN_CHARACTERS = 20_000


def show_document(request: Request) -> Response:
    """Show a document by its id or URL, kept, dropped or absent; without either, the form to look one up."""
    site, query, offset = site_of(request), request.query_params, read_offset(request)
    target = (query.get("id") or query.get("url") or "").strip()
    if not target:
        return site.render(request, "document.html", history=None)
    with site.tables() as tables:
        history = explain(tables, target)
        last, facts = history.steps[-1], _facts(history)
        text = read_text(tables, history.id, history.url)
        shown = (text or "")[offset : offset + _SHOWN_CHARACTERS]
        marks, benchmarks = find_benchmarks(tables, shown)
        parts = {
            "tokens": ("Tokens", text is not None and {"tokenize", "train-bpe"} & tables.stages.keys()),
            "rules": ("Rules of the filter", text is not None and "filter" in tables.stages),
            "cluster": ("Duplicates", "kept_document" in facts),
            "page": ("Archived page", facts.get("warc_file")),
        }
    return site.render(
        request,
        "document.html",
        history=history,
        facts=facts,
        last=last,
        text=text,
        blocks=set_text(shown, marks),
        benchmarks=benchmarks,
        offset=offset,
        end=offset + len(shown),
        size=_SHOWN_CHARACTERS,
        parts=[(name, title) for name, (title, is_known) in parts.items() if is_known],
        describe=describe_field,
        kept_instead=facts.get("kept_document") if (last.stage, last.outcome) == ("dedup", DROPPED) else None,
    )


def _facts(history: History) -> dict[str, Any]:
    """Return the fields of all steps; those of later stages replace earlier ones."""
    facts: dict[str, Any] = {"title": None, "submission_ids": [], "subreddits": [], "domain": None, "fetched_at": None}
    for step in history.steps:
        facts |= {name: value for name, value in step.fields.items() if value is not None}
    return facts


NAVIGATION = (("/document", "Look up a URL"),)
ROUTES = (Route("/document", show_document), *document_parts.ROUTES)
