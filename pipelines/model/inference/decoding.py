"""Decodes several texts in one batch with a key-value cache.

A text's logits must not depend on the others in the batch, not even in the last bit: the size of a batch changes the
rounding of sums, and after some hundred tokens a different token. So prompts, and texts whose window moves, are
computed alone, and everything else in batches of a fixed size, padded with filler rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F  # noqa: N812 - torch's convention
from torch import Tensor

from pipelines.model.network.gpt2 import GPT2, KeyValueCache

# The weights are read from memory once per step for all rows; on a CPU more rows than these cost proportional time.
_BATCH_ROWS = {"cpu": 8, "cuda": 32}
_FILLER = 0


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


class Decoder:
    """Up to `batch_rows` texts that start with one prompt, and the keys and values of their windows."""

    def __init__(self, model: GPT2, prompt: Sequence[int], texts: int) -> None:
        self._model = model
        self._texts = [list(prompt) for _ in range(texts)]
        self._device = model.wte.weight.device
        self._cache = self._empty_cache(batch_rows(self._device))
        self._start = 0

    def logits_after(self, tokens: Mapping[int, int]) -> Tensor:
        """Append tokens to texts, by index; return the logits of the next tokens, [texts, vocabulary].

        Without tokens, those after the prompt. The logits of texts without a token are undefined.
        """
        if not tokens:
            # The prompt is the same in all rows, so it is computed once.
            logits = self._compute_alone(self._texts[0], slice(0, len(self._texts)))
            return logits.expand(len(self._texts), -1)
        for index, token in tokens.items():
            self._texts[index].append(token)
        start = window_start(len(self._texts[min(tokens)]), self._model.architecture.context)
        if start > self._start:
            self._start = start
            moved = torch.zeros(len(self._texts), self._model.architecture.vocab_size, device=self._device)
            for row in sorted(tokens):
                moved[row] = self._compute_alone(self._texts[row][start:], slice(row, row + 1))[0]
            return moved
        rows = range(self._cache.keys.shape[1])
        ids = torch.tensor([[tokens.get(row, _FILLER)] for row in rows], device=self._device)
        return self._logits(ids, self._cache)[: len(self._texts)]

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
