"""Explains a document: what every stage made of its link, its page and its text, or why it is not there."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

from pipelines.corpus.tables import CorpusTables, documents_of, is_url_id, place_of, resolve

KEPT, DROPPED, ABSENT = "kept", "dropped", "absent"
_OK, _DROPPED_OUTCOME = "ok", "dropped."


@dataclasses.dataclass(frozen=True)
class Step:
    """What a stage made of the document: `kept`, `dropped` or `absent`, the reason, and what else it recorded."""

    stage: str
    outcome: str
    reason: str | None
    fields: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class History:
    """The way of a document through the finished stages, up to the one that does not have it.

    `url` is None if the document has none or it is unknown; `similar_urls` are links that differ from it only in
    scheme, `www.` or final slash.
    """

    id: str
    url: str | None
    steps: tuple[Step, ...]
    similar_urls: tuple[str, ...]

    @property
    def is_present(self) -> bool:
        """Whether the last finished stage that reads documents has it."""
        return self.steps[-1].outcome == KEPT


def explain(tables: CorpusTables, target: str) -> History:
    """Return the history of a document by its id, or by its URL in any spelling; raise UsageError for a bad URL."""
    id, url = resolve(target)
    url = url or _url_of(tables, id)
    steps: list[Step] = []
    recorded: dict[str, Any] = {"id": id, "url": url}
    for step in _steps(tables, id, url):
        fields = {name: value for name, value in step.fields.items() if recorded.get(name) != value}
        steps.append(dataclasses.replace(step, fields=fields))
        recorded |= fields
        if step.outcome == DROPPED or (step.outcome == ABSENT and steps[0].outcome != ABSENT):
            break
    if all(step.outcome == ABSENT for step in steps):
        steps = steps[:1]
    similar = _similar_urls(tables, url) if url and steps[0].outcome == ABSENT else ()
    return History(id, url, tuple(steps), similar)


def _steps(tables: CorpusTables, id: str, url: str | None) -> Iterator[Step]:
    """Yield the steps of a document through all finished stages."""
    if "links" in tables.views:
        advice = "`webtext scrape --explain URL` reads the dumps and says why"
        row = _first(tables, "links", "url = ?", [url])
        yield _step("scrape", row, f"no link has this URL; {advice}" if url else "no document with a URL has this id")
    if "pages" in tables.views:
        row = _first(tables, "pages", "url = ?", [url])
        if row and row["outcome"] != _OK:
            reason = row.pop("outcome").removeprefix(_DROPPED_OUTCOME)
            yield Step("fetch", DROPPED, reason, row)
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
    row = _first(tables, documents_of(stage), where, values, "* EXCLUDE (text), strlen(text) AS bytes")
    step = _step(stage, row, "") if row else _dropped_step(tables, stage, id, url)
    if row and (other := _dropped_step(tables, stage, id, url)).outcome == DROPPED:
        step = dataclasses.replace(step, fields={**row, "another_of_this_id": f"dropped, {other.reason}"})
    if stage == "dedup" and "clusters" in tables.views:
        cluster = _first(tables, "clusters", "id = ?", [id], "cluster AS kept_document, kind, jaccard, documents")
        if cluster:
            kept = _first(tables, documents_of(stage), "id = ?", [cluster["kept_document"]], "url")
            return dataclasses.replace(step, fields=step.fields | cluster | {"kept_url": kept and kept["url"]})
    return step


def _dropped_step(tables: CorpusTables, stage: str, id: str, url: str | None) -> Step:
    where, values = place_of(id, url)
    row = _first(tables, "dropped", f"stage = ? AND {where}", [stage, *values], "reason, detail")
    if row is None:
        return _step(stage, None, "the stage neither kept nor dropped it: its input did not have this document")
    return Step(stage, DROPPED, row["reason"], {"detail": row["detail"]} if row["detail"] else {})


def _step(stage: str, row: dict[str, Any] | None, if_absent: str) -> Step:
    return Step(stage, ABSENT, if_absent, {}) if row is None else Step(stage, KEPT, None, row)


def _first(
    tables: CorpusTables, view: str, where: str, values: Sequence[Any], columns: str = "*"
) -> dict[str, Any] | None:
    rows = tables.rows(f"SELECT {columns} FROM {view} WHERE {where} LIMIT 1", values)
    return rows[0] if rows else None


def _url_of(tables: CorpusTables, id: str) -> str | None:
    """Return the URL of the first stage that has an id, among the documents or what it dropped."""
    for stage in tables.document_stages:
        row = _first(tables, documents_of(stage), "id = ?", [id], "url") or _first(
            tables, "dropped", "stage = ? AND id = ?", [stage, id], "url"
        )
        if row:
            return None if row["url"] is None else str(row["url"])
    if "links" not in tables.views or not is_url_id(id):
        return None
    # Of a page that was dropped by fetch only the URL is known: all are hashed.
    row = _first(tables, "links", "left(sha256(url), 32) = ?", [id], "url")
    return str(row["url"]) if row else None


def _similar_urls(tables: CorpusTables, url: str) -> tuple[str, ...]:
    if "links" not in tables.views:
        return ()
    parts = urlsplit(url)
    host = parts.netloc.removeprefix("www.")
    path = parts.path.rstrip("/")
    variants = [
        parts._replace(scheme=scheme, netloc=netloc, path=path + end).geturl()
        for scheme in ("http", "https")
        for netloc in (host, f"www.{host}")
        for end in ("", "/")
    ]
    marks = ", ".join("?" * len(variants))
    return tuple(
        row["url"] for row in tables.rows(f"SELECT url FROM links WHERE url IN ({marks}) ORDER BY url", variants)
    )
