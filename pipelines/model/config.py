"""The options of `webtext pretrain`."""

from __future__ import annotations

import dataclasses

from pipelines.core.config import option

PRESETS = ("tiny", "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")


@dataclasses.dataclass(frozen=True)
class PretrainConfig:
    """Which model is trained, and how.

    The preset and the overrides together make the recipe; `device`, `threads` and the checkpoints only change how it
    is carried out. (Floating-point sums differ in their last digits between devices and numbers of threads.)
    """

    preset: str = option("gpt2", "The model's size and its training recipe; --show-preset lists it.", choices=PRESETS)
    set: tuple[str, ...] = option((), "Replace one value of the preset, as key=value, such as steps=2000.")
    seed: int = option(0, "Decides the first weights, the order of the data and dropout.", minimum=0, maximum=2**32 - 1)
    device: str = option(
        "auto",
        "Where to train; auto takes a CUDA card if there is one.",
        choices=("auto", "cpu", "cuda"),
        identity=False,
    )
    threads: int = option(0, "CPU threads; 0 leaves the number to torch.", minimum=0, identity=False)
    checkpoint_every: int = option(250, "Steps from one checkpoint to the next.", minimum=1, identity=False)
    keep_checkpoints: int = option(2, "How many of the latest checkpoints are kept.", minimum=1, identity=False)
