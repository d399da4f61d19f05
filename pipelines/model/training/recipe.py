"""The recipe of a training run: a preset of `data/presets/` with the values that `--set` replaces.

Each value of a preset says whether it is `stated` by the paper, `inherited` from GPT-1 (whose recipe GPT-2 continues)
or from the released code, or `chosen` here because neither specifies it. The defaults of `Recipe` are those of GPT-2.
"""

from __future__ import annotations

import dataclasses
import json
import math
import typing
from collections.abc import Mapping, Sequence
from dataclasses import MISSING
from typing import TYPE_CHECKING, Any

from pipelines.engine.config import check_known, identity_of, make_config, option, places, read_toml
from pipelines.errors import UsageError
from pipelines.model.training.mixture import Segment
from pipelines.storage.resources import data_names, data_path

if TYPE_CHECKING:
    from pipelines.model.network.gpt2 import Architecture  # imports torch

PRESETS = data_names("presets")
_NOT_SETTABLE = ("preset", "seed", "extended_from", "mixture", "examples", "transfer", "freeze")


@dataclasses.dataclass(frozen=True)
class Recipe:
    """All that determines the result of training on given tokens; presets give every value except the seed."""

    preset: str = option(MISSING, "Preset of the recipe.")
    seed: int = option(MISSING, "Random seed for initial weights, data order and dropout.")
    layers: int = option(MISSING, "Transformer layers.", minimum=1)
    width: int = option(MISSING, "Dimension of the residual stream.", minimum=1)
    heads: int = option(MISSING, "Attention heads per layer.", minimum=1)
    context: int = option(MISSING, "Context length in tokens.", minimum=1)
    dropout: float = option(
        MISSING, "Dropout probability of embeddings, attention and residuals.", minimum=0.0, maximum=0.99
    )
    batch_size: int = option(MISSING, "Sequences per step.", minimum=1)
    micro_batch: int = option(MISSING, "Sequences per forward pass.", minimum=1)
    steps: int = option(MISSING, "Optimizer steps.", minimum=1)
    learning_rate: float = option(MISSING, "Peak learning rate, in the last step of the warm-up.", minimum=0.0)
    final_learning_rate: float = option(MISSING, "Learning rate after the decay.", minimum=0.0)
    warmup_steps: int = option(MISSING, "Steps of linear warm-up.", minimum=0)
    weight_decay: float = option(MISSING, "Weight decay of matrices; biases and gains are not decayed.", minimum=0.0)
    beta1: float = option(MISSING, "Adam's beta1.", minimum=0.0, maximum=0.999999)
    beta2: float = option(MISSING, "Adam's beta2.", minimum=0.0, maximum=0.999999)
    grad_clip: float = option(MISSING, "Maximum gradient norm; 0 disables clipping.", minimum=0.0)
    eval_every: int = option(MISSING, "Steps between held-out evaluations.", minimum=1)
    eval_blocks: int = option(
        MISSING, "Held-out blocks per evaluation; 0 for all. The last evaluation uses all.", minimum=0
    )
    schedule: str = option("cosine", "Learning-rate schedule after the warm-up.", choices=("cosine", "wsd"))
    decay_steps: int = option(
        0, "Steps of decay: with wsd the last, with cosine those after the warm-up, 0 for all.", minimum=0
    )
    attention: str = option("full", "Attention; alternating has a window.", choices=("full", "alternating"))
    attention_window: int = option(0, "Latest tokens that every second layer attends to.", minimum=0)
    # Not values of `--set`: they follow from what is in the output folder, see stages/pretrain/extension.py, and --mix.
    extended_from: tuple[int, ...] = option((), "Steps at which training was complete before it was extended.")
    mixture: tuple[Segment, ...] = option((), "Shares of the sources, and the step from which each applies.")

    @property
    def batch_tokens(self) -> int:
        """Tokens per step."""
        return self.batch_size * self.context

    @property
    def ends(self) -> tuple[int, ...]:
        """The steps at which a schedule ends: the last, and those from which the training was extended."""
        return (*self.extended_from, self.steps)

    @property
    def branch_step(self) -> int:
        """The step from whose checkpoint training is extended: the last, or with wsd the one before the decay."""
        return self.steps - self.decay_steps if self.schedule == "wsd" else self.steps

    @property
    def lengths(self) -> tuple[str, ...]:
        """The values that an extension may change."""
        return ("steps", "decay_steps") if self.schedule == "wsd" else ("steps",)

    def branch_of(self, trained: Mapping[str, Any]) -> int | None:
        """Return the step from which this recipe extends one of other length, `trained`; None if it cannot."""
        before = dataclasses.replace(self, **{name: trained[name] for name in self.lengths})
        return before.branch_step if before != self and before.branch_step <= self.branch_step else None

    def learning_rate_at(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0."""
        return learning_rate(step, self)

    def check_step(self, step: int) -> None:
        """Raise UsageError for a step that training does not have."""
        if not 1 <= step <= self.steps:
            raise UsageError(f"step {step:,}: the recipe has steps 1 to {self.steps:,}")

    def to_json(self) -> dict[str, Any]:
        """Return the values as JSON values, without `extended_from` and `mixture` if they are empty."""
        return {name: value for name, value in identity_of(self).items() if value != []}


@dataclasses.dataclass(frozen=True)
class TrainingOptions:
    """How training is computed, saved and logged; only the recipe is part of the result's identity."""

    device: str = option(
        "auto",
        "Device to train on; auto selects a CUDA GPU if there is one.",
        choices=("auto", "cpu", "cuda", "mps"),
        group="Computation",
    )
    precision: str = option(
        "auto",
        "Precision of matrix products; auto selects bf16 on a CUDA GPU that supports it, else float32.",
        choices=("auto", "bf16", "float32"),
    )
    compile: str = option("auto", "Use torch.compile; auto uses it on CUDA GPUs.", choices=("auto", "on", "off"))
    parallel: str = option(
        "auto",
        "How torchrun's processes share the model: ddp replicates it, fsdp shards it; auto selects fsdp from 1e9 "
        "parameters.",
        choices=("auto", "ddp", "fsdp"),
    )
    activation_checkpointing: bool = option(
        False, "Activation checkpointing: recompute layers in the backward pass to save memory; slower."
    )
    threads: int = option(0, "CPU threads; 0 lets torch choose.", minimum=0)
    checkpoint_every: int = option(250, "Steps between checkpoints.", minimum=1, group="Checkpoints and logs")
    keep_checkpoints: int = option(2, "Number of latest checkpoints to keep.", minimum=1)
    keep_best: bool = option(False, "Also keep the checkpoint with the lowest held-out loss.")
    sample_every: int = option(
        0, "Steps between samples of text, written to samples.jsonl; 0 disables them.", minimum=0
    )
    log_every: int = option(10, "Steps between progress lines; 0 disables them.", minimum=0)
    tensorboard: bool = option(False, "Also write the metrics for TensorBoard.")


@dataclasses.dataclass(frozen=True)
class Choice:
    """A value of a preset or a protocol: `stated` by the paper, `inherited`, `inferred` or `chosen`, and why."""

    value: Any
    origin: str
    note: str


def read_preset(name: str) -> dict[str, Choice]:
    """Return the values of a preset, in the order of its file; `preset` in a file names the one that it varies."""
    values = read_toml(data_path(f"presets/{name}.toml"), dict[str, Choice])
    if base := values.pop("preset", None):
        check_known(str(base.value), PRESETS, "preset", places(data_path(f"presets/{name}.toml"))(["preset"]))
        values = read_toml(data_path(f"presets/{base.value}.toml"), dict[str, Choice]) | values
    unset = [field for field in dataclasses.fields(Recipe) if field.name not in (*values, *_NOT_SETTABLE)]
    note = "as in GPT-1 and GPT-2's released code"
    return values | {field.name: Choice(field.default, "inherited", note) for field in unset}


def parse_overrides(overrides: Sequence[str], recipe_type: type[Any] = Recipe) -> dict[str, Any]:
    """Parse `--set key=value` arguments for a type of recipe; the last value of a key counts.

    Raises UsageError for an unknown key (suggesting the nearest known one) and for a value that should be a number.
    """
    kinds = typing.get_type_hints(recipe_type)
    keys = [field.name for field in dataclasses.fields(recipe_type) if field.name not in _NOT_SETTABLE]
    values = {}
    for override in overrides:
        key, equals, value = override.partition("=")
        if not equals:
            raise UsageError(f"--set {override}: expected key=value; the keys are {', '.join(keys)}")
        name = key.strip().replace("-", "_")
        check_known(name, keys, "key", f"--set {override}")
        try:
            values[name] = value.strip() if kinds[name] is str else json.loads(value)
        except ValueError:
            raise UsageError(f"--set {override}: {value!r} is not a number") from None
    return values


def make_recipe(preset: str, overrides: Sequence[str] = (), seed: int = 0) -> Recipe:
    """Return the recipe of a preset with `--set` overrides; raise UsageError for values that contradict each other."""
    values: dict[str, Any] = {key: entry.value for key, entry in read_preset(preset).items()}
    changed = parse_overrides(overrides)
    where = places(data_path(f"presets/{preset}.toml"))
    if changed.get("schedule", values["schedule"]) != values["schedule"]:
        values["decay_steps"] = 0  # with another schedule, it means something else
    values |= {"preset": preset, "seed": seed, **changed}
    recipe = make_config(Recipe, values, {}, lambda keys: "--set" if keys[0] in changed else where(keys))
    if recipe.width % recipe.heads:
        raise UsageError(
            f"--set width={recipe.width} is not divisible by {recipe.heads} heads; "
            "choose a multiple, or a matching --set heads=..."
        )
    if recipe.warmup_steps >= recipe.steps:
        raise UsageError(
            f"--set steps={recipe.steps} ends within the {recipe.warmup_steps} warm-up steps; "
            f"add --set warmup_steps={recipe.steps // 10}"
        )
    least, most = int(recipe.schedule == "wsd"), recipe.steps - max(1, recipe.warmup_steps)
    if not least <= recipe.decay_steps <= most:
        raise UsageError(
            f"--set decay_steps={recipe.decay_steps} does not fit {recipe.schedule} with {recipe.steps} steps: "
            f"expected {least} to {most}; add --set decay_steps={least * min(most, -(-recipe.steps // 5))}"
        )
    if (recipe.attention == "full") != (recipe.attention_window == 0):
        raise UsageError(
            f"--set attention={recipe.attention} contradicts a window of {recipe.attention_window}; "
            f"add --set attention_window={min(256, recipe.context // 2) if recipe.attention == 'alternating' else 0}"
        )
    return recipe


def parameter_count(recipe: Recipe | Architecture, vocab_size: int) -> int:
    """Return the number of parameters: embeddings, layers, final norm; the output shares the token embedding."""
    layer = 12 * recipe.width**2 + 13 * recipe.width
    return (vocab_size + recipe.context + 2) * recipe.width + recipe.layers * layer


def learning_rate(step: int, recipe: Recipe) -> float:
    """Return the learning rate of a step, counted from 0: linear warm-up to the peak, then the decay.

    The last step of the warm-up (without one, the first step) has the peak rate, the last of the decay the final rate.
    `cosine` decays from the warm-up on, `wsd` (warm-up, stable, decay) in the last steps only, by 1 - sqrt, which was
    better than linear in Haegele et al. 2024, section 4. In an extended training with `cosine` each step has the rate
    of the schedule under which it was trained.
    """
    peak = max(1, recipe.warmup_steps)
    if (step := min(step, recipe.steps - 1)) < peak:
        return recipe.learning_rate * ((step + 1) / peak)
    if recipe.schedule == "wsd":
        if step < recipe.branch_step:
            return recipe.learning_rate
        height = 1 - math.sqrt((step + 1 - recipe.branch_step) / recipe.decay_steps)
    else:
        end = next(end for end in recipe.ends if step < end)
        progress = min(1.0, (step + 1 - peak) / (recipe.decay_steps or end - peak))
        height = 0.5 * (1 + math.cos(math.pi * progress))
    return recipe.final_learning_rate + height * (recipe.learning_rate - recipe.final_learning_rate)
