"""Samples text from a model with top-k, top-p and temperature, as GPT-2's own samples were drawn (top-k 40)."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pipelines import progress
from pipelines.errors import InputError, UsageError
from pipelines.model.device import derived_seed, device_config, reproducible, select_device, translate_memory_errors
from pipelines.model.inference.decoding import Decoder, batch_rows
from pipelines.model.inference.options import SamplingOptions
from pipelines.model.io.model_folder import TrainedModel, open_model
from pipelines.model.network.gpt2 import GPT2

Floats = npt.NDArray[np.floating[Any]]
Ids = npt.NDArray[np.intp]

_MEMORY_ADVICE = "use --device cpu, or a machine with more memory"


@dataclasses.dataclass(frozen=True)
class Sample:
    """A text that continues a prompt; `ended` says whether the model ended it with `<|endoftext|>`."""

    prompt: str
    number: int
    text: str
    tokens: int
    ended: bool

    def to_json(self) -> dict[str, Any]:
        """Return the sample as JSON values."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True)
class Batch:
    """Samples of one prompt that are decoded together: `samples` of them, numbered from `first`."""

    prompt: int
    first: int
    samples: int


class Sampler:
    """A model on its device, and the prompts that it continues; `best` as for `open_model`.

    Raises InputError if the folder has no model, UsageError for a prompt that is not valid UTF-8, longer than the
    context, or given twice.
    """

    def __init__(
        self,
        folder: str,
        prompts: Sequence[str],
        options: SamplingOptions,
        device: str = "auto",
        *,
        best: bool = False,
    ) -> None:
        self.device = select_device(device)
        self.trained = open_model(folder, best=best)
        self.prompts = list(prompts)
        if repeated := [prompt for prompt, count in Counter(prompts).items() if count > 1]:
            raise UsageError(f"prompt {repeated[0][:30]!r} is given twice; use --samples for several samples")
        self.options = options
        self._tokenizer = self.trained.tokenizer()
        self._prompt_ids = [_encode(self._tokenizer, prompt, self.trained) for prompt in self.prompts]
        with translate_memory_errors(_MEMORY_ADVICE):
            self._model = self.trained.model.to(self.device)

    def batches(self, samples: int) -> list[Batch]:
        """Return the batches for `samples` samples per prompt.

        A sample's row in its batch follows from its number alone, and a batch has one prompt.
        """
        rows = batch_rows(self.device)
        return [
            Batch(prompt, first, min(rows, samples - first))
            for prompt in range(len(self.prompts))
            for first in range(0, samples, rows)
        ]

    def draw(self, batch: Batch) -> list[Sample]:
        """Draw the samples of a batch."""
        prompt, end = self.prompts[batch.prompt], self.trained.end_of_text
        numbers = range(batch.first, batch.first + batch.samples)
        seeds = [derived_seed(self.options.seed, number, prompt) for number in numbers]
        prompt_ids = self._prompt_ids[batch.prompt] or [end]
        with reproducible(self.device), translate_memory_errors(_MEMORY_ADVICE):
            texts = sample_tokens(self._model, prompt_ids, self.options, seeds, end_of_text=end)
        return [self._sample(prompt, number, tokens) for number, tokens in zip(numbers, texts, strict=True)]

    def _sample(self, prompt: str, number: int, tokens: list[int]) -> Sample:
        ended = tokens[-1:] == [self.trained.end_of_text]
        text = self._tokenizer.decode(tokens[:-1] if ended else tokens, skip_special_tokens=False)
        return Sample(prompt=prompt, number=number, text=text, tokens=len(tokens), ended=ended)


def generate(
    folder: str, prompts: Sequence[str], samples: int, options: SamplingOptions, device: str = "auto"
) -> Iterator[Sample]:
    """Yield `samples` samples per prompt; an empty prompt starts a new document.

    Each sample's random numbers follow from seed, prompt and number, so it does not depend on what else is sampled.
    Raises as `Sampler` does.
    """
    sampler = Sampler(folder, prompts, options, device)
    for batch in sampler.batches(samples):
        yield from sampler.draw(batch)


@torch.no_grad()
def sample_tokens(
    model: GPT2,
    prompt: Sequence[int],
    options: SamplingOptions,
    seeds: Sequence[int],
    *,
    end_of_text: int,
    advance: Callable[[int], None] = progress.advance,
) -> list[list[int]]:
    """Return the tokens that follow a prompt, one text per seed, at most `batch_rows` of the device.

    A text has at most `max_tokens` tokens; `end_of_text` ends it. Beyond the context the model sees only the latest
    tokens, see `window_start`. `advance` is called with the number of new tokens. Raises
    InputError if the logits are not finite.
    """
    generators = [random.Random(seed) for seed in seeds]  # the same numbers on every platform
    texts: list[list[int]] = [[] for _ in seeds]
    new: dict[int, int] = {}
    with device_config(model.wte.weight.device).autocast():
        decoder = Decoder(model, prompt, len(seeds))
        for _ in range(options.max_tokens):
            active = [index for index, text in enumerate(texts) if text[-1:] != [end_of_text]]
            if not active:
                break
            logits = decoder.logits_after(new)[active].cpu()
            tokens = _draw(logits, options, [generators[index].random() for index in active])
            new = dict(zip(active, tokens, strict=True))
            for index, token in new.items():
                texts[index].append(token)
            advance(len(new))
    return texts


def next_tokens(logits: Floats, options: SamplingOptions) -> tuple[Ids, Floats]:
    """Return the tokens that remain after temperature, top-k and top-p, in this order, and their probabilities.

    `logits` is [vocabulary]. Of equal logits the lower id comes first. Top-p keeps the most likely tokens up to and
    including the one with which their sum reaches p.
    """
    tokens = _top_k(logits, options.top_k)
    values = logits[tokens].astype(np.float64)
    # Subtract the maximum before dividing: a logit over a tiny temperature is infinite.
    with np.errstate(over="ignore"):
        weights = np.exp((values - values.max()) / options.temperature)
    if options.top_p < 1:
        kept = _nucleus(values, weights / weights.sum(), options.top_p)
        tokens, weights = tokens[kept], weights[kept]
    return tokens, weights / weights.sum()


def _top_k(logits: Floats, k: int) -> Ids:
    """Return the ids of the k largest logits in descending order; for 0 all ids in their order."""
    if not 0 < k < len(logits):
        return np.arange(len(logits))
    ids = np.flatnonzero(logits >= np.partition(logits, -k)[-k])  # more than k if several are equal
    return ids[np.argsort(-logits[ids], kind="stable")][:k]


def _nucleus(values: Floats, probabilities: Floats, top_p: float) -> Ids:
    # Probabilities this small add up to less than top-p drops; leaving them out makes the sort much faster.
    ids = np.flatnonzero(probabilities >= (1 - top_p) / (2 * len(probabilities)))
    ids = ids[np.argsort(-values[ids], kind="stable")]
    preceding = np.cumsum(probabilities[ids]) - probabilities[ids]
    return ids[preceding < top_p]


def _draw(logits: Tensor, options: SamplingOptions, numbers: Sequence[float]) -> list[int]:
    """Return a token for each row of logits by a random number in [0, 1), by inverting the cumulative distribution."""
    if not torch.isfinite(logits).all():
        raise InputError("the model's logits are not finite: training diverged, see metrics.jsonl")
    if options.temperature == 0:
        return [int(token) for token in logits.argmax(1)]
    drawn = []
    for row, number in zip(logits.numpy(), numbers, strict=True):
        tokens, probabilities = next_tokens(row, options)
        cumulative = np.cumsum(probabilities)
        index = int(np.searchsorted(cumulative, number * cumulative[-1], side="right"))
        drawn.append(int(tokens[min(index, len(tokens) - 1)]))
    return drawn


def _encode(tokenizer: Any, prompt: str, trained: TrainedModel) -> list[int]:
    try:
        prompt.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"prompt {prompt[:30]!r}...: not valid UTF-8") from error
    ids: list[int] = tokenizer.encode(prompt, add_special_tokens=False).ids
    context = trained.model.architecture.context
    if len(ids) > context:
        raise UsageError(f"prompt {prompt[:30]!r}...: {len(ids)} tokens exceed the context of {context}; shorten it")
    return ids
