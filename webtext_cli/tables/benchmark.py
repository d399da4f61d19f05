"""Output of `webtext overlap-report --list-benchmarks`."""

from __future__ import annotations

from pipelines.benchmark_sets.registry import known_benchmarks
from pipelines.extras import install_command
from webtext_cli.console import say, say_wrapped


def print_known_benchmarks() -> None:
    """Print the known benchmarks: their source, license, splits, fields and the paper's figures."""
    for entry in known_benchmarks().values():
        aliases = f" (also {', '.join(entry.aliases)})" if entry.aliases else ""
        say(f"{entry.name}{aliases}")
        say(f"  {entry.source}; license: {entry.licence}")
        say(f"  splits: {', '.join(entry.splits)}; field: {entry.field}")
        if entry.paper is not None:
            say(f"  the paper: {entry.paper.webtext}% in WebText, {entry.paper.own_train}% in its own train split")
    say("")
    say_wrapped(
        f"These are loaded by the `datasets` library ({install_command('benchmarks')}); the first split is "
        "the one that is audited. For any other benchmark, or your own file, use --benchmark NAME=PATH."
    )
