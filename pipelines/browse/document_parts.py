"""The parts of the page of a document that load after it: archived page, rules, cluster, differences and tokens."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from tokenizers import Tokenizer

from pipelines import storage
from pipelines.algorithms.quality.lines import LINE_STATISTICS
from pipelines.algorithms.quality.statistics import STATISTICS
from pipelines.browse.site import number_of, site_of
from pipelines.corpus.explain import find_identity
from pipelines.corpus.tables import CorpusTables, documents_of, place_of, resolve
from pipelines.errors import UsageError
from pipelines.reports.dedup import compare_texts
from pipelines.reports.extract import fold, runs
from pipelines.stages.extract.config import ExtractConfig
from pipelines.stages.extract.explain import show_page as read_page
from pipelines.stages.extract.extractors import SHOWN_BLOCKS, SHOWN_CHARACTERS
from pipelines.stages.filter.rules import load_rules
from pipelines.tokenizers.formats import TOKENIZER, load_document_tokenizer, read_tokenizer

# The parsers work while the reader waits.
_TIMEOUT_S = 10.0
_SOURCE_CHARACTERS, _COMPARED_CHARACTERS, _ENCODED_CHARACTERS = 100_000, 20_000, 400_000
_MEMBERS, _TOKENS = 100, 2_000


def show_page(request: Request) -> Response:
    """Show the archived page: its blocks, its source and its headers."""
    with site_of(request).tables(request) as tables:
        _, url = _identify(tables, request.query_params)
        row = tables.first("pages", "url = ? AND warc_file IS NOT NULL", [url]) if "pages" in tables.views else None
        stages = tables.stages
    page, problem = None, "The corpus has no archived page of this document."
    if row and not storage.is_file(path := storage.join(stages["fetch"].path, storage.basename(row["warc_file"]))):
        problem = f"The page is in {row['warc_file']}, which is no longer in the corpus."
    elif row:
        config = stages["extract"].manifest.identity.config if "extract" in stages else {}
        options = {field.name: config.get(field.name, field.default) for field in dataclasses.fields(ExtractConfig)}
        page, problem = read_page(ExtractConfig(**{**options, "timeout": _TIMEOUT_S}), path, row), ""
    limits = {"limits": (SHOWN_BLOCKS, SHOWN_CHARACTERS), "source_characters": _SOURCE_CHARACTERS}
    return _render(request, problem=problem, page=page, runs=runs, fold=fold, **limits)


def show_rules(request: Request) -> Response:
    """Show the value of the document, as the filter read it, by each rule of the corpus."""
    with site_of(request).tables(request) as tables:
        text = read_text(tables, *_identify(tables, request.query_params), "filter")
        if text is None or "filter" not in tables.stages:
            raise UsageError("the corpus has no text of this document that a filter read")
        identity = tables.stages["filter"].manifest.identity
    rules = load_rules(identity.config["profile"], identity.config["rule"], identity.config["set"], None)
    values = rules.apply(pa.RecordBatch.from_pydict({"text": [text]})).describe_first()
    has_others = rules.fingerprint != identity.inputs["rules"]
    return _render(request, rules=values, has_others=has_others, meanings=STATISTICS | LINE_STATISTICS)


def show_cluster(request: Request) -> Response:
    """Show the documents of the document's cluster."""
    with site_of(request).tables(request) as tables:
        id, _ = _identify(tables, request.query_params)
        cluster = "cluster = (SELECT any_value(cluster) FROM clusters WHERE id = ?)"
        query = f"FROM clusters WHERE {cluster} ORDER BY id = cluster DESC, jaccard DESC, id LIMIT {_MEMBERS}"
        members = tables.rows(query, [id])
        ids, kept = [row["id"] for row in members], next((row["cluster"] for row in members), id)
        query = (
            "SELECT id, url FROM dropped WHERE stage = 'dedup' AND id IN (SELECT unnest(?::VARCHAR[])) "
            f"UNION ALL (SELECT id, url FROM {documents_of('dedup')} WHERE id = ? LIMIT 1)"
        )
        urls = {row["id"]: row["url"] for row in tables.rows(query, [ids, kept])}
    return _render(request, id=id, members=[{"url": urls.get(row["id"]), **row} for row in members])


def show_difference(request: Request) -> Response:
    """Show two documents, as dedup read them, side by side."""
    sides = list[dict[str, Any]]()
    with site_of(request).tables(request) as tables:
        for name in ("id", "other"):
            id, url = _identify(tables, {"id": request.query_params.get(name, "")})
            text = read_text(tables, id, url, "dedup")
            characters = len(text or "")
            sides.append({"id": id, "url": url, "text": text and text[:_COMPARED_CHARACTERS], "characters": characters})
        ids, query = [side["id"] for side in sides], "SELECT id, kind FROM clusters WHERE id IN (?, ?)"
        kinds = tables.rows(query, ids) if "clusters" in tables.views else []
    outcomes = {row["id"]: "kept" if row["kind"] == "kept" else "dropped" for row in kinds}
    names = [outcomes.get(id, name) for id, name in zip(ids, ("first", "second"), strict=True)]
    parts = compare_texts(sides[0]["text"], sides[1]["text"])
    return _render(request, sides=list(zip(names, sides, parts, strict=True)))


def show_tokens(request: Request) -> Response:
    """Show the tokens of the document."""
    site, offset = site_of(request), number_of(request, "offset") or 0
    with site.tables(request) as tables:
        id, url = _identify(tables, request.query_params)
        text = read_text(tables, id, url) or ""
        folders = [tables.stages[name] for name in ("tokenize", "train-bpe") if name in tables.stages]
    paths = [file.path for folder in folders for file in folder.files(TOKENIZER)]
    if not paths:
        raise UsageError(f"{site.name}: has no tokenizer; run `webtext train-bpe` first")
    encoding = _tokenizer(paths[0], site.version).encode(text[:_ENCODED_CHARACTERS], add_special_tokens=False)
    tokens, end = list[tuple[int, str]](), 0
    # The tokens of a character that has several follow the first one without a text.
    for id_, (start, stop) in list(zip(encoding.ids, encoding.offsets, strict=True))[offset : offset + _TOKENS]:
        tokens.append((id_, text[max(start, end) : stop]))
        end = stop
    numbers = {"offset": offset, "total": len(encoding.ids), "size": _TOKENS, "encoded": _ENCODED_CHARACTERS}
    return _render(request, characters=len(text), tokens=tokens, **numbers)


def read_text(tables: CorpusTables, id: str, url: str | None, before: str = "") -> str | None:
    """Return the text of a document as the stage `before` read it, or as the last stage that has it wrote it."""
    stages = tables.document_stages
    for stage in reversed(stages[: stages.index(before)] if before in stages else stages):
        if row := tables.first(documents_of(stage), *place_of(id, url), "text"):
            return str(row["text"])
    return None


def _render(request: Request, **values: Any) -> Response:
    part = storage.basename(request.url.path)
    return site_of(request).render(request, "document_part.html", part=part, title=PARTS[part][0], **values)


def _identify(tables: CorpusTables, query: Mapping[str, str]) -> tuple[str, str | None]:
    """Return the id and the URL of the document that a request names; raise UsageError if there is none."""
    id, url = query.get("id", ""), query.get("url", "")
    identity = (id, url) if id and url else find_identity(tables, *resolve(id or url, is_id=bool(id)))
    if identity is None:
        raise UsageError(f"id={id or url}: no stage of the corpus has this document")
    return identity


@functools.lru_cache(1)
def _tokenizer(path: str, _version: tuple[Any, ...]) -> Tokenizer:
    return load_document_tokenizer(read_tokenizer(path), path)


# The title and the handler of each part.
PARTS = {
    "tokens": ("Tokens", show_tokens),
    "rules": ("Rules of the filter", show_rules),
    "cluster": ("Duplicates", show_cluster),
    "page": ("Archived page", show_page),
    "diff": ("Differences", show_difference),
}
ROUTES = tuple(Route(f"/document/{name}", show) for name, (_, show) in PARTS.items())
