"""Data-parallel training with several processes, as torchrun starts them.

A step's blocks and dropout masks depend on the index of the micro-batch, never on the process that computes it. A run
can therefore be resumed with another number of processes; only the rounding of sums differs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import os
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from pipelines.errors import InputError, UsageError, WebtextError
from pipelines.model.training.recipe import Recipe

# Rank 0 may verify the token files, or write a checkpoint to a slow disk, while the others wait.
_TIMEOUT = dt.timedelta(hours=2)


@dataclasses.dataclass(frozen=True)
class World:
    """This process's rank among those that train together; a single process is rank 0 of 1."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0

    @property
    def local_size(self) -> int:
        """Number of processes on this machine."""
        return int(os.environ.get("LOCAL_WORLD_SIZE", self.size))

    @property
    def is_rank_zero(self) -> bool:
        """Whether this process writes the files and reports to the user."""
        return self.rank == 0

    def broadcast(self, value: Any) -> Any:
        """Return rank 0's value in every process."""
        if self.size == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values, src=0)
        return values[0]

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all processes, by rank, in rank 0; an empty list in the others."""
        if self.size == 1:
            return [value]
        values = [None] * self.size if self.is_rank_zero else None
        dist.gather_object(value, values)
        return values or []

    def sum(self, values: Tensor) -> Tensor:
        """Return the elementwise sum over all processes, in place."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def any(self, flag: bool, device: torch.device) -> bool:
        """Return whether the flag is set in any process."""
        return flag if self.size == 1 else bool(self.sum(torch.tensor(float(flag), device=device)).item())

    def check_batch(self, batch_size: int, micro_batch: int) -> None:
        """Raise UsageError if the micro-batches of a step cannot be divided evenly among the processes."""
        count = -(-batch_size // micro_batch)
        if count % self.size:
            sizes = (size for size in range(micro_batch, 0, -1) if batch_size % (size * self.size) == 0)
            fitting = next(sizes, None)
            advice = f"use --set micro_batch={fitting}" if fitting else "use fewer processes or a larger batch_size"
            raise UsageError(
                f"batch_size {batch_size} with micro_batch {micro_batch}: {count} micro-batches cannot be divided "
                f"evenly among {self.size} processes; {advice}"
            )


def torchrun_world() -> World:
    """Return the rank that torchrun set in the environment; without torchrun a single process."""
    values = [os.environ.get(name) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")]
    return World(*(int(value) for value in values if value)) if all(values) else World()


@contextlib.contextmanager
def process_group(world: World, device: torch.device) -> Iterator[None]:
    """Connect the processes for the duration of the block, unless they are connected already.

    Points to the other processes' messages when gloo or NCCL fails because one of them has ended.
    """
    if world.size == 1 or dist.is_initialized():
        yield
        return
    try:
        if device.type == "cuda":
            torch.cuda.set_device(device)
            dist.init_process_group("nccl", device_id=device, timeout=_TIMEOUT)
        else:
            dist.init_process_group("gloo", timeout=_TIMEOUT)
        yield
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:100]
        raise WebtextError(
            f"rank {world.rank} of {world.size}: lost the connection to the other processes ({reason}); "
            "see their messages"
        ) from error
    # Not after an error: destroying the group waits for all processes, and the others may be waiting elsewhere.
    dist.destroy_process_group()


@dataclasses.dataclass(frozen=True)
class RunSpec:
    """What rank 0 sends to the worker ranks: recipe, input fingerprints, and the step to resume from, if any.

    `subfolder` is where rank 0 writes in the output folder.
    """

    recipe: Recipe
    inputs: dict[str, str]
    step: int | None = None
    subfolder: str = ""

    def check_same(self, other: RunSpec, rank: int) -> None:
        """Raise InputError if a worker rank was started with a different recipe or different inputs."""
        own, others = ({"recipe": spec.recipe, **spec.inputs} for spec in (self, other))
        different = [name for name in own | others if own.get(name) != others.get(name)]
        if different:
            raise InputError(
                f"rank {rank}: {' and '.join(different)} differ from rank 0; start all processes with the same options "
                "and files"
            )
