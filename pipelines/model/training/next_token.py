"""The objective of pretraining: the loss of every next token, in blocks of the train split.

The held-out loss is in nats per token, and in bits per byte, which is comparable across vocabularies.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pipelines import progress
from pipelines.model.device import DeviceConfig, accumulator_dtype
from pipelines.model.diagnostics.batch_documents import describe_batch
from pipelines.model.inference.options import SamplingOptions
from pipelines.model.inference.sampling import sample_tokens
from pipelines.model.network.gpt2 import GPT2, empty_model, next_token_loss
from pipelines.model.training.checkpoint import Row
from pipelines.model.training.data import Mixture, Split, Tokens, token_bytes
from pipelines.model.training.job import architecture_of
from pipelines.model.training.mixture import SINGLE, format_losses, shares_at
from pipelines.model.training.objective import FORWARD_SHARE, LossOf
from pipelines.model.training.order import BatchOrder, Block
from pipelines.model.training.parallel import World
from pipelines.model.training.recipe import Recipe
from pipelines.tokenizers.formats import load_tokenizer

_SAMPLE_TOKENS = 100


class NextTokenLoss(nn.Module):
    """The model together with its loss: wrappers of modules see `forward` only."""

    def __init__(self, model: GPT2) -> None:
        super().__init__()
        self.model = model

    def forward(self, blocks: Tensor) -> Tensor:
        """Return the summed loss of blocks, [blocks, tokens + 1]."""
        return next_token_loss(self.model, blocks)


@dataclasses.dataclass(frozen=True)
class NextToken:
    """See `Objective`; every token has the same weight. An example is a block."""

    recipe: Recipe
    mixture: Mixture
    device: DeviceConfig
    world: World

    @functools.cached_property
    def _order(self) -> BatchOrder:
        return self.mixture.order(self.recipe)

    def empty_model(self) -> GPT2:
        """See `Objective`."""
        return empty_model(architecture_of(self.recipe, self.mixture.first.vocab_size))

    def loss(self, model: GPT2) -> nn.Module:
        """See `Objective`."""
        return NextTokenLoss(model)

    def batch(self, step: int) -> list[Block]:
        """Return the blocks of a step."""
        return self._order.batch(step)

    def weight(self, step: int) -> int:
        """Return the number of tokens of a step."""
        return self.recipe.batch_tokens

    tokens = weight

    def forward_shape(self) -> tuple[int, int]:
        """See `Objective`."""
        return self.recipe.micro_batch * self.recipe.context, self.recipe.context

    def read(self, examples: Sequence[Block]) -> list[Tokens]:
        """Return blocks as [blocks, context + 1]."""
        return [self.mixture.read_blocks(examples, self.recipe.context)]

    def _limit(self, whole: bool) -> int | None:
        return None if whole else self.recipe.eval_blocks or None

    def held_out_tokens(self, *, whole: bool) -> int:
        """Return the number of held-out tokens that an evaluation predicts; the first of a split is not."""
        context, limit, total = self.recipe.context, self._limit(whole), 0
        for split in (folder.held_out for folder in self.mixture.sources.values()):
            blocks = split.blocks(context)
            total += max(0, split.tokens - 1) if limit is None or not blocks else min(limit, blocks) * context
        return total

    def evaluate(self, model: GPT2, loss_of: LossOf, step: int, *, whole: bool) -> Row:
        """Return the loss after a step over the held-out blocks of an evaluation, or over all tokens but the first.

        The result has `held_out_loss` (nats per token), `held_out_tokens`, and `held_out_bits_per_byte` for a
        byte-level tokenizer; `<|endoftext|>` costs bits but has no bytes.

        Of a mixture, the limit is that of each source, whose figures are `held_out_loss.NAME` and so on. The loss of
        the mixture is the mean of those of its sources, weighted by their shares of the last step.
        """
        byte_lengths = token_bytes(self.mixture.first.tokenizer, self.mixture.first.vocab_size)
        sums = {
            name: self._sum_losses(loss_of, folder.held_out, self._limit(whole), byte_lengths)
            for name, folder in self.mixture.sources.items()
            if folder.held_out.tokens > 1
        }
        if self.mixture.is_single:
            return _figures(*sums[SINGLE])
        shares = shares_at(self.recipe.mixture, max(0, step - 1))
        if shares.keys().isdisjoint(sums):
            shares = dict.fromkeys(sums, 1.0)
        weights = {name: shares.get(name, 0) / tokens for name, (_, tokens, _) in sums.items()}
        total = _figures(*(sum(weights[name] * values[place] for name, values in sums.items()) for place in range(3)))
        by_source = {f"{key}.{name}": one for name, values in sums.items() for key, one in _figures(*values).items()}
        return total | {"held_out_tokens": sum(tokens for _, tokens, _ in sums.values())} | by_source

    def describe_evaluation(self, row: Row) -> str:
        """See `Objective`; before the first step with the loss of a uniform guess."""
        bits = row.get("held_out_bits_per_byte")
        per_byte = "" if bits is None else f", {bits:.4f} bits per byte"
        guess = "" if row["step"] else f"; uniform baseline: {math.log(self.mixture.first.vocab_size):.2f}"
        return (
            f"held-out loss {row['held_out_loss']:.4f} nats per token{per_byte} "
            f"({row['held_out_tokens']:,} tokens{guess}){format_losses(row)}"
        )

    def describe_batch(self, step: int) -> list[dict[str, Any]]:
        """Return the documents of a step, counted from 0."""
        blocks = describe_batch(self.mixture, self.batch(step), self.recipe.context)
        return [dataclasses.asdict(block) for block in blocks]

    def sample(self, model: GPT2) -> str:
        """Sample a document, with the same random numbers at every step."""
        first, options = self.mixture.first, SamplingOptions(max_tokens=_SAMPLE_TOKENS)
        end, seeds = first.end_of_text, [self.recipe.seed]
        [ids] = sample_tokens(model, [end], options, seeds, end_of_text=end, advance=lambda _: None)
        tokenizer = load_tokenizer(first.tokenizer, first.path)
        return str(tokenizer.decode([id for id in ids if id != end], skip_special_tokens=False))

    @torch.no_grad()
    def _sum_losses(
        self, loss_of: LossOf, split: Split, limit: int | None, byte_lengths: Tokens | None
    ) -> tuple[float, int, int]:
        """Return nats, tokens and bytes of text of the blocks of a split; the processes divide its batches."""
        context, world = self.recipe.context, self.world
        batches = held_out_batches(split, context, self.recipe.micro_batch, limit)
        device = self.device.device
        sums = torch.zeros(3, dtype=accumulator_dtype(device), device=device)
        for start in range(0, len(batches), world.size):
            index = start + world.rank
            # All processes compute a sharded model together, so one without a batch repeats the first.
            numbers = batches[index] if index < len(batches) else batches[0]
            is_complete = numbers[0] < split.blocks(context)
            tokens = (
                split.read_blocks(numbers, context)
                if is_complete
                else split.read(numbers[0] * context, split.tokens)[None]
            )
            with self.device.autocast():
                nats = loss_of(self.device.to_device(tokens))
            if index < len(batches):
                size_bytes = 0 if byte_lengths is None else int(byte_lengths[tokens[:, 1:]].sum())
                sums += torch.tensor([0, tokens[:, 1:].size, size_bytes], dtype=sums.dtype, device=device)
                sums[0] += nats
            progress.advance(world.size * tokens[:, 1:].size // FORWARD_SHARE)
        total_nats, total_tokens, total_bytes = world.sum(sums).tolist()
        return total_nats, round(total_tokens), round(total_bytes)


def held_out_batches(split: Split, context: int, micro_batch: int, limit: int | None) -> list[Sequence[int]]:
    """Return the block numbers of each batch: at most `limit` evenly spaced blocks, or the whole split for None.

    The whole split ends with a shorter block, number `blocks`, of the tokens after the last complete one. A split
    smaller than one block is that shorter block only.
    """
    blocks = split.blocks(context)
    count = blocks if limit is None else min(limit, blocks)
    numbers = [number * blocks // count for number in range(count)]
    batches: list[Sequence[int]] = [
        numbers[start : start + micro_batch] for start in range(0, len(numbers), micro_batch)
    ]
    rest = split.tokens - 1 - blocks * context
    return [*batches, [blocks]] if rest > 0 and (limit is None or blocks == 0) else batches


def _figures(nats: float, tokens: float, size_bytes: float) -> dict[str, float]:
    figures = {"held_out_loss": nats / tokens, "held_out_tokens": tokens}
    return figures | ({"held_out_bits_per_byte": nats / math.log(2) / size_bytes} if size_bytes else {})
