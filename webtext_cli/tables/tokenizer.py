"""What `webtext train-bpe` prints of a tokenizer's report card."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipelines.algorithms.bpe.suspicious_tokens import shortened_runs
from webtext_cli.console import amount, duration, print_table, printable, say_wrapped, shortened

_GROUPS = 5
_EXAMPLES = 6
_EXAMPLE_CHARACTERS = 18
_GROUP_CHARACTERS = 30


def print_card(card: Mapping[str, Any]) -> None:
    """Print a card that `make_card` made: its figures beside the reference's, the largest groups, what to look at."""
    reference = card["reference"]
    names = ["this", *([reference["name"]] if reference else [])]
    print_table(["", *names], [row[: len(names) + 1] for row in _figures(card)], narrow=True)
    for line in _notes(card):
        say_wrapped(line)
    if card["run"]:
        say_wrapped(f"run: {', '.join(_run(card['run']))}")


def _figures(card: Mapping[str, Any]) -> list[list[str]]:
    corpus, held_out, theirs = card["corpus"], card["held_out"], card["reference"] or {}
    their_use = theirs.get("held_out", {})
    whose = "held out but trained on" if held_out["was_trained_on"] else "held out"
    rows = [
        ["entries", f"{card['vocabulary']['entries']:,}", f"{theirs.get('entries', 0):,}"],
        ["bytes per token, corpus", *_both(corpus, theirs, "bytes_per_token", 2)],
        [f"bytes per token, {whose}", *_both(held_out, their_use, "bytes_per_token", 2)],
    ]
    if card["groups"]:
        rows.append(["bytes per token, sample", *_of_sample(card["groups"])])
    for group in card["groups"][:_GROUPS]:
        name = f"  {shortened(printable(group['group']), _GROUP_CHARACTERS)}"
        rows.append([name, _figure(group["bytes_per_token"], 2), _figure(group["reference_bytes_per_token"], 2)])
    return [
        *rows,
        ["fertility, tokens per word of letters", *_both(corpus, theirs, "fertility", 3)],
        ["Rényi efficiency, alpha 2.5", *_both(corpus, theirs, "renyi_efficiency", 3)],
        [f"entries used, {whose}", _share(held_out["share_used"]), _share(their_use.get("share_used"))],
    ]


def _of_sample(groups: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the bytes per token of all groups together, by this tokenizer and by the reference."""
    size_bytes = sum(group["bytes"] for group in groups)
    tokens = [sum(group.get(key, 0) for group in groups) for key in ("tokens", "reference_tokens")]
    return [_figure(size_bytes / each if each else None, 2) for each in tokens]


def _notes(card: Mapping[str, Any]) -> list[str]:
    rare, checked, held_out = card["rare"], card["verification"], card["held_out"]
    seen = [entry for entry in rare["listed"] if entry["count"]]
    examples = f"; the rarest with a count: {_tokens(seen, _EXAMPLES)}" if seen else ""
    notes = [
        f"rare: {rare['entries']:,} entries ({rare['single_bytes']:,} single bytes) occur fewer than {rare['below']:,} "
        f"times in the corpus, {rare['never']:,} never{examples}"
    ]
    if card["strange"]:
        kinds = (f"{kind['kind']} {kind['entries']:,} ({_tokens(kind['listed'], 1)})" for kind in card["strange"])
        notes.append(f"strange: {', '.join(kinds)}")
    notes.append(f"longest: {_tokens(card['longest'], _EXAMPLES)}")
    if held_out["was_trained_on"]:
        notes.append("note: nothing was kept from training, so the figures of held-out text flatter this tokenizer")
    wrong = [step for step in checked["steps"] if not step["is_right"]]
    notes.append(f"merges: {checked['right']:,} of {checked['checked']:,} counted anew are right")
    notes += [f"merges: number {step['step']:,} is WRONG: {_found(step)}" for step in wrong]
    return notes


def _found(step: Mapping[str, Any]) -> str:
    found = (
        f"{' + '.join(step['found_pair'])} occurs {step['found_count']:,} times" if step["found_pair"] else "no pair"
    )
    return f"{' + '.join(step['pair'])} is recorded with {step['count']:,}, but {found}"


def _tokens(entries: Sequence[Mapping[str, Any]], most: int) -> str:
    """Return some entries; they are written without anything that would move the cursor or colour the terminal."""
    return "  ".join(shortened(shortened_runs(each["token"]), _EXAMPLE_CHARACTERS) for each in entries[:most])


def _run(run: Mapping[str, Any]) -> list[str]:
    parts = []
    for key, value in run.items():
        name = key.removesuffix("_bytes").removesuffix("_seconds").replace("_", " ")
        if isinstance(value, Mapping):
            parts += [f"{phase} {duration(seconds)}" for phase, seconds in value.items()]
        elif key.endswith("bytes"):
            parts.append(f"{name} {amount(value, 'bytes')}")
        elif key.endswith("seconds"):
            parts.append(f"{name} {duration(value)}")
        else:
            parts.append(f"{name} {value:,}" if isinstance(value, int) else f"{name} {value}")
    return parts


def _both(ours: Mapping[str, Any], theirs: Mapping[str, Any], key: str, digits: int) -> list[str]:
    return [_figure(ours[key], digits), _figure(theirs.get(key), digits)]


def _figure(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}%"
