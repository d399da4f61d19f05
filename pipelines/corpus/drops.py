"""What the stages dropped, by stage and reason, and labels that say whether a rule was right to drop a document."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection
from typing import Any, Literal, NamedTuple

import msgspec

from pipelines import storage
from pipelines.corpus.tables import CorpusTables
from pipelines.errors import InputError, UsageError
from pipelines.evaluation.metrics import wilson
from pipelines.records.reader import read_records, require_records

RIGHT, WRONG = "rightly_dropped", "wrongly_dropped"
_LIST = "labels.jsonl"


class Label(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whether a rule of a stage was right to drop a document, and when it was labelled."""

    id: str
    url: str | None
    stage: str
    reason: str
    label: Literal["rightly_dropped", "wrongly_dropped"]
    date: dt.datetime


class Precision(NamedTuple):
    """The labelled documents of a rule, how many of them were rightly dropped, and the 95% interval of their share."""

    labels: int
    right: int
    interval: tuple[float, float]


def count_drops(tables: CorpusTables) -> list[dict[str, Any]]:
    """Return the `count` of each `stage` and `reason`, the largest first.

    `records` are those that the stage read, None for documents that no stage wrote; `is_listed` is whether its drops
    are listed one by one.
    """
    query = "SELECT stage, reason, count(*) AS count FROM dropped GROUP BY ALL"
    rows = tables.rows(query) if "dropped" in tables.views else []
    listed = {(row["stage"], row["reason"]): row["count"] for row in rows}
    recorded = {
        (name, reason): count
        for name, folder in tables.stages.items()
        for reason, count in folder.manifest.dropped.items()
    }
    counts = [
        {
            "stage": stage,
            "reason": reason,
            "count": count,
            "records": tables.stages[stage].manifest.records_in if stage in tables.stages else None,
            "is_listed": (stage, reason) in listed,
        }
        for (stage, reason), count in (recorded | listed).items()
    ]
    return sorted(counts, key=lambda row: (-row["count"], row["stage"], row["reason"]))


def read_labels(corpus: str) -> dict[tuple[str, str], dict[str, str]]:
    """Return the last label of each id by stage and reason; raise InputError, with the line, for one not valid."""
    path = storage.join(corpus, _LIST)
    records = read_records(path, columns=Label.__struct_fields__) if storage.exists(path) else ()
    labels: dict[tuple[str, str], dict[str, str]] = {}
    for number, record in require_records(path, records):
        try:
            label = msgspec.convert(record, Label)
        except msgspec.ValidationError as error:
            raise InputError(f"{path}:{number}: is not a label ({error}); remove the line") from error
        labels.setdefault((label.stage, label.reason), {})[label.id] = label.label
    return labels


def add_label(corpus: str, **fields: str | None) -> None:
    """Append a label, which replaces an earlier one of the same document and rule; raise UsageError for another."""
    try:
        label = msgspec.convert({**fields, "date": dt.datetime.now(dt.UTC)}, Label)
    except msgspec.ValidationError as error:
        raise UsageError(f"is not a label ({error}); expected {RIGHT} or {WRONG}") from error
    storage.append_line(storage.join(corpus, _LIST), msgspec.json.encode(label).decode())


def precision(labels: Collection[str]) -> Precision | None:
    """Return the precision of a rule; None without labels."""
    right = sum(label == RIGHT for label in labels)
    return Precision(len(labels), right, wilson(right, len(labels))) if labels else None
