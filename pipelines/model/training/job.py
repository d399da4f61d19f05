"""A training job: the recipe, its inputs, and how the computation is carried out."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from pipelines.model.device import DeviceConfig
from pipelines.model.io.import_weights import ImportedModel
from pipelines.model.network.gpt2 import GPT2, Architecture
from pipelines.model.training.finetune_recipe import FineTuneRecipe
from pipelines.model.training.objective import Objective
from pipelines.model.training.parallel import World
from pipelines.model.training.recipe import Recipe, TrainingOptions, parameter_count

# From here on weights, gradients and moments, 16 bytes per parameter, are too large to keep in full on each GPU.
_SHARDED_FROM_PARAMETERS = 1_000_000_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingJob:
    """What to train, from which initial weights, and how; `replay_command` returns the command for a step.

    Only `recipe`, `objective` and `initial` determine the result. `config.json` says what `description` has, `title` is
    that of the page, the loss is a mean per `unit`, `sample` returns a text that the model writes, and the result has
    the last weights, or those of the best checkpoint (`selects_best`).
    """

    recipe: Recipe | FineTuneRecipe
    options: TrainingOptions
    objective: Objective
    architecture: Architecture
    output: str
    device: DeviceConfig
    world: World
    note: Callable[[str], None]
    title: str
    unit: str = "token"
    selects_best: bool = False
    description: dict[str, Any]
    tokenizer: bytes
    replay_command: Callable[[int], str] | None = None
    sample: Callable[[GPT2], str] | None = None
    initial: ImportedModel | None = None

    @property
    def parameters(self) -> int:
        """The number of parameters."""
        return parameter_count(self.architecture, self.architecture.vocab_size)

    @property
    def is_compiled(self) -> bool:
        """Whether to try torch.compile: on a CPU it takes longer than a small model gains from it."""
        choice = self.options.compile
        return choice == "on" or (choice == "auto" and self.device.device.type == "cuda")

    @property
    def is_sharded(self) -> bool:
        """Whether to shard the weights over the processes (FSDP2) instead of replicating them (DDP)."""
        choice, is_large = self.options.parallel, self.parameters >= _SHARDED_FROM_PARAMETERS
        return self.world.size > 1 and (choice == "fsdp" or (choice == "auto" and is_large))


def architecture_of(recipe: Recipe, vocab_size: int) -> Architecture:
    """Return the architecture for a recipe and a vocabulary size."""
    names = ("layers", "width", "heads", "context", "dropout", "attention_window")
    return Architecture(vocab_size=vocab_size, **{name: getattr(recipe, name) for name in names})
