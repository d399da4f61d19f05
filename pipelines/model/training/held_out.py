"""The held-out loss: nats a token, and bits a byte, which compares models of different vocabularies."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pipelines.model.device import Place, sum_type
from pipelines.model.training.data import Split, Tokens, spread_evenly
from pipelines.model.training.parallel import World


@dataclasses.dataclass(frozen=True)
class HeldOutLoss:
    """The summed loss of some tokens, in nats, and the bytes of text that they stand for (0 where not known)."""

    nats: float
    tokens: int
    size_bytes: int

    @property
    def per_token(self) -> float:
        """Nats a token."""
        return self.nats / self.tokens

    @property
    def bits_per_byte(self) -> float | None:
        """Bits that a byte costs, None if there is none; `<|endoftext|>` costs bits but has no bytes."""
        return self.nats / math.log(2) / self.size_bytes if self.size_bytes else None


@dataclasses.dataclass(frozen=True)
class HeldOut:
    """The held-out split as it is measured: cut into blocks, so many of them at once.

    `byte_lengths` are the bytes of text of each vocabulary entry, None where the tokenizer does not work on bytes.
    """

    split: Split
    context: int
    micro_batch: int
    byte_lengths: npt.NDArray[np.int64] | None

    def batches(self, limit: int | None) -> list[Sequence[int]]:
        """Return the blocks of each batch: at most `limit` spread evenly over the split, or all of it.

        All of it ends with a shorter block of the tokens after the last whole one: number `blocks`. A split of less
        than one block is that shorter block alone.
        """
        blocks = self.split.blocks(self.context)
        numbers = spread_evenly(blocks if limit is None else limit, blocks)
        found: list[Sequence[int]] = [
            numbers[first : first + self.micro_batch] for first in range(0, len(numbers), self.micro_batch)
        ]
        rest = self.split.tokens - 1 - blocks * self.context
        return [*found, [blocks]] if rest > 0 and (limit is None or blocks == 0) else found

    def read(self, numbers: Sequence[int]) -> Tokens:
        """Return the tokens of a batch, [blocks, tokens + 1]."""
        if numbers[0] < self.split.blocks(self.context):
            return self.split.read_blocks(numbers, self.context)
        return self.split.read(numbers[0] * self.context, self.split.tokens)[np.newaxis]


@torch.no_grad()
def held_out_loss(
    loss_of: Callable[[Tensor], Tensor], held_out: HeldOut, place: Place, world: World, limit: int | None = None
) -> HeldOutLoss:
    """Return the loss over at most `limit` blocks of a split, or over all of it, shared by all processes.

    `loss_of` returns the summed loss of a batch. Over all of it, each token but the first is predicted once.
    """
    batches = held_out.batches(limit)
    sums = torch.zeros(3, dtype=sum_type(place.device), device=place.device)
    for first in range(0, len(batches), world.size):
        mine = first + world.rank
        # A model in parts is computed by all processes together, so the one that has no batch left repeats the first.
        tokens = held_out.read(batches[mine] if mine < len(batches) else batches[0])
        with place.autocast():
            nats = loss_of(place.to_device(tokens))
        if mine < len(batches):
            lengths = 0 if held_out.byte_lengths is None else int(held_out.byte_lengths[tokens[:, 1:]].sum())
            sums += torch.tensor([0, tokens[:, 1:].size, lengths], dtype=sums.dtype, device=place.device)
            sums[0] += nats
    nats_sum, tokens_sum, bytes_sum = world.total(sums).tolist()
    return HeldOutLoss(nats_sum, round(tokens_sum), round(bytes_sum))
