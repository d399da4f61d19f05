"""Output of `webtext train-bpe`: the tokenizer's report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipelines.algorithms.bpe.suspicious_tokens import shortened_runs
from pipelines.format import escape_unprintable
from pipelines.reports.tokenizer import compare_figures, describe_run
from webtext_cli.console import print_table, say_wrapped, shorten

_EXAMPLES = 6
_EXAMPLE_CHARACTERS = 18
_NAME_CHARACTERS = 30


def print_tokenizer_report(report: Mapping[str, Any]) -> None:
    """Print the figures next to those of the reference, then rare, suspicious and longest entries."""
    reference = report["reference"]
    names = ["this", *([shorten(escape_unprintable(reference["name"]), _NAME_CHARACTERS)] if reference else [])]
    print_table(["", *names], compare_figures(report), narrow=True)
    rare = report["rare"]
    occurring = [entry for entry in rare["listed"] if entry["count"]]
    examples = f"; the rarest that occur: {_format_entries(occurring, _EXAMPLES)}" if occurring else ""
    say_wrapped(
        f"rare: {rare['entries']:,} entries ({rare['single_bytes']:,} single bytes) occur fewer than {rare['below']:,} "
        f"times in the corpus, {rare['never']:,} never{examples}"
    )
    if report["suspicious"]:
        kinds = (
            f"{kind['kind']} {kind['entries']:,} ({_format_entries(kind['listed'], 1)})"
            for kind in report["suspicious"]
        )
        say_wrapped(f"suspicious: {', '.join(kinds)}")
    say_wrapped(f"longest: {_format_entries(report['longest'], _EXAMPLES)}")
    if report["held_out_was_trained_on"]:
        say_wrapped("note: no text was held out of training, so the held-out figures are too favorable")
    if report["run"]:
        say_wrapped(f"run: {', '.join(f'{name} {value}' for name, value in describe_run(report['run']))}")


def _format_entries(entries: Sequence[Mapping[str, Any]], limit: int) -> str:
    # Entries contain no characters that control a terminal.
    return "  ".join(shorten(shortened_runs(entry["token"]), _EXAMPLE_CHARACTERS) for entry in entries[:limit])
