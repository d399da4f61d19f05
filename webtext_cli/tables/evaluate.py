"""Prints tasks, their protocols and results."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pipelines.evaluation.definitions import TaskDefinition
from pipelines.format import format_count, format_number, plural
from pipelines.reports.evaluation import (
    PAPER_SIZES,
    data_notes,
    difference_text,
    figures_by_step,
    figures_over_draws,
    format_figure,
    metric_title,
    paper_texts,
    result_label,
)
from webtext_cli.console import print_table, say, say_wrapped, shorten

_VALUE_CHARACTERS = 60


def print_tasks(tasks: Sequence[TaskDefinition]) -> None:
    """Print the known tasks by source: the paper's sections, other papers, lm-evaluation-harness."""
    ordered = sorted(tasks, key=lambda task: (not task.section, task.section))
    rows = [[task.name, task.title, task.kind, task.section, ", ".join(("paper", *task.variants))] for task in ordered]
    print_table(["task", "title", "kind", "section", "variants"], rows, text_columns=True)


def print_protocol(task: TaskDefinition) -> None:
    """Print the choices of a protocol and of fine-tuning: stated by the paper, inferred from it, or chosen."""
    source = f"section {task.section}" if task.section[:1].isdigit() else task.section
    say(f"{task.title} ({task.name})" + (f", {source}" if source else ""))
    if task.note:
        say_wrapped(task.note)
    for heading, choices in {"choice": task.choices, "finetune": task.finetune}.items():
        rows = [
            [name, json.dumps(choice.value, ensure_ascii=False), choice.origin, choice.note]
            for name, choice in choices.items()
        ]
        if rows:
            print_table([heading, "value", "origin", "reason"], rows, text_columns=True)
    for name, values in task.variants.items():
        shown = (f"{key} = {shorten(json.dumps(value), _VALUE_CHARACTERS)}" for key, value in values.items())
        say_wrapped(f"variant {name}: {', '.join(shown)}")
    for metric in task.paper:
        figures = zip(PAPER_SIZES, paper_texts(vars(task), metric), strict=True)
        say(f"paper, {metric}: {', '.join(map(' '.join, figures))}")
    for digest, name in task.known_files.items():
        say(f"known file {digest[:12]}: {name}")


def print_results(results: Sequence[Mapping[str, Any]]) -> None:
    """Print the figures of tasks, with the paper's for its four sizes."""
    has_paper = any(result["paper"] for result in results)
    rows = [
        [
            f"{result_label(result)}: {metric_title(figure)}",
            _with_error(format_figure(figure["value"]), figure),
            plural(figure["examples"], "pair") if figure["unit"] == "pair" else format_count(figure["examples"]),
            *(paper_texts(result, figure["name"]) if has_paper else ()),
        ]
        for result in results
        for figure in result["metrics"]
    ]
    print_table(["", "value", "examples", *(PAPER_SIZES if has_paper else ())], rows, narrow=True)
    if has_paper:
        say(f"{', '.join(PAPER_SIZES)}: the paper's models")
    for note in data_notes(results):
        say_wrapped(note)
    for row in figures_over_draws(results):
        mean, spread = format_figure(row["mean"]), format_figure(row["standard_deviation"])
        title = f"{row['task']}: {row['metric']} over {row['draws']} random draws of few-shot examples"
        say_wrapped(f"{title}: mean {mean}, standard deviation {spread}")
    _print_truncation(results)


def _print_truncation(results: Sequence[Mapping[str, Any]]) -> None:
    for result in results:
        shots = format_count(result["shots"] * max((figure["examples"] for figure in result["metrics"]), default=0))
        for name, noun in (("shots_dropped", f" of {shots} shots"), ("turns_dropped", " turns of histories")):
            if dropped := result["counts"].get(name):
                say(f"{result_label(result)}: {dropped:,.0f}{noun} did not fit into the context and were dropped")
        if result["truncated_examples"]:
            say(f"{result_label(result)}: {plural(result['truncated_examples'], 'example')} truncated to the context")


def print_steps(steps: Mapping[int, Sequence[Mapping[str, Any]]]) -> None:
    """Print the figures of the checkpoints of a training, a row per step."""
    rows = [
        [": ".join(labels), format_count(step), _with_error(format_figure(figure["value"]), figure)]
        for labels, figures in figures_by_step(steps).items()
        for step, figure in figures
    ]
    print_table(["", "step", "value"], rows, narrow=True)
    _print_truncation(steps[max(steps)])


def print_comparison(comparison: Mapping[str, Any]) -> None:
    """Print the paired differences to another model."""
    rows = [
        [
            f"{row['task']}: {row['metric']}",
            *(format_figure(row[name]) for name in ("value", "other")),
            _with_error(difference_text(row), row),
            format_number(row["p_value"], 2),
        ]
        for row in comparison["differences"]
    ]
    if rows:
        headings = ["", "value", "other", "difference", "p"]
        print_table(headings, rows, f"Compared with {comparison['model']}", narrow=True)
    for note in comparison["notes"]:
        say(note)


def _with_error(text: str, figure: Mapping[str, Any]) -> str:
    return text if figure["error"] is None else f"{text} ± {format_figure(figure['error'])}"
