"""Safetensors files, read and written one tensor at a time, also from tensors sharded over processes."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

import safetensors
import torch
from torch import Tensor, nn

from pipelines import storage
from pipelines.engine.manifest import FileEntry
from pipelines.errors import InputError

_DTYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.float64: "F64", torch.int64: "I64"}


def write_tensors(
    folder: str, name: str, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> FileEntry:
    """Write tensors as a safetensors file; only one tensor at a time is copied in memory.

    If tensors are sharded, the other processes call `gather_on_rank_zero` at the same time.
    """
    with storage.atomic_write(storage.join(folder, name)) as stream:
        header = _header(tensors, metadata)
        stream.write(len(header).to_bytes(8, "little"))
        stream.write(header)
        for tensor in tensors.values():
            stream.write(full_tensor(tensor).detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return FileEntry(name, stream.size_bytes, stream.checksum)


def gather_on_rank_zero(tensors: Mapping[str, Tensor]) -> None:
    """Send this process's shards of tensors to rank 0, which writes them."""
    for tensor in tensors.values():
        full_tensor(tensor)


def full_tensor(tensor: Any) -> Tensor:
    """Return the whole tensor; if it is sharded over processes, all of them must call this."""
    # A sharded tensor is a DTensor; importing that class takes a second.
    full: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return full


@contextlib.contextmanager
def open_tensors(path: str) -> Iterator[Any]:
    """Open a memory-mapped safetensors file, with `keys` and `get_tensor`; raise InputError if it is not one."""
    try:
        storage.size_bytes(path)  # raises our own error for a missing file
        with safetensors.safe_open(storage.mapped_path(path), "pt") as file:
            yield file
    except safetensors.SafetensorError as error:
        raise InputError(f"{path}: not a safetensors file ({error})") from error


def read_tensors(path: str) -> dict[str, Tensor]:
    """Return all tensors of a safetensors file, which must not change while they are in use."""
    with open_tensors(path) as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - the file is not iterable


def check_weights(tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor], path: str) -> None:
    """Raise InputError unless the weights have the expected names and shapes."""
    if names := sorted(expected.keys() ^ tensors.keys()):
        problem = "is missing" if names[0] in expected else "is unexpected"
        raise InputError(f"{path}: weight {names[0]} {problem}; the weights are not a GPT-2 of this architecture")
    for name, weight in expected.items():
        if weight.shape != tensors[name].shape:
            raise InputError(
                f"{path}: {name} has shape {list(tensors[name].shape)}, but the architecture requires "
                f"{list(weight.shape)}"
            )


def load_weights(model: nn.Module, tensors: Mapping[str, Tensor], path: str) -> None:
    """Load weights into a model; raise InputError if names or shapes differ."""
    check_weights(tensors, model.state_dict(), path)
    model.load_state_dict(dict(tensors))


def shard_like(tensor: Tensor, model: Any) -> Tensor:
    """Return a tensor on another one's device and, if that is sharded, this process's shard of it."""
    if hasattr(model, "full_tensor"):
        from torch.distributed.tensor import distribute_tensor  # deferred: takes a second, and few trainings need it

        # Every process has read the whole tensor, so none has to send it.
        on_device = tensor.to(model.device)
        return distribute_tensor(on_device, model.device_mesh, model.placements, src_data_rank=None)
    return tensor.to(model.device, copy=True)


def _header(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None) -> bytes:
    entries: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    start = 0
    for name, tensor in tensors.items():
        stop = start + tensor.numel() * tensor.element_size()
        entries[name] = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, stop]}
        start = stop
    header = json.dumps(entries, separators=(",", ":")).encode()
    return header + b" " * (-len(header) % 8)  # tensors start at a multiple of 8 bytes
