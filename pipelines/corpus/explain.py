"""Explains a document: what each stage recorded about its link, its page and its text, or why it is missing."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from pipelines.algorithms.web.urls import canonical_url, id_of_url, is_url_id, near_urls
from pipelines.corpus.tables import CorpusTables, documents_of, place_of, resolve
from pipelines.errors import InputError
from pipelines.records.removals import REMOVED, find_request

KEPT, DROPPED, ABSENT = "kept", "dropped", "absent"
_OK, _DROPPED_OUTCOME = "ok", "dropped."


@dataclasses.dataclass(frozen=True)
class Step:
    """The outcome of a document in a stage: `kept`, `dropped` or `absent`, the reason, and further recorded fields."""

    stage: str
    outcome: str
    reason: str | None
    fields: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class History:
    """The history of a document in the finished stages, up to the first one that does not have it.

    `url` is None if it is unknown; `similar_urls` are those of the first stage that differ from it only in scheme,
    `www.` or final slash.
    """

    id: str
    url: str | None
    steps: tuple[Step, ...]
    similar_urls: tuple[str, ...]

    @property
    def is_present(self) -> bool:
        """Whether the last finished stage that reads documents has it."""
        return self.steps[-1].outcome == KEPT


def explain(tables: CorpusTables, target: str, *, is_id: bool = False, url: str | None = None) -> History:
    """Return the history of a document by its id, or by its URL in any spelling; raise UsageError for a bad URL.

    Of several documents with an id, it is the one with the `url`.
    """
    column, values = resolve(target, is_id=is_id)
    identity = (target, url) if is_id and url else find_identity(tables, column, values)
    id, url = identity or ((id_of_url(values[-1]), values[-1]) if column == "url" else (values[0], None))
    steps: list[Step] = []
    recorded: dict[str, Any] = {"id": id, "url": url}
    for step in _steps(tables, id, url):
        fields = {name: value for name, value in step.fields.items() if recorded.get(name) != value}
        steps.append(dataclasses.replace(step, fields=fields))
        recorded |= fields
        if identity is None or step.outcome == DROPPED or (step.outcome == ABSENT and steps[0].outcome != ABSENT):
            break
    if not steps:
        raise InputError(f"{tables.name}: no finished stage has links, pages, documents or tokens")
    if all(step.outcome == ABSENT for step in steps):
        request = None if tables.flags else find_request(tables.name, id)
        steps = [Step(steps[0].stage, DROPPED, REMOVED, request)] if request else steps[:1]
    canonical = canonical_url(url or f"http://{target}") if steps[0].outcome == ABSENT else None
    near = near_urls(canonical.removeprefix("http:")) if canonical else ()
    first, marks = next(view for view in tables.views if view != "clusters"), ", ".join("?" * len(near))
    similar = tables.rows(f"SELECT DISTINCT url FROM {first} WHERE url IN ({marks}) ORDER BY url", near) if near else []
    return History(id, url, tuple(steps), tuple(row["url"] for row in similar))


def _steps(tables: CorpusTables, id: str, url: str | None) -> Iterator[Step]:
    if "links" in tables.views:
        advice = "`webtext scrape --explain URL` reads the dumps and says why"
        # Those of a release have a sketch, which tells nothing to a reader.
        row = tables.first("links", "url = ?", [url], "COLUMNS(lambda name: name <> 'sketch')")
        yield _step("scrape", row, f"no link has this URL; {advice}" if url else "no document with a URL has this id")
    if "pages" in tables.views:
        row = tables.first("pages", "url = ?", [url])
        if row and row["outcome"] != _OK:
            reason = row.pop("outcome").removeprefix(_DROPPED_OUTCOME)
            detail = tables.first("dropped", "stage = 'fetch' AND url = ?", [url], "detail")
            yield Step("fetch", DROPPED, reason, {**(detail or {}), **row})
        else:
            yield _step("fetch", row, "no page has this URL")
    for stage in tables.document_stages:
        yield _document_step(tables, stage, id, url)
    if "tokens" in tables.views:
        where, values = place_of(id, url)
        rows = tables.rows(f'SELECT split, shard, "offset", tokens FROM tokens WHERE {where} ORDER BY shard', values)
        tokens = sum(row["tokens"] for row in rows)
        row = {**rows[0], "tokens": tokens, "shards": [row["shard"] for row in rows]} if rows else None
        yield (row and _step("tokenize", row, "")) or _dropped_step(tables, "tokenize", id, url)


def _document_step(tables: CorpusTables, stage: str, id: str, url: str | None) -> Step:
    where, values = place_of(id, url)
    row = tables.first(documents_of(stage), where, values, "* EXCLUDE (text), strlen(text) AS bytes")
    step = _step(stage, row, "") if row else _dropped_step(tables, stage, id, url)
    if row and (other := _dropped_step(tables, stage, id, url)).outcome == DROPPED:
        step = dataclasses.replace(step, fields={**row, "another_of_this_id": f"dropped, {other.reason}"})
    if stage == "dedup" and "clusters" in tables.views:
        cluster = tables.first("clusters", "id = ?", [id], "cluster AS kept_document, kind, jaccard, documents")
        if cluster:
            kept = tables.first(documents_of(stage), "id = ?", [cluster["kept_document"]], "url")
            fields = {key: value for key, value in step.fields.items() if value != cluster["kept_document"]}
            return dataclasses.replace(step, fields=fields | cluster | {"kept_url": kept and kept["url"]})
    return step


def _dropped_step(tables: CorpusTables, stage: str, id: str, url: str | None) -> Step:
    where, values = place_of(id, url)
    row = tables.first("dropped", f"stage = ? AND {where}", [stage, *values], "reason, detail")
    if row is None:
        return _step(stage, None, "this document was not in the stage's input")
    return Step(stage, DROPPED, row["reason"], {"detail": row["detail"]} if row["detail"] else {})


def _step(stage: str, row: dict[str, Any] | None, if_absent: str) -> Step:
    return Step(stage, ABSENT, if_absent, {}) if row is None else Step(stage, KEPT, None, row)


def find_identity(tables: CorpusTables, column: str, values: Sequence[str]) -> tuple[str, str | None] | None:
    """Return the id and the URL of the first document, link or page with one of the values, or None."""
    views = [view for view in (*map(documents_of, tables.document_stages), "dropped", "tokens") if view in tables.views]
    hashed = [view for view in ("links", "pages") if view in tables.views]
    if column == "id":  # all URLs must be hashed; the URLs of pages are those of the links
        hashed = hashed[:1] if is_url_id(values[0]) else []
    # `id_of_url` in SQL. The ids in the drops of fetch are URLs.
    queries = {"dropped": "(FROM dropped WHERE stage <> 'fetch')"}
    queries |= {view: f"(SELECT left(sha256(url), 32) AS id, url FROM {view})" for view in hashed}
    for value, view in itertools.product(values, [*views, *hashed]):
        if row := tables.first(queries.get(view, view), f"{column} = ?", [value], "id, url"):
            return row["id"], row["url"]
    return None
