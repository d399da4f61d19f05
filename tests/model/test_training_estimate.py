"""Estimates, compared with real tensors, files and processes."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import safetensors.numpy
import torch
from small_training import SMALL
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from pipelines.errors import WebtextError
from pipelines.model.device import DeviceConfig
from pipelines.model.diagnostics.estimate import Estimate, check_resources, describe_estimate, estimate_training
from pipelines.model.network.gpt2 import GPT2, LOGITS_AT_ONCE, empty_model, initialize
from pipelines.model.training.engine import make_optimizer
from pipelines.model.training.job import TrainingJob, architecture_of
from pipelines.model.training.parallel import World
from pipelines.model.training.recipe import Recipe, TrainingOptions, make_recipe

GB = 10**9
SHAPE = ("layers=3", "width=64", "heads=4", "context=64", "micro_batch=5", "batch_size=5")


def recipe_of(preset: str, *sets: str) -> Recipe:
    return make_recipe(preset, sets)


def estimate_of(
    recipe: Recipe, vocab_size: int, device_type: str = "cpu", processes: int = 1, bf16: bool = False, **options: Any
) -> Estimate:
    values: dict[str, Any] = dict.fromkeys(field.name for field in dataclasses.fields(TrainingJob))
    values |= {"recipe": recipe, "options": TrainingOptions(**options), "world": World(0, processes)}
    values["architecture"] = architecture_of(recipe, vocab_size)
    values["objective"] = types.SimpleNamespace(
        tokens=lambda step: recipe.batch_tokens,
        forward_shape=lambda: (recipe.micro_batch * recipe.context, recipe.context),
    )
    return estimate_training(TrainingJob(**values | {"device": DeviceConfig(torch.device(device_type), bf16)}))


def expect(preset: str, *sets: str, vocab_size: int = 50_257, device_type: str = "cuda", **more: Any) -> Estimate:
    defaults = {"parallel": "ddp", "compile": "off"}
    return estimate_of(recipe_of(preset, *sets), vocab_size, device_type, **defaults | more)


def model_of(recipe: Recipe, vocab_size: int) -> GPT2:
    model = empty_model(architecture_of(recipe, vocab_size))
    initialize(model, 0)
    return model.train()


def kept_bytes(model: GPT2, micro_batch: int, bf16: bool) -> int:
    """What the forward pass saves for the backward pass, except the weights and their 16-bit copies."""
    weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    shapes = {weight.shape for weight in model.parameters()} | {weight.t().shape for weight in model.parameters()}
    saved: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        at = tensor.untyped_storage().data_ptr()
        if at not in weights and tensor.shape not in shapes:
            saved[at] = tensor
        return tensor

    tokens = torch.zeros(micro_batch, model.architecture.context, dtype=torch.long)
    with saved_tensors_hooks(keep, lambda tensor: tensor), torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        out = model.hidden(tokens)
    return sum(tensor.untyped_storage().nbytes() for tensor in saved.values()) + out.untyped_storage().nbytes()


@pytest.mark.parametrize("window", [0, 8, 16, 64, 100])
@pytest.mark.parametrize(("dropout", "bf16"), [(0.0, False), (0.0, True), (0.1, False)])
def test_activation_estimate_matches_the_saved_tensors(dropout: float, bf16: bool, window: int) -> None:
    attention = "alternating" if window else "full"
    recipe = recipe_of(
        "tiny", *SHAPE, f"dropout={dropout}", f"attention={attention}", f"attention_window={window}", "layers=4"
    )
    expected = estimate_of(recipe, 300, bf16=bf16).memory["activations"]
    assert kept_bytes(model_of(recipe, 300), recipe.micro_batch, bf16) == pytest.approx(expected, rel=0.04)


def test_activation_checkpointing_estimate_matches_the_saved_tensors() -> None:
    recipe = recipe_of("tiny", *SHAPE)
    model = model_of(recipe, 300)
    whole, one = (
        estimate_of(dataclasses.replace(recipe, layers=layers), 300).memory["activations"] for layers in (2, 1)
    )
    expected = estimate_of(recipe, 300, activation_checkpointing=True).memory["activations"]
    model.activation_checkpointing = True
    assert kept_bytes(model, recipe.micro_batch, bf16=False) + (whole - one) == pytest.approx(expected, rel=0.04)


def test_weight_gradient_and_moment_estimates_match_torch() -> None:
    recipe = recipe_of("tiny", *SHAPE)
    model = model_of(recipe, 300)
    optimizer = make_optimizer(model, recipe)
    model.hidden(torch.zeros(1, 64, dtype=torch.long)).sum().backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    expected = estimate_of(recipe, 300)
    weights = list(model.parameters())
    moments = [value for state in optimizer.state.values() for value in state.values() if value.dim()]
    assert expected.memory["weights"] == sum(weight.nbytes for weight in weights)
    assert expected.memory["gradients"] == sum(weight.grad.nbytes for weight in weights if weight.grad is not None)
    assert expected.memory["Adam's moments"] == sum(moment.nbytes for moment in moments)


def test_checkpoint_estimate_matches_the_files(trained: Path) -> None:
    expected = estimate_of(recipe_of("tiny", *SMALL), 300, keep_checkpoints=2)
    checkpoints = sorted((trained / "checkpoints").iterdir())
    tensors = [
        tensor for path in checkpoints[-1].glob("*.safetensors")
        for tensor in safetensors.numpy.load(path.read_bytes()).values()
    ]  # fmt: skip
    assert expected.checkpoint_bytes == sum(tensor.nbytes for tensor in tensors)
    assert len(checkpoints) == 2
    assert expected.disk_bytes == 10 * expected.checkpoint_bytes // 3  # the weights are a third


def test_the_checkpoint_before_the_decay_takes_disk_too() -> None:
    plain, stable = expect("gpt2"), expect("gpt2", "schedule=wsd", "decay_steps=20000")
    assert stable.disk_bytes == plain.disk_bytes + plain.checkpoint_bytes


def test_flops() -> None:
    assert expect("gpt2").flops == pytest.approx(0.860e9 * 100_000 * 512 * 1024, rel=1e-3)


def test_memory_estimate_falls_with_smaller_batches_checkpointing_and_sharding() -> None:
    plain = expect("gpt2-xl", bf16=True)
    assert expect("gpt2-xl", "micro_batch=2", bf16=True).memory_bytes < plain.memory_bytes
    assert (
        expect("gpt2-xl", bf16=True, activation_checkpointing=True).memory["activations"]
        < 0.2 * plain.memory["activations"]
    )
    sharded = expect("gpt2-xl", bf16=True, processes=8, parallel="fsdp")
    assert sharded.memory["Adam's moments"] == pytest.approx(plain.memory["Adam's moments"] / 8, rel=1e-6)
    assert sharded.memory["weights"] < 0.5 * plain.memory["weights"]
    assert expect("gpt2-xl", bf16=True, processes=8).memory["weights"] == plain.memory["weights"]


def test_logits_estimate_when_compiled_and_on_a_cpu() -> None:
    logits = 16 * 1024 * 50_257
    assert expect("gpt2", bf16=True).memory["logits"] == 12 * logits
    assert expect("gpt2", bf16=True, compile="on").memory["logits"] == 4 * logits
    embedding = 50_257 * 768
    assert expect("gpt2", device_type="cpu").memory["logits"] == 4 * (LOGITS_AT_ONCE + 2 * embedding)
    assert expect("tiny", device_type="cpu", vocab_size=300).memory["logits"] == 4 * (4 * 128 * 300 + 2 * 300 * 128)


def test_estimate_lines() -> None:
    lines = describe_estimate(expect("gpt2", bf16=True))
    assert lines[0].startswith("peak memory estimate: about ")
    assert "weights 745 MB, gradients 498 MB, Adam's moments 996 MB, activations " in lines[0]
    assert lines[1] == "disk: 4.98 GB (2 checkpoints of 1.49 GB, one being written, and the final weights)"
    assert lines[2] == "compute: 4.51e+19 FLOPs (0.86 GFLOPs per token, 52.4 billion tokens)"
    assert len(lines) == 3
    small = describe_estimate(expect("tiny", device_type="cpu", vocab_size=300))
    assert ", libraries 90 MB)" in small[0]
    assert " MFLOPs per token, " in small[2]
    assert "per process" in describe_estimate(expect("gpt2", processes=8))[0]


@pytest.mark.parametrize(
    ("device_type", "where", "way_out"),
    [
        ("cuda", "on the GPU needs .* 2 GB is", "micro_batch=..."),
        ("cpu", "training needs .* 2 GB is", "--preset"),
    ],
)
def test_clearly_insufficient_memory_is_refused(device_type: str, where: str, way_out: str) -> None:
    with pytest.raises(WebtextError, match=where) as caught:
        check_resources(expect("gpt2", device_type=device_type), 2 * GB, None)
    assert way_out in str(caught.value)
    assert "\n" not in str(caught.value)


def test_insufficient_disk_is_refused_with_advice() -> None:
    needed = expect("gpt2").disk_bytes
    check_resources(expect("gpt2"), None, needed)
    with pytest.raises(WebtextError, match=r"need 4\.98 GB, but .* 4\.9[78] GB free.* --keep-checkpoints than 2"):
        check_resources(expect("gpt2"), None, needed - 1)


def test_borderline_and_unknown_resources_are_accepted() -> None:
    needed = expect("gpt2")
    check_resources(needed, int(0.75 * needed.memory_bytes), needed.disk_bytes)
    check_resources(needed, None, None)


@pytest.mark.slow
@pytest.mark.parametrize(
    "sets",
    [
        ("layers=8", "width=256", "heads=4", "context=64", "batch_size=32", "micro_batch=32", "dropout=0"),
        ("layers=4", "width=256", "heads=4", "context=128", "batch_size=16", "micro_batch=16", "dropout=0.1"),
        ("layers=12", "width=512", "heads=8", "context=64", "batch_size=2", "micro_batch=1", "dropout=0"),
    ],
)
def test_memory_estimate_matches_a_real_run(tokens: str, tmp_path: Path, sets: tuple[str, ...]) -> None:
    if sys.platform == "win32":
        pytest.skip("Windows tells no peak of memory")
    sets = (*sets, "steps=2", "warmup_steps=1")
    arguments = [tokens, str(tmp_path / "out"), *sets]
    program = Path(__file__).with_name("peak_memory.py")
    done = subprocess.run([sys.executable, program, *arguments], capture_output=True, text=True, check=True)
    measured = json.loads(done.stdout.splitlines()[-1])["taken_bytes"]
    expected = estimate_of(recipe_of("tiny", *SMALL, *sets), 300).memory_bytes
    assert expected == pytest.approx(measured, rel=0.3)
