"""The options of `webtext pretrain`."""

from __future__ import annotations

import dataclasses

from pipelines.engine.config import option
from pipelines.model.training.recipe import PRESETS


@dataclasses.dataclass(frozen=True)
class PretrainConfig:
    """Which model to train, and how.

    Preset, overrides and seed together are the recipe, which determines the result; the other options only change how
    it is computed. (Floating-point sums differ in the last digits between devices, precisions, and numbers of threads
    and processes.)
    """

    preset: str = option("gpt2", "Model size and training recipe; --show-preset prints it.", choices=PRESETS)
    set: tuple[str, ...] = option((), "Override a value of the preset, as key=value, for example steps=2000.")
    seed: int = option(0, "Random seed for initial weights, data order and dropout.", minimum=0, maximum=2**32 - 1)
    device: str = option(
        "auto",
        "Device to train on; auto selects a CUDA GPU if there is one.",
        choices=("auto", "cpu", "cuda", "mps"),
        identity=False,
    )
    precision: str = option(
        "auto",
        "Precision of matrix products; auto selects bf16 on a CUDA GPU that supports it, else float32.",
        choices=("auto", "bf16", "float32"),
        identity=False,
    )
    compile: str = option(
        "auto", "Use torch.compile; auto does so on a CUDA GPU.", choices=("auto", "on", "off"), identity=False
    )
    parallel: str = option(
        "auto",
        "How torchrun's processes share the model: ddp replicates it, fsdp shards it; auto selects fsdp from 1e9 "
        "parameters.",
        choices=("auto", "ddp", "fsdp"),
        identity=False,
    )
    activation_checkpointing: bool = option(
        False, "Recompute each layer in the backward pass: less memory, slower.", identity=False
    )
    threads: int = option(0, "CPU threads; 0 leaves the number to torch.", minimum=0, identity=False)
    checkpoint_every: int = option(250, "Steps between checkpoints.", minimum=1, identity=False)
    keep_checkpoints: int = option(2, "Number of latest checkpoints to keep.", minimum=1, identity=False)
    keep_best: bool = option(False, "Also keep the checkpoint with the lowest held-out loss.", identity=False)
    sample_every: int = option(
        0, "Steps between samples of text, written to samples.jsonl; 0 disables them.", minimum=0, identity=False
    )
    log_every: int = option(10, "Steps between progress lines; 0 disables them.", minimum=0, identity=False)
    tensorboard: bool = option(False, "Also write the metrics for TensorBoard.", identity=False)
