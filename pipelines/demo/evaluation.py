"""Evaluates the demo's model on its held-out pages: their bits per byte."""

from __future__ import annotations

from typing import Any

from pipelines import storage
from pipelines.demo.corpus import json_lines
from pipelines.engine.run import RunOptions
from pipelines.evaluation.config import EvaluateConfig
from pipelines.evaluation.definitions import PAPER, parse_tasks
from pipelines.evaluation.records import DocumentOptions, Documents
from pipelines.evaluation.results_page import write_page
from pipelines.evaluation.stage import evaluate

# About 16,000 tokens in all, which a laptop reads in some seconds.
_PAGE_CHARACTERS = 1000
_HELD_OUT = """\
# Bits per byte of the beginnings of the pages that were held out of training.
[task]
title = "Held-out pages"
kind = "perplexity"
data = "held-out.jsonl"
document = "record"
unit = "byte"
"""


def evaluate_demo(corpus: str, options: RunOptions) -> list[dict[str, Any]]:
    """Write the demo's task, evaluate its model on it, and return the results, as in `results.json`."""
    output, model = (storage.join(corpus, name) for name in ("evaluate", "pretrain"))
    folder = storage.join(corpus, "remove-wikipedia")
    files = [storage.join(folder, name) for name in storage.list_folder(folder) if name.startswith("documents")]
    pages = Documents(DocumentOptions(part="held-out"), files)
    task = storage.join(corpus, "benchmarks", "held-out")
    rows = ({"text": page.text[:_PAGE_CHARACTERS], "page": page.place} for page in pages)
    storage.write_bytes(f"{task}.jsonl", json_lines(rows))
    storage.write_bytes(f"{task}.toml", _HELD_OUT.encode())
    tasks = parse_tasks([f"{task}.toml"], PAPER)
    results = evaluate(EvaluateConfig(), tasks=tasks, model=model, output=output, options=options)
    write_page(output)
    return results
