"""Progress of a run: lines on the terminal, metrics as JSONL, a page with plots, TensorBoard; written by rank 0."""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch

from pipelines import storage
from pipelines.errors import InputError, WebtextError
from pipelines.extras import require_extra
from pipelines.format import format_bytes, format_duration, format_percent
from pipelines.model.diagnostics.estimate import flops_per_token, utilization
from pipelines.model.training.checkpoint import METRICS_FILE, Row, json_lines, read_json_lines
from pipelines.model.training.job import TrainingJob
from pipelines.model.training.objective import evaluation_work
from pipelines.records import shards
from pipelines.reports.render import write_page
from pipelines.reports.training import render_training_page

TENSORBOARD_FOLDER = "tensorboard"
TIMING_FILE = "timing.jsonl"
SAMPLES_FILE = "samples.jsonl"
PAGE_FILE = "training.html"
# Between checkpoints the files are rewritten at most this often, and within this share of the time.
_PUBLISH_EVERY_S = 30.0
_PUBLISHING_SHARE = 0.01
# The remaining time is estimated from the median time of the latest steps.
_RECENT_STEPS = 20
_SHOWN_CHARACTERS = 200
# How TensorBoard groups the columns of `metrics.jsonl` and `timing.jsonl`.
_TAGS = {
    "loss": "loss/train",
    "held_out_loss": "loss/held_out",
    "held_out_bits_per_byte": "loss/held_out_bits_per_byte",
    "learning_rate": "training/learning_rate",
    "gradient_norm": "training/gradient_norm",
    "tokens_per_second": "speed/tokens_per_second",
    "utilisation": "speed/utilisation",
}


class TrainingLog:
    """Collects the metrics and times of all steps and reports them.

    `rows` are the metrics so far, to which the trainer appends; the times of their steps are read from the output.
    """

    def __init__(self, job: TrainingJob, rows: list[Row]) -> None:
        self._job, self._rows = job, rows
        self._publish_at = time.monotonic() + _PUBLISH_EVERY_S
        step = rows[-1]["step"]
        self._timing = self._read_rows(TIMING_FILE, step)
        self._samples = self._read_rows(SAMPLES_FILE, step)
        self._tensorboard = (
            TensorBoardLog(storage.join(job.output, TENSORBOARD_FOLDER), step) if job.options.tensorboard else None
        )
        # TensorBoard hides earlier events of this step, so its values are logged again.
        last = self._timing[-1] if self._timing and self._timing[-1]["step"] == step else {}
        self._log_to_tensorboard(rows[-1] | last)

    def step(self, row: Row, seconds: float) -> None:
        """Log a completed step."""
        timing = self._timing_row(row["step"], seconds)
        self._timing.append(timing)
        self._log_to_tensorboard(row | timing)
        log_every = self._job.options.log_every
        if log_every and (row["step"] % log_every == 0 or len(self._timing) == 1):
            self._job.note(self._line(row, timing))
        if time.monotonic() >= self._publish_at:
            self.publish()

    def evaluated(self, row: Row) -> None:
        """Log the figures of an evaluation, which were added to the row of the last step."""
        self._job.note(f"step {row['step']:,}: {self._job.objective.describe_evaluation(row)}")
        self._log_to_tensorboard(row)
        self.publish()

    def sampled(self, step: int, text: str) -> None:
        """Log a text that the model sampled after a step."""
        self._samples.append({"step": step, "text": text})
        shards.write_file(self._job.output, SAMPLES_FILE, json_lines(self._samples))
        shown = text[:_SHOWN_CHARACTERS] + ("..." if len(text) > _SHOWN_CHARACTERS else "")
        self._job.note(f"step {step:,}: sample: {shown!r}")

    def publish(self) -> None:
        """Rewrite metrics, times and the page; each file is replaced atomically."""
        started = time.monotonic()
        shards.write_file(self._job.output, METRICS_FILE, json_lines(self._rows))
        shards.write_file(self._job.output, TIMING_FILE, json_lines(self._timing))
        write_page(self._job.output, PAGE_FILE, self._page())
        ended = time.monotonic()
        self._publish_at = ended + max(_PUBLISH_EVERY_S, (ended - started) / _PUBLISHING_SHARE)

    def close(self) -> None:
        """Report the GPU's peak memory, and close TensorBoard's file."""
        if self._tensorboard is not None:
            self._tensorboard.close()
        if self._job.device.device.type == "cuda":
            peak = torch.cuda.max_memory_allocated(self._job.device.device)
            self._job.note(f"peak GPU memory: {format_bytes(peak)}")

    def _read_rows(self, name: str, step: int) -> list[Row]:
        """Return the rows that an interrupted run wrote, up to the step from which it resumes."""
        path = storage.join(self._job.output, name)
        if not storage.exists(path):
            return []
        try:
            return [row for row in read_json_lines(path) if row["step"] <= step]
        except (InputError, KeyError, TypeError) as error:
            self._job.note(f"{path}: is damaged ({error}); its values of earlier steps are lost")
            return []

    def _timing_row(self, step: int, seconds: float) -> Row:
        job, size = self._job, self._job.architecture
        speed = job.objective.tokens(step - 1) / seconds
        flops = flops_per_token(job.parameters, size.layers, size.width, size.context, size.attention_window)
        share = utilization(speed, flops, job.device.name, job.world.size)
        return {
            "step": step,
            "seconds": round(seconds, 4),
            "tokens_per_second": round(speed),
            "utilisation": None if share is None else round(share, 4),
        }

    def _log_to_tensorboard(self, row: Row) -> None:
        if self._tensorboard is not None:
            self._tensorboard.log(row)

    def _line(self, row: Row, timing: Row) -> str:
        steps = self._job.recipe.steps
        step_s = statistics.median(timing["seconds"] for timing in self._timing[-_RECENT_STEPS:])
        evaluation_steps = evaluation_work(self._job, row["step"]) / self._job.objective.tokens(row["step"] - 1)
        mfu = timing["utilisation"]
        return (
            f"step {row['step']:,} of {steps:,}: loss {row['loss']:.4f}, gradient norm {row['gradient_norm']:.3g}, "
            f"learning rate {row['learning_rate']:.3g}, {timing['tokens_per_second']:,} tokens/s, "
            f"{'' if mfu is None else f'MFU {format_percent(mfu)}, '}"
            f"{format_duration((steps - row['step'] + evaluation_steps) * step_s)} left"
        )

    def _page(self) -> str:
        job = self._job
        about = {
            "title": job.title,
            "unit": job.unit,
            "parameters": job.parameters,
            "vocab_size": job.architecture.vocab_size,
            "facts": {"device": job.device.name, "processes": job.world.size},
            "recipe": job.recipe.to_json(),
        }
        spikes = [row["spike"] for row in self._rows if "spike" in row]
        return render_training_page(self._rows, self._timing, about=about, spikes=spikes)


class TensorBoardLog:
    """Writes metrics as TensorBoard events to a local folder.

    `step` is that of the checkpoint from which training resumes, 0 for none. Events of that step and later ones from an
    earlier process are hidden, so log the row of `step` again after a resume.
    """

    def __init__(self, folder: str, step: int) -> None:
        require_extra("tensorboard", "--tensorboard", "tensorboard")
        if not storage.is_local(folder):
            raise WebtextError(f"{folder}: TensorBoard events need a local folder; train without --tensorboard")
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(storage.local_path(folder), purge_step=step)
        self._step = step
        self._written: set[str] = set()

    def log(self, row: dict[str, Any]) -> None:
        """Write the values of a row that were not yet written for its step; a row may be logged again with more."""
        if row["step"] != self._step:
            self._step, self._written = row["step"], set()
        for name, value in row.items():
            metric, dot, source = name.partition(".")
            tag = _TAGS.get(metric, "") + dot.replace(".", "/") + source
            if metric in _TAGS and value is not None and tag not in self._written:
                self._writer.add_scalar(tag, value, self._step)
                self._written.add(tag)

    def close(self) -> None:
        """Flush and close the file."""
        self._writer.close()
