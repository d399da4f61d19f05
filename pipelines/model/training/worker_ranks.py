"""The process that leads a training and those that assist it: how they agree on what they do before they do it."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from pipelines.core.errors import InputError, WebtextError
from pipelines.model.training.recipe import Recipe

if TYPE_CHECKING:
    from pipelines.model.training.parallel import World


def is_assistant() -> bool:
    """Tell whether torchrun started this process beside one of rank 0."""
    return all(os.environ.get(name) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")) and os.environ["RANK"] != "0"


@dataclasses.dataclass(frozen=True)
class Start:
    """What the leading process tells the others: what is trained, and the step to go on from, None for the first."""

    recipe: Recipe
    inputs: dict[str, str]
    step: int | None = None

    def check_same(self, other: Start, rank: int) -> None:
        """Raise InputError where a process means to train something else."""
        if other.recipe != self.recipe:
            raise InputError(f"process {rank} has another recipe than process 0; give all the same options")
        for name in self.inputs.keys() | other.inputs.keys():
            if self.inputs.get(name) != other.inputs.get(name):
                raise InputError(f"process {rank} finds other {name} than process 0; give all the same files")


@contextlib.contextmanager
def leading(world: World) -> Iterator[Callable[[Start | None], None]]:
    """Yield what tells the other processes to start, or, by None, that nothing is to do; an error tells them so too."""
    told = False

    def tell(start: Start | None) -> None:
        nonlocal told
        told = True
        world.share(start)

    try:
        yield tell
    finally:
        if not told:
            world.share(None)


@contextlib.contextmanager
def named_connection_errors(world: World) -> Iterator[None]:
    """Say of what torch raises where another process has ended that the reason is to be found there."""
    try:
        yield
    except RuntimeError as error:
        if world.size == 1:
            raise
        # What gloo and NCCL raise where another process has ended.
        reason = " ".join(str(error).split())[:100]
        raise WebtextError(
            f"process {world.rank} of {world.size} cannot go on ({reason}); the messages of the others may say why"
        ) from error
