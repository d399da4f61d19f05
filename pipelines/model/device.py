"""Where a model runs, and what the machine may refuse."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import torch

from pipelines.core.errors import UsageError, WebtextError
from pipelines.core.machine import available_memory_bytes
from pipelines.model.training.data import Tokens


def pick_device(name: str, local_rank: int = 0) -> torch.device:
    """Return the device of `cpu`, `cuda`, `mps` or `auto`; raise UsageError where there is no such device.

    Of several processes on one machine each takes the card of its number.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda":
        return _card(local_rank)
    if name == "mps" and not torch.backends.mps.is_available():
        raise UsageError("--device mps: torch finds no Apple GPU here; use --device cpu")
    return torch.device(name)


def _card(number: int) -> torch.device:
    if not torch.cuda.is_available():
        raise UsageError("--device cuda: torch finds no CUDA card here; use --device cpu, or install torch with CUDA")
    if number >= torch.cuda.device_count():
        raise UsageError(
            f"process {number} of this machine finds only {torch.cuda.device_count()} CUDA cards; "
            "start as many processes as there are cards"
        )
    return torch.device("cuda", number)


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a model is computed, and with what precision of its matrix products."""

    device: torch.device
    bf16: bool

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """Compute matrix products in bfloat16 where that was chosen."""
        return torch.autocast(self.device.type, torch.bfloat16) if self.bf16 else contextlib.nullcontext()

    def to_device(self, tokens: Tokens) -> torch.Tensor:
        """Move token ids to the device; a card gets them while it computes."""
        moved = torch.from_numpy(tokens)
        return (
            moved.pin_memory().to(self.device, non_blocking=True)
            if self.device.type == "cuda"
            else moved.to(self.device)
        )

    def seed(self, seed: int) -> None:
        """Seed what dropout draws from on this device.

        torch.manual_seed seeds all kinds of devices, and keeps a trace of each call for those that are not there.
        """
        if self.device.type == "cpu":
            torch.default_generator.manual_seed(seed)
        else:
            getattr(torch, self.device.type).manual_seed(seed)

    def free_memory_bytes(self, local_processes: int) -> int | None:
        """Return the memory that this process can still allocate, None if unknown; processes share a CPU's evenly."""
        if self.device.type == "cuda":
            return torch.cuda.mem_get_info(self.device)[0]
        available = available_memory_bytes()
        return None if available is None else available // local_processes

    @property
    def name(self) -> str:
        """The card's name, or the kind of device."""
        return torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else self.device.type


def sum_type(device: torch.device) -> torch.dtype:
    """Return the type to add up in on a device: float64, which Apple's GPUs do not have."""
    return torch.float32 if device.type == "mps" else torch.float64


def pick_place(device: torch.device, precision: str) -> Place:
    """Return where to compute: `auto` takes bfloat16 on a CUDA card that has it, and float32 elsewhere."""
    has_bf16 = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    if precision == "bf16" and device.type == "cuda" and not has_bf16:
        raise UsageError("--precision bf16: this card computes no bfloat16; use --precision float32")
    return Place(device, precision == "bf16" or (precision == "auto" and has_bf16))


def autocast(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Compute in bfloat16 on a CUDA card; elsewhere in float32."""
    return pick_place(device, "auto").autocast()


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
