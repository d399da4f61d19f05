"""FLOPs per token and MFU, compared with published figures."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from pipelines.model.diagnostics.estimate import flops_per_token, peak_flops, utilization
from pipelines.model.training.recipe import make_recipe, parameter_count
from pipelines.storage.resources import data_path

SIZES = [("gpt2", 0.860), ("gpt2-medium", 2.431), ("gpt2-large", 5.210), ("gpt2-xl", 10.289)]


def flops_of(preset: str) -> int:
    recipe = make_recipe(preset)
    sizes = recipe.layers, recipe.width, recipe.context, recipe.attention_window
    return flops_per_token(parameter_count(recipe, 50_257), *sizes)


@pytest.mark.parametrize(("preset", "gflop"), SIZES)
def test_flops_per_token_of_the_four_sizes(preset: str, gflop: float) -> None:
    assert round(flops_of(preset) / 1e9, 3) == gflop


@pytest.mark.parametrize(("tokens", "window"), [(2048, 256), (300, 256), (256, 256), (100, 256), (7, 1)])
def test_banded_layers_count_twice_the_visible_tokens(tokens: int, window: int) -> None:
    visible = sum(min(token + 1, window) for token in range(tokens)) / tokens
    full = sum(token + 1 for token in range(tokens)) / tokens
    counted = flops_per_token(0, 5, 1, tokens, window) / 12
    assert counted == pytest.approx(2 * (3 * full + 2 * visible), abs=7)
    assert flops_per_token(0, 5, 1, tokens, tokens) == flops_per_token(0, 5, 1, tokens)


def test_the_band_saves_little_at_2048_tokens() -> None:
    recipe = make_recipe("gpt3-125m")
    full = flops_per_token(parameter_count(recipe, 50_257), recipe.layers, recipe.width, recipe.context)
    assert flops_of("gpt3-125m") / full == pytest.approx(0.911, abs=1e-3)


@pytest.mark.parametrize(
    ("name", "tflops"),
    [
        ("NVIDIA A100-SXM4-80GB", 312.0),
        ("NVIDIA A100-PCIE-40GB", 312.0),
        ("NVIDIA A100 80GB PCIe", 312.0),
        ("A100-SXM4-40GB", 312.0),
        ("NVIDIA H100 80GB HBM3", 989.4),
        ("NVIDIA H100 PCIe", 756.5),
        ("NVIDIA H100 NVL", 835.5),
        ("NVIDIA H200", 989.4),
        ("NVIDIA H200 NVL", 835.5),
        ("NVIDIA GH200 480GB", 989.4),
        ("NVIDIA B200", 2250.0),
        ("NVIDIA L4", 121.0),
        ("NVIDIA L40S", 362.05),
        ("NVIDIA GeForce RTX 3090", 71.0),
        ("GeForce RTX 3090", 71.0),
        ("NVIDIA GeForce RTX 3090 Ti", 80.0),
        ("NVIDIA GeForce RTX 4090", 165.2),
        ("Tesla V100-SXM2-16GB", 125.0),
        ("Tesla V100-PCIE-32GB", 112.0),
        ("AMD Instinct MI300X", 1307.4),
        ("AMD Instinct MI250X/MI250", 191.5),
    ],
)
def test_gpus_are_matched_by_their_torch_name(name: str, tflops: float) -> None:
    assert peak_flops(name) == pytest.approx(tflops * 1e12)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "cpu",
        "NVIDIA A100-SXM4-40GB MIG 3g.20gb",  # a MIG slice has a part of the peak
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA A10G",
        "NVIDIA H20",
        "NVIDIA GeForce GTX 1080 Ti",
    ],
)
def test_unlisted_gpus_have_no_peak(name: str) -> None:
    assert peak_flops(name) is None
    assert utilization(1e6, 10**9, name, 8) is None


def test_no_name_matches_two_gpus() -> None:
    gpus = tomllib.loads(Path(data_path("gpus.toml")).read_text())
    known = ["NVIDIA H100 NVL", "NVIDIA H200", "NVIDIA L4", "NVIDIA L40", "NVIDIA L40S", "NVIDIA GeForce RTX 3090 Ti"]
    for name in known:
        assert sum(bool(re.fullmatch(gpu["name"], name)) for gpu in gpus.values()) == 1
    assert all(set(gpu) <= {"name", "peak_tflops", "dtype"} for gpu in gpus.values())


def test_utilization_matches_published_runs() -> None:
    # llm.c: 1558M at 46.8k tokens/s a H100 is "49-50%"; nanoGPT: 124M at 109k tokens/s an A100 is 30%.
    assert utilization(46_800, flops_of("gpt2-xl"), "NVIDIA H100 80GB HBM3", 1) == pytest.approx(0.487, abs=0.001)
    assert utilization(109_000, flops_of("gpt2"), "NVIDIA A100-SXM4-40GB", 1) == pytest.approx(0.300, abs=0.001)


def test_utilization_of_several_gpus() -> None:
    one = utilization(100_000, 10**9, "NVIDIA H200", 1)
    assert one is not None
    assert utilization(100_000, 10**9, "NVIDIA H200", 8) == pytest.approx(one / 8)
