"""Safetensors files, written and read one tensor at a time."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import safetensors.torch
import torch

from pipelines.errors import InputError, WebtextError
from pipelines.model.io.tensor_files import gather_on_rank_zero, open_tensors, shard_like, write_tensors

TENSORS = {
    "b": torch.arange(6, dtype=torch.float32).reshape(2, 3),
    "a": torch.tensor(7.5),
    "empty": torch.empty(0, 4),
    "half": torch.ones(3, dtype=torch.bfloat16),
    "turned": torch.arange(6, dtype=torch.float32).reshape(2, 3).t(),
}


def test_safetensors_reads_the_file(tmp_path: Path) -> None:
    entry = write_tensors(str(tmp_path), "x.safetensors", TENSORS, {"format": "pt"})
    data = (tmp_path / "x.safetensors").read_bytes()
    assert (entry.size_bytes, entry.sha256) == (len(data), hashlib.sha256(data).hexdigest())
    read = safetensors.torch.load(data)
    assert read.keys() == TENSORS.keys()
    assert all(torch.equal(read[name], tensor) and read[name].dtype == tensor.dtype for name, tensor in TENSORS.items())
    with safetensors.safe_open(tmp_path / "x.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}


def test_tensors_are_read_one_by_one(tmp_path: Path) -> None:
    write_tensors(str(tmp_path), "x.safetensors", TENSORS)
    with open_tensors(str(tmp_path / "x.safetensors")) as file:
        assert set(file.keys()) == TENSORS.keys()
        assert torch.equal(shard_like(file.get_tensor("turned"), TENSORS["turned"]), TENSORS["turned"])
    gather_on_rank_zero(TENSORS)  # nothing lies in parts, so nothing happens


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes(b"no tensors here")
    with (
        pytest.raises(InputError, match=r"x\.safetensors: not a safetensors file"),
        open_tensors(str(tmp_path / "x.safetensors")),
    ):
        pass
    with (
        pytest.raises(WebtextError, match=r"y\.safetensors: no such file"),
        open_tensors(str(tmp_path / "y.safetensors")),
    ):
        pass
