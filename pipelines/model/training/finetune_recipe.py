"""The recipe of a fine-tuning: `data/finetune.toml` with the values that `--set` replaces."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from pipelines.engine.config import identity_of, make_config, option, read_toml
from pipelines.errors import UsageError
from pipelines.model.training.recipe import Choice, parse_overrides
from pipelines.storage.resources import data_path


@dataclasses.dataclass(frozen=True)
class FineTuneRecipe:
    """All that determines the result of fine-tuning a given model on given examples."""

    seed: int = option(0, "Random seed for the new weights, data order and dropout.")
    examples: int = option(0, "Examples of the train set.")
    transfer: int | None = option(None, "Layers that are transferred, with the embeddings; -1 for nothing, None: all.")
    freeze: int = option(-1, "Layers that are not trained, with the embeddings; -1 to train all.")
    epochs: int = option(3, "Passes over the train set; the last incomplete batch of each is dropped.", minimum=1)
    batch_size: int = option(32, "Examples per step.", minimum=1)
    micro_batch: int = option(32, "Examples per forward pass.", minimum=1)
    learning_rate: float = option(6.25e-5, "Peak learning rate.", minimum=0.0)
    warmup: float = option(0.002, "Share of the steps with linear warm-up.", minimum=0.0, maximum=1.0)
    weight_decay: float = option(0.01, "Weight decay of matrices; biases and gains are not decayed.", minimum=0.0)
    beta1: float = option(0.9, "Adam's beta1.", minimum=0.0, maximum=0.999999)
    beta2: float = option(0.999, "Adam's beta2.", minimum=0.0, maximum=0.999999)
    grad_clip: float = option(1.0, "Maximum gradient norm; 0 disables clipping.", minimum=0.0)
    dropout: float = option(
        0.1, "Dropout probability of embeddings, attention, residuals and head.", minimum=0.0, maximum=0.99
    )
    lm_weight: float = option(0.5, "Weight of the language-modelling loss.", minimum=0.0)

    @property
    def eval_every(self) -> int:
        """Steps per epoch, after which the model is evaluated."""
        return self.examples // self.batch_size

    @property
    def steps(self) -> int:
        """Optimizer steps."""
        return self.epochs * self.eval_every

    branch_step = steps  # a fine-tuning is not extended

    @property
    def ends(self) -> tuple[int, ...]:
        """The last step."""
        return (self.steps,)

    def learning_rate_at(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0: linear warm-up times linear decay, 0 in the first step.

        As `warmup_linear` of openai/finetune-transformer-lm.
        """
        progress = step / self.steps
        return self.learning_rate * min(1.0, progress / self.warmup if self.warmup else 1.0) * (1 - progress)

    def to_json(self) -> dict[str, Any]:
        """Return the values, and the number of steps, as JSON values."""
        return {**identity_of(self), "steps": self.steps}


def make_finetune_recipe(overrides: Sequence[str], **values: int | None) -> FineTuneRecipe:
    """Return the recipe with `--set` overrides and other values; raise UsageError if the examples fill no batch."""
    known = {key: choice.value for key, choice in _read_values().items()}
    known |= {**values, **parse_overrides(overrides, FineTuneRecipe)}
    recipe: FineTuneRecipe = make_config(FineTuneRecipe, known, {}, lambda keys: f"--set {keys[0]}")
    if not recipe.steps:
        raise UsageError(
            f"the train set has {recipe.examples:,} examples, fewer than a batch of {recipe.batch_size}; "
            f"use --set batch_size={max(1, recipe.examples)}"
        )
    return recipe


def describe_values(overrides: Sequence[str], recipe: FineTuneRecipe) -> dict[str, dict[str, Any]]:
    """Return the values of a recipe with their origins, `set` for those that options override."""
    values = {name: dataclasses.asdict(choice) for name, choice in _read_values().items()}
    for name, value in parse_overrides(overrides, FineTuneRecipe).items():
        values[name] = {"value": value, "origin": "set", "note": f"the recipe has {values[name]['value']}"}
    for name in ("seed", "transfer", "freeze"):
        value, default = getattr(recipe, name), getattr(FineTuneRecipe, name)
        values[name] = {"value": value, "origin": "chosen" if value == default else "set", "note": f"--{name}"}
    return values


def _read_values() -> dict[str, Choice]:
    return read_toml(data_path("finetune.toml"), dict[str, Choice])
