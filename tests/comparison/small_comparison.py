"""Corpora of an invented language, and the arguments of a comparison that takes seconds."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from webtext_cli.main import main

_PARTS = (
    ("a", "the", "some", "every"),
    ("old", "green", "quiet", "heavy", "small", "bright", "wooden", "narrow", "distant", "empty"),
    ("house", "river", "engine", "garden", "letter", "bridge", "window", "market", "teacher", "village"),
    ("crosses", "opens", "carries", "follows", "describes", "repairs", "paints", "remembers"),
)
MODEL = (
    "layers=1", "width=16", "heads=2", "context=64", "batch_size=4", "micro_batch=4", "learning_rate=0.01",
)  # fmt: skip
OPTIONS = ("--limit", "30", "--held-out", "0.2", "--vocab-size", "400", "--tokens", "8000", "--device", "cpu", "-q")


def sentence(draw: random.Random) -> str:
    """Return a sentence: subject, verb, object."""
    article, adjective, noun, verb = (draw.choice(words) for words in _PARTS)
    return f"{article} {adjective} {noun} {verb} {' '.join(draw.choice(words) for words in _PARTS[:3])}."


def documents(seed: int, count: int, sentences: int = 16) -> list[dict[str, str]]:
    """Return documents of the language."""
    draw = random.Random(seed)
    return [
        {"id": f"{seed}-{number}", "text": " ".join(sentence(draw) for _ in range(sentences))}
        for number in range(count)
    ]


def backwards(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    """Return documents whose words are spelled backwards: a model of them knows little of the language."""
    return [{"id": row["id"], "text": " ".join(word[::-1] for word in row["text"].split())} for row in rows]


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Write rows as JSONL."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_task(folder: Path, seed: int = 7) -> Path:
    """Write a task: which of two endings continues a sentence, or its words reversed."""
    draw = random.Random(seed)
    rows = []
    for number in range(12):
        beginning, _, ending = sentence(draw).partition(" ")
        wrong = "".join(draw.sample(ending, len(ending)))
        rows.append(
            {"q": beginning, "options": [ending, wrong] if number % 2 else [wrong, ending], "gold": 1 - number % 2}
        )
    write(folder / "endings.jsonl", rows)
    task = folder / "endings.toml"
    task.write_text(
        '[task]\nkind = "choice"\ndata = "endings.jsonl"\nprompt = "{q}"\nchoices = ["{options}"]\ngold = "gold"\n'
    )
    return task


def arguments(output: Path, *corpora: object, options: tuple[object, ...] = ()) -> list[str]:
    """Return the arguments of a small comparison."""
    sets = [part for value in MODEL for part in ("--set", value)]
    return ["compare", *map(str, corpora), "-o", str(output), *sets, *OPTIONS, *map(str, options)]


def run(output: Path, *corpora: object, options: tuple[object, ...] = ()) -> dict[str, Any]:
    """Run a small comparison in this process, and return what it wrote."""
    assert main(arguments(output, *corpora, options=options)) == 0
    content: dict[str, Any] = json.loads((output / "compare.json").read_text())
    return content
