"""Tensors in safetensors files, written and read one at a time, also those that several processes hold in parts."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping

import safetensors
import safetensors.torch
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor

from pipelines.core import storage
from pipelines.core.errors import InputError
from pipelines.core.manifest import FileEntry

_TYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.float64: "F64", torch.int64: "I64"}

Read = Callable[[str], Tensor]


def write_tensors(
    folder: str, name: str, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> FileEntry:
    """Write tensors as a safetensors file; in memory only one of them is copied at a time.

    Where tensors lie in parts in several processes, each of these has to call this or `gather_tensors`.
    """
    with storage.atomic_write(storage.join(folder, name)) as stream:
        header = _header(tensors, metadata)
        stream.write(len(header).to_bytes(8, "little"))
        stream.write(header)
        for tensor in tensors.values():
            stream.write(_whole(tensor).reshape(-1).view(torch.uint8).numpy().data)
    return FileEntry(name, stream.size_bytes, stream.sha256)


def gather_tensors(tensors: Mapping[str, Tensor]) -> None:
    """Give this process's parts of tensors to the one that writes them."""
    for tensor in tensors.values():
        if isinstance(tensor, DTensor):
            tensor.full_tensor()


@contextlib.contextmanager
def open_tensors(path: str) -> Iterator[tuple[list[str], Read]]:
    """Yield the names of a safetensors file, and a function that reads one tensor of it; a local file is mapped.

    Raises InputError where it is none.
    """
    try:
        if storage.is_local(path):
            storage.size_bytes(path)  # a missing file is our own error
            with safetensors.safe_open(storage.local_path(path), "pt") as file:
                yield list(file.keys()), file.get_tensor
        else:
            loaded = safetensors.torch.load(storage.read_bytes(path))
            yield list(loaded), loaded.__getitem__
    except safetensors.SafetensorError as error:
        raise InputError(f"{path}: is not a safetensors file ({error})") from error


def like(tensor: Tensor, model: Tensor) -> Tensor:
    """Return a tensor on another one's device and, where that lies in parts, this process's part of it."""
    if isinstance(model, DTensor):
        # Every process has read the whole tensor, so that none has to send it.
        placed = tensor.to(model.device)
        return distribute_tensor(placed, model.device_mesh, model.placements, src_data_rank=None)
    return tensor.to(model.device, copy=True)


def _header(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None) -> bytes:
    entries: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    start = 0
    for name, tensor in tensors.items():
        stop = start + tensor.numel() * tensor.element_size()
        entries[name] = {"dtype": _TYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, stop]}
        start = stop
    header = json.dumps(entries, separators=(",", ":")).encode()
    return header + b" " * (-len(header) % 8)  # the tensors begin at a multiple of 8 bytes


def _whole(tensor: Tensor) -> Tensor:
    full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return full.detach().cpu().contiguous()
