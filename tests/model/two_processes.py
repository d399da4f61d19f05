"""Trains the small model several times in two processes, which have the environment that torchrun sets.

    python two_processes.py TOKENS OUTPUT:ddp:STEPS OUTPUT:fsdp:STEPS ...

Both are forks of one that has imported what they need: each import of it takes 6 s of a core. A test of evaluate starts
its processes with torchrun itself.
"""

from __future__ import annotations

import importlib
import os
import sys

import torch
import torch.distributed as dist
from conftest import SMALL

from pipelines.core.progress import Silent
from pipelines.core.run import RunOptions
from pipelines.model.training.parallel import process_group, torchrun_world
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
    tokens, *runs = sys.argv[1:]
    for module in ("torch._dynamo", "torch.distributed.fsdp"):
        importlib.import_module(module)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    torch.multiprocessing.start_processes(train, (tokens, runs), nprocs=2, start_method="fork")


def train(rank: int, tokens: str, runs: list[str]) -> None:
    """Train in the role of one process."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    torch.set_num_threads(1)
    world = torchrun_world()
    with process_group(world, torch.device("cpu")):
        for output, parallel, steps in (run.split(":") for run in runs):
            options = config(parallel, int(steps))
            if world.is_rank_zero:
                pretrain(options, tokens=tokens, output=output, options=RunOptions())
            else:
                run_worker_rank(options, tokens=tokens, output=output)


if __name__ == "__main__":
    main()
