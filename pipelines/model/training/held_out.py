"""The held-out loss in nats per token, and in bits per byte, which is comparable across vocabularies."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from pipelines import progress
from pipelines.model.device import accumulator_dtype
from pipelines.model.training.data import Split, token_bytes
from pipelines.model.training.job import TrainingJob

# The forward pass has a third of the FLOPs of a training step (2 of 6 per parameter and token).
_FORWARD_SHARE = 3


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


def evaluation_work(job: TrainingJob, step: int) -> int:
    """Return how many tokens of training take as long as the evaluations from a step to the end."""
    recipe, split = job.recipe, job.tokens.held_out
    evaluations = (recipe.steps - 1) // recipe.eval_every - (step - 1) // recipe.eval_every
    sampled = held_out_tokens(split, recipe.context, recipe.eval_blocks or None)
    return (evaluations * sampled + held_out_tokens(split, recipe.context, None)) // _FORWARD_SHARE


@torch.no_grad()
def held_out_loss(loss_of: Callable[[Tensor], Tensor], job: TrainingJob, limit: int | None) -> dict[str, float]:
    """Return the loss over at most `limit` held-out blocks, or over all held-out tokens but the first.

    `loss_of` returns the summed loss of a batch. The batches are divided among the processes. The result has
    `held_out_loss` (nats per token), `held_out_tokens`, and `held_out_bits_per_byte` for a byte-level tokenizer;
    `<|endoftext|>` costs bits but has no bytes.
    """
    split, context, world = job.tokens.held_out, job.recipe.context, job.world
    byte_lengths = token_bytes(job.tokens.tokenizer, job.tokens.vocab_size)
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
    result = {"held_out_loss": total_nats / round(total_tokens), "held_out_tokens": round(total_tokens)}
    if total_bytes:
        result["held_out_bits_per_byte"] = total_nats / math.log(2) / round(total_bytes)
    return result
