"""The training loop. A step is a function of the weights, the seed and its number only.

A killed run therefore resumes from its latest checkpoint to the same bits as an uninterrupted run (on a CPU with the
same number of threads and processes; CUDA kernels are not deterministic).
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from torch import Tensor

from pipelines import progress, storage
from pipelines.engine.manifest import FileEntry
from pipelines.engine.run import TaskResult
from pipelines.errors import WebtextError
from pipelines.model.device import reproducible, translate_memory_errors
from pipelines.model.diagnostics.estimate import MEMORY_ADVICE
from pipelines.model.diagnostics.spikes import Spike, SpikeDetector, spike_file, spike_report
from pipelines.model.io.model_folder import CONFIG_FILE, FORMAT, TOKENIZER_FILE
from pipelines.model.io.tensor_files import gather_on_rank_zero, load_weights, read_tensors, write_tensors
from pipelines.model.network.gpt2 import GPT2, initialize
from pipelines.model.training.checkpoint import (
    METRICS_FILE,
    MODEL_FILE,
    Checkpoint,
    Row,
    best_checkpoint,
    find_checkpoints,
    json_lines,
    load_moments,
    read_json_lines,
    record_if_best,
    save_checkpoint,
    send_checkpoint_shards,
)
from pipelines.model.training.engine import Engine
from pipelines.model.training.job import TrainingJob
from pipelines.model.training.log import TrainingLog
from pipelines.records import shards

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def train(job: TrainingJob, checkpoint: Checkpoint | None) -> TaskResult:
    """Train from scratch, or from a checkpoint, to the last step; return the files; records are examples trained on.

    Every process calls this; only rank 0 writes. Raises KeyboardInterrupt after a stop signal, with a checkpoint, and
    WebtextError if the loss is not finite or memory runs out.
    """
    recipe, world, objective = job.recipe, job.world, job.objective
    with reproducible(job.device.device, job.options.threads), translate_memory_errors(MEMORY_ADVICE):
        trainer = _Trainer(job, checkpoint)
        log = TrainingLog(job, trainer.rows) if world.is_rank_zero else None
        description = _write_description(job) if world.is_rank_zero else ()
        with StopSignals(job.note, several_processes=world.size > 1) as stop:
            while True:
                is_last = trainer.step == recipe.steps
                if trainer.step in recipe.ends or trainer.step % recipe.eval_every == 0:
                    with stop.interruptible():
                        trainer.evaluate(log)
                if is_last:
                    break
                started = time.perf_counter()
                row, norm = trainer.compute_gradients()
                if (spike := trainer.spikes.observe(row)) is not None:
                    row["spike"] = trainer.report_spike(spike)
                trainer.update(row, norm)
                if log is not None:
                    log.step(row, time.perf_counter() - started)
                progress.advance(objective.tokens(trainer.step - 1))
                every = job.options.sample_every
                if log and job.sample and every and (trainer.step % every == 0 or trainer.step == recipe.steps):
                    with trainer.engine.evaluating():
                        log.sampled(trainer.step, job.sample(trainer.model))
                # All processes must stop after the same step.
                stopping = world.any(stop.received, job.device.device)
                due = trainer.step % job.options.checkpoint_every == 0
                if stopping or due or trainer.step in (recipe.branch_step, recipe.steps):
                    trainer.save(log)
                if stopping and trainer.step < recipe.steps:
                    raise KeyboardInterrupt
        best = best_checkpoint(job.output) if job.selects_best else None
        if best and (problem := best.problem()):
            raise WebtextError(f"{problem}; that checkpoint was the best one: re-run the same command with --overwrite")
        weights = read_tensors(best.model_path) if best else trainer.model.state_dict()
        if log is None:
            gather_on_rank_zero(weights)
            return TaskResult()
        log.close()
        files = (
            *description,
            write_tensors(job.output, MODEL_FILE, weights),
            shards.write_file(job.output, METRICS_FILE, json_lines(trainer.rows)),
        )
    examples = recipe.steps * recipe.batch_size
    row = next(row for row in trainer.rows if row["step"] == best.step) if best else trainer.rows[-1]
    held_out = {name: value for name, value in row.items() if name.startswith("held_out")}
    tokens = sum(map(objective.tokens, range(recipe.steps)))
    counts = {"parameters": job.parameters, "tokens": tokens, "loss": row["loss"], **held_out}
    return TaskResult(examples, examples, counts=counts, files=files)


def replay(job: TrainingJob, checkpoint: Checkpoint | None, step: int) -> bytes:
    """Recompute from a checkpoint, or from the initial weights, up to a step; return its report as for a spike.

    Writes nothing and does not update the weights of that step.
    """
    with reproducible(job.device.device, job.options.threads), translate_memory_errors(MEMORY_ADVICE):
        trainer = _Trainer(job, checkpoint)
        while trainer.step + 1 < step:
            row, norm = trainer.compute_gradients()
            trainer.spikes.observe(row)
            trainer.update(row, norm)
            job.note(f"step {trainer.step:,}: loss {row['loss']:.4f}, gradient norm {row['gradient_norm']:.3g}")
        row, _ = trainer.compute_gradients()
        spike = trainer.spikes.observe(row) or Spike(
            step=step, what="loss", value=row["loss"], mean=math.nan, deviation=math.nan, z=math.nan
        )
        return trainer.spike_report(spike)


class _Trainer:
    """The model, its optimizer and the metrics after `step` steps."""

    def __init__(self, job: TrainingJob, checkpoint: Checkpoint | None) -> None:
        self.job = job
        self.step = self._saved_at = checkpoint.step if checkpoint else 0
        self.rows: list[Row] = (
            read_json_lines(storage.join(checkpoint.path, METRICS_FILE)) if checkpoint else [{"step": 0}]
        )
        self.engine = Engine(_load_model(job, checkpoint), job)
        self.model = self.engine.model
        if checkpoint is not None:
            load_moments(checkpoint, self.model, self.engine.optimizer)
            job.note(f"resuming from the checkpoint of step {self.step:,}")
        self.spikes = SpikeDetector(self.rows)

    def compute_gradients(self) -> tuple[Row, Tensor]:
        """Compute the gradients of the next step; return its metrics, and the gradient norm on the device."""
        loss, norm = self.engine.gradients(self.step, self.job.objective.batch(self.step))
        rate = self.job.recipe.learning_rate_at(self.step)
        return {"step": self.step + 1, "loss": loss, "learning_rate": rate, "gradient_norm": norm.item()}, norm

    def update(self, row: Row, norm: Tensor) -> None:
        """Update the weights with the gradients of a step."""
        self.engine.update(row["learning_rate"], norm)
        self.step += 1
        self.rows.append(row)

    def evaluate(self, log: TrainingLog | None) -> None:
        """Add the held-out loss to the metrics of the last step, unless they have it or the split is empty."""
        job, objective = self.job, self.job.objective
        sampled, tokens = (objective.held_out_tokens(whole=whole) for whole in (False, True))
        whole = self.step in job.recipe.ends
        if "held_out_loss" in self.rows[-1] or not tokens:
            return
        if self.step > self._saved_at:
            self.save(log)  # an interrupted evaluation must not lose the weights
        if whole or sampled == tokens:
            job.note(f"step {self.step:,}: evaluating on all {tokens:,} held-out tokens")
        with self.engine.evaluating() as loss_of:
            row = objective.evaluate(self.model, loss_of, self.step, whole=whole)
            self.rows[-1] |= row
            if job.options.keep_best and self.step > 0:
                if whole and sampled < tokens:
                    # On the same examples every time: another part of them has another loss.
                    row = objective.evaluate(self.model, loss_of, self.step, whole=False)
                if job.world.is_rank_zero:
                    record_if_best(job.output, self.step, row)
        if log is not None:
            log.evaluated(self.rows[-1])

    def save(self, log: TrainingLog | None) -> None:
        """Write a checkpoint; the worker ranks send their shards."""
        self._saved_at = self.step
        if log is None:
            send_checkpoint_shards(self.model, self.engine.optimizer)
            return
        save_checkpoint(
            self.job.output,
            self.step,
            model=self.model,
            optimizer=self.engine.optimizer,
            rows=self.rows,
            keep_latest=self.job.options.keep_checkpoints,
            keep_best=self.job.options.keep_best,
            branch_step=self.job.recipe.branch_step,
        )
        log.publish()

    def report_spike(self, spike: Spike) -> dict[str, Any]:
        """Write the report of a spike and return its entry for the metrics; raise WebtextError if it is not finite."""
        job = self.job
        path = storage.join(job.output, spike_file(spike.step))
        if job.world.is_rank_zero:
            shards.write_file(job.output, spike_file(spike.step), self.spike_report(spike))
        if not spike.is_finite:
            job.world.broadcast(None)  # torchrun kills all processes when one ends, so wait until the file is written
            raise WebtextError(self._divergence(spike, path))
        job.note(f"{spike.describe()}; its batch is in {path}")
        return spike.to_json() | {"file": spike_file(spike.step)}

    def spike_report(self, spike: Spike) -> bytes:
        """Return the report of a spike: the examples of its batch, and the command that replays it."""
        return spike_report(
            spike,
            blocks=self.job.objective.describe_batch(spike.step - 1),
            recipe=self.job.recipe.to_json(),
            replay=self.job.replay_command(spike.step) if self.job.replay_command else "",
        )

    def _divergence(self, spike: Spike, path: str) -> str:
        if not self.job.world.is_rank_zero:
            return f"{spike.describe()}; see the messages of rank 0"
        checkpoints = find_checkpoints(self.job.output)
        last = f"; the last checkpoint is {checkpoints[-1].path}" if checkpoints else ""
        return (
            f"{spike.describe()}; training stops{last}. Re-running the same command fails at the same step: use a "
            "lower --set learning_rate=... or a longer warm-up, with --overwrite, "
            "which deletes this run's checkpoints and starts at step 0, or with another --output. "
            f"{path} contains the batch{' and the command that replays the step' if self.job.replay_command else ''}"
        )


class StopSignals:
    """Within a `with` block, records the first stop signal in `received` instead of ending the process.

    A second signal has its usual effect, except with several processes: torchrun sends one of its own after the
    terminal's. Outside the main thread, which alone receives signals, nothing is recorded.
    """

    def __init__(self, note: Callable[[str], None], *, several_processes: bool) -> None:
        self.received = False
        self._note, self._several_processes = note, several_processes
        self._immediate = False
        self._handlers: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            self._handlers = {number: signal.signal(number, self._on_signal) for number in _SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[None]:
        """Let a signal interrupt the block at once, because nothing would be lost; ignored with several processes."""
        self._immediate = not self._several_processes
        try:
            yield
        finally:
            self._immediate = False

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        if not self._several_processes:
            self.__exit__()
        if self._immediate:
            raise KeyboardInterrupt
        if not self.received:
            hint = "" if self._several_processes else "; send it again to stop immediately"
            self._note(f"{signal.Signals(number).name}: stopping after this step, with a checkpoint{hint}")
        self.received = True


def _load_model(job: TrainingJob, checkpoint: Checkpoint | None) -> GPT2:
    """Return the initial model, or that of a checkpoint, complete and on the CPU."""
    model = job.objective.empty_model()
    if checkpoint is not None:
        load_weights(model, read_tensors(checkpoint.model_path), checkpoint.model_path)
    elif job.initial is not None:
        load_weights(model, job.initial.tensors, job.initial.path)
    else:
        initialize(model, job.recipe.seed)
    if job.initial is not None:
        job.initial.tensors.clear()  # frees the memory of a second model
    return model


def _write_description(job: TrainingJob) -> tuple[FileEntry, ...]:
    """Write `config.json` and `tokenizer.json`, which are needed to read any checkpoint."""
    initial = {"source": job.initial.source, "sha256": job.initial.sha256} if job.initial else None
    config = {
        "format": FORMAT,
        "architecture": dataclasses.asdict(job.architecture),
        **job.description,
        "recipe": job.recipe.to_json(),
        **({"initial_weights": initial} if initial else {}),
    }
    return (
        shards.write_file(job.output, CONFIG_FILE, storage.json_bytes(config)),
        shards.write_file(job.output, TOKENIZER_FILE, job.tokenizer),
    )
