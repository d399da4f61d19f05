"""The held-out loss in nats per token, and in bits per byte, which is comparable across vocabularies."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from pipelines import progress
from pipelines.model.device import accumulator_dtype
from pipelines.model.training.data import Split, Tokens, token_bytes
from pipelines.model.training.job import TrainingJob
from pipelines.model.training.mixture import SINGLE, shares_at

# The forward pass has a third of the FLOPs of a training step (2 of 6 per parameter and token).
_FORWARD_SHARE = 3
LossOf = Callable[[Tensor], Tensor]


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


def held_out_tokens(split: Split, context: int, limit: int | None) -> int:
    """Return the number of tokens in these batches, without the first token, which is not predicted."""
    blocks = split.blocks(context)
    return max(0, split.tokens - 1) if limit is None or blocks == 0 else min(limit, blocks) * context


def evaluation_tokens(job: TrainingJob, limit: int | None) -> int:
    """Return the number of held-out tokens of all sources that an evaluation predicts."""
    return sum(held_out_tokens(folder.held_out, job.recipe.context, limit) for folder in job.tokens.sources.values())


def evaluation_work(job: TrainingJob, step: int) -> int:
    """Return how many tokens of training take as long as the evaluations from a step to the end."""
    recipe = job.recipe
    evaluations = (recipe.steps - 1) // recipe.eval_every - (step - 1) // recipe.eval_every
    sampled = evaluation_tokens(job, recipe.eval_blocks or None)
    return (evaluations * sampled + evaluation_tokens(job, None)) // _FORWARD_SHARE


def held_out_loss(loss_of: LossOf, job: TrainingJob, step: int, limit: int | None) -> dict[str, float]:
    """Return the loss after a step over at most `limit` held-out blocks, or over all held-out tokens but the first.

    `loss_of` returns the summed loss of a batch. The result has `held_out_loss` (nats per token), `held_out_tokens`,
    and `held_out_bits_per_byte` for a byte-level tokenizer; `<|endoftext|>` costs bits but has no bytes.

    Of a mixture, the limit is that of each source, whose figures are `held_out_loss.NAME` and so on. The loss of the
    mixture is the mean of those of its sources, weighted by their shares of the last step.
    """
    byte_lengths = token_bytes(job.tokens.first.tokenizer, job.tokens.first.vocab_size)
    sums = {
        name: _sum_losses(loss_of, job, folder.held_out, limit, byte_lengths)
        for name, folder in job.tokens.sources.items()
        if folder.held_out.tokens > 1
    }
    if job.tokens.is_single:
        return _figures(*sums[SINGLE])
    shares = shares_at(job.recipe.mixture, max(0, step - 1))
    if shares.keys().isdisjoint(sums):
        shares = dict.fromkeys(sums, 1.0)
    weights = {name: shares.get(name, 0) / tokens for name, (_, tokens, _) in sums.items()}
    total = _figures(*(sum(weights[name] * values[place] for name, values in sums.items()) for place in range(3)))
    by_source = {f"{key}.{name}": value for name, values in sums.items() for key, value in _figures(*values).items()}
    return total | {"held_out_tokens": sum(tokens for _, tokens, _ in sums.values())} | by_source


def _figures(nats: float, tokens: float, size_bytes: float) -> dict[str, float]:
    figures = {"held_out_loss": nats / tokens, "held_out_tokens": tokens}
    return figures | ({"held_out_bits_per_byte": nats / math.log(2) / size_bytes} if size_bytes else {})


@torch.no_grad()
def _sum_losses(
    loss_of: LossOf, job: TrainingJob, split: Split, limit: int | None, byte_lengths: Tokens | None
) -> tuple[float, int, int]:
    """Return nats, tokens and bytes of text of the blocks of a split; the batches are divided among the processes."""
    context, world = job.recipe.context, job.world
    batches = held_out_batches(split, context, job.recipe.micro_batch, limit)
    device = job.device.device
    sums = torch.zeros(3, dtype=accumulator_dtype(device), device=device)
    for start in range(0, len(batches), world.size):
        index = start + world.rank
        # All processes compute a sharded model together, so one without a batch repeats the first.
        numbers = batches[index] if index < len(batches) else batches[0]
        is_complete = numbers[0] < split.blocks(context)
        tokens = (
            split.read_blocks(numbers, context) if is_complete else split.read(numbers[0] * context, split.tokens)[None]
        )
        with job.device.autocast():
            nats = loss_of(job.device.to_device(tokens))
        if index < len(batches):
            size_bytes = 0 if byte_lengths is None else int(byte_lengths[tokens[:, 1:]].sum())
            sums += torch.tensor([0, tokens[:, 1:].size, size_bytes], dtype=sums.dtype, device=device)
            sums[0] += nats
        progress.advance(world.size * tokens[:, 1:].size // _FORWARD_SHARE)
    total_nats, total_tokens, total_bytes = world.sum(sums).tolist()
    return total_nats, round(total_tokens), round(total_bytes)
