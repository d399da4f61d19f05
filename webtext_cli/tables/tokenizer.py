"""Output of `webtext train-bpe`: the tokenizer's report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipelines.algorithms.bpe.suspicious_tokens import shortened_runs
from pipelines.format import escape_unprintable, format_decimal, format_percent
from pipelines.reports.tokenizer import describe_run
from webtext_cli.console import print_table, say_wrapped, shorten

_GROUPS = 5
_EXAMPLES = 6
_EXAMPLE_CHARACTERS = 18
_GROUP_CHARACTERS = 30


def print_report_card(card: Mapping[str, Any]) -> None:
    """Print the figures of a card next to those of its reference, then its rare, suspicious and longest entries."""
    reference = card["reference"]
    names = ["this", *([reference["name"]] if reference else [])]
    print_table(["", *names], [row[: len(names) + 1] for row in _figures(card)], narrow=True)
    for note in _notes(card):
        say_wrapped(note)
    if card["run"]:
        say_wrapped(f"run: {', '.join(f'{name} {value}' for name, value in describe_run(card['run']))}")


def _figures(card: Mapping[str, Any]) -> list[list[str]]:
    corpus, held_out, reference = card["corpus"], card["held_out"], card["reference"] or {}
    reference_held_out = reference.get("held_out", {})
    held_out_name = "held out but trained on" if held_out["was_trained_on"] else "held out"

    def figure(name: str, figures: Mapping[str, Any], compared: Mapping[str, Any], key: str, digits: int) -> list[str]:
        return [name, format_decimal(figures[key], digits), format_decimal(compared.get(key), digits)]

    rows = [
        ["entries", f"{card['vocabulary']['entries']:,}", f"{reference.get('entries', 0):,}"],
        figure("bytes per token, corpus", corpus, compared=reference, key="bytes_per_token", digits=2),
        figure(
            f"bytes per token, {held_out_name}", held_out, compared=reference_held_out, key="bytes_per_token", digits=2
        ),
    ]
    if card["groups"]:
        rows.append(["bytes per token, sample", *_sample_bytes_per_token(card["groups"])])
    for group in card["groups"][:_GROUPS]:
        keys = ("bytes_per_token", "reference_bytes_per_token")
        name = shorten(escape_unprintable(group["group"]), _GROUP_CHARACTERS)
        rows.append([f"  {name}", *(format_decimal(group[key]) for key in keys)])
    shares = [format_percent(figures.get("share_used")) for figures in (held_out, reference_held_out)]
    return [
        *rows,
        figure("fertility, tokens per alphabetic word", corpus, compared=reference, key="fertility", digits=3),
        figure("Rényi efficiency, alpha 2.5", corpus, compared=reference, key="renyi_efficiency", digits=3),
        [f"entries used, {held_out_name}", *shares],
    ]


def _sample_bytes_per_token(groups: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the bytes per token of all groups together, of this tokenizer and the reference."""
    size_bytes = sum(group["bytes"] for group in groups)
    totals = [sum(group.get(key, 0) for group in groups) for key in ("tokens", "reference_tokens")]
    return [format_decimal(size_bytes / tokens if tokens else None) for tokens in totals]


def _notes(card: Mapping[str, Any]) -> list[str]:
    rare, verification = card["rare"], card["verification"]
    occurring = [entry for entry in rare["listed"] if entry["count"]]
    examples = f"; the rarest that occur: {_format_entries(occurring, _EXAMPLES)}" if occurring else ""
    notes = [
        f"rare: {rare['entries']:,} entries ({rare['single_bytes']:,} single bytes) occur fewer than {rare['below']:,} "
        f"times in the corpus, {rare['never']:,} never{examples}"
    ]
    if card["strange"]:
        kinds = (
            f"{kind['kind']} {kind['entries']:,} ({_format_entries(kind['listed'], 1)})" for kind in card["strange"]
        )
        notes.append(f"suspicious: {', '.join(kinds)}")
    notes.append(f"longest: {_format_entries(card['longest'], _EXAMPLES)}")
    if card["held_out"]["was_trained_on"]:
        notes.append("note: no text was held out of training, so the held-out figures are too favorable")
    notes.append(f"merges: {verification['right']:,} of {verification['checked']:,} verified by recounting")
    wrong = [step for step in verification["steps"] if not step["is_right"]]
    return notes + [f"merges: merge {step['step']:,} is WRONG: {_describe_mismatch(step)}" for step in wrong]


def _describe_mismatch(step: Mapping[str, Any]) -> str:
    pair, counted_pair = " + ".join(step["pair"]), " + ".join(step["found_pair"])
    counted = f"{counted_pair} occurs {step['found_count']:,} times" if counted_pair else "there is no pair"
    return f"{pair} is recorded with {step['count']:,}, but {counted}"


def _format_entries(entries: Sequence[Mapping[str, Any]], limit: int) -> str:
    # Entries contain no characters that control a terminal.
    return "  ".join(shorten(shortened_runs(entry["token"]), _EXAMPLE_CHARACTERS) for entry in entries[:limit])
