"""The options of `webtext pretrain`."""

from __future__ import annotations

import dataclasses

from pipelines.core.config import option
from pipelines.model.training.recipe import PRESETS


@dataclasses.dataclass(frozen=True)
class PretrainConfig:
    """Which model is trained, and how.

    The preset and the overrides together make the recipe; the others only change how it is carried out.
    (Floating-point sums differ in their last digits between devices, precisions, and numbers of threads and processes.)
    """

    preset: str = option("gpt2", "The model's size and its training recipe; --show-preset lists it.", choices=PRESETS)
    set: tuple[str, ...] = option((), "Replace one value of the preset, as key=value, such as steps=2000.")
    seed: int = option(0, "Decides the first weights, the order of the data and dropout.", minimum=0, maximum=2**32 - 1)
    device: str = option(
        "auto",
        "Where to train; auto takes a CUDA card if there is one.",
        choices=("auto", "cpu", "cuda", "mps"),
        identity=False,
    )
    precision: str = option(
        "auto",
        "Of matrix products; auto is bf16 on a CUDA card that has it, else float32.",
        choices=("auto", "bf16", "float32"),
        identity=False,
    )
    compile: str = option(
        "auto", "Use torch.compile; auto does on a CUDA card.", choices=("auto", "on", "off"), identity=False
    )
    parallel: str = option(
        "auto",
        "What processes of torchrun share: gradients (ddp), or weights too (fsdp); auto: fsdp from 1e9 parameters on.",
        choices=("auto", "ddp", "fsdp"),
        identity=False,
    )
    activation_checkpointing: bool = option(
        False, "Compute each layer twice instead of keeping what it needs: less memory, slower.", identity=False
    )
    threads: int = option(0, "CPU threads; 0 leaves the number to torch.", minimum=0, identity=False)
    checkpoint_every: int = option(250, "Steps from one checkpoint to the next.", minimum=1, identity=False)
    keep_checkpoints: int = option(2, "How many of the latest checkpoints are kept.", minimum=1, identity=False)
    log_every: int = option(
        10, "Steps from one line about the training to the next; 0 for none.", minimum=0, identity=False
    )
    tensorboard: bool = option(False, "Write the metrics for TensorBoard too.", identity=False)
