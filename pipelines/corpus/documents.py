"""Documents of a corpus to read: by id or URL, by a condition, at random, or those that a stage dropped."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Any

from pipelines.corpus.tables import CorpusTables, documents_of, place_of, resolve
from pipelines.errors import InputError
from pipelines.format import suggest_nearest


def choose_documents(
    tables: CorpusTables,
    targets: Sequence[str] = (),
    *,
    where: str | None = None,
    reason: str | None = None,
    stage: str | None = None,
    domain: str | None = None,
    seed: int | None = None,
    limit: int = 10,
) -> list[dict[str, Any]]:
    """Return documents with their columns: `targets`, ids or URLs, or at most `limit` that meet the other conditions.

    `where` is a condition in SQL; `reason` chooses documents that were dropped for it, by one `stage` or by any, of
    one registered `domain` or of any, with `stage`, `reason` and `detail`, and with `text` None if no stage wrote one.
    They are the first of the corpus, or with a `seed` those with the lowest hashes of id and seed. Raises InputError if
    there is none.
    """
    if targets:
        return [_document(tables, target) for target in targets]
    conditions, values = ["true"], list[Any]()
    if reason:
        conditions, values = ["reason = ?", "stage = coalesce(?, stage)"], [reason, stage]
    if domain:
        # `domain_of` is a Python function, which millions of rows would call.
        conditions.append("regexp_matches(url, ?)")
        values.append(rf"^[a-z]+://([^/]*\.)?{re.escape(domain.lower())}(:|/|$)")
    if where:
        conditions.append(enclosed := f"(\n{where}\n)")  # a comment ends with its line
        # Parsed alone, its brackets match; then those around it enclose all of it.
        problem = '--where is not a single SQL condition that only reads, such as "words > 5000"'
        tables.check_selects([f"SELECT 1 WHERE {where}", f"SELECT 1 WHERE {enclosed}"], problem)
    order = "" if seed is None else f"ORDER BY hash(concat(id, ' {seed}'))"
    view = "dropped" if reason else "documents"
    if seed is not None and tables.document_stages and not (reason or where):
        view = documents_of(tables.document_stages[-1])  # `documents` counts the words of all own documents
    rows = tables.rows(f"FROM {view} WHERE {' AND '.join(conditions)} {order} LIMIT {limit}", values)
    if rows:
        return _with_texts(tables, rows) if reason else rows
    if not reason or where or domain or stage:
        which = f" that {stage or 'a stage'} dropped for {reason}" if reason else ""
        raise InputError(f"{tables.name}: no document{which} meets these conditions")
    counts = tables.rows("SELECT reason, count(*) AS count FROM dropped GROUP BY reason ORDER BY count DESC")
    reasons = ", ".join(f"{row['reason']} ({row['count']:,})" for row in counts)
    otherwise = f"the reasons are {reasons}" if reasons else "no documents were dropped"
    hint = suggest_nearest(reason, [row["reason"] for row in counts], otherwise)
    raise InputError(f"{tables.name}: no document was dropped for {reason}; {hint}")


def _document(tables: CorpusTables, target: str) -> dict[str, Any]:
    column, values = resolve(target)
    for value in values:
        if row := tables.first("documents", f"{column} = ?", [value]):
            return row
    command = f"`webtext explain{tables.flags} {shlex.quote(target)}`"
    raise InputError(f"{tables.name}: no document has the {column} {target}; {command} says why")


def _with_texts(tables: CorpusTables, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return documents that stages dropped, each with its title and its text as the stage read it."""
    stages, texts = tables.document_stages, dict[Any, dict[str, Any]]()
    for stage in {row["stage"] for row in rows} - {"scrape", "fetch"}:
        if before := stages[: stages.index(stage)] if stage in stages else stages:
            # One query for all: of 8,000,000 documents, 10 take 0.4 s and 1 takes 0.2 s.
            places = [place_of(row["id"], row["url"]) for row in rows if row["stage"] == stage]
            where = " OR ".join(f"({condition})" for condition, _ in places)
            values = [value for _, values in places for value in values]
            documents = tables.rows(f"FROM {documents_of(before[-1])} WHERE {where}", values)
            texts |= {(stage, document["id"], document["url"]): document for document in documents}
    for row in rows:
        document = texts.get((row["stage"], row["id"], row["url"]), {})
        row |= {name: document.get(name) for name in ("title", "text")}
    return [*rows]
