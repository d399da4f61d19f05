"""What `webtext overlap-report --list-benchmarks` prints."""

from __future__ import annotations

from pipelines.stages.overlap_report.registry import list_benchmarks
from webtext_cli.console import print_table, say_wrapped


def print_known_benchmarks() -> None:
    """Print the benchmarks that are known by name: where they come from, their splits, fields and licences."""
    rows = [
        [row["name"], row["source"], ", ".join(row["splits"]), row["fields"], row["licence"]]
        for row in list_benchmarks()
    ]
    print_table(["name", "source", "splits", "field", "licence"], rows, title="Benchmarks that are known by name")
    say_wrapped(
        "The data sets are loaded by the `datasets` library (pip install 'webtext[benchmarks]'); the first split is "
        "the one that is audited. Anything else: --benchmark NAME=PATH."
    )
