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
from pipelines.browse.site import site_of
from pipelines.corpus.explain import find_identity
from pipelines.corpus.tables import CorpusTables, documents_of, place_of, resolve
from pipelines.errors import UsageError, WebtextError
from pipelines.records.inputs import StageFolder
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
    site = site_of(request)
    with site.tables() as tables:
        _, url = _identify(tables, request.query_params)
        row = tables.first("pages", "url = ? AND warc_file IS NOT NULL", [url]) if "pages" in tables.views else None
        stages = tables.stages
    page, problem = None, "The corpus has no archived page of this document."
    if row and not storage.is_file(path := storage.join(stages["fetch"].path, storage.basename(row["warc_file"]))):
        problem = f"The page is in {row['warc_file']}, which is no longer in the corpus."
    elif row:
        page, problem = read_page(_extract_config(stages.get("extract")), path, row), ""
    limits = {"limits": (SHOWN_BLOCKS, SHOWN_CHARACTERS), "source_characters": _SOURCE_CHARACTERS}
    return site.render(request, "document_page.html", page=page, problem=problem, runs=runs, fold=fold, **limits)


def show_rules(request: Request) -> Response:
    """Show the value of the document, as the filter read it, by each rule of the corpus."""
    site = site_of(request)
    with site.tables() as tables:
        text = read_text(tables, *_identify(tables, request.query_params), "filter")
        if "filter" not in tables.stages:
            raise UsageError(f"{site.name}: has no filter, so no rules")
        manifest = tables.stages["filter"].manifest.identity
    rules, problem = list[dict[str, Any]](), ""
    try:
        loaded = load_rules(*(manifest.config[name] for name in ("profile", "rule", "set")), None)
        rules = loaded.apply(pa.RecordBatch.from_pydict({"text": [text or ""]})).describe_first()
        if loaded.fingerprint != manifest.inputs["rules"]:
            problem = "The rules have changed since the filter ran."
    except WebtextError as error:
        problem = str(error)
    return site.render(request, "document_rules.html", rules=rules, problem=problem)


def show_cluster(request: Request) -> Response:
    """Show the documents of the document's cluster."""
    site = site_of(request)
    with site.tables() as tables:
        id, _ = _identify(tables, request.query_params)
        cluster = tables.first("clusters", "id = ?", [id]) or {"cluster": id, "documents": 0}
        where, values = "cluster = ? ORDER BY id = cluster DESC, jaccard DESC, id", [cluster["cluster"]]
        members = tables.rows(f"FROM clusters WHERE {where} LIMIT {_MEMBERS}", values)
        dropped = "SELECT id, url FROM dropped WHERE stage = 'dedup' AND id IN (SELECT unnest(?::VARCHAR[]))"
        urls = {row["id"]: row["url"] for row in tables.rows(dropped, [[member["id"] for member in members]])}
        kept = tables.first(documents_of("dedup"), "id = ?", values, "id, url") or {}
    members = [{"url": urls.get(member["id"]) or kept.get("url"), **member} for member in members]
    return site.render(request, "document_cluster.html", id=id, members=members, documents=cluster["documents"])


def show_difference(request: Request) -> Response:
    """Show two documents, as dedup read them, side by side."""
    site, sides = site_of(request), []
    with site.tables() as tables:
        for name in ("id", "other"):
            id, url = _identify(tables, {"id": request.query_params.get(name, "")})
            text = read_text(tables, id, url, "dedup")
            characters = len(text or "")
            sides.append({"id": id, "url": url, "text": text and text[:_COMPARED_CHARACTERS], "characters": characters})
    parts = compare_texts(sides[0]["text"], sides[1]["text"])
    return site.render(request, "document_difference.html", sides=list(zip(sides, parts, strict=True)))


def show_tokens(request: Request) -> Response:
    """Show the tokens of the document, and its places in the token shards."""
    site, offset = site_of(request), read_offset(request)
    with site.tables() as tables:
        id, url = _identify(tables, request.query_params)
        text = read_text(tables, id, url) or ""
        folders = [tables.stages[name] for name in ("tokenize", "train-bpe") if name in tables.stages]
        where, values = place_of(id, url)
        places = tables.rows(f"FROM tokens WHERE {where} ORDER BY shard", values) if "tokens" in tables.views else []
    paths = [file.path for folder in folders for file in folder.files(TOKENIZER)]
    if not paths:
        raise UsageError(f"{site.name}: has no tokenizer; run `webtext train-bpe` first")
    encoding = _tokenizer(paths[0], site.version).encode(text[:_ENCODED_CHARACTERS], add_special_tokens=False)
    tokens, end = list[tuple[int, str]](), 0
    # The tokens of a character that has several follow the first one without a text.
    for id_, (start, stop) in list(zip(encoding.ids, encoding.offsets, strict=True))[offset : offset + _TOKENS]:
        tokens.append((id_, text[max(start, end) : stop]))
        end = stop
    return site.render(
        request,
        "document_tokens.html",
        document={"id": id, "url": url},
        tokens=tokens,
        places=places,
        offset=offset,
        total=len(encoding.ids),
        size=_TOKENS,
        cut=_ENCODED_CHARACTERS if len(text) > _ENCODED_CHARACTERS else None,
    )


def read_text(tables: CorpusTables, id: str, url: str | None, before: str = "") -> str | None:
    """Return the text of a document as the stage `before` read it, or as the last stage that has it wrote it."""
    stages = tables.document_stages
    for stage in reversed(stages[: stages.index(before)] if before in stages else stages):
        if row := tables.first(documents_of(stage), *place_of(id, url), "text"):
            return str(row["text"])
    return None


def read_offset(request: Request) -> int:
    """Return the position in a text or its tokens that a request names; raise UsageError if it is not a number."""
    value = request.query_params.get("offset", "0")
    if not value.isdecimal() or len(value) > 12:
        raise UsageError(f"offset={value}: is not a whole number of 0 or more")
    return int(value)


def _identify(tables: CorpusTables, query: Mapping[str, str]) -> tuple[str, str | None]:
    """Return the id and the URL of the document that a request names; raise UsageError if there is none."""
    id, url = query.get("id", ""), query.get("url", "")
    if id and url:
        return id, url
    identity = find_identity(tables, *resolve(id or url)) if id or url else None
    if identity is None:
        raise UsageError(f"id={id or url}: no stage of the corpus has this document")
    return identity


def _extract_config(extract: StageFolder | None) -> ExtractConfig:
    config = extract.manifest.identity.config if extract else {}
    names = {field.name for field in dataclasses.fields(ExtractConfig)} & config.keys()
    return dataclasses.replace(ExtractConfig(**{name: config[name] for name in names}), timeout=_TIMEOUT_S)


@functools.lru_cache(1)
def _tokenizer(path: str, _version: tuple[Any, ...]) -> Tokenizer:
    return load_document_tokenizer(read_tokenizer(path), path)


ROUTES = (
    Route("/document/page", show_page),
    Route("/document/rules", show_rules),
    Route("/document/cluster", show_cluster),
    Route("/document/diff", show_difference),
    Route("/document/tokens", show_tokens),
)
