"""The options of `webtext compare`."""

from __future__ import annotations

import dataclasses
from typing import Any

from pipelines.engine.config import option
from pipelines.model.training.recipe import PRESETS
from pipelines.records.document_options import DocumentConfig


@dataclasses.dataclass(frozen=True)
class HeldOutConfig(DocumentConfig):
    """How the documents of a corpus are read, and which are held out: the same for all stages of a comparison."""

    held_out: float = option(
        0.0,
        "Fraction of documents of each corpus to hold out, chosen by a hash; 0: 5%, or less of large corpora.",
        minimum=0.0,
        maximum=0.5,
    )


@dataclasses.dataclass(frozen=True)
class CompareConfig(HeldOutConfig):
    """The protocol of a comparison: what is trained on each corpus, and what the models are compared by."""

    text: tuple[str, ...] = option(
        (), "Neutral text of your own by which the models are compared: documents that none of the corpora contains."
    )
    task: tuple[str, ...] = option(
        (), "Task by which the models are compared, as for `webtext evaluate`: of kind choice or last-word."
    )
    limit: int = option(
        1000,
        "Maximum number of examples per task, and of pieces, of about one context, per text and held-out split.",
        minimum=1,
    )
    preset: str | None = option(
        None,
        f"Model size and training recipe, one of {', '.join(PRESETS)}. By default gpt2 on a CUDA GPU and "
        "tiny elsewhere.",
        choices=PRESETS,
        group="Protocol",
    )
    tokens: int | None = option(
        None,
        "Training tokens per model, at most one epoch of the smallest corpus. By default those of the preset, or that "
        "epoch if it is shorter.",
        minimum=1,
        example=100_000_000,
    )
    seeds: int = option(
        3, "Models per corpus, each with other initial weights and another order of the data.", minimum=1, maximum=1000
    )
    tokenizer: str | None = option(
        None,
        "Tokenizer of all models: a folder of train-bpe or another known format. By default one is trained on equal "
        "parts of all corpora.",
        example="tokenizer",
    )
    vocab_size: int | None = option(
        None,
        "Vocabulary size of the tokenizer that is trained. By default 50,257, with the preset tiny 4,096.",
        minimum=258,
        maximum=2**31 - 1,
        example=32_000,
    )
    average_last: int = option(
        0,
        "Evaluate the average of the weights of this many last checkpoints, of at least 50; 0: the last weights.",
        minimum=0,
        maximum=50,
    )
    set: tuple[str, ...] = option((), "Override a value of the preset, such as learning_rate=0.001.")
    device: str = option(
        "auto",
        "Device to train and evaluate on; auto selects a CUDA GPU if there is one. Each GPU has one model at a time.",
        identity=False,
        choices=("auto", "cpu", "cuda", "mps"),
    )

    def shared(self) -> dict[str, Any]:
        """Return the options that all stages of a comparison have."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(HeldOutConfig)}
