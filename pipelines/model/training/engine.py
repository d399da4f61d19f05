"""The model as it is trained: compiled, in bfloat16, spread over processes, with the optimizer that updates it."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from pipelines.model.device import Place, sum_type
from pipelines.model.network.gpt2 import GPT2, next_token_loss
from pipelines.model.training.compilation import compile_modules, keep_if_it_works, wants_compilation
from pipelines.model.training.data import Split
from pipelines.model.training.optimizer import make_optimizer
from pipelines.model.training.parallel import World
from pipelines.model.training.recipe import Recipe

# From here on weights, gradients and moments, 16 bytes a parameter, take too much of each card to be whole in all.
_SHARDED_FROM_PARAMETERS = 1_000_000_000


@dataclasses.dataclass(frozen=True)
class EngineOptions:
    """How the computation is carried out: `compile` and `parallel` as in PretrainConfig."""

    compile: str = "off"
    parallel: str = "auto"
    recompute: bool = False


def is_sharded(choice: str, parameters: int, world: World) -> bool:
    """Tell whether the weights lie in parts over the processes (FSDP2), or whole in each (DDP)."""
    return world.size > 1 and (choice == "fsdp" or (choice == "auto" and parameters >= _SHARDED_FROM_PARAMETERS))


class NextTokenLoss(nn.Module):
    """The model together with its loss, since wrappers of modules see no more than `forward`."""

    def __init__(self, model: GPT2) -> None:
        super().__init__()
        self.model = model

    def forward(self, blocks: Tensor) -> Tensor:
        """Return the summed loss of blocks, [blocks, tokens + 1]."""
        return next_token_loss(self.model, blocks)


class Engine:
    """Computes the gradients of a step, and updates the weights by them."""

    def __init__(
        self,
        model: GPT2,
        recipe: Recipe,
        place: Place,
        world: World,
        options: EngineOptions,
        note: Callable[[str], None],
    ) -> None:
        world.check_batch(recipe.batch_size, recipe.micro_batch)
        self.model = model
        self._recipe, self._place, self._world = recipe, place, world
        self.sharded = is_sharded(options.parallel, sum(weight.numel() for weight in model.parameters()), world)
        model.recompute = options.recompute
        model.to(place.device).train()
        self._loss: nn.Module = NextTokenLoss(model)
        self._prepare(wants_compilation(options.compile, place.device), note)
        self.optimizer = make_optimizer(model, recipe)

    def gradients(self, step: int, batch: Sequence[int], split: Split) -> tuple[float, Tensor]:
        """Compute the gradients of a batch; return the mean loss of its tokens, and the norm of the gradients.

        The batch goes through the model in micro-batches, divided among the processes. Each token weighs the same,
        whatever the size of its micro-batch.
        """
        recipe, world = self._recipe, self._world
        size = recipe.micro_batch
        parts = [batch[first : first + size] for first in range(0, len(batch), size)]
        mine = world.mine(len(parts))
        nats = torch.zeros((), dtype=sum_type(self._place.device), device=self._place.device)
        self.optimizer.zero_grad()
        for part in mine:
            # Dropout draws from a seed of its own, so that no random state has to be saved, nor who computes the part.
            self._place.seed(_part_seed(recipe.seed, step, part))
            blocks = self._place.to_device(split.read_blocks(parts[part], recipe.context))
            with self._synchronised(part == mine[-1]):
                with self._place.autocast():
                    loss = self._loss(blocks)
                # The processes' gradients are averaged, which this makes a sum.
                (loss * (world.size / recipe.batch_tokens)).backward()
            nats += loss.detach()
        mean = world.total(nats).item() / recipe.batch_tokens
        return mean, self._norm()

    def update(self, learning_rate: float, norm: Tensor) -> None:
        """Clip the gradients, whose norm is given, and update the weights by them."""
        largest = self._recipe.grad_clip or math.inf
        torch.nn.utils.clip_grads_with_norm_(self.model.parameters(), largest, norm)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self.optimizer.step()

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[Callable[[Tensor], Tensor]]:
        """Yield the summed loss of blocks as a function, with dropout off for the time of the block."""
        self.model.eval()
        # Shapes differ here, and each would be compiled anew; a model in parts needs its wrapper.
        yield self._loss if self.sharded else lambda blocks: next_token_loss(self.model, blocks)
        self.model.train()

    def reduce(self, values: Tensor, how: str) -> Tensor:
        """Return the sums or the largest of values over processes that each hold a part of the weights."""
        if not self.sharded:
            return values
        return self._world.total(values) if how == "sum" else self._world.largest(values)

    def _norm(self) -> Tensor:
        found = [weight.grad for weight in self.model.parameters() if weight.grad is not None]
        norm = torch.nn.utils.get_total_norm(found)
        return norm.full_tensor() if isinstance(norm, DTensor) else norm

    def _prepare(self, compiles: bool, note: Callable[[str], None]) -> None:
        """Compile where that is wanted and works, and connect the processes."""
        # Weights in parts are gathered between the layers, where no compiled function may reach across.
        modules: list[nn.Module] = list(self.model.h) if self.sharded else [self._loss]
        if compiles:
            compile_modules(modules)
        if self.sharded:
            self._shard()
        if compiles:
            keep_if_it_works(modules, self._try_out, note)
        if self._world.size > 1 and not self.sharded:
            self._loss = DistributedDataParallel(self._loss, gradient_as_bucket_view=True)

    def _try_out(self) -> None:
        shape = (min(self._recipe.micro_batch, self._recipe.batch_size), self._recipe.context + 1)
        with self._place.autocast():
            loss = self._loss(torch.zeros(shape, dtype=torch.int64, device=self._place.device))
        loss.backward()
        self._loss.zero_grad()

    def _shard(self) -> None:
        mesh = init_device_mesh(self._place.device.type, (self._world.size,))
        for block in self.model.h:
            fully_shard(block, mesh=mesh)
        fully_shard(self._loss, mesh=mesh)

    def _synchronised(self, last: bool) -> contextlib.AbstractContextManager[None]:
        """Add up the gradients of the processes at the last of their micro-batches only.

        Where the weights lie in parts this is done at each of them, since no process has room for all gradients.
        """
        if isinstance(self._loss, DistributedDataParallel) and not last:
            return self._loss.no_sync()
        return contextlib.nullcontext()


def _part_seed(seed: int, step: int, part: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}:{step}:{part}".encode()).digest()[:8], "big") >> 1
