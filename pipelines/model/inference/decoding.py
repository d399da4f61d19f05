"""Decoding: one loop that continues texts token by token, and the rules by which a token is chosen.

`generate` decodes with a `BatchDecoder`, `evaluate` with the texts of its scorer, whose beginnings are shared.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812 - torch's convention
from torch import Tensor

from pipelines import progress
from pipelines.errors import InputError
from pipelines.model.inference.options import SamplingOptions
from pipelines.model.network.gpt2 import GPT2, KeyValueCache

Floats = npt.NDArray[np.floating[Any]]
Ids = npt.NDArray[np.intp]
# Takes logits, [texts, vocabulary] in float32 on the CPU, and the indices of these texts; returns their next tokens.
Choose = Callable[[Tensor, Sequence[int]], list[int]]

# The weights are read from memory once per step for all rows; on a CPU more rows than these cost proportional time.
_BATCH_ROWS = {"cpu": 8, "cuda": 32}
_FILLER = 0


class Continuation(NamedTuple):
    """Tokens that follow a text and their log-probabilities in nats; `ended` unless they were cut at the limit."""

    tokens: list[int]
    log_probs: list[float]
    ended: bool


def continue_texts(
    logits: Tensor,
    append: Callable[[Mapping[int, int]], Tensor],
    limits: Sequence[int],
    choose: Choose,
    is_complete: Callable[[list[int]], bool],
    advance: Callable[[int], None] = progress.advance,
    *,
    scored: bool = True,
) -> list[Continuation]:
    """Continue each text until `is_complete` returns true for its new tokens, or up to its limit.

    `logits` are those after the texts. `append` appends a token to texts, by index, and returns the logits after them
    in the same order. `advance` is called with the number of new tokens. There are no log-probabilities unless
    `scored`. Raises InputError for logits that are not finite.
    """
    results = [Continuation([], [], False) for _ in limits]
    active = list(range(len(limits)))
    while active:
        check_finite(logits)
        log_probs = torch.log_softmax(logits, 1) if scored else None
        tokens = dict(zip(active, choose(logits.cpu(), active), strict=True))
        if log_probs is not None:
            chosen = torch.tensor([*tokens.values()], device=logits.device)
            for index, log_prob in zip(active, log_probs.gather(1, chosen[:, None])[:, 0].tolist(), strict=True):
                results[index].log_probs.append(log_prob)
        for index, token in tokens.items():
            results[index].tokens.append(token)
            results[index] = results[index]._replace(ended=is_complete(results[index].tokens))
        advance(len(active))
        active = [index for index in active if not results[index].ended and len(results[index].tokens) < limits[index]]
        if active:
            logits = append({index: tokens[index] for index in active})
    return results


def check_finite(values: Tensor) -> None:
    """Raise InputError if values of a model are not finite."""
    if not torch.isfinite(values).all():
        raise InputError("the model's logits are not finite: its training diverged")


def choose_by(options: SamplingOptions, seeds: Sequence[int], banned: Collection[int] = ()) -> Choose:
    """Return the function that chooses the next tokens, never a `banned` one.

    The random numbers of a text follow from its own seed.
    """
    generators = [random.Random(seed) for seed in seeds]  # the same numbers on every platform

    def choose(logits: Tensor, texts: Sequence[int]) -> list[int]:
        if banned:
            logits[:, list(banned)] = -torch.inf
        if options.temperature == 0:
            return [int(token) for token in logits.argmax(1)]
        chosen = []
        for row, text in zip(logits.numpy(), texts, strict=True):
            tokens, probabilities = next_tokens(row, options)
            cumulative = np.cumsum(probabilities)
            index = int(np.searchsorted(cumulative, generators[text].random() * cumulative[-1], side="right"))
            chosen.append(int(tokens[min(index, len(tokens) - 1)]))
        return chosen

    return choose


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
    smallest = torch.from_numpy(logits).topk(k).values[-1].item()  # takes 0.1 ms of 50,257; np.partition 0.25 ms
    ids = np.flatnonzero(logits >= smallest)  # more than k if several are equal
    return ids[np.argsort(-logits[ids], kind="stable")][:k]


def _nucleus(values: Floats, probabilities: Floats, top_p: float) -> Ids:
    # Probabilities this small add up to less than top-p drops; leaving them out makes the sort much faster.
    ids = np.flatnonzero(probabilities >= (1 - top_p) / (2 * len(probabilities)))
    ids = ids[np.argsort(-values[ids], kind="stable")]
    preceding = np.cumsum(probabilities[ids]) - probabilities[ids]
    return ids[preceding < top_p]


def batch_rows(device: torch.device) -> int:
    """Return the number of texts that are decoded together."""
    return _BATCH_ROWS.get(device.type, _BATCH_ROWS["cpu"])


def window_start(length: int, context: int) -> int:
    """Return the position of the first token in the model's window: 0 while the text fits into the context.

    Beyond the context the window moves by half of it at a time, because each move recomputes the whole window at
    positions from 0.
    """
    step = max(1, context // 2)
    return max(0, -(-(length - context) // step) * step)


class BatchDecoder:
    """Up to `batch_rows` texts that start with one prompt, and the keys and values of their windows.

    A text's logits do not depend on the others in the batch, not even in the last bit: the size of a batch changes the
    rounding of sums, and after some hundred tokens a different token. So prompts, and texts whose window moves, are
    computed alone, and everything else in batches of a fixed size, padded with filler rows.
    """

    def __init__(self, model: GPT2, prompt: Sequence[int], texts: int) -> None:
        self._model = model
        self._texts = [list(prompt) for _ in range(texts)]
        self._device = model.wte.weight.device
        self._cache = self._empty_cache(batch_rows(self._device))
        self._start = 0
        # After the prompt, which is the same in all rows and so computed once; [texts, vocabulary].
        self.logits = self._compute_alone(prompt, slice(0, texts)).expand(texts, -1)

    def append(self, tokens: Mapping[int, int]) -> Tensor:
        """Append tokens to texts, by index; return the logits after these texts, [texts, vocabulary]."""
        for index, token in tokens.items():
            self._texts[index].append(token)
        start = window_start(len(self._texts[min(tokens)]), self._model.architecture.context)
        if start > self._start:
            self._start = start
            return torch.cat([self._compute_alone(self._texts[row][start:], slice(row, row + 1)) for row in tokens])
        rows = range(self._cache.keys.shape[1])
        ids = torch.tensor([[tokens.get(row, _FILLER)] for row in rows], device=self._device)
        return self._logits(ids, self._cache)[list(tokens)]

    def _compute_alone(self, tokens: Sequence[int], rows: slice) -> Tensor:
        """Return the logits after one text, and store its keys and values in rows of the cache."""
        own = self._empty_cache(1)
        logits = self._logits(torch.tensor([list(tokens)], device=self._device), own)
        self._cache.keys[:, rows, :, : own.length] = own.keys[:, :, :, : own.length]
        self._cache.values[:, rows, :, : own.length] = own.values[:, :, :, : own.length]
        self._cache.length = own.length
        return logits

    def _logits(self, tokens: Tensor, cache: KeyValueCache) -> Tensor:
        # Of the last position only: logits of a whole prompt would take more memory than everything else.
        last = self._model.hidden(tokens, cache)[:, -1]
        return F.linear(last, self._model.wte.weight).float()

    def _empty_cache(self, rows: int) -> KeyValueCache:
        dtype = torch.bfloat16 if self._device.type == "cuda" else self._model.wte.weight.dtype
        return KeyValueCache(self._model.architecture, rows, self._device, dtype)
