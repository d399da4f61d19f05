"""Documents of a corpus to read: by id or URL, by a condition, at random, or those that a stage dropped."""

from __future__ import annotations

import dataclasses
from typing import Any

from pipelines.core.errors import InputError
from pipelines.corpus.tables import CorpusTables, documents_of, place_of, resolve


@dataclasses.dataclass(frozen=True)
class Choice:
    """Which documents: by `targets`, ids or URLs; or at most `limit` that meet all of the other conditions.

    `where` is a condition in SQL; `reason` chooses what was dropped for it. They are the first of the corpus, or with
    `random` those with the lowest hashes of their ids and the seed.
    """

    targets: tuple[str, ...] = ()
    domain: str | None = None
    where: str | None = None
    reason: str | None = None
    random: bool = False
    seed: int = 1
    limit: int = 10


def choose_documents(tables: CorpusTables, choice: Choice) -> list[dict[str, Any]]:
    """Return documents with their columns, of dropped ones with `stage`, `reason` and `detail`.

    `text` is None if no stage wrote the text of a dropped document. Raises InputError if there is none.
    """
    if choice.targets:
        return [_document(tables, "documents", *resolve(target)) for target in choice.targets]
    view = "dropped" if choice.reason else "documents"
    # Only ids and URLs are sorted, not texts.
    columns = "*" if choice.reason else "id, url"
    rows = tables.rows(*_query(view, columns, choice))
    if not rows:
        raise InputError(f"{tables.corpus}: {_nothing(tables, choice)}")
    if choice.reason:
        return [row | _text_before(tables, row) for row in rows]
    return [_document(tables, "documents", row["id"], row["url"]) for row in rows]


def _query(view: str, columns: str, choice: Choice) -> tuple[str, list[Any]]:
    conditions, values = ["true"], list[Any]()
    if choice.reason:
        conditions, values = ["reason = ?"], [choice.reason]
    if choice.domain:
        # Of dropped documents only the URL is known.
        conditions.append("regexp_matches(url, ?)" if choice.reason else "domain = ?")
        values.append(rf"^[a-z]+://([^/]*\.)?{choice.domain}(:|/|$)" if choice.reason else choice.domain)
    if choice.where:
        conditions.append(f"({choice.where})")
    order = f"ORDER BY hash(concat(id, ' {choice.seed}'))" if choice.random else ""
    return f"SELECT {columns} FROM {view} WHERE {' AND '.join(conditions)} {order} LIMIT {choice.limit}", values


def _document(tables: CorpusTables, view: str, id: str, url: str | None) -> dict[str, Any]:
    where, values = place_of(id, url)
    rows = tables.rows(f"SELECT * FROM {view} WHERE {where} LIMIT 1", values)
    if not rows:
        raise InputError(f"{tables.corpus}: no document has the id {id}; `webtext explain {url or id}` says why")
    return rows[0]


def _text_before(tables: CorpusTables, row: dict[str, Any]) -> dict[str, Any]:
    """Return the title and the text of a document that a stage dropped, as it read them."""
    stages = tables.document_stages
    before = stages[: stages.index(row["stage"])] if row["stage"] in stages else stages
    if not before or row["stage"] in ("scrape", "fetch"):
        return {"title": None, "text": None}
    where, values = place_of(row["id"], row["url"])
    texts = tables.rows(f"SELECT * FROM {documents_of(before[-1])} WHERE {where} LIMIT 1", values)
    return {"title": texts[0].get("title"), "text": texts[0]["text"]} if texts else {"title": None, "text": None}


def _nothing(tables: CorpusTables, choice: Choice) -> str:
    if not choice.reason:
        return "no document meets these conditions"
    if choice.where or choice.domain:
        return f"no document that was dropped for {choice.reason} meets these conditions"
    counts = tables.rows("SELECT reason, count(*) AS count FROM dropped GROUP BY reason ORDER BY count DESC")
    reasons = ", ".join(f"{row['reason']} ({row['count']:,})" for row in counts)
    return f"no document was dropped for {choice.reason}; the reasons are {reasons or 'none: nothing was dropped'}"
