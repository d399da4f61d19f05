"""Devices: selection, precision, determinism, and out-of-memory errors."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import multiprocessing
import os
from collections.abc import Iterator
from typing import Any

import numpy.typing as npt
import torch

from pipelines.algorithms.kernels.compilation import cache_folder
from pipelines.engine.machine import available_memory_bytes
from pipelines.errors import UsageError, WebtextError


def select_device(name: str, local_rank: int = 0) -> torch.device:
    """Return the device for `cpu`, `cuda`, `mps` or `auto`; each process on a machine gets the GPU of its local rank.

    Raises UsageError if the device is not available.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "mps" and not torch.backends.mps.is_available():
        raise UsageError("--device mps: torch finds no Apple GPU; use --device cpu")
    if name != "cuda":
        return torch.device(name)
    if not torch.cuda.is_available():
        raise UsageError("--device cuda: torch finds no CUDA GPU; use --device cpu, or install torch with CUDA")
    if local_rank >= torch.cuda.device_count():
        raise UsageError(
            f"local rank {local_rank}: torch finds only {torch.cuda.device_count()} CUDA GPUs; "
            "start one process per GPU"
        )
    return torch.device("cuda", local_rank)


def gpu_count() -> int:
    """Return the number of CUDA GPUs that this process sees."""
    return torch.cuda.device_count()


def use_own_gpu() -> None:
    """Have a worker process see one GPU only: one after the other started gets the next GPU of those visible.

    To be called before the first tensor; without effect in the main process, and where there is at most one GPU.
    """
    name, _, number = multiprocessing.current_process().name.rpartition("-")
    if name and number.isdecimal() and (gpus := torch.cuda.device_count()) > 1:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
        visible = visible if len(visible) >= gpus else list(map(str, range(gpus)))
        os.environ["CUDA_VISIBLE_DEVICES"] = visible[int(number) % gpus]


@dataclasses.dataclass(frozen=True)
class DeviceConfig:
    """A device, and whether matrix products are computed in bfloat16."""

    device: torch.device
    bf16: bool

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """Return a context in which matrix products are computed in the configured precision."""
        return torch.autocast(self.device.type, torch.bfloat16) if self.bf16 else contextlib.nullcontext()

    def to_device(self, values: npt.NDArray[Any]) -> torch.Tensor:
        """Copy token ids, or other values, to the device; to a GPU asynchronously, from pinned memory."""
        ids = torch.from_numpy(values)
        return (
            ids.pin_memory().to(self.device, non_blocking=True) if self.device.type == "cuda" else ids.to(self.device)
        )

    def seed(self, seed: int) -> None:
        """Seed the generator that dropout uses on this device.

        Not torch.manual_seed: it seeds every device type, and queues a call for each that is not initialized.
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
        """The GPU's name as torch reports it, or the device type."""
        return torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else self.device.type


def device_config(device: torch.device, precision: str = "auto") -> DeviceConfig:
    """Return the configuration for a device; `auto` is bfloat16 on a CUDA GPU that supports it, else float32."""
    has_bf16 = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    if precision == "bf16" and device.type == "cuda" and not has_bf16:
        raise UsageError("--precision bf16: this GPU does not support bfloat16; use --precision float32")
    return DeviceConfig(device, precision == "bf16" or (precision == "auto" and has_bf16))


def accumulator_dtype(device: torch.device) -> torch.dtype:
    """Return the dtype for sums on a device: float64, which Apple's GPUs do not support."""
    return torch.float32 if device.type == "mps" else torch.float64


def derived_seed(*parts: object) -> int:
    """Return a 63-bit seed that depends on all parts, the first of which is the user's seed."""
    return int.from_bytes(hashlib.sha256(":".join(map(str, parts)).encode()).digest()[:8], "big") >> 1


@contextlib.contextmanager
def reproducible(device: torch.device, threads: int = 0) -> Iterator[None]:
    """Use deterministic algorithms on a CPU, and `threads` threads (0: torch's default); restore both on exit."""
    deterministic, default_threads = torch.are_deterministic_algorithms_enabled(), torch.get_num_threads()
    memory: Any = torch.utils.deterministic  # without types
    fill = memory.fill_uninitialized_memory
    # By default torch loads compiled code, and always headers, from a temporary folder whose name others can guess.
    os.environ.setdefault("TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS", "0")
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_folder() / "torchinductor"))
    if device.type == "cpu":
        torch.use_deterministic_algorithms(True)
        memory.fill_uninitialized_memory = False  # for debugging only; took 7% of a step
    if threads:
        torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(deterministic)
        memory.fill_uninitialized_memory = fill
        torch.set_num_threads(default_threads)


@contextlib.contextmanager
def translate_memory_errors(advice: str) -> Iterator[None]:
    """Raise WebtextError with advice when the GPU or the machine runs out of memory."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        # On a CPU torch raises a plain RuntimeError, recognizable by its message only.
        on_cpu = isinstance(error, MemoryError) or any(
            phrase in str(error) for phrase in ("allocate memory", "not enough memory")
        )
        if not on_cpu and not isinstance(error, torch.OutOfMemoryError):
            raise
        where = "the GPU" if isinstance(error, torch.OutOfMemoryError) else "this machine"
        raise WebtextError(f"out of memory: the model needs more than {where} has; {advice}") from error
