"""The loss of next tokens, from the residual stream: the logits of all tokens need never stand in memory at once."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own custom
from torch import Tensor

# On a CPU the logits are made for so many at a time that they still lie in its caches when they are used again.
_LOGITS_AT_ONCE = 1 << 23
# Matrix units of a card want sizes that this divides; without it an odd vocabulary costs a good part of the speed.
_ALIGNED_ENTRIES = 128


def summed_loss(hidden: Tensor, embedding: Tensor, targets: Tensor) -> Tensor:
    """Return the sum of -log p(target) in nats, the logits being `hidden @ embedding.T`.

    `hidden` is [tokens, width], `embedding` [vocabulary, width], `targets` [tokens].
    """
    if hidden.device.type == "cpu" and not torch.is_autocast_enabled("cpu"):
        if torch.is_grad_enabled():
            loss: Tensor = _SummedLoss.apply(hidden, embedding, targets)  # type: ignore[no-untyped-call]
            return loss
        return _in_parts(hidden, embedding, targets, None)
    entries = len(embedding)
    aligned = F.pad(embedding, (0, 0, 0, -entries % _ALIGNED_ENTRIES))
    logits = F.linear(hidden, aligned)[:, :entries]
    return F.cross_entropy(logits.float(), targets, reduction="sum")


class _SummedLoss(torch.autograd.Function):
    """The gradients are made along with the loss, while the logits are at hand; the backward pass only scales them."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, embedding: Tensor, targets: Tensor) -> Tensor:
        gradients = torch.empty_like(hidden), torch.zeros_like(embedding)
        loss = _in_parts(hidden, embedding, targets, gradients)
        ctx.save_for_backward(*gradients)
        return loss

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, Tensor, None]:
        of_hidden, of_embedding = ctx.saved_tensors
        return of_hidden * outer[0], of_embedding * outer[0], None


def _in_parts(hidden: Tensor, embedding: Tensor, targets: Tensor, gradients: tuple[Tensor, Tensor] | None) -> Tensor:
    """Return the loss, and write the gradients of both factors, one part of the tokens after the other."""
    rows = max(1, min(len(hidden), _LOGITS_AT_ONCE // len(embedding)))
    buffer = hidden.new_empty(rows, len(embedding))
    loss = hidden.new_zeros((), dtype=torch.float64)
    for first in range(0, len(hidden), rows):
        part, wanted = hidden[first : first + rows], targets[first : first + rows]
        logits = torch.mm(part, embedding.t(), out=buffer[: len(part)])
        # The largest logit is taken off, so that no power overflows.
        logits -= logits.amax(1, keepdim=True)
        chosen = logits.gather(1, wanted[:, None]).squeeze(1)
        powers = logits.exp_()
        sums = powers.sum(1)
        loss += (sums.log() - chosen).sum(dtype=torch.float64)
        if gradients is not None:
            # The gradient of a logit is its probability, and of the target's one less; p is never written out.
            of_hidden, of_embedding = gradients
            here = torch.mm(powers, embedding, out=of_hidden[first : first + rows])
            here.div_(sums[:, None]).sub_(embedding[wanted])
            of_embedding.addmm_(powers.t(), part / sums[:, None])
            of_embedding.index_add_(0, wanted, part, alpha=-1)
    return loss.to(hidden.dtype)
