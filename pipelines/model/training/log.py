"""What a training tells while it runs: lines on the terminal, metrics as JSONL, a page with plots, TensorBoard."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable
from typing import Any, Protocol

import torch

from pipelines.core import shards, storage
from pipelines.model.device import Place
from pipelines.model.diagnostics.estimate import duration_text, size_text
from pipelines.model.diagnostics.flops import flops_per_token, utilisation, utilisation_text
from pipelines.model.diagnostics.reference_losses import nearest_references, where_it_stands
from pipelines.model.training.checkpoint import METRICS_FILE, Row, json_lines, read_json_lines
from pipelines.model.training.recipe import Recipe, parameter_count
from pipelines.reports.training import render_training_page

TIMING_FILE = "timing.jsonl"
PAGE_FILE = "training.html"
# Between checkpoints the files are written anew no more often than this, and so that it takes no more of the time.
_PUBLISH_EVERY_S = 30.0
_PUBLISHING_SHARE = 0.01
# The steps whose median speed tells the time that is left.
_RECENT_STEPS = 20


class Sink(Protocol):
    """Somewhere else that rows of metrics go: TensorBoard."""

    def log(self, row: Row) -> None:
        """Take a row; it may come again with more in it."""

    def close(self) -> None:
        """Write what is held back."""


@dataclasses.dataclass(frozen=True)
class Speed:
    """What turns seconds of a step into tokens a second and utilisation."""

    recipe: Recipe
    vocab_size: int
    place: Place
    processes: int

    def row(self, step: int, seconds: float) -> Row:
        """Return the line of `timing.jsonl` for a step."""
        recipe = self.recipe
        speed = recipe.batch_tokens / seconds
        operations = flops_per_token(
            parameter_count(recipe, self.vocab_size), recipe.layers, recipe.width, recipe.context
        )
        share = utilisation(speed, operations, self.place.name, self.processes)
        return {
            "step": step,
            "seconds": round(seconds, 4),
            "tokens_per_second": round(speed),
            "utilisation": None if share is None else round(share, 4),
        }


class TrainingLog:
    """Keeps the metrics and times of all steps, and shows them; only the process that leads has one."""

    def __init__(
        self, output: str, speed: Speed, log_every: int, note: Callable[[str], None], sinks: list[Sink]
    ) -> None:
        self._output, self._speed, self._log_every, self._note, self._sinks = output, speed, log_every, note, sinks
        self._timing: list[Row] = []
        self._publish_at = time.monotonic() + _PUBLISH_EVERY_S
        self._rows: list[Row] = []
        self._spikes: list[dict[str, Any]] = []

    def resume(self, rows: list[Row]) -> None:
        """Take up the rows so far, and the times of their steps."""
        self._rows = rows
        path = storage.join(self._output, TIMING_FILE)
        if storage.exists(path):
            self._timing = self._times_so_far(path, rows[-1]["step"])
        self._spikes = [row["spike"] for row in rows if "spike" in row]
        # TensorBoard hides what it has of this step, so that the whole of it has to come again.
        last = self._timing[-1] if self._timing and self._timing[-1]["step"] == rows[-1]["step"] else {}
        self._log_to_sinks(rows[-1] | last)

    def step(self, row: Row, seconds: float) -> None:
        """Take the row of a step that has just ended."""
        timing = self._speed.row(row["step"], seconds)
        self._timing.append(timing)
        if "spike" in row:
            self._spikes.append(row["spike"])
        self._log_to_sinks(row | timing)
        if self._log_every and (row["step"] % self._log_every == 0 or len(self._timing) == 1):
            self._note(self._line(row, timing))
        if time.monotonic() >= self._publish_at:
            self.publish()

    def evaluated(self, row: Row) -> None:
        """Take the row of a step once more, now with its held-out loss."""
        bits = row.get("held_out_bits_per_byte")
        in_bits = "" if bits is None else f", {bits:.4f} bits a byte"
        loss, tokens = row["held_out_loss"], row["held_out_tokens"]
        self._note(f"step {row['step']:,}: held-out loss {loss:.4f} nats a token{in_bits}, over {tokens:,} tokens")
        self._log_to_sinks(row)
        self.publish()

    def publish(self) -> None:
        """Write metrics, times and the page for whoever watches; the files are always whole."""
        began = time.monotonic()
        shards.write_file(self._output, METRICS_FILE, json_lines(self._rows))
        shards.write_file(self._output, TIMING_FILE, json_lines(self._timing))
        shards.write_file(self._output, PAGE_FILE, self._page())
        ended = time.monotonic()
        self._publish_at = ended + max(_PUBLISH_EVERY_S, (ended - began) / _PUBLISHING_SHARE)

    def close(self) -> None:
        """End TensorBoard's file, and say where the run stands and what the card's memory came to."""
        for sentence in self._notes(parameter_count(self._speed.recipe, self._speed.vocab_size)):
            self._note(sentence)
        for sink in self._sinks:
            sink.close()
        if self._speed.place.device.type == "cuda":
            peak = torch.cuda.max_memory_allocated(self._speed.place.device)
            self._note(f"the most memory taken of the card: {size_text(peak)}")

    def _times_so_far(self, path: str, step: int) -> list[Row]:
        try:
            return [row for row in read_json_lines(path) if row["step"] <= step]
        except (ValueError, KeyError, TypeError) as error:
            self._note(f"{path}: is damaged ({error}), so the times of the steps so far are lost")
            return []

    def _log_to_sinks(self, row: Row) -> None:
        for sink in self._sinks:
            sink.log(row)

    def _line(self, row: Row, timing: Row) -> str:
        recent = statistics.median(each["seconds"] for each in self._timing[-_RECENT_STEPS:])
        left = (self._speed.recipe.steps - row["step"]) * recent
        return (
            f"step {row['step']:,} of {self._speed.recipe.steps:,}: loss {row['loss']:.4f}, gradient norm "
            f"{row['gradient_norm']:.3g}, rate {row['learning_rate']:.3g}, {timing['tokens_per_second']:,} tokens/s, "
            f"MFU {utilisation_text(timing['utilisation'])}, {duration_text(left)} left"
        )

    def _page(self) -> bytes:
        recipe = self._speed.recipe
        parameters = parameter_count(recipe, self._speed.vocab_size)
        about = {
            "title": f"Training of {recipe.preset}",
            "parameters": parameters,
            "vocab_size": self._speed.vocab_size,
            "facts": {"device": self._speed.place.name, "processes": self._speed.processes},
            "notes": self._notes(parameters),
            "recipe": dataclasses.asdict(recipe),
        }
        nearest = [each.to_json() for each in nearest_references(parameters)]
        return render_training_page(self._rows, self._timing, about, nearest, self._spikes).encode()

    def _notes(self, parameters: int) -> list[str]:
        """Return where the run stands by its latest held-out loss."""
        row = next((row for row in reversed(self._rows) if "held_out_loss" in row), None)
        if row is None:
            return []
        seen = row["step"] * self._speed.recipe.batch_tokens
        return where_it_stands(parameters, self._speed.vocab_size, seen, row["held_out_loss"])
