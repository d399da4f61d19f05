"""Samples text from a model: top-k, top-p and temperature, as GPT-2's own samples were drawn (top-k 40)."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from pipelines.core.errors import InputError, UsageError
from pipelines.model.device import autocast, named_memory_errors, pick_device, reproducible
from pipelines.model.gpt2 import GPT2
from pipelines.model.model_folder import open_model


@dataclasses.dataclass(frozen=True)
class SamplingOptions:
    """How the next token is drawn.

    `temperature` 0 always takes the likeliest token; `top_k` 0 and `top_p` 1 leave every token possible.
    """

    max_tokens: int = 200
    temperature: float = 1.0
    top_k: int = 40
    top_p: float = 1.0
    seed: int = 0


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


def generate(
    folder: str, prompts: Sequence[str], samples: int, options: SamplingOptions, device: str = "auto"
) -> Iterator[Sample]:
    """Yield `samples` texts for each prompt; an empty prompt begins a new document.

    Each sample has its own random numbers, by seed, prompt and number, so that it is the same however many are drawn
    beside it. Raises InputError where the folder holds no model, UsageError for a prompt that is longer than the
    model's context.
    """
    place = pick_device(device)
    trained = open_model(folder)
    tokenizer = trained.tokenizer()
    encoded = [tokenizer.encode(prompt, add_special_tokens=False).ids for prompt in prompts]
    context = trained.model.architecture.context
    for prompt, ids in zip(prompts, encoded, strict=True):
        if len(ids) > context:
            raise UsageError(
                f"the prompt {prompt[:30]!r}... has {len(ids)} tokens, but the model sees only {context}; shorten it"
            )
    model = trained.model.to(place)
    way_out = "use --device cpu, or a machine with more memory"
    for prompt, ids in zip(prompts, encoded, strict=True):
        for number in range(samples):
            generator = torch.Generator().manual_seed(_sample_seed(options.seed, prompt, number))
            with reproducible(place, 0), named_memory_errors(way_out):
                drawn = sample_tokens(model, ids or [trained.end_of_text], options, generator, trained.end_of_text)
            ended = drawn[-1:] == [trained.end_of_text]
            text = tokenizer.decode(drawn[:-1] if ended else drawn, skip_special_tokens=False)
            yield Sample(prompt, number, text, len(drawn), ended)


@torch.no_grad()
def sample_tokens(
    model: GPT2, prompt: Sequence[int], options: SamplingOptions, generator: torch.Generator, end_of_text: int
) -> list[int]:
    """Return the tokens that follow a prompt: at most `max_tokens`, `end_of_text` being the last if it is drawn.

    Past the context the model sees the latest tokens only, at positions from 0 on. Raises InputError where the model's
    logits are no numbers.
    """
    device = model.wte.weight.device
    row = list(prompt)
    for _ in range(options.max_tokens):
        seen = torch.tensor([row[-model.architecture.context :]], device=device)
        with autocast(device):
            logits = model(seen)[0, -1].float().cpu()
        if not torch.isfinite(logits).all():
            raise InputError("the model's logits are no numbers: its training went wrong, see metrics.jsonl")
        row.append(_draw(logits, options, generator))
        if row[-1] == end_of_text:
            break
    return row[len(prompt) :]


def next_token_probabilities(logits: Tensor, options: SamplingOptions) -> Tensor:
    """Return the probabilities, [vocabulary], that temperature, then top-k, then top-p leave of logits.

    Top-p keeps the likeliest tokens up to the one with which their sum reaches p, so at least one.
    """
    # In float64, and by a stable sort, so that ties fall alike everywhere.
    ordered, tokens = torch.sort(logits.double(), descending=True, stable=True)
    # The largest is subtracted first, since a logit divided by a tiny temperature is infinite.
    ordered = (ordered - ordered[0]) / options.temperature
    if options.top_k:
        ordered[options.top_k :] = -torch.inf
    probabilities = ordered.softmax(0)
    if options.top_p < 1:
        before = probabilities.cumsum(0) - probabilities
        probabilities[before >= options.top_p] = 0.0
    return torch.zeros_like(probabilities).scatter(0, tokens, probabilities / probabilities.sum())


def _draw(logits: Tensor, options: SamplingOptions, generator: torch.Generator) -> int:
    if options.temperature == 0:
        return int(logits.argmax())
    return int(torch.multinomial(next_token_probabilities(logits, options), 1, generator=generator))


def _sample_seed(seed: int, prompt: str, number: int) -> int:
    digest = hashlib.sha256(f"{seed}:{number}:{prompt}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
