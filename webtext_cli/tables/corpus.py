"""Prints documents of a corpus, their histories, counts, and the results of queries."""

from __future__ import annotations

import dataclasses
import datetime as dt
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from pipelines.corpus.explain import ABSENT, History
from pipelines.corpus.statistics import group_name
from pipelines.format import format_bytes, format_count, format_percent, to_json
from webtext_cli.console import print_table, say, shorten

_INDENT = "  "
_MAX_TABLE_ROWS = 200
_MAX_CELL = 80
# How a dropped or absent document reads.
_OUTCOMES = {"kept": "kept", "dropped": "DROPPED", "absent": "not there"}


def print_history(history: History, as_json: bool) -> None:
    """Print what every stage made of a document."""
    if as_json:
        say(to_json(dataclasses.asdict(history) | {"is_present": history.is_present}))
        return
    say(f"{history.url or 'no URL'}\nid {history.id}")
    for step in history.steps:
        say(f"\n{step.stage}: {_OUTCOMES[step.outcome]}{f', {step.reason}' if step.reason else ''}")
        _print_fields(step.fields)
    if history.similar_urls:
        say("\nlinks with a similar URL:")
        say("\n".join(f"{_INDENT}{url}" for url in history.similar_urls))
    last = history.steps[-1]
    if history.is_present:
        say(f"\nThe document is in the corpus, up to {last.stage}.")
    else:
        problem = "does not have it" if last.outcome == ABSENT else "dropped it"
        say(f"\nThe document is not in the corpus: {last.stage} {problem}.")


def _print_fields(fields: Mapping[str, Any]) -> None:
    for name, value in fields.items():
        if value is None or value == []:
            continue
        if name == "created_utc":
            value = dt.datetime.fromtimestamp(value, dt.UTC)
        shown = ", ".join(map(str, value)) if isinstance(value, list) else value
        say(f"{_INDENT}{name}: {shown.isoformat(' ') if isinstance(shown, dt.datetime) else shown}")


def print_documents(documents: Sequence[Mapping[str, Any]], as_json: bool) -> None:
    """Print documents as text: their columns, and below them the text."""
    for number, document in enumerate(documents):
        if as_json:
            say(to_json(document))
            continue
        if number:
            say("\n" + "─" * 40 + "\n")
        _print_fields({name: value for name, value in document.items() if name != "text"})
        say(f"\n{document['text'] if document['text'] is not None else '(no stage wrote a text of this page)'}")


def print_statistics(statistics: Mapping[str, Any], as_json: bool) -> None:
    """Print counts as tables."""
    if as_json:
        say(to_json(statistics))
        return
    total = statistics["total"]
    print_table(["", "documents", "words", "bytes"], [["all", *_counts(total)]])
    for kind, groups in statistics["groups"].items():
        rows = [
            [group_name(kind, row["value"]), *_counts(row), format_percent(row["documents"] / total["documents"])]
            for row in groups
        ]
        if statistics["sizes"][kind] > len(groups):
            rows.append([f"and {statistics['sizes'][kind] - len(groups):,} more", "", "", "", ""])
        print_table([kind, "documents", "words", "bytes", "share of documents"], rows)


def _counts(row: Mapping[str, Any]) -> list[str]:
    return [format_count(row["documents"]), format_count(row["words"]), format_bytes(row["bytes"])]


def print_query(batches: Iterable[pa.RecordBatch], kind: str) -> None:
    """Print the rows of a query as CSV, JSONL, or a table of the first 200 with long texts shortened."""
    if kind == "csv":
        _write_csv(batches)
    elif kind == "jsonl":
        for batch in batches:
            for row in batch.to_pylist():
                say(to_json(row))
    else:
        _print_rows(batches)


def _write_csv(batches: Iterable[pa.RecordBatch]) -> None:
    import csv

    writer = csv.writer(sys.stdout, lineterminator="\n")
    for number, batch in enumerate(batches):
        if not number:
            writer.writerow(batch.schema.names)
        writer.writerows(
            [value if isinstance(value, str | int | float) or value is None else _cell(value) for value in row.values()]
            for row in batch.to_pylist()
        )


def _print_rows(batches: Iterable[pa.RecordBatch]) -> None:
    names: list[str] = []
    rows: list[list[str]] = []
    for batch in batches:
        names = batch.schema.names
        cells = (map(_cell, row.values()) for row in batch.slice(0, _MAX_TABLE_ROWS + 1 - len(rows)).to_pylist())
        rows += [[" ".join(cell.split()) for cell in row] for row in cells]
        if len(rows) > _MAX_TABLE_ROWS:
            break
    shown = [[shorten(cell, _MAX_CELL) for cell in row] for row in rows[:_MAX_TABLE_ROWS]]
    if names:
        print_table(names, shown)
    if shown != rows:
        say(f"at most {_MAX_TABLE_ROWS} rows, and {_MAX_CELL} characters of a cell; --format csv and jsonl print all")


def _cell(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else to_json(value).strip('"')
