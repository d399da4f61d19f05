"""Training: a step is a function of the weights, the seed and its number, and of nothing else.

So a run that was killed goes on from its last checkpoint to the very bits that a whole run would have reached (on a
CPU with an equal number of threads; a CUDA card rounds as it likes).
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from pipelines.core import progress, shards, storage
from pipelines.core.errors import WebtextError
from pipelines.core.run import TaskResult
from pipelines.model.checkpoint import (
    METRICS_FILE,
    MODEL_FILE,
    Checkpoint,
    Row,
    find_checkpoints,
    json_lines,
    load_checkpoint,
    pack_tensors,
    read_json_lines,
    save_checkpoint,
)
from pipelines.model.data import BlockOrder, TokenFolder, token_bytes
from pipelines.model.device import autocast, named_memory_errors, reproducible, to_device
from pipelines.model.gpt2 import Architecture, empty_model, initialise, next_token_loss
from pipelines.model.held_out import bits_per_byte, held_out_loss
from pipelines.model.model_folder import write_description
from pipelines.model.optimizer import learning_rate, make_optimizer
from pipelines.model.recipe import Recipe

TIMING_FILE = "timing.jsonl"
_WAY_OUT_OF_MEMORY = "use a smaller --set micro_batch=..., a smaller --preset, or a larger machine"


@dataclasses.dataclass(frozen=True)
class TrainingJob:
    """What to train, on what, and where to."""

    recipe: Recipe
    tokens: TokenFolder
    output: str
    device: torch.device
    threads: int
    checkpoint_every: int
    keep_checkpoints: int
    note: Callable[[str], None]

    @property
    def architecture(self) -> Architecture:
        """The sizes of the model."""
        recipe = self.recipe
        return Architecture(
            recipe.layers, recipe.width, recipe.heads, recipe.context, self.tokens.vocab_size, recipe.dropout
        )


def train(job: TrainingJob, checkpoint: Checkpoint | None) -> TaskResult:
    """Train from the first step, or from a checkpoint, to the last; return what was written.

    Records are blocks: every one that went into a step. Raises WebtextError where the loss is no longer a number, or
    where memory does not suffice.
    """
    with reproducible(job.device, job.threads), named_memory_errors(_WAY_OUT_OF_MEMORY):
        training = _Training(job)
        described = write_description(job.output, job.architecture, job.tokens, job.recipe)
        if checkpoint is not None:
            training.resume(checkpoint)
        training.run()
        files = (
            shards.write_file(job.output, MODEL_FILE, pack_tensors(training.model.state_dict())),
            shards.write_file(job.output, METRICS_FILE, json_lines(training.rows)),
        )
    blocks = job.recipe.steps * job.recipe.batch_size
    return TaskResult(blocks, blocks, counts=training.figures(), files=(*described, *files))


class _Training:
    """The model and its optimizer after `step` steps, with the metrics so far."""

    def __init__(self, job: TrainingJob) -> None:
        recipe = job.recipe
        self._job = job
        self._recipe = recipe
        self.model = empty_model(job.architecture)
        initialise(self.model, recipe.seed)
        self.model.to(job.device).train()
        self._optimizer = make_optimizer(self.model, recipe)
        self._order = BlockOrder(job.tokens.train.blocks(recipe.context), recipe.batch_size, recipe.seed)
        self._step = 0
        self.rows: list[Row] = [{"step": 0}]
        self._timing: list[Row] = []

    def resume(self, checkpoint: Checkpoint) -> None:
        """Go to where a checkpoint was written."""
        self.rows = load_checkpoint(checkpoint, self.model, self._optimizer)
        self._step = checkpoint.step
        timing = storage.join(self._job.output, TIMING_FILE)
        if storage.exists(timing):
            self._timing = [row for row in read_json_lines(timing) if row["step"] <= self._step]
        self._job.note(f"going on from the checkpoint of step {self._step:,}")

    def run(self) -> None:
        """Train to the last step; a checkpoint comes before the evaluation of its step, so that none loses a model."""
        while True:
            self._evaluate_if_due()
            if self._step == self._recipe.steps:
                return
            self._train_step()
            if self._step % self._job.checkpoint_every == 0 or self._step == self._recipe.steps:
                self._save()

    def figures(self) -> dict[str, float]:
        """Return the figures of the finished training, for its summary."""
        last = {name: value for name, value in self.rows[-1].items() if name.startswith("held_out")}
        return {
            "parameters": sum(weight.numel() for weight in self.model.parameters()),
            "tokens": self._recipe.steps * self._recipe.batch_tokens,
            "loss": self.rows[-1]["loss"],
            **last,
        }

    def _train_step(self) -> None:
        started = time.perf_counter()
        rate = learning_rate(self._step, self._recipe)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        # Dropout draws from the step's own seed, so that no random state has to be saved.
        torch.manual_seed(_step_seed(self._recipe.seed, self._step))
        self._optimizer.zero_grad()
        loss = self._backward()
        largest = self._recipe.grad_clip or math.inf
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), largest).item()
        self._check_finite(loss, norm)
        self._optimizer.step()
        self._step += 1
        self.rows.append({"step": self._step, "loss": loss, "learning_rate": rate, "gradient_norm": norm})
        seconds = time.perf_counter() - started
        speed = round(self._recipe.batch_tokens / seconds)
        self._timing.append({"step": self._step, "seconds": round(seconds, 4), "tokens_per_second": speed})
        progress.advance(self._recipe.batch_tokens)

    def _backward(self) -> float:
        """Add up the gradients of a step, one micro-batch after the other; return the mean loss of its tokens."""
        numbers = self._order.batch(self._step)
        loss = 0.0
        for first in range(0, len(numbers), self._recipe.micro_batch):
            chosen = numbers[first : first + self._recipe.micro_batch]
            blocks = np.stack([self._job.tokens.train.block(number, self._recipe.context) for number in chosen])
            with autocast(self._job.device):
                # Each token weighs the same, whatever the size of its micro-batch.
                part = next_token_loss(self.model, to_device(blocks, self._job.device)) / self._recipe.batch_tokens
            part.backward()  # type: ignore[no-untyped-call]
            loss += part.item()
        return loss

    def _check_finite(self, loss: float, norm: float) -> None:
        if math.isfinite(loss) and math.isfinite(norm):
            return
        what = f"the loss is {loss}" if not math.isfinite(loss) else f"the gradient norm is {norm}"
        kept = find_checkpoints(self._job.output)
        last = f"; the last checkpoint is {kept[-1].path}" if kept else ""
        raise WebtextError(
            f"step {self._step + 1}: {what}, so training stops here{last}. The same command would come to the same "
            "place: try a lower --set learning_rate=... or a longer --set warmup_steps=..., with --overwrite"
        )

    def _evaluate_if_due(self) -> None:
        last = self._step == self._recipe.steps
        held_out = self._job.tokens.held_out
        due = last or self._step % self._recipe.eval_every == 0
        if not due or held_out.tokens < 2 or "held_out_loss" in self.rows[-1]:
            return
        limit = None if last else self._recipe.eval_blocks
        loss = held_out_loss(self.model, held_out, self._recipe.micro_batch, self._job.device, limit)
        found: dict[str, Any] = {"held_out_loss": loss.per_token, "held_out_tokens": loss.tokens}
        lengths = token_bytes(self._job.tokens.tokenizer, self._job.tokens.vocab_size) if last else None
        if lengths is not None and (bits := bits_per_byte(loss, held_out, lengths)) is not None:
            found["held_out_bits_per_byte"] = bits
        self.rows[-1] |= found
        self._job.note(f"step {self._step:,}: held-out loss {loss.per_token:.4f} nats a token")
        self._publish()

    def _save(self) -> None:
        job = self._job
        save_checkpoint(job.output, self._step, self.model, self._optimizer, self.rows, job.keep_checkpoints)
        self._publish()

    def _publish(self) -> None:
        """Write metrics and timing for whoever watches; both files are always whole."""
        shards.write_file(self._job.output, METRICS_FILE, json_lines(self.rows))
        shards.write_file(self._job.output, TIMING_FILE, json_lines(self._timing))


def _step_seed(seed: int, step: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}:{step}".encode()).digest()[:8], "big") >> 1
