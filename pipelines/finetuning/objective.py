"""The objective of fine-tuning, L3 = L2 + lm_weight * L1. Radford et al. 2018, section 3.2."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from pipelines import progress
from pipelines.evaluation.metrics import Floats, Metric, metric_value
from pipelines.finetuning.examples import Example, TransformOptions
from pipelines.model.device import DeviceConfig
from pipelines.model.network.classifier import Classifier, FineTuningLoss, label_loss, layer_number
from pipelines.model.network.gpt2 import GPT2, Architecture
from pipelines.model.training.checkpoint import Row
from pipelines.model.training.finetune_recipe import FineTuneRecipe
from pipelines.model.training.objective import FORWARD_SHARE, LossOf
from pipelines.model.training.order import BlockOrder

_METRICS = {
    "accuracy": Metric("accuracy", "share", "right"),
    **{name: Metric(name, name, "label", "predicted") for name in ("matthews", "f1", "pearson", "spearman")},
}


@dataclasses.dataclass(frozen=True)
class FineTuning:
    """See `Objective`; every example has the same weight."""

    recipe: FineTuneRecipe
    options: TransformOptions
    train: Sequence[Example]
    validation: Sequence[Example]
    architecture: Architecture
    device: DeviceConfig

    @functools.cached_property
    def _order(self) -> BlockOrder:
        return BlockOrder(len(self.train), self.recipe.seed)

    @property
    def metrics(self) -> list[Metric]:
        """The metrics of the task; the first one selects the weights."""
        return [_METRICS[name] for name in self.options.metrics]

    def parts_of(self, examples: Sequence[Example]) -> dict[str, list[int]]:
        """Return the examples of every part, in the order of the options; without parts all, under ""."""
        parts: dict[str, list[int]] = {name: [] for name in (*self.options.parts, "")}
        for number, example in enumerate(examples):
            words = [word for word in self.options.parts if word in example.place]
            parts[max(words, key=len, default="")].append(number)  # matched is part of mismatched
        return {name: numbers for name, numbers in parts.items() if numbers}

    def empty_model(self) -> GPT2:
        """See `Objective`."""
        with torch.device("meta"):
            model = Classifier(self.architecture, self.options.outputs, self.options.transform == "choice")
        for name, weight in model.named_parameters():
            weight.requires_grad_(layer_number(name, self.architecture.layers) > self.recipe.freeze)
        return model.to_empty(device="cpu")

    def loss(self, model: GPT2) -> nn.Module:
        """See `Objective`."""
        assert isinstance(model, Classifier)
        return FineTuningLoss(model, self.recipe.lm_weight)

    def batch(self, step: int) -> list[Example]:
        """Return the examples of a step: each epoch is a permutation, without its last incomplete batch."""
        epoch, place = divmod(step, self.recipe.eval_every)
        start = epoch * len(self.train) + place * self.recipe.batch_size
        return [self.train[number] for number in self._order.numbers(start, start + self.recipe.batch_size)]

    def weight(self, step: int) -> int:
        """Return the number of examples of a step."""
        return self.recipe.batch_size

    def tokens(self, step: int) -> int:
        """Return the number of tokens of a step, without padding."""
        return _tokens(self.batch(step))

    def forward_shape(self) -> tuple[int, int]:
        """See `Objective`; as if the longest examples were in one forward pass."""
        tokens = sorted((_tokens([example]) for example in self.train), reverse=True)
        longest = max(len(text) for example in self.train for text in example.sequences)
        return sum(tokens[: self.recipe.micro_batch]), longest

    def read(self, examples: Sequence[Example]) -> list[npt.NDArray[Any]]:
        """Return the arguments of `FineTuningLoss`: tokens, text after text, their numbers by text, and golds."""
        tokens = np.concatenate([text for example in examples for text in example.sequences], dtype=np.int64)
        lengths = np.array([list(map(len, example.sequences)) for example in examples], np.int64)
        golds = np.array([example.gold for example in examples])
        return [tokens, lengths, golds.astype(np.float32 if self.options.is_regression else np.int64)]

    def held_out_tokens(self, *, whole: bool) -> int:
        """Return the number of tokens of the validation set."""
        return _tokens(self.validation)

    def evaluate(self, model: GPT2, loss_of: LossOf, step: int, *, whole: bool) -> Row:
        """Return L2 in nats per example, and the first metric, of the first part, as `held_out_score`."""
        outputs = self.predict(model, self.validation)
        first = next(iter(self.parts_of(self.validation).values()))
        golds = torch.tensor([example.gold for example in self.validation])
        loss = label_loss(torch.from_numpy(outputs), golds if self.options.is_regression else golds.long())
        score = metric_value(self.metrics[0], self.columns(outputs, first))
        return {
            "held_out_loss": loss.item() / len(self.validation),
            "held_out_tokens": self.held_out_tokens(whole=whole),
            "held_out_score": score,
        }

    @torch.no_grad()
    def predict(self, model: GPT2, examples: Sequence[Example]) -> npt.NDArray[np.float32]:
        """Return the outputs of examples, [examples, labels or candidates]; dropout has to be off."""
        assert isinstance(model, Classifier)
        results, size = [], self.recipe.micro_batch
        for batch in (examples[start : start + size] for start in range(0, len(examples), size)):
            tokens, lengths = map(self.device.to_device, self.read(batch)[:2])
            with self.device.autocast():
                outputs = model.classify(model.states(tokens, lengths), lengths)
            results.append(outputs.float().cpu().numpy())
            progress.advance(_tokens(batch) // FORWARD_SHARE)
        return np.concatenate(results)

    def columns(self, outputs: npt.NDArray[np.float32], numbers: Sequence[int]) -> dict[str, Floats]:
        """Return what metrics of some validation examples are computed from: labels, predictions, and which are right.

        `outputs` are those of the whole validation set.
        """
        labels = np.array([self.validation[number].gold for number in numbers], np.float64)
        own = outputs[list(numbers)]
        predicted = (own[:, 0] if self.options.is_regression else own.argmax(1)).astype(np.float64)
        return {"label": labels, "predicted": predicted, "right": (labels == predicted).astype(np.float64)}

    def describe_evaluation(self, row: Row) -> str:
        """See `Objective`."""
        score = f"{self.metrics[0].name} {row['held_out_score']:.4f}"
        return f"validation {score}, loss {row['held_out_loss']:.4f} ({len(self.validation):,} examples)"

    def describe_batch(self, step: int) -> list[dict[str, Any]]:
        """Return the places and labels of the examples of a step."""
        return [{"place": example.place, "label": example.gold} for example in self.batch(step)]


def _tokens(examples: Sequence[Example]) -> int:
    return sum(len(text) for example in examples for text in example.sequences)
