"""The held-out loss: nats a token, and bits a byte, which compares models of different vocabularies."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch

from pipelines.model.data import Split, Tokens, spread_evenly
from pipelines.model.device import autocast, to_device
from pipelines.model.gpt2 import GPT2, next_token_loss


@dataclasses.dataclass(frozen=True)
class HeldOutLoss:
    """The summed loss of some tokens, in nats."""

    nats: float
    tokens: int

    @property
    def per_token(self) -> float:
        """Nats a token."""
        return self.nats / self.tokens


@torch.no_grad()
def held_out_loss(
    model: GPT2, split: Split, micro_batch: int, device: torch.device, limit: int | None = None
) -> HeldOutLoss:
    """Return the loss over at most `limit` blocks spread evenly over a split, or over all of it.

    Over all of it, each token but the first is predicted once: the tokens after the last whole block make a shorter
    one. A split of less than one block is that shorter block alone.
    """
    context = model.architecture.context
    model.eval()
    nats, tokens = 0.0, 0
    for batch in _batches(split, context, micro_batch, limit):
        with autocast(device):
            nats += next_token_loss(model, to_device(batch, device)).item()
        tokens += batch.shape[0] * (batch.shape[1] - 1)
    model.train()
    return HeldOutLoss(nats, tokens)


def bits_per_byte(loss: HeldOutLoss, split: Split, byte_lengths: npt.NDArray[np.int64]) -> float | None:
    """Return the bits that a byte of the split costs, given its whole loss, or None if it holds no text.

    The first token is not predicted, so that its bytes do not count; `<|endoftext|>` costs bits but has no bytes.
    """
    size_bytes = sum(int(byte_lengths[part].sum()) for part in split) - int(byte_lengths[split.read(0, 1)[0]])
    return loss.nats / math.log(2) / size_bytes if size_bytes else None


def _batches(split: Split, context: int, micro_batch: int, limit: int | None) -> Iterator[Tokens]:
    blocks = split.blocks(context)
    numbers = spread_evenly(blocks if limit is None else limit, blocks)
    for first in range(0, len(numbers), micro_batch):
        yield np.stack([split.block(number, context) for number in numbers[first : first + micro_batch]])
    rest = split.tokens - 1 - blocks * context
    if rest > 0 and (limit is None or blocks == 0):
        yield split.read(blocks * context, split.tokens)[np.newaxis]
