"""Norms per layer: compared with plain sums, with NaN, under wrappers, and sharded over two processes."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from model_with_gradients import model_with_gradients
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from pipelines.model.diagnostics.layer_norms import layer_norms

NAMES = ["wte", "wpe", "h.0.ln", "h.0.attn", "h.0.mlp", "h.1.ln", "h.1.attn", "h.1.mlp", "ln_f"]


def by_name(model: nn.Module) -> dict[str, dict[str, Any]]:
    return {entry["name"]: entry for entry in layer_norms(model)}


def plain_norms(model: nn.Module) -> list[dict[str, Any]]:
    """The same figures from one long row of numbers for each part."""
    rows: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
    for name, parameter in model.named_parameters():
        parts = name.split(".")
        group = parts[0] if parts[0] != "h" else f"h.{parts[1]}.{parts[2].split('_')[0]}"
        assert parameter.grad is not None
        both = (parameter.detach().double().numpy().ravel(), parameter.grad.double().numpy().ravel())
        rows.setdefault(group, []).append(both)
    result = []
    for name, pairs in rows.items():
        weights, gradients = (np.concatenate(element) for element in zip(*pairs, strict=True))
        figures = (float(np.linalg.norm(weights)), float(np.linalg.norm(gradients)), float(np.abs(gradients).max()))
        result.append(
            dict(zip(("name", "weight_norm", "gradient_norm", "largest_gradient"), (name, *figures), strict=True))
        )
    return result


def assert_same(result: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    assert [entry["name"] for entry in result] == NAMES
    for own, reference in zip(result, expected, strict=True):
        assert own == {key: value if key == "name" else pytest.approx(value) for key, value in reference.items()} | {
            "not_finite": 0
        }


def test_the_norms_are_those_of_each_part() -> None:
    model = model_with_gradients()
    assert_same(layer_norms(model), plain_norms(model))


def test_all_parts_together_have_the_norm_that_clipping_sees() -> None:
    model = model_with_gradients()
    whole = math.sqrt(sum(entry["gradient_norm"] ** 2 for entry in layer_norms(model)))
    assert whole == pytest.approx(torch.nn.utils.clip_grad_norm_(model.parameters(), math.inf).item())


def test_gradients_that_are_not_finite_are_counted_per_part() -> None:
    model = model_with_gradients()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    gradients["h.1.mlp.c_fc.weight"][2, 3:5] = math.nan  # type: ignore[index]
    gradients["h.0.attn.c_proj.bias"][1] = -math.inf  # type: ignore[index]
    norms = by_name(model)
    assert {name: entry["not_finite"] for name, entry in norms.items() if entry["not_finite"]} == {
        "h.0.attn": 1,
        "h.1.mlp": 2,
    }
    assert math.isnan(norms["h.1.mlp"]["gradient_norm"])
    assert norms["h.0.attn"]["gradient_norm"] == norms["h.0.attn"]["largest_gradient"] == math.inf
    assert norms["h.1.mlp"]["largest_gradient"] == math.inf
    assert math.isfinite(norms["h.1.attn"]["gradient_norm"])


def test_norms_do_not_overflow_float32() -> None:
    model = model_with_gradients()
    with torch.no_grad():
        model.ln_f.weight.fill_(1e30)
    assert by_name(model)["ln_f"]["weight_norm"] == pytest.approx(1e30 * math.sqrt(12))


def test_a_missing_gradient_counts_as_zero() -> None:
    model = model_with_gradients()
    model.zero_grad()
    assert {(entry["gradient_norm"], entry["largest_gradient"]) for entry in layer_norms(model)} == {(0.0, 0.0)}


def test_the_names_are_the_same_under_wrappers() -> None:
    model = model_with_gradients()
    wrapped = nn.Module()
    wrapped.module = nn.Module()  # DDP calls it so
    wrapped.module._orig_mod = model
    assert layer_norms(wrapped) == layer_norms(model)


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[DeviceMesh]:
    """One process that believes it is several."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    torch.distributed.destroy_process_group()


def test_sharded_parameters_have_the_norms_of_plain_ones(mesh: DeviceMesh) -> None:
    model = model_with_gradients()
    expected = plain_norms(model)
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            cut = nn.Parameter(distribute_tensor(parameter.detach(), mesh, [Shard(0)]))
            cut.grad = distribute_tensor(parameter.grad, mesh, [Shard(0)])
            setattr(module, name, cut)
    assert_same(layer_norms(model), expected)


def test_norms_are_reduced_over_processes() -> None:
    model = model_with_gradients()
    requested = []

    def three_processes(values: torch.Tensor, how: str) -> torch.Tensor:
        requested.append(how)
        return values * 3 if how == "sum" else values

    for alone, together in zip(layer_norms(model), layer_norms(model, three_processes), strict=True):
        assert together["weight_norm"] == pytest.approx(alone["weight_norm"] * math.sqrt(3))
        assert together["gradient_norm"] == pytest.approx(alone["gradient_norm"] * math.sqrt(3))
        assert together["largest_gradient"] == alone["largest_gradient"]
    assert requested == ["sum", "max"]


@pytest.mark.slow
def test_norms_of_a_model_sharded_over_two_processes(tmp_path: Path) -> None:
    script = Path(__file__).with_name("sharded_norms.py")
    started = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", str(script), str(rank), str(tmp_path / "meeting")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    answers = [process.communicate(timeout=120) for process in started]
    assert [process.returncode for process in started] == [0, 0], answers[0][1] + answers[1][1]
    assert_same(json.loads(answers[0][0]), plain_norms(model_with_gradients()))
