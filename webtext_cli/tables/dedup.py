"""Output of `webtext dedup --self-test`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pipelines.errors import WebtextError
from pipelines.format import format_count, format_decimal, format_percent, plural
from webtext_cli.console import print_table, say, say_wrapped


def print_self_test(result: Mapping[str, Any], as_json: bool) -> None:
    """Print the recall by similarity and by kind of copy; raise WebtextError if a document was wrongly dropped."""
    below, dropped = result["below_threshold"], plural(result["dropped"], "dropped document")
    if as_json:
        say(json.dumps(result, ensure_ascii=False))
    else:
        _print_tables(result)
        precision = format_percent(result["precision"], 2)
        say(f"{dropped}, {below:,} less similar to the kept one than the threshold: precision {precision}")
    if below:
        raise WebtextError(
            f"self-test: {below:,} of {dropped} are less similar to the kept one than the threshold; this is a bug in "
            "webtext, please report it"
        )


def _print_tables(result: Mapping[str, Any]) -> None:
    say_wrapped(
        f"Altered copies of {plural(result['documents'], 'document')} were planted and deduplicated with "
        f"{result['bands']} bands of {result['rows']} values. A pair is a kept document and its copy."
    )
    rows = [
        [f"{row['from']:.2f} to {row['to']:.2f}", *_recall(row), format_percent(row["predicted"], 2)]
        for row in result["ranges"]
    ]
    print_table(["Jaccard similarity", "pairs", "found", "recall", "S-curve"], rows, title="By similarity")
    rows = [
        [row["kind"], format_count(row["copies"]), format_decimal(row["mean_similarity"]), *_recall(row)]
        for row in result["kinds"]
    ]
    headings = ["copy", "copies", "mean similarity", "at the threshold", "found", "recall"]
    print_table(headings, rows, title="By kind of copy")


def _recall(row: Mapping[str, Any]) -> list[str]:
    return [format_count(row["pairs"]), format_count(row["found"]), format_percent(row["recall"], 2)]
