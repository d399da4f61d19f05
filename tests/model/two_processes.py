"""Trains the small model in the processes that torchrun starts.

torchrun --nproc-per-node 2 two_processes.py TOKENS OUTPUT ddp|fsdp
"""

from __future__ import annotations

import sys

import torch
from conftest import SMALL

from pipelines.core.progress import Silent
from pipelines.core.run import RunOptions
from pipelines.model.training.parallel import torchrun_world
from pipelines.stages.pretrain.config import PretrainConfig
from pipelines.stages.pretrain.stage import pretrain
from pipelines.stages.pretrain.training import run_worker_rank

# Four micro-batches a step, which two processes can share.
SHARED = (*SMALL, "batch_size=8", "micro_batch=2")


class Stops(Silent):
    """Interrupts when a number of tokens is trained on."""

    def __init__(self, tokens: int) -> None:
        self._left = tokens

    def advance(self, units: int) -> None:
        self._left -= units
        if self._left <= 0:
            raise KeyboardInterrupt


def config(parallel: str = "auto") -> PretrainConfig:
    """The options of all runs that the test compares."""
    return PretrainConfig(
        preset="tiny", set=SHARED, device="cpu", threads=1, checkpoint_every=2, parallel=parallel, log_every=1
    )


def main() -> None:
    """Train in this process's role."""
    tokens, output, parallel = sys.argv[1:]
    torch.set_num_threads(1)
    if torchrun_world().is_rank_zero:
        pretrain(config(parallel), tokens=tokens, output=output, options=RunOptions())
    else:
        run_worker_rank(config(parallel), tokens=tokens, output=output)


if __name__ == "__main__":
    main()
