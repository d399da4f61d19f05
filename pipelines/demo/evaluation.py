"""Evaluates the demo's model on its held-out pages: their bits per byte, and a cloze that is made from them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any

from pipelines import storage
from pipelines.demo.corpus import json_lines
from pipelines.engine.run import RunOptions
from pipelines.evaluation.config import EvaluateConfig
from pipelines.evaluation.definitions import PAPER, parse_tasks
from pipelines.evaluation.records import Document, DocumentOptions, Documents
from pipelines.evaluation.results_page import write_page
from pipelines.evaluation.stage import evaluate
from pipelines.records.document_split import hash_key

# About 16,000 tokens in all, which a laptop reads in some seconds.
_PAGE_CHARACTERS = 1000
_QUESTIONS_PER_PAGE = 5
_CHOICES = 4
_PROMPT_CHARACTERS = 300
_WORD = re.compile(r"\b[A-Za-z]{4,}\b")
_LAST_WORD = re.compile(r"(?<=[a-z,] )[a-z]{4,}(?=\.\s)")

_HELD_OUT = """\
# Bits per byte of the beginnings of the pages that were held out of training.
[task]
title = "Held-out pages"
kind = "perplexity"
data = "held-out.jsonl"
document = "record"
unit = "byte"
"""
_CLOZE = f"""\
# The last word of a sentence in a held-out page, among {_CHOICES} words of that page.
[task]
title = "Cloze from held-out pages"
kind = "choice"
data = "cloze.jsonl"
prompt = "{{prompt}}"
choices = ["{{choices}}"]
gold = "gold"
cluster = "page"
"""


def evaluate_demo(corpus: str, options: RunOptions) -> list[dict[str, Any]]:
    """Write the demo's tasks, evaluate its model on them, and return the results, as in `results.json`."""
    output, model = (storage.join(corpus, name) for name in ("evaluate", "pretrain"))
    folder = storage.join(corpus, "remove-wikipedia")
    files = [storage.join(folder, name) for name in storage.list_folder(folder) if name.startswith("documents")]
    documents = list(Documents(DocumentOptions(part="held-out"), files))
    beginnings = [{"text": document.text[:_PAGE_CHARACTERS], "page": document.place} for document in documents]
    paths = []
    for name, text, rows in (("held-out", _HELD_OUT, beginnings), ("cloze", _CLOZE, cloze_questions(documents))):
        path = storage.join(corpus, "benchmarks", name)
        storage.write_bytes(f"{path}.jsonl", json_lines(rows))
        storage.write_bytes(f"{path}.toml", text.encode())
        paths.append(f"{path}.toml")
    results = evaluate(EvaluateConfig(), tasks=parse_tasks(paths, PAPER), model=model, output=output, options=options)
    write_page(output)
    return results


def cloze_questions(documents: Sequence[Document]) -> Iterator[dict[str, Any]]:
    """Yield questions with `prompt`, `choices`, `gold` and `page`; the same documents give the same questions.

    The right choice ends a sentence; the others are words of the same page, chosen and ordered by hashes.
    """
    for document in documents:
        text, words = document.text, set(_WORD.findall(document.text.lower()))
        for match in itertools.islice(_LAST_WORD.finditer(text), _QUESTIONS_PER_PAGE):
            purpose, gold = f"{document.place}:{match.start()}", match[0]
            # Neither the same word nor another form of it.
            others = [word for word in words if word[:4] != gold[:4]]
            others.sort(key=lambda word, purpose=purpose: hash_key(word, purpose))  # type: ignore[misc]
            choices = sorted([gold, *others[: _CHOICES - 1]])
            if len(choices) == _CHOICES:
                prompt = text[max(0, match.start() - _PROMPT_CHARACTERS) : match.start()]
                # The first word may be cut.
                prompt = prompt if len(prompt) < _PROMPT_CHARACTERS else prompt.partition(" ")[2]
                yield {"prompt": prompt.rstrip(), "choices": choices, "gold": gold, "page": document.place}
