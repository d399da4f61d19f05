"""The options of `webtext finetune`."""

from __future__ import annotations

import dataclasses

from pipelines.engine.config import option


@dataclasses.dataclass(frozen=True)
class FineTuneConfig:
    """The recipe, and how it is computed and saved; only recipe, model, task and files determine the result."""

    set: tuple[str, ...] = option((), "Override a value of the recipe, such as epochs=1.")
    seed: int = option(0, "Random seed for the new weights, data order and dropout.", minimum=0, maximum=2**32 - 1)
    seeds: int = option(1, "Seeds to train with, from --seed on; the results are the median and all values.", minimum=1)
    transfer: int | None = option(
        None, "Transfer only the embeddings and the first N layers; the others are random. -1: nothing.", minimum=-1
    )
    from_scratch: bool = option(False, "Start from random weights, as --transfer -1.")
    freeze: int = option(
        -1, "Do not train the embeddings and the first N layers; of all layers, only the head is trained.", minimum=-1
    )
    device: str = option(
        "auto",
        "Device to train on; auto selects a CUDA GPU if there is one.",
        choices=("auto", "cpu", "cuda", "mps"),
    )
    precision: str = option(
        "auto",
        "Precision of matrix products; auto selects bf16 on a CUDA GPU that supports it, else float32.",
        choices=("auto", "bf16", "float32"),
    )
    threads: int = option(0, "CPU threads; 0 lets torch choose.", minimum=0)
    checkpoint_every: int = option(250, "Steps between checkpoints.", minimum=1)
    log_every: int = option(10, "Steps between progress lines; 0 disables them.", minimum=0)
