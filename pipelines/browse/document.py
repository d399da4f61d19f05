"""The page of one document: its text, its way through the stages, and why it is missing."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pipelines.browse import document_parts
from pipelines.browse.document_parts import PARTS, read_text
from pipelines.browse.reading import find_benchmarks, set_text
from pipelines.browse.site import number_of, site_of
from pipelines.corpus.explain import explain
from pipelines.format import describe_field

# Longer texts are read in parts.
_SHOWN_CHARACTERS = 20_000


def show_document(request: Request) -> Response:
    """Show a document by its id or URL, kept, dropped or absent; without either, the form to look one up.

    With a passage, the characters `start` to `end`, the part of the text in which it begins is shown, and it is marked.
    """
    site, query = site_of(request), request.query_params
    offset, start, end = (number_of(request, name) for name in ("offset", "start", "end"))
    if offset is None:
        offset = (start or 0) // _SHOWN_CHARACTERS * _SHOWN_CHARACTERS
    id, url = query.get("id", ""), query.get("url", "")
    target = id or url.strip()
    if not target:
        return site.render(request, "document.html", history=None)
    with site.tables(request) as tables:
        history = explain(tables, target, is_id=bool(id), url=url)
        # Of fields that differ from stage to stage, the last one.
        facts = {name: value for step in history.steps for name, value in step.fields.items() if value is not None}
        text = read_text(tables, history.id, history.url)
        shown = (text or "")[offset : offset + _SHOWN_CHARACTERS]
        if start is not None and end is not None:
            marks, benchmarks = [(start - offset, end - offset)], list[dict[str, Any]]()
        else:
            marks, benchmarks = find_benchmarks(tables, shown)
        is_known = {
            "cluster": "kept_document" in facts,
            "rules": text is not None and "filter" in tables.document_stages[1:],  # which reads another stage
            "page": facts.get("warc_file"),
            "tokens": text is not None and {"tokenize", "train-bpe"} & tables.stages.keys(),
        }
    parts = [(name, PARTS[name][0]) for name, value in is_known.items() if value]
    state: dict[str, Any] = {"history": history, "facts": facts, "parts": parts, "describe": describe_field}
    state |= {"text": text, "offset": offset, "end": offset + len(shown), "size": _SHOWN_CHARACTERS}
    return site.render(request, "document.html", blocks=set_text(shown, marks), benchmarks=benchmarks, **state)


NAVIGATION = (("/document", "Look up a URL"),)
ROUTES = (Route("/document", show_document), *document_parts.ROUTES)
