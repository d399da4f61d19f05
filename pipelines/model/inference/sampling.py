"""Samples text from a model: top-k, top-p and temperature, as GPT-2's own samples were drawn (top-k 40)."""

from __future__ import annotations

import dataclasses
import hashlib
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pipelines.core import progress
from pipelines.core.errors import InputError, UsageError
from pipelines.model.device import autocast, named_memory_errors, pick_device, reproducible
from pipelines.model.inference.decoding import Texts, rows_of
from pipelines.model.inference.options import SamplingOptions
from pipelines.model.io.model_folder import TrainedModel, open_model
from pipelines.model.network.gpt2 import GPT2

Floats = npt.NDArray[np.floating[Any]]
Ids = npt.NDArray[np.intp]

_WAY_OUT = "use --device cpu, or a machine with more memory"


@dataclasses.dataclass(frozen=True)
class Sample:
    """One text that follows a prompt; `ended` tells whether the model ended it by `<|endoftext|>`."""

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
    """Samples of one prompt that are drawn at once: their numbers begin with `first`."""

    prompt: int
    first: int
    samples: int


class Sampler:
    """A model on its device, and the prompts that it goes on from.

    Raises InputError where the folder holds no model, UsageError for a prompt that is no text or longer than the
    model's context.
    """

    def __init__(self, folder: str, prompts: Sequence[str], options: SamplingOptions, device: str = "auto") -> None:
        self.device = pick_device(device)
        self.trained = open_model(folder)
        self.prompts = list(prompts)
        if twice := [prompt for prompt, times in Counter(prompts).items() if times > 1]:
            raise UsageError(
                f"the prompt {twice[0][:30]!r} is given twice; --samples draws several texts of one prompt"
            )
        self.options = options
        self._tokenizer = self.trained.tokenizer()
        self._encoded = [_encoded(self._tokenizer, self.trained, prompt) for prompt in self.prompts]
        with named_memory_errors(_WAY_OUT):
            self._model = self.trained.model.to(self.device)

    def batches(self, samples: int) -> list[Batch]:
        """Return the batches in which `samples` texts for each prompt are drawn.

        A sample's place in its batch follows from its number alone, and a batch holds one prompt.
        """
        rows = rows_of(self.device)
        return [
            Batch(prompt, first, min(rows, samples - first))
            for prompt in range(len(self.prompts))
            for first in range(0, samples, rows)
        ]

    def draw(self, batch: Batch) -> list[Sample]:
        """Draw the samples of a batch."""
        prompt, end = self.prompts[batch.prompt], self.trained.end_of_text
        numbers = range(batch.first, batch.first + batch.samples)
        seeds = [_sample_seed(self.options.seed, prompt, number) for number in numbers]
        with reproducible(self.device, 0), named_memory_errors(_WAY_OUT):
            texts = sample_tokens(self._model, self._encoded[batch.prompt] or [end], self.options, seeds, end)
        return [self._sample(prompt, number, tokens) for number, tokens in zip(numbers, texts, strict=True)]

    def _sample(self, prompt: str, number: int, tokens: list[int]) -> Sample:
        ended = tokens[-1:] == [self.trained.end_of_text]
        text = self._tokenizer.decode(tokens[:-1] if ended else tokens, skip_special_tokens=False)
        return Sample(prompt, number, text, len(tokens), ended)


def generate(
    folder: str, prompts: Sequence[str], samples: int, options: SamplingOptions, device: str = "auto"
) -> Iterator[Sample]:
    """Yield `samples` texts for each prompt; an empty prompt begins a new document.

    Each sample has its own random numbers, by seed, prompt and number, and is the same however many are drawn beside
    it. Raises as `Sampler` does.
    """
    sampler = Sampler(folder, prompts, options, device)
    for batch in sampler.batches(samples):
        yield from sampler.draw(batch)


@torch.no_grad()
def sample_tokens(
    model: GPT2, prompt: Sequence[int], options: SamplingOptions, seeds: Sequence[int], end_of_text: int
) -> list[list[int]]:
    """Return the tokens that follow a prompt, once for each seed, of which there are at most `rows_of` the device.

    A text has at most `max_tokens`, `end_of_text` being the last if it is drawn. Past the context the model sees the
    latest tokens only, see `window_start`. Raises InputError where the model's logits are no numbers.
    """
    sources = [random.Random(seed) for seed in seeds]  # whose numbers are the same everywhere
    texts: list[list[int]] = [[] for _ in seeds]
    new: dict[int, int] = {}
    with autocast(model.wte.weight.device):
        together = Texts(model, prompt, len(seeds))
        for _ in range(options.max_tokens):
            going = [number for number, text in enumerate(texts) if text[-1:] != [end_of_text]]
            if not going:
                break
            logits = together.after(new)[going].cpu()
            drawn = _draw(logits, options, [sources[number].random() for number in going])
            new = dict(zip(going, drawn, strict=True))
            for number, token in new.items():
                texts[number].append(token)
            progress.advance(len(new))
    return texts


def next_tokens(logits: Floats, options: SamplingOptions) -> tuple[Ids, Floats]:
    """Return the tokens that temperature, then top-k, then top-p leave of logits [vocabulary], and their probabilities.

    Of equal logits the token of the lower id goes first. Top-p keeps the likeliest tokens up to the one with which
    their sum reaches p, so at least one.
    """
    tokens = _largest(logits, options.top_k)
    values = logits[tokens].astype(np.float64)
    # The largest is subtracted first, since a logit divided by a tiny temperature is infinite.
    with np.errstate(over="ignore"):
        weights = np.exp((values - values.max()) / options.temperature)
    if options.top_p < 1:
        kept = _nucleus(values, weights / weights.sum(), options.top_p)
        tokens, weights = tokens[kept], weights[kept]
    return tokens, weights / weights.sum()


def _largest(logits: Floats, number: int) -> Ids:
    """Return the ids of the largest logits, the largest first; all ids, in their order, for 0."""
    if not 0 < number < len(logits):
        return np.arange(len(logits))
    least = np.partition(logits, -number)[-number]
    ids = np.flatnonzero(logits >= least)  # more than asked for where several are equal
    return ids[np.argsort(-logits[ids], kind="stable")][:number]


def _nucleus(values: Floats, shares: Floats, top_p: float) -> Ids:
    # Those whose shares are so small do not make up what top-p leaves out, all together; sorting them takes long.
    ids = np.flatnonzero(shares >= (1 - top_p) / (2 * len(shares)))
    ids = ids[np.argsort(-values[ids], kind="stable")]
    before = np.cumsum(shares[ids]) - shares[ids]
    return ids[before < top_p]


def _draw(logits: Tensor, options: SamplingOptions, numbers: Sequence[float]) -> list[int]:
    """Return a token for each row of logits by a random number from 0 to 1, through the sums of the probabilities."""
    if not torch.isfinite(logits).all():
        raise InputError("the model's logits are no numbers: its training went wrong, see metrics.jsonl")
    if options.temperature == 0:
        return [int(token) for token in logits.argmax(1)]
    drawn = []
    for row, number in zip(logits.numpy(), numbers, strict=True):
        tokens, probabilities = next_tokens(row, options)
        reached = np.cumsum(probabilities)
        place = np.searchsorted(reached, number * reached[-1], side="right")
        drawn.append(int(tokens[min(int(place), len(tokens) - 1)]))
    return drawn


def _encoded(tokenizer: Any, trained: TrainedModel, prompt: str) -> list[int]:
    try:
        prompt.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"the prompt {prompt[:30]!r}... is no text: not valid in UTF-8") from error
    ids: list[int] = tokenizer.encode(prompt, add_special_tokens=False).ids
    context = trained.model.architecture.context
    if len(ids) > context:
        raise UsageError(
            f"the prompt {prompt[:30]!r}... has {len(ids)} tokens, but the model sees only {context}; shorten it"
        )
    return ids


def _sample_seed(seed: int, prompt: str, number: int) -> int:
    digest = hashlib.sha256(f"{seed}:{number}:{prompt}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
