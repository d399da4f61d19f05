"""Goes on with several texts at once, each token going through the model once.

Nothing that is drawn beside a text may change it, not even in the last bit: a sum is rounded otherwise in a batch of
another size, and now and then another token follows from it. So one text alone goes through the model, its prompt
and where its window moves, and else always the same number of rows, filled up with rows that nobody asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own custom
from torch import Tensor

from pipelines.model.network.gpt2 import GPT2, KeyValueCache

# The weights are read from memory once a step, for however many rows; more rows than these cost a CPU in proportion.
_ROWS = {"cpu": 8, "cuda": 32}
_FILLER = 0


def rows_of(device: torch.device) -> int:
    """Return how many texts go through a model at once."""
    return _ROWS.get(device.type, _ROWS["cpu"])


def window_start(length: int, context: int) -> int:
    """Return the position of the first token that the model sees of a text: 0 as long as the text fits.

    Past the context the window moves by half of it at a time, since each move takes all that is seen through the model
    anew, at positions from 0 on.
    """
    step = max(1, context // 2)
    return max(0, -(-(length - context) // step) * step)


class Texts:
    """Up to `rows_of` texts that begin with one prompt, and the keys and values of what the model sees of them."""

    def __init__(self, model: GPT2, prompt: Sequence[int], number: int) -> None:
        self._model = model
        self._texts = [list(prompt) for _ in range(number)]
        self._device = model.wte.weight.device
        self._cache = self._empty_cache(rows_of(self._device))
        self._start = 0

    def after(self, new: Mapping[int, int]) -> Tensor:
        """Add a token to each text that goes on, by its number; return the logits of the next, [texts, vocabulary].

        Without tokens the logits are those after the prompt. Those of a text that got no token mean nothing.
        """
        if not new:
            return self._take_in_prompt()
        for text, token in new.items():
            self._texts[text].append(token)
        start = window_start(len(self._texts[min(new)]), self._model.architecture.context)
        if start > self._start:
            self._start = start
            return self._move_window(sorted(new))
        rows = range(self._cache.keys.shape[1])
        tokens = torch.tensor([[new.get(row, _FILLER)] for row in rows], device=self._device)
        return self._logits(tokens, self._cache)[: len(self._texts)]

    def _take_in_prompt(self) -> Tensor:
        # The prompt is the same in all rows, so it is computed once.
        own, logits = self._computed(self._texts[0])
        self._keep(own, slice(0, len(self._texts)))
        return logits.expand(len(self._texts), -1)

    def _move_window(self, rows: Sequence[int]) -> Tensor:
        found = torch.zeros(len(self._texts), self._model.architecture.vocab_size, device=self._device)
        for row in rows:
            own, logits = self._computed(self._texts[row][self._start :])
            self._keep(own, slice(row, row + 1))
            found[row] = logits[0]
        return found

    def _computed(self, tokens: Sequence[int]) -> tuple[KeyValueCache, Tensor]:
        own = self._empty_cache(1)
        return own, self._logits(torch.tensor([list(tokens)], device=self._device), own)

    def _keep(self, own: KeyValueCache, rows: slice) -> None:
        self._cache.keys[:, rows, :, : own.length] = own.keys[:, :, :, : own.length]
        self._cache.values[:, rows, :, : own.length] = own.values[:, :, :, : own.length]
        self._cache.length = own.length

    def _logits(self, tokens: Tensor, cache: KeyValueCache) -> Tensor:
        # Of the last position only: those of a long prompt would take more memory than all else.
        last = self._model.hidden(tokens, cache)[:, -1]
        return F.linear(last, self._model.wte.weight).float()

    def _empty_cache(self, rows: int) -> KeyValueCache:
        kind = torch.bfloat16 if self._device.type == "cuda" else self._model.wte.weight.dtype
        return KeyValueCache(self._model.architecture, rows, self._device, kind)
