"""What a training minimizes: the only part of the loop that differs between pretraining and fine-tuning."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy.typing as npt
from torch import Tensor, nn

from pipelines.model.network.gpt2 import GPT2
from pipelines.model.training.checkpoint import Row

if TYPE_CHECKING:
    from pipelines.model.training.job import TrainingJob

# The forward pass has a third of the FLOPs of a training step (2 of 6 per parameter and token).
FORWARD_SHARE = 3
LossOf = Callable[..., Tensor]


class Objective(Protocol):
    """The examples of every step, their loss and its weight, and how the model is measured on held-out examples.

    Steps are counted from 0, but `evaluate` is called after so many steps.
    """

    def empty_model(self) -> GPT2:
        """Return a model on the CPU with uninitialized weights."""

    def loss(self, model: GPT2) -> nn.Module:
        """Return the module that computes the summed loss of what `read` returns."""

    def batch(self, step: int) -> Sequence[Any]:
        """Return the examples of a step; its micro-batches are slices."""

    def weight(self, step: int) -> int:
        """Return what the summed loss of a step is divided by."""

    def tokens(self, step: int) -> int:
        """Return the number of tokens of a step."""

    def forward_shape(self) -> tuple[int, int]:
        """Return the largest numbers of tokens of a forward pass and of a sequence, for estimates of memory."""

    def read(self, examples: Sequence[Any]) -> Sequence[npt.NDArray[Any]]:
        """Return the arguments of the loss for a micro-batch."""

    def held_out_tokens(self, *, whole: bool) -> int:
        """Return the number of tokens of an evaluation, on all held-out examples or a sample; 0 if there are none."""

    def evaluate(self, model: GPT2, loss_of: LossOf, step: int, *, whole: bool) -> Row:
        """Return `held_out_loss`, `held_out_tokens` and other figures; dropout is off."""

    def describe_evaluation(self, row: Row) -> str:
        """Return the figures of an evaluation for the terminal."""

    def describe_batch(self, step: int) -> list[dict[str, Any]]:
        """Return the examples of a step as JSON values."""


def evaluation_work(job: TrainingJob, step: int) -> int:
    """Return how many tokens of training take as long as the evaluations from a step to the end."""
    recipe, objective = job.recipe, job.objective
    evaluations = (recipe.steps - 1) // recipe.eval_every - (step - 1) // recipe.eval_every
    sampled, whole = (objective.held_out_tokens(whole=whole) for whole in (False, True))
    return (evaluations * sampled + whole) // FORWARD_SHARE
