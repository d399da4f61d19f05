"""How training is computed: compilation, activation checkpointing, bfloat16, initial weights."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest
import safetensors.numpy
import torch
from small_training import SMALL, train_small
from tokenizers import Tokenizer
from training_run import StopsAtStep, contents, metrics

from pipelines.algorithms.kernels.compilation import cache_folder
from pipelines.engine.run import RunOptions
from pipelines.errors import ChangedRunError, InputError, UsageError
from pipelines.model.device import DeviceConfig, device_config, reproducible, select_device
from pipelines.model.training.engine import run_or_disable_compilation
from pipelines.model.training.job import TrainingJob
from pipelines.model.training.recipe import TrainingOptions
from pipelines.stages.pretrain.config import PretrainConfig
from pipelines.stages.pretrain.stage import pretrain


def test_activation_checkpointing_gives_the_same_bits(tokens: str, trained: Path, tmp_path: Path) -> None:
    train_small(tokens, tmp_path / "out", activation_checkpointing=True)
    assert contents(tmp_path / "out") == contents(trained)


def test_training_continues_without_a_working_compiler(
    tokens: str, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(module: torch.nn.Module) -> None:
        def called(*arguments: object) -> None:
            raise RuntimeError("no compiler\nis here")

        module._compiled_call_impl = called

    monkeypatch.setattr(torch.nn.Module, "compile", fails)
    progress = StopsAtStep()
    train_small(tokens, tmp_path / "out", compile="on", options=RunOptions(progress=progress))
    messages = [note for note in progress.notes if "torch.compile" in note]
    assert messages == ["torch.compile failed; training continues without it (RuntimeError: no compiler is here)"]
    assert contents(tmp_path / "out") == contents(trained)


def test_out_of_memory_is_not_a_compiler_failure() -> None:
    def runs_out() -> None:
        raise torch.OutOfMemoryError("none left")

    with pytest.raises(torch.OutOfMemoryError):
        run_or_disable_compilation([], runs_out, print)


def test_compiled_code_is_not_cached_among_temporary_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")  # so that it is restored
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    with reproducible(torch.device("cpu")):
        assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(cache_folder() / "torchinductor")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the compiler's own modules warn of each other
def test_a_compiled_model_has_the_same_losses(tokens: str, tmp_path: Path) -> None:
    train_small(tokens, tmp_path / "plain", "dropout=0")
    progress = StopsAtStep()
    train_small(tokens, tmp_path / "compiled", "dropout=0", compile="on", options=RunOptions(progress=progress))
    assert not [note for note in progress.notes if "failed" in note]
    for own, reference in zip(metrics(tmp_path / "plain"), metrics(tmp_path / "compiled"), strict=True):
        assert own == pytest.approx(reference, rel=1e-3)


def test_compilation_is_automatic_on_cuda_only() -> None:
    def is_compiled(choice: str, device: str) -> bool:
        values: dict[str, Any] = dict.fromkeys(field.name for field in dataclasses.fields(TrainingJob))
        config = DeviceConfig(torch.device(device), bf16=False)
        return TrainingJob(**{**values, "options": TrainingOptions(compile=choice), "device": config}).is_compiled

    assert [is_compiled(choice, "cpu") for choice in ("auto", "on", "off")] == [False, True, False]
    assert [is_compiled(choice, "cuda") for choice in ("auto", "on", "off")] == [True, True, False]


def test_bfloat16_changes_the_loss_only_slightly(tokens: str, trained: Path, tmp_path: Path) -> None:
    train_small(tokens, tmp_path / "out", precision="bf16")
    own, reference = metrics(trained), metrics(tmp_path / "out")
    assert own[-1]["loss"] == pytest.approx(reference[-1]["loss"], rel=0.02)
    assert own[-1]["loss"] != reference[-1]["loss"]
    with safetensors.safe_open(tmp_path / "out" / "model.safetensors", "np") as file:
        assert file.get_tensor("wte.weight").dtype == "float32"


def test_missing_devices_are_refused() -> None:
    if not torch.backends.mps.is_available():
        with pytest.raises(UsageError, match="--device mps: torch finds no Apple GPU"):
            select_device("mps")
    assert not device_config(torch.device("cpu"), "auto").bf16


def test_eval_blocks_0_measures_the_whole_held_out_split(tokens: str, tmp_path: Path) -> None:
    train_small(tokens, tmp_path / "out", "eval_blocks=0", "eval_every=2", "steps=3")
    measured = [row["held_out_tokens"] for row in metrics(tmp_path / "out") if "held_out_tokens" in row]
    assert len(measured) == 3
    assert len(set(measured)) == 1
    sampled = [row["held_out_tokens"] for row in metrics(tmp_path / "out") if row["step"] == 0]
    assert sampled[0] > 2 * 16  # more than the two blocks of a sample
    assert all("held_out_bits_per_byte" in row for row in metrics(tmp_path / "out") if "held_out_loss" in row)


def _continue_from(weights: Path, tokens: str, output: Path, *more: str) -> list[str]:
    progress = StopsAtStep()
    pretrain(
        PretrainConfig(preset="tiny", set=(*SMALL, *more), device="cpu", threads=1),
        tokens=tokens,
        output=str(output),
        options=RunOptions(progress=progress),
        init_from=str(weights),
    )
    return progress.notes


def test_training_starts_from_initial_weights(tokens: str, trained: Path, tmp_path: Path) -> None:
    _continue_from(trained, tokens, tmp_path / "out", "steps=3")
    first, last = metrics(tmp_path / "out")[0], metrics(trained)[-1]
    assert first["held_out_loss"] == pytest.approx(last["held_out_loss"], rel=0.02)  # the last one is of all blocks
    assert metrics(tmp_path / "out")[-1]["held_out_loss"] < last["held_out_loss"]


def test_different_initial_weights_are_a_different_run(tokens: str, trained: Path, tmp_path: Path) -> None:
    _continue_from(trained, tokens, tmp_path / "out", "steps=3")
    with pytest.raises(ChangedRunError, match="init_from"):
        train_small(tokens, tmp_path / "out", "steps=3")


def test_weights_that_do_not_fit_are_refused_before_anything_is_written(
    tokens: str, trained: Path, tmp_path: Path, tokenizer: Tokenizer
) -> None:
    with pytest.raises(InputError, match="the weights have layers 2, the recipe has layers 3"):
        _continue_from(trained, tokens, tmp_path / "out", "layers=3")
    assert not (tmp_path / "out").exists()
