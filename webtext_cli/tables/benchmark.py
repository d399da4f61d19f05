"""What `webtext overlap-report --list-benchmarks` prints."""

from __future__ import annotations

from pipelines.stages.overlap_report.registry import list_benchmarks
from webtext_cli.console import say, say_wrapped


def print_known_benchmarks() -> None:
    """Print the benchmarks that are known by name: their source, license, splits, fields and the paper's figures."""
    for row in list_benchmarks():
        aliases = f" (also {', '.join(row['aliases'])})" if row["aliases"] else ""
        say(f"{row['name']}{aliases}")
        say(f"  {row['source']}; license: {row['licence']}")
        say(f"  splits: {', '.join(row['splits'])}; field: {row['fields']}")
        paper = row["paper"]
        if paper is not None:
            say(f"  the paper: {paper['webtext']}% in WebText, {paper['own_train']}% in its own train split")
    say("")
    say_wrapped(
        "These are loaded by the `datasets` library (pip install 'webtext-kit[benchmarks]'); the first split is the "
        "one that is audited. For any other benchmark, or your own file, use --benchmark NAME=PATH."
    )
