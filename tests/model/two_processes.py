"""Trains the small model several times in two processes.

python two_processes.py TOKENS OUTPUT:ddp:STEPS OUTPUT:fsdp:STEPS OUTPUT:ddp:STEPS:["NAME=DIR:WEIGHT", ...] ...
"""

from __future__ import annotations

import json
import sys

import torch
from small_training import SMALL
from two_ranks import run_ranks

from pipelines.engine.run import RunOptions
from pipelines.model.training.parallel import process_group, torchrun_world
from pipelines.progress import Silent
from pipelines.stages.pretrain.config import PretrainConfig
from pipelines.stages.pretrain.stage import pretrain
from pipelines.stages.pretrain.training import run_worker_rank

# Four micro-batches per step, which two processes can share.
SHARED = (*SMALL, "batch_size=8", "micro_batch=2")


class Stops(Silent):
    """Raises KeyboardInterrupt after a number of tokens."""

    def __init__(self, tokens: int) -> None:
        self._remaining = tokens

    def advance(self, units: int) -> None:
        self._remaining -= units
        if self._remaining <= 0:
            raise KeyboardInterrupt


def config(parallel: str = "auto", steps: int = 6) -> PretrainConfig:
    """The options of all runs that the test compares."""
    values = (*SHARED, f"steps={steps}")
    return PretrainConfig(
        preset="tiny", set=values, device="cpu", threads=1, checkpoint_every=2, parallel=parallel, log_every=1
    )


def main() -> None:
    """Train in two processes, once per argument."""
    # As the trainings do: before the forks, each of which would import them; not with this module, by every collection.
    import torch._dynamo
    import torch.distributed.fsdp  # noqa: F401

    tokens, *runs = sys.argv[1:]
    run_ranks(train, tokens, runs)


def train(tokens: str, runs: list[str]) -> None:
    """Train in the role of one process."""
    torch.set_num_threads(1)
    world = torchrun_world()
    with process_group(world, torch.device("cpu")):
        for output, parallel, steps, *mix in (run.split(":", 3) for run in runs):
            options, sources = config(parallel, int(steps)), json.loads(mix[0]) if mix else tokens
            if world.is_rank_zero:
                pretrain(options, tokens=sources, output=output, options=RunOptions())
            else:
                run_worker_rank(options, tokens=sources, output=output)


if __name__ == "__main__":
    main()
