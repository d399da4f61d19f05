"""Training: a step is a function of the weights, the seed and its number, and of nothing else.

So a run that was killed goes on from its last checkpoint to the very bits that a whole run would have reached (on a
CPU with an equal number of threads and processes; a CUDA card rounds as it likes).
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from pipelines.core import progress, shards
from pipelines.core.errors import WebtextError
from pipelines.core.run import TaskResult
from pipelines.model.device import Place, named_memory_errors, reproducible
from pipelines.model.diagnostics.layer_norms import layer_norms
from pipelines.model.diagnostics.spike_reports import Incident, incident_file, incident_report, write_incident
from pipelines.model.diagnostics.spikes import Spike, SpikeWatch
from pipelines.model.io.import_weights import ImportedModel
from pipelines.model.io.model_folder import write_description
from pipelines.model.io.tensor_files import gather_tensors, open_tensors, write_tensors
from pipelines.model.network.gpt2 import Architecture, empty_model, initialise
from pipelines.model.training.checkpoint import (
    METRICS_FILE,
    MODEL_FILE,
    Checkpoint,
    Keep,
    Row,
    find_checkpoints,
    give_parts,
    json_lines,
    load_moments,
    load_weights,
    read_metrics,
    save_checkpoint,
)
from pipelines.model.training.data import BlockOrder, TokenFolder, token_bytes
from pipelines.model.training.engine import Engine, EngineOptions
from pipelines.model.training.held_out import HeldOut, held_out_loss
from pipelines.model.training.log import Sink, Speed, TrainingLog
from pipelines.model.training.optimizer import learning_rate
from pipelines.model.training.parallel import World
from pipelines.model.training.recipe import Recipe
from pipelines.model.training.stop_signals import StopRequest, stop_requests

_WAY_OUT_OF_MEMORY = (
    "use a smaller --set micro_batch=..., --activation-checkpointing, a smaller --preset, or a larger machine"
)


@dataclasses.dataclass(frozen=True)
class TrainingJob:
    """What to train, on what, how, and where to; `replay_command` takes a step and returns the command for it."""

    recipe: Recipe
    tokens: TokenFolder
    output: str
    place: Place
    world: World
    engine: EngineOptions
    threads: int
    checkpoint_every: int
    keep_checkpoints: int
    log_every: int
    note: Callable[[str], None]
    replay_command: Callable[[int], str]
    initial: ImportedModel | None = None
    open_sinks: Callable[[int], list[Sink]] = lambda _: []

    @property
    def architecture(self) -> Architecture:
        """The sizes of the model."""
        return architecture_of(self.recipe, self.tokens.vocab_size)


def architecture_of(recipe: Recipe, vocab_size: int) -> Architecture:
    """Return the sizes that a recipe and a vocabulary make."""
    return Architecture(recipe.layers, recipe.width, recipe.heads, recipe.context, vocab_size, recipe.dropout)


def train(job: TrainingJob, checkpoint: Checkpoint | None) -> TaskResult:
    """Train from the first step, or from a checkpoint, to the last; return what was written.

    Records are blocks: every one that went into a step. Every process of a world calls this; only the one that leads
    writes. Raises WebtextError where the loss is no longer a number, or where memory does not suffice.
    """
    with reproducible(job.place.device, job.threads), named_memory_errors(_WAY_OUT_OF_MEMORY):
        training = _Training(job, checkpoint)
        if not job.world.leads:
            training.run()
            gather_tensors(training.model.state_dict())
            return TaskResult()
        described = write_description(
            job.output, job.architecture, job.tokens, job.recipe, initial_weights=_origin(job.initial)
        )
        training.run()
        files = (
            write_tensors(job.output, MODEL_FILE, training.model.state_dict()),
            shards.write_file(job.output, METRICS_FILE, json_lines(training.rows)),
        )
    blocks = job.recipe.steps * job.recipe.batch_size
    return TaskResult(blocks, blocks, counts=training.figures(), files=(*described, *files))


def replay(job: TrainingJob, checkpoint: Checkpoint | None, step: int) -> bytes:
    """Go from a checkpoint, or from the first weights, to a step; return what there is to know of it, as of a spike.

    Nothing is written, and the weights of the step are not updated.
    """
    with reproducible(job.place.device, job.threads), named_memory_errors(_WAY_OUT_OF_MEMORY):
        training = _Training(job, checkpoint, quiet=True)
        return training.replay(step)


class _Training:
    """The model and its optimizer after `step` steps, with the metrics so far."""

    def __init__(self, job: TrainingJob, checkpoint: Checkpoint | None, quiet: bool = False) -> None:
        recipe = job.recipe
        self._job, self._recipe = job, recipe
        self._step = self._saved_at = checkpoint.step if checkpoint else 0
        self.rows: list[Row] = read_metrics(checkpoint) if checkpoint else [{"step": 0}]
        self._engine = Engine(_first_model(job, checkpoint), recipe, job.place, job.world, job.engine, job.note)
        if checkpoint is not None:
            load_moments(checkpoint, self.model, self._engine.optimizer)
            job.note(f"going on from the checkpoint of step {self._step:,}")
        self._watch = SpikeWatch(self.rows)
        self._order = BlockOrder(job.tokens.train.blocks(recipe.context), recipe.batch_size, recipe.seed)
        self._log = None if quiet or not job.world.leads else self._open_log()

    @property
    def model(self) -> Any:
        """The model, its weights perhaps in parts."""
        return self._engine.model

    def run(self) -> None:
        """Train to the last step; a checkpoint comes before the evaluation of its step, so that none loses a model.

        Raises KeyboardInterrupt, after a checkpoint, where a signal asked for the end.
        """
        with stop_requests(self._job.note, patient=self._job.world.size > 1) as request:
            self._run(request)

    def _run(self, request: StopRequest) -> None:
        while True:
            with request.at_once():
                self._evaluate_if_due()
            if self._step == self._recipe.steps:
                break
            self._train_step()
            stopped = self._stop_is_asked(request)
            if stopped or self._step % self._job.checkpoint_every == 0 or self._step == self._recipe.steps:
                self._save()
            if stopped and self._step < self._recipe.steps:
                raise KeyboardInterrupt
        if self._log is not None:
            self._log.close()

    def _stop_is_asked(self, request: StopRequest) -> bool:
        """Tell whether any process was asked to end: all have to stop after the same step."""
        world = self._job.world
        if world.size == 1:
            return bool(request.asked)
        return bool(world.largest(torch.tensor(float(request.asked), device=self._job.place.device)).item())

    def replay(self, step: int) -> bytes:
        """Take the steps before one, and return the report of that one."""
        while self._step + 1 < step:
            row, norm = self._compute()
            self._watch.observe(row)
            self._engine.update(row["learning_rate"], norm)
            self._step += 1
            self._job.note(f"step {self._step:,}: loss {row['loss']:.4f}, gradient norm {row['gradient_norm']:.3g}")
        row, _ = self._compute()
        found = self._watch.observe(row)
        spike = found or Spike(step, "loss", row["loss"], float("nan"), float("nan"), float("nan"))
        return self._report(self._incident(spike))

    def figures(self) -> dict[str, float]:
        """Return the figures of the finished training, for its summary."""
        last = {name: value for name, value in self.rows[-1].items() if name.startswith("held_out")}
        return {
            "parameters": sum(weight.numel() for weight in self.model.parameters()),
            "tokens": self._recipe.steps * self._recipe.batch_tokens,
            "loss": self.rows[-1]["loss"],
            **last,
        }

    def _compute(self) -> tuple[Row, Tensor]:
        """Compute the gradients of the next step; return its row, and their norm."""
        batch = self._order.batch(self._step)
        loss, norm = self._engine.gradients(self._step, batch, self._job.tokens.train)
        rate = learning_rate(self._step, self._recipe)
        return {"step": self._step + 1, "loss": loss, "learning_rate": rate, "gradient_norm": norm.item()}, norm

    def _train_step(self) -> None:
        started = time.perf_counter()
        row, norm = self._compute()
        if (spike := self._watch.observe(row)) is not None:
            self._meet(spike)
            row["spike"] = spike.to_json() | {"file": incident_file(spike.step)}
        self._engine.update(row["learning_rate"], norm)
        self._step += 1
        self.rows.append(row)
        if self._log is not None:
            self._log.step(row, time.perf_counter() - started)
        progress.advance(self._recipe.batch_tokens)

    def _meet(self, spike: Spike) -> None:
        """Save what there is to know of a spike, and stop where its value is no number."""
        incident = self._incident(spike)
        if self._job.world.leads:
            path = write_incident(self._job.output, spike.step, self._report(incident))
        if not spike.finite:
            # torchrun ends all processes when one has ended, so none does before the file is written.
            self._job.world.share(None)
        if not self._job.world.leads:
            if not spike.finite:
                raise WebtextError(f"{spike.describe()}; see the messages of process 0")
            return
        if spike.finite:
            self._job.note(f"{spike.describe()}; its batch and the norms by layer are in {path}")
            return
        kept = find_checkpoints(self._job.output)
        last = f"; the last checkpoint is {kept[-1].path}" if kept else ""
        raise WebtextError(
            f"{spike.describe()}, so training stops here{last}. The same command would come to the same place: try a "
            "lower --set learning_rate=... or a longer --set warmup_steps=..., with --overwrite; "
            f"{path} holds the batch, the norms by layer and the command that replays the step"
        )

    def _incident(self, spike: Spike) -> Incident:
        return Incident(spike, layer_norms(self.model, self._engine.reduce))

    def _report(self, incident: Incident) -> bytes:
        step = incident.spike.step
        batch = self._order.batch(step - 1)
        return incident_report(incident, self._job.tokens, self._recipe, batch, self._job.replay_command(step))

    def _evaluate_if_due(self) -> None:
        job, recipe = self._job, self._recipe
        last = self._step == recipe.steps
        split = job.tokens.held_out
        due = last or self._step % recipe.eval_every == 0
        if not due or split.tokens < 2 or "held_out_loss" in self.rows[-1]:
            return
        if self._step > self._saved_at:
            self._save()  # whatever happens in the evaluation, the weights are kept
        lengths = token_bytes(job.tokens.tokenizer, job.tokens.vocab_size)
        held_out = HeldOut(split, recipe.context, recipe.micro_batch, lengths)
        limit = None if last or not recipe.eval_blocks else recipe.eval_blocks
        with self._engine.evaluating() as loss_of:
            loss = held_out_loss(loss_of, held_out, job.place, job.world, limit)
        found: dict[str, Any] = {"held_out_loss": loss.per_token, "held_out_tokens": loss.tokens}
        if loss.bits_per_byte is not None:
            found["held_out_bits_per_byte"] = loss.bits_per_byte
        self.rows[-1] |= found
        if self._log is not None:
            self._log.evaluated(self.rows[-1])

    def _save(self) -> None:
        job = self._job
        self._saved_at = self._step
        if self._log is None:
            give_parts(self.model, self._engine.optimizer)
            return
        keep = Keep(job.keep_checkpoints, frozenset(self._before_spike()))
        save_checkpoint(job.output, self._step, self.model, self._engine.optimizer, self.rows, keep)
        self._log.publish()

    def _before_spike(self) -> Iterator[int]:
        """Yield the step of the checkpoint from which the latest spike can be replayed."""
        spikes = [row["step"] for row in self.rows if "spike" in row]
        before = [each.step for each in find_checkpoints(self._job.output) if spikes and each.step < spikes[-1]]
        yield from before[-1:]

    def _open_log(self) -> TrainingLog:
        job = self._job
        speed = Speed(job.recipe, job.tokens.vocab_size, job.place, job.world.size)
        log = TrainingLog(job.output, speed, job.log_every, job.note, job.open_sinks(self._step))
        log.resume(self.rows)
        return log


def _origin(initial: ImportedModel | None) -> dict[str, str] | None:
    return None if initial is None else {"source": initial.source, "sha256": initial.sha256}


def _first_model(job: TrainingJob, checkpoint: Checkpoint | None) -> Any:
    """Return the model that training begins or goes on with, whole and on the CPU."""
    model = empty_model(job.architecture)
    if checkpoint is not None:
        with open_tensors(checkpoint.model_path) as (names, read):
            load_weights(model, {name: read(name) for name in names}, checkpoint.model_path)
    elif job.initial is not None:
        load_weights(model, job.initial.tensors, job.initial.path)
    else:
        initialise(model, job.recipe.seed)
    if job.initial is not None:
        job.initial.tensors.clear()  # they would take the memory of a second model to the end
    return model
