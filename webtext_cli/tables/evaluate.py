"""Prints tasks, their protocols and results."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from pipelines.core.format import format_count
from pipelines.evaluation.protocols import Protocol
from webtext_cli.console import print_table, say, say_wrapped

_SIZES = ("117M", "345M", "762M", "1542M")


def print_tasks(protocols: Sequence[Protocol], as_json: bool) -> None:
    """Print the known tasks."""
    if as_json:
        say(json.dumps([dataclasses.asdict(protocol) for protocol in protocols], ensure_ascii=False))
        return
    rows = [
        [protocol.name, protocol.title, protocol.kind, protocol.section, ", ".join(("paper", *protocol.variants))]
        for protocol in protocols
    ]
    print_table(["task", "title", "kind", "section", "variants"], rows)


def print_protocol(protocol: Protocol, as_json: bool) -> None:
    """Print the choices of a protocol: stated by the paper, inferred from it, or chosen."""
    if as_json:
        say(json.dumps(dataclasses.asdict(protocol), ensure_ascii=False))
        return
    source = f"section {protocol.section}" if protocol.section[:1].isdigit() else protocol.section
    say(f"{protocol.title} ({protocol.name})" + (f", {source}" if source else ""))
    if protocol.note:
        say_wrapped(protocol.note)
    rows = [
        [name, json.dumps(choice.value, ensure_ascii=False), choice.origin, choice.note]
        for name, choice in protocol.choices.items()
    ]
    print_table(["choice", "value", "origin", "reason"], rows)
    for name, values in protocol.variants.items():
        say(f"variant {name}: " + ", ".join(f"{key} = {json.dumps(value)}" for key, value in values.items()))
    for metric, figures in protocol.paper.items():
        shown = (
            f"{size} {'figure only' if value is None else f'{value:g}'}"
            for size, value in zip(_SIZES, figures, strict=True)
        )
        say(f"paper, {metric}: {', '.join(shown)}")
    for digest, name in protocol.known_files.items():
        say(f"known file {digest[:12]}: {name}")


def print_results(results: Sequence[Mapping[str, Any]]) -> None:
    """Print the figures of tasks, with the paper's for its four sizes."""
    rows = []
    for result in results:
        label = _label(result)
        for figure in result["metrics"]:
            paper = result["paper"].get(figure["name"], [])
            error = "" if figure["error"] is None else f"± {_number(figure['error'])}"
            unit = f" per {figure['unit']}" if figure["unit"] else ""
            printed = ["figure only" if value is None else f"{value:g}" for value in paper] or [""] * len(_SIZES)
            rows.append(
                [
                    f"{label}: {figure['name']}{unit}",
                    _number(figure["value"]),
                    error,
                    format_count(figure["examples"]),
                    *printed,
                ]
            )
    print_table(["", "value", "", "examples", *(f"paper {size}" for size in _SIZES)], rows, narrow=True)
    for (label, name), values in _over_seeds(results).items():
        if len(values) > 1:
            spread = f"mean {_number(statistics.fmean(values))}, standard deviation {_number(statistics.stdev(values))}"
            say(f"{label}: {name} over {len(values)} draws of the shots: {spread}")
    for result in results:
        if result["truncated_examples"]:
            say(f"{_label(result)}: {format_count(result['truncated_examples'])} examples were cut to the context")


def _over_seeds(results: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], list[float]]:
    """Return the values of every metric of a task with shots, by the label of the task without the seed."""
    values: dict[tuple[str, str], list[float]] = {}
    for result in results:
        for figure in result["metrics"] if result["shots"] else ():
            values.setdefault((_label(result).rpartition(", seed")[0] + ")", figure["name"]), []).append(
                figure["value"]
            )
    return values


def _label(result: Mapping[str, Any]) -> str:
    notes = [] if result["variant"] == "paper" else [result["variant"]]
    if result["shots"]:
        notes.append(f"{result['shots']} shots, seed {result['shot_seed']}")
    return str(result["task"]) + (f" ({', '.join(notes)})" if notes else "")


def _number(value: float) -> str:
    return f"{value:.4g}" if abs(value) < 10000 else f"{value:,.0f}"
