"""What `webtext overlap-report --list-benchmarks` prints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipelines.stages.overlap_report.registry import list_benchmarks
from webtext_cli.console import say, say_wrapped


def print_known_benchmarks() -> None:
    """Print the benchmarks that are known by name: where they come from, their splits, fields and licences."""
    for row in list_benchmarks():
        also = f" (also {', '.join(row['aliases'])})" if row["aliases"] else ""
        say(f"{row['name']}{also}")
        for line in _described(row):
            say(f"  {line}")
    say("")
    say_wrapped(
        "These are loaded by the `datasets` library (pip install 'webtext-kit[benchmarks]'); the first split is the "
        "one that is audited. Anything else, or a file that you have: --benchmark NAME=PATH."
    )


def _described(row: Mapping[str, Any]) -> list[str]:
    lines = [
        f"{row['source']}; licence: {row['licence']}",
        f"splits: {', '.join(row['splits'])}; field: {row['fields']}",
    ]
    paper = row["paper"]
    if paper is not None:
        lines.append(f"the paper: {paper['webtext']}% in WebText, {paper['own_train']}% in its own train split")
    return lines
