"""The options of `webtext pretrain`."""

from __future__ import annotations

import dataclasses

from pipelines.engine.config import option
from pipelines.model.training.recipe import PRESETS, TrainingOptions


@dataclasses.dataclass(frozen=True)
class RecipeOptions:
    """Which recipe to train; it determines the result."""

    preset: str | None = option(
        None,
        f"Model size and training recipe, one of {', '.join(PRESETS)}; --show-preset prints it. By default that of the "
        "training in --output, or gpt2 on a CUDA GPU and tiny elsewhere.",
        choices=PRESETS,
    )
    set: tuple[str, ...] = option((), "Override a value of the preset, such as steps=2000.")
    max_epochs: float = option(
        4.0,
        "Refuse to read a source of --mix more often; up to 4 epochs cost next to nothing (Muennighoff et al. 2023).",
        minimum=0.0,
    )
    seed: int = option(0, "Random seed for initial weights, data order and dropout.", minimum=0, maximum=2**32 - 1)


# The options that a training job needs are declared with it. Fields of the last base come first: the recipe's.
@dataclasses.dataclass(frozen=True)
class PretrainConfig(TrainingOptions, RecipeOptions):
    """Which model to train, and how.

    Preset, overrides and seed together are the recipe, which determines the result; the other options only change how
    it is computed. (Floating-point sums differ in the last digits between devices, precisions, and numbers of threads
    and processes.)
    """
