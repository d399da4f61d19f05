"""Interrupts training, and reads its folder."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from pipelines.progress import Silent

BATCH_TOKENS = 64


FILES = {"config.json", "tokenizer.json", "model.safetensors", "metrics.jsonl"}


class StopsAtStep(Silent):
    """Interrupts as Ctrl-C does, when a number of steps of this run is done; keeps the notes."""

    def __init__(self, steps: int | None = None) -> None:
        self.steps = steps
        self.advanced = self.trained = 0
        self.total: int | None = None
        self.notes: list[str] = []

    def start(self, label: str, total: int | None, unit: str) -> None:
        assert unit == "tokens"
        self.total = total

    def advance(self, units: int) -> None:
        self.advanced += units
        if units != BATCH_TOKENS:  # of an evaluation
            return
        self.trained += units
        if self.steps is not None:
            self.steps -= 1
            if self.steps == 0:
                raise KeyboardInterrupt

    def note(self, message: str) -> None:
        self.notes.append(message)


def contents(folder: Path) -> dict[str, str]:
    """Every file but the times, by its hash."""
    files = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    kept = {
        name: path
        for name, path in files.items()
        if not name.startswith(".lock") and name not in ("timing.jsonl", "training.html", "finetune.html")
    }
    return {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in kept.items()}


def metrics(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
