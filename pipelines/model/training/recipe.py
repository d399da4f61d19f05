"""The recipe of a training run: a preset of `data/presets/`, and the values that `--set` replaces.

Each value of a preset says whether it is `stated` by the paper, `inherited` from GPT-1 (whose recipe GPT-2 continues)
or from the released code, or `chosen` here because neither says anything.
"""

from __future__ import annotations

import dataclasses
import json
import tomllib
from collections.abc import Sequence
from dataclasses import MISSING
from typing import Any

from pipelines.core import storage
from pipelines.core.config import check_known, make_config, option
from pipelines.core.errors import UsageError
from pipelines.core.resources import data_names, data_path

PRESETS = data_names("presets")
ORIGINS = ("stated", "inherited", "chosen")


@dataclasses.dataclass(frozen=True)
class Recipe:
    """All that decides what is trained on given tokens; each preset gives every value but the seed."""

    preset: str = option(MISSING, "The preset that the values are from.")
    seed: int = option(MISSING, "Decides the first weights, the order of the data and dropout.")
    layers: int = option(MISSING, "Blocks of attention and feed-forward layer.", minimum=1)
    width: int = option(MISSING, "Dimensions of the residual stream.", minimum=1)
    heads: int = option(MISSING, "Attention heads of a layer.", minimum=1)
    context: int = option(MISSING, "Tokens of a block: the longest distance the model sees.", minimum=1)
    dropout: float = option(MISSING, "Dropout of embeddings, attention and residuals.", minimum=0.0, maximum=0.99)
    batch_size: int = option(MISSING, "Blocks of a step.", minimum=1)
    micro_batch: int = option(MISSING, "Blocks that go through the model at once.", minimum=1)
    steps: int = option(MISSING, "Updates of the weights.", minimum=1)
    learning_rate: float = option(MISSING, "The highest learning rate, at the end of the warm-up.", minimum=0.0)
    final_learning_rate: float = option(MISSING, "Where the cosine ends.", minimum=0.0)
    warmup_steps: int = option(MISSING, "Steps in which the learning rate rises from 0.", minimum=0)
    weight_decay: float = option(MISSING, "Decay of the matrices; biases and gains have none.", minimum=0.0)
    beta1: float = option(MISSING, "Adam's decay of the mean gradient.", minimum=0.0, maximum=0.999999)
    beta2: float = option(MISSING, "Adam's decay of the mean squared gradient.", minimum=0.0, maximum=0.999999)
    grad_clip: float = option(MISSING, "The norm at which gradients are clipped; 0 for none.", minimum=0.0)
    eval_every: int = option(MISSING, "Steps from one held-out loss to the next.", minimum=1)
    eval_blocks: int = option(
        MISSING, "Held-out blocks of such an evaluation, 0 for all; the last one takes all.", minimum=0
    )

    @property
    def batch_tokens(self) -> int:
        """Tokens of a step."""
        return self.batch_size * self.context


@dataclasses.dataclass(frozen=True)
class PresetValue:
    """One value of a preset, and where it is from."""

    value: float
    origin: str
    note: str


def read_preset(name: str) -> dict[str, PresetValue]:
    """Return the values of a preset, in the order of its file."""
    table = tomllib.loads(storage.read_bytes(data_path(f"presets/{name}.toml")).decode())
    return {key: PresetValue(**entry) for key, entry in table.items()}


def parse_overrides(given: Sequence[str]) -> dict[str, Any]:
    """Return what `--set key=value` replaces; of two values for one key the later counts.

    Raises UsageError for an unknown key (naming the nearest known one) and for a value that is no number.
    """
    keys = [field.name for field in dataclasses.fields(Recipe) if field.name not in ("preset", "seed")]
    found = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"--set {text}: write it as key=value; the keys are {', '.join(keys)}")
        name = key.strip().replace("-", "_")
        check_known(name, keys, "key", f"--set {text}")
        try:
            found[name] = json.loads(value, parse_constant=_refuse_constant)
        except ValueError:
            raise UsageError(f"--set {text}: {value!r} is not a number") from None
    return found


def _refuse_constant(name: str) -> None:
    raise ValueError(name)  # NaN and Infinity, which no range check would stop


def make_recipe(preset: str, overrides: Sequence[str] = (), seed: int = 0) -> Recipe:
    """Return the recipe of a preset with `--set` overrides; raise UsageError for values that contradict each other."""
    values: dict[str, Any] = {key: entry.value for key, entry in read_preset(preset).items()}
    values |= {"preset": preset, "seed": seed, **parse_overrides(overrides)}
    recipe = make_config(Recipe, values, {}, "--set")
    if recipe.width % recipe.heads:
        raise UsageError(
            f"--set width={recipe.width} cannot be split into {recipe.heads} heads; "
            "choose a multiple, or --set heads=... to match"
        )
    if recipe.warmup_steps >= recipe.steps:
        raise UsageError(
            f"--set steps={recipe.steps} ends within the warm-up of {recipe.warmup_steps} steps; "
            f"add --set warmup_steps={recipe.steps // 10}"
        )
    return recipe


def parameter_count(recipe: Recipe, vocab_size: int) -> int:
    """Return the number of weights: embeddings, blocks, final norm; the output shares the token embedding."""
    block = 12 * recipe.width**2 + 13 * recipe.width
    return (vocab_size + recipe.context + 2) * recipe.width + recipe.layers * block
