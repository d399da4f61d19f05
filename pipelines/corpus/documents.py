"""Documents of a corpus to read: by id or URL, by a condition, at random, or those that a stage dropped."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from pipelines.corpus.tables import CorpusTables, documents_of, place_of, resolve
from pipelines.errors import InputError


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
        return [_document(tables, target) for target in choice.targets]
    conditions, values = ["true"], list[Any]()
    if choice.reason:
        conditions, values = ["reason = ?"], [choice.reason]
    if choice.domain:
        domain = choice.domain.lower()
        # Of dropped documents only the URL is known.
        conditions.append("regexp_matches(url, ?)" if choice.reason else "domain = ?")
        values.append(rf"^[a-z]+://([^/]*\.)?{re.escape(domain)}(:|/|$)" if choice.reason else domain)
    if choice.where:
        conditions.append(f"({choice.where})")
    order = f"ORDER BY hash(concat(id, ' {choice.seed}'))" if choice.random else ""
    view = "dropped" if choice.reason else "documents"
    rows = tables.rows(f"FROM {view} WHERE {' AND '.join(conditions)} {order} LIMIT {choice.limit}", values)
    if not rows:
        raise InputError(f"{tables.corpus}: {_nothing(tables, choice)}")
    return [row | _text_before(tables, row) for row in rows] if choice.reason else rows


def _document(tables: CorpusTables, target: str) -> dict[str, Any]:
    column, values = resolve(target)
    for value in values:
        if row := tables.first("documents", f"{column} = ?", [value]):
            return row
    raise InputError(f"{tables.corpus}: no document has the {column} {target}; `webtext explain {target}` says why")


def _text_before(tables: CorpusTables, row: dict[str, Any]) -> dict[str, Any]:
    """Return the title and the text of a document that a stage dropped, as it read them."""
    stages = tables.document_stages
    before = stages[: stages.index(row["stage"])] if row["stage"] in stages else stages
    document = None
    if before and row["stage"] not in ("scrape", "fetch"):
        document = tables.first(documents_of(before[-1]), *place_of(row["id"], row["url"]))
    return {name: document.get(name) if document else None for name in ("title", "text")}


def _nothing(tables: CorpusTables, choice: Choice) -> str:
    if not choice.reason:
        return "no document meets these conditions"
    if choice.where or choice.domain:
        return f"no document that was dropped for {choice.reason} meets these conditions"
    counts = tables.rows("SELECT reason, count(*) AS count FROM dropped GROUP BY reason ORDER BY count DESC")
    reasons = ", ".join(f"{row['reason']} ({row['count']:,})" for row in counts)
    return f"no document was dropped for {choice.reason}; the reasons are {reasons or 'none: nothing was dropped'}"
