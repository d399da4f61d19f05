"""Where a model runs, and what the machine may refuse."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from pipelines.core.errors import UsageError, WebtextError
from pipelines.model.data import Tokens


def pick_device(name: str) -> torch.device:
    """Return the device of `cpu`, `cuda` or `auto`; raise UsageError where there is no such device."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise UsageError("--device cuda: torch finds no CUDA card here; use --device cpu, or install torch with CUDA")
    return torch.device(name)


def autocast(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Compute in bfloat16 on a CUDA card; elsewhere in float32."""
    return torch.autocast("cuda", torch.bfloat16) if device.type == "cuda" else contextlib.nullcontext()


def to_device(tokens: Tokens, device: torch.device) -> torch.Tensor:
    """Move token ids to a device."""
    return torch.from_numpy(tokens).to(device)


@contextlib.contextmanager
def reproducible(device: torch.device, threads: int) -> Iterator[None]:
    """Compute the same bits each time on a CPU, with a number of threads (0: torch's own); all is put back after."""
    deterministic, before = torch.are_deterministic_algorithms_enabled(), torch.get_num_threads()
    if device.type == "cpu":
        torch.use_deterministic_algorithms(True)
    if threads:
        torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(deterministic)
        torch.set_num_threads(before)


@contextlib.contextmanager
def named_memory_errors(way_out: str) -> Iterator[None]:
    """Turn "out of memory", of the card or of the machine, into a WebtextError that says what to change."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not _out_of_memory(error):
            raise
        where = "the CUDA card" if isinstance(error, torch.OutOfMemoryError) else "this machine"
        raise WebtextError(f"out of memory: the model needs more than {where} has; {way_out}") from error


def _out_of_memory(error: BaseException) -> bool:
    # On a CPU torch raises a bare RuntimeError; its text is all that tells.
    kinds = (MemoryError, torch.OutOfMemoryError)
    return isinstance(error, kinds) or "allocate memory" in str(error) or "not enough memory" in str(error)
