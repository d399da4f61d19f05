"""Two ranks of a training or an evaluation as forks: each import of torch, and torchrun's own, takes seconds of a core.

A script imports what its ranks will before it starts them.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import torch
import torch.distributed as dist


def run_ranks(function: Callable[..., None], *arguments: object) -> None:
    """Call a function in two forks with the environment of torchrun; or in this process, if torchrun started it."""
    if "RANK" in os.environ:
        function(*arguments)
        return
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    torch.multiprocessing.start_processes(_run_rank, (function, arguments), nprocs=2, start_method="fork")


def _run_rank(rank: int, function: Callable[..., None], arguments: tuple[object, ...]) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    function(*arguments)
