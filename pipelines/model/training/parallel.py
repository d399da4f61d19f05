"""Several processes that train one model, as torchrun starts them: each has a part of every batch.

Which blocks a step reads, and which dropout masks it draws, depends on the number of the micro-batch, never on the
process that computes it. So a run can go on with another number of processes; only sums are rounded differently.
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

from pipelines.core.errors import UsageError

# The process that leads may check the tokens' files, or write a checkpoint to a slow disk, while the others wait.
_PATIENCE = dt.timedelta(hours=2)
_SET_BY_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK")


@dataclasses.dataclass(frozen=True)
class World:
    """This process's place among those that train together; alone it is number 0 of 1."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0

    @property
    def local_size(self) -> int:
        """Number of processes on this machine."""
        return int(os.environ.get("LOCAL_WORLD_SIZE", self.size))

    @property
    def leads(self) -> bool:
        """Whether this process writes the files and talks to the user."""
        return self.rank == 0

    def share(self, value: Any) -> Any:
        """Return the leader's value in every process."""
        if self.size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def total(self, numbers: Tensor) -> Tensor:
        """Return the sums of numbers over all processes."""
        if self.size > 1:
            dist.all_reduce(numbers)
        return numbers

    def largest(self, numbers: Tensor) -> Tensor:
        """Return the largest of each number over all processes."""
        if self.size > 1:
            dist.all_reduce(numbers, op=dist.ReduceOp.MAX)
        return numbers

    def mine(self, parts: int) -> range:
        """Return which of so many parts of a batch are this process's; `check_batch` has seen that all get as many."""
        return range(self.rank, parts, self.size)

    def check_batch(self, batch_size: int, micro_batch: int) -> None:
        """Raise UsageError where a batch cannot be divided among the processes."""
        parts = -(-batch_size // micro_batch)
        if parts % self.size:
            sizes = (size for size in range(micro_batch, 0, -1) if batch_size % (size * self.size) == 0)
            fitting = next(sizes, None)
            way_out = f"use --set micro_batch={fitting}" if fitting else "use fewer processes or a larger batch_size"
            raise UsageError(
                f"a batch of {batch_size} blocks makes {parts} micro-batch{'es' if parts > 1 else ''} of at most "
                f"{micro_batch}, which "
                f"{self.size} processes cannot share evenly; {way_out}"
            )


def world_of_torchrun() -> World:
    """Return the place that torchrun gave this process, alone without it."""
    values = [os.environ.get(name) for name in _SET_BY_TORCHRUN]
    if any(value is None for value in values):
        return World()
    return World(*(int(str(value)) for value in values))


@contextlib.contextmanager
def joined(world: World, device: torch.device) -> Iterator[None]:
    """Connect the processes for the time of the block."""
    if world.size == 1:
        yield
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device, timeout=_PATIENCE)
    else:
        dist.init_process_group("gloo", timeout=_PATIENCE)
    yield
    # Not after an error: the group's end is waited for by all processes, and the others may wait for something else.
    dist.destroy_process_group()
