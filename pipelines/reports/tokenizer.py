"""The report of a tokenizer as one page of HTML, rendered from `report.json` and `timing.json`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipelines.algorithms.bpe.suspicious_tokens import shortened_runs
from pipelines.format import format_bytes, format_count, format_decimal, format_duration, format_percent
from pipelines.reports.render import render


def render_tokenizer_report(report: Mapping[str, Any]) -> str:
    """Return the page of a report, with the figures of its run in `run`."""
    return render(
        "tokenizer.html",
        report=report,
        figures=compare_figures(report),
        run=describe_run(report["run"]),
        shorten=shortened_runs,
    )


def compare_figures(report: Mapping[str, Any]) -> list[list[str]]:
    """Return a row for each figure: its name, its value for the tokenizer and, if there is one, for the reference."""
    tokenizers = [report["tokenizer"], *filter(None, [report["reference"]])]
    held_out = [tokenizer["held_out"] for tokenizer in tokenizers]
    held_out_name = "held-out split" + (" (seen in training)" if report["held_out_was_trained_on"] else "")
    return [
        ["entries", *(format_count(tokenizer["entries"]) for tokenizer in tokenizers)],
        ["bytes per token, corpus", *(format_decimal(tokenizer["bytes_per_token"]) for tokenizer in tokenizers)],
        ["bytes per token, sample", *(format_decimal(tokenizer["sample_bytes_per_token"]) for tokenizer in tokenizers)],
        [f"bytes per token, {held_out_name}", *(format_decimal(use["bytes_per_token"]) for use in held_out)],
        [
            "fertility, tokens per alphabetic word",
            *(format_decimal(tokenizer["fertility"], 3) for tokenizer in tokenizers),
        ],
        [f"entries used, {held_out_name}", *(format_percent(use["share_used"]) for use in held_out)],
    ]


def describe_run(run: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the figures of a run as names and texts: `_bytes` are sizes, `_seconds` and `seconds` durations."""
    figures: list[tuple[str, str]] = []
    for key, value in run.items():
        name = key.removesuffix("_bytes").removesuffix("_seconds").replace("_", " ")
        if isinstance(value, Mapping):
            figures += [(phase, format_duration(seconds)) for phase, seconds in value.items()]
        elif key.endswith("bytes"):
            figures.append((name, format_bytes(value)))
        elif key.endswith("seconds"):
            figures.append((name, format_duration(value)))
        else:
            figures.append((name, format_count(value) if isinstance(value, int) else str(value)))
    return figures
