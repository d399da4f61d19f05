"""The model as it is trained: compiled, in bfloat16, spread over processes, with its optimizer."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from pipelines.model.device import accumulator_dtype, derived_seed
from pipelines.model.io.tensor_files import full_tensor
from pipelines.model.network.gpt2 import GPT2
from pipelines.model.training.finetune_recipe import FineTuneRecipe
from pipelines.model.training.job import TrainingJob
from pipelines.model.training.objective import LossOf
from pipelines.model.training.recipe import Recipe

_MAX_REASON_LENGTH = 200
_ADAM_EPSILON = 1e-8
# Devices with torch's fused AdamW: one kernel instead of several passes over the weights.
_FUSED_ON = ("cpu", "cuda")


class Engine:
    """Computes the gradients of a step and updates the weights."""

    def __init__(self, model: GPT2, job: TrainingJob) -> None:
        self.model = model
        self._job, self._device, self._world = job, job.device, job.world
        model.activation_checkpointing = job.options.activation_checkpointing
        model.to(job.device.device).train()
        self._loss = job.objective.loss(model)
        self._compile_and_distribute()
        self.optimizer = make_optimizer(model, job.recipe)

    def gradients(self, step: int, batch: Sequence[Any]) -> tuple[float, Tensor]:
        """Compute the gradients of a batch of examples; return the loss of the step and the gradient norm.

        The micro-batches are divided among the processes. The result does not depend on their size.
        """
        recipe, world, device = self._job.recipe, self._world, self._device
        weight = self._job.objective.weight(step)
        size = recipe.micro_batch
        micro_batches = [batch[start : start + size] for start in range(0, len(batch), size)]
        own = range(world.rank, len(micro_batches), world.size)  # `check_batch` ensures that all get the same number
        nats = torch.zeros((), dtype=accumulator_dtype(device.device), device=device.device)
        self.optimizer.zero_grad()
        for index in own:
            # A seed per micro-batch: no random state to save, and independent of the process that computes it.
            device.seed(derived_seed(recipe.seed, step, index))
            inputs = self._read(micro_batches[index])
            with self._gradient_sync(index == own[-1]):
                with device.autocast():
                    loss = self._loss(*inputs)
                # Gradients are averaged over the processes; the factor makes that a sum.
                (loss * (world.size / weight)).backward()
            nats += loss.detach()
        gradients = [tensor.grad for tensor in self.model.parameters() if tensor.grad is not None]
        norm = full_tensor(torch.nn.utils.get_total_norm(gradients))
        return world.sum(nats).item() / weight, norm

    def update(self, learning_rate: float, norm: Tensor) -> None:
        """Clip the gradients, whose norm is `norm`, and take an optimizer step."""
        max_norm = self._job.recipe.grad_clip or math.inf
        torch.nn.utils.clip_grads_with_norm_(self.model.parameters(), max_norm, norm)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self.optimizer.step()

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[LossOf]:
        """Yield a function for the summed loss of examples, with dropout off for the duration of the block."""
        self.model.eval()
        # Shapes differ here, and each would be recompiled; a sharded model needs its wrapper.
        yield self._loss if self._job.is_sharded else self._job.objective.loss(self.model)
        self.model.train()

    def _compile_and_distribute(self) -> None:
        """Compile the modules if possible, and wrap the model for several processes."""
        job = self._job
        # Sharded weights are gathered between the layers, which compiled functions cannot span.
        modules: list[nn.Module] = list(self.model.h) if job.is_sharded else [self._loss]
        if job.is_compiled:
            for module in modules:
                module.compile()
        if job.is_sharded:
            # Deferred: they take more than a second, and few trainings need them.
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.fsdp import fully_shard

            mesh = init_device_mesh(self._device.device.type, (self._world.size,))
            for block in self.model.h:
                fully_shard(block, mesh=mesh)
            fully_shard(self._loss, mesh=mesh)
        if job.is_compiled:
            run_or_disable_compilation(modules, self._trial_step, job.note)
        if self._world.size > 1 and not job.is_sharded:
            self._loss = DistributedDataParallel(self._loss, gradient_as_bucket_view=True)

    def _trial_step(self) -> None:
        inputs = self._read(self._job.objective.batch(0)[: self._job.recipe.micro_batch])
        with self._device.autocast():
            loss = self._loss(*inputs)
        loss.backward()
        self._loss.zero_grad()

    def _read(self, examples: Sequence[Any]) -> list[Tensor]:
        return [self._device.to_device(values) for values in self._job.objective.read(examples)]

    def _gradient_sync(self, is_last: bool) -> contextlib.AbstractContextManager[None]:
        """With DDP, add up the processes' gradients after the last micro-batch only.

        FSDP does so after each one, because no process has memory for all gradients.
        """
        if isinstance(self._loss, DistributedDataParallel) and not is_last:
            return self._loss.no_sync()
        return contextlib.nullcontext()


def run_or_disable_compilation(
    modules: Sequence[nn.Module], trial: Callable[[], None], note: Callable[[str], None]
) -> None:
    """Run `trial`, which calls the compiled modules; if that fails, remove their compilation, with a note.

    Out-of-memory errors are raised: they are not failures of the compiler.
    """
    try:
        trial()
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - the compiler, and the C++ compiler it calls, may raise anything
        for module in modules:
            module._compiled_call_impl = None
        torch._dynamo.reset()
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:_MAX_REASON_LENGTH]
        note(f"torch.compile failed; training continues without it ({reason})")


def make_optimizer(model: GPT2, recipe: Recipe | FineTuneRecipe) -> torch.optim.AdamW:
    """Return AdamW with weight decay on matrices only, as in GPT-1: biases and gains do not decay."""
    parameters = [weight for weight in model.parameters() if weight.requires_grad]
    groups = [
        {"params": [weight for weight in parameters if weight.dim() >= 2], "weight_decay": recipe.weight_decay},
        {"params": [weight for weight in parameters if weight.dim() < 2], "weight_decay": 0.0},
    ]
    betas = (recipe.beta1, recipe.beta2)
    fused = parameters[0].device.type in _FUSED_ON
    return torch.optim.AdamW(groups, lr=recipe.learning_rate, betas=betas, eps=_ADAM_EPSILON, fused=fused)
