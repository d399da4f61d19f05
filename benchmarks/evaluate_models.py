"""The models of `bench_evaluate.py`, trained in a folder and kept there."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import evaluate_shapes as shapes

_REPOSITORY = Path(__file__).resolve().parents[1]
_PARITY = {"layers": 4, "width": 256, "heads": 4, "context": 1024, "steps": 60, "warmup_steps": 6}


def parity_model(data: Path, work: Path) -> Path:
    """Return a small model that was trained and exported, with a vocabulary of 8,192."""
    sizes = _PARITY | {"batch_size": 4, "micro_batch": 4, "eval_blocks": 4}
    return train(data, work, "parity", sizes, ["train-bpe", "--vocab-size=8192"], "tiny")


def random_model(data: Path, work: Path) -> Path:
    """Return the model for parity with weights so large that every prompt is continued in another way."""
    import torch
    from safetensors.torch import load_file, save_file

    trained, folder = parity_model(data, work), work / "random-model"
    folder.mkdir(exist_ok=True)
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(trained / name, folder)
    weights = load_file(trained / "model.safetensors")
    generator = torch.Generator().manual_seed(0)
    for name, weight in weights.items():
        if weight.ndim == 2:
            weights[name] = torch.randn(weight.shape, generator=generator) * (0.1 if ".h." in name else 0.05)
        else:
            weights[name] = torch.full_like(weight, float("ln_" in name and name.endswith("weight")))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def speed_model(data: Path, work: Path) -> Path:
    """Return an exported GPT-2 with nearly random weights."""
    sizes = {"steps": 1, "warmup_steps": 0, "batch_size": 1, "micro_batch": 1, "eval_blocks": 1}
    return train(data, work, "speed", sizes, [], "gpt2")


def train(data: Path, work: Path, name: str, sizes: dict[str, int], train_bpe: Sequence[str], preset: str) -> Path:
    """Train and export a model, unless it was before."""
    exported, folder = work / f"{name}-model", work / f"{name}-training"
    if (exported / "model.safetensors").exists():
        return exported
    folder.mkdir(exist_ok=True)
    sample = folder / "sample.jsonl"
    shapes.write_sample(data, sample)
    tokenizer = data / "gpt2_vocab"
    if train_bpe:
        tokenizer = folder / "tokenizer"
        run_command(*train_bpe, f"--input={sample}", f"--output={tokenizer}")
    # No held-out documents: all of them would be evaluated after the last step.
    run_command(
        "tokenize", f"--input={sample}", f"--output={folder}/tokens", f"--tokenizer={tokenizer}", "--held-out=0"
    )
    changes = [f"--set={key}={value}" for key, value in sizes.items()]
    training = [f"--input={folder}/tokens", f"--output={folder}/pretrain", "--device=cpu"]
    run_command("pretrain", *training, f"--preset={preset}", *changes)
    run_command("export", f"--model={folder}/pretrain", f"--output={exported}")
    return exported


def run_command(*arguments: str) -> None:
    """Run a command of webtext."""
    done = subprocess.run(
        [sys.executable, "-m", "webtext_cli", *arguments], cwd=_REPOSITORY, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(done.stderr)
