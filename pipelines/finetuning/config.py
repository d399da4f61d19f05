"""The options of `webtext finetune`."""

from __future__ import annotations

import dataclasses
from typing import Any

from pipelines.engine.config import option, spec_of
from pipelines.model.training.recipe import TrainingOptions


def _as_in_pretraining(name: str) -> Any:
    [field] = [field for field in dataclasses.fields(TrainingOptions) if field.name == name]
    return dataclasses.field(default=field.default, metadata={"option": dataclasses.replace(spec_of(field), group="")})


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
    device: str = _as_in_pretraining("device")
    precision: str = _as_in_pretraining("precision")
    threads: int = _as_in_pretraining("threads")
    checkpoint_every: int = _as_in_pretraining("checkpoint_every")
    log_every: int = _as_in_pretraining("log_every")
