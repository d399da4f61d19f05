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
    if hidden.device.type != "cpu":
        return _all_at_once(hidden, embedding, targets)
    products = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else torch.float32
    given = hidden.float(), embedding, targets, products
    with torch.autocast("cpu", enabled=False):
        if not torch.is_grad_enabled():
            return _in_parts(*given, None)
        loss: Tensor = _SummedLoss.apply(*given)  # type: ignore[no-untyped-call]
        return loss


def _all_at_once(hidden: Tensor, embedding: Tensor, targets: Tensor) -> Tensor:
    """Return the loss from all logits, over a vocabulary padded for the matrix units; a compiler fuses it."""
    entries = len(embedding)
    aligned = F.pad(embedding, (0, 0, 0, -entries % _ALIGNED_ENTRIES))
    logits = F.linear(hidden, aligned)[:, :entries]
    return F.cross_entropy(logits.float(), targets, reduction="sum")


class _SummedLoss(torch.autograd.Function):
    """The gradients are made along with the loss, while the logits are at hand; the backward pass only scales them."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, embedding: Tensor, targets: Tensor, products: torch.dtype) -> Tensor:
        gradients = torch.empty_like(hidden), torch.zeros_like(embedding)
        loss = _in_parts(hidden, embedding, targets, products, gradients)
        ctx.save_for_backward(*gradients)
        return loss

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, Tensor, None, None]:
        of_hidden, of_embedding = ctx.saved_tensors
        return of_hidden * outer[0], of_embedding * outer[0], None, None


def _in_parts(
    hidden: Tensor,
    embedding: Tensor,
    targets: Tensor,
    products: torch.dtype,
    gradients: tuple[Tensor, Tensor] | None,
) -> Tensor:
    """Return the loss, and write the gradients of both factors, one part of the tokens after the other.

    The factors of matrix products are rounded to the type `products`; all else is float32.
    """
    rows = max(1, min(len(hidden), _LOGITS_AT_ONCE // len(embedding)))
    factor = embedding.to(products)
    loss = hidden.new_zeros((), dtype=torch.float64)
    for first in range(0, len(hidden), rows):
        part, wanted = hidden[first : first + rows], targets[first : first + rows]
        logits = torch.mm(part.to(products), factor.t()).float()
        # The largest logit is taken off, so that no power overflows.
        logits -= logits.amax(1, keepdim=True)
        chosen = logits.gather(1, wanted[:, None]).squeeze(1)
        powers = logits.exp_()
        sums = powers.sum(1, keepdim=True)
        loss += (sums.squeeze(1).log() - chosen).sum(dtype=torch.float64)
        if gradients is not None:
            # The gradient of a logit is its probability, and of the target's one less; p is never written out.
            of_hidden, of_embedding = gradients
            weights = powers.to(products)
            torch.div(torch.mm(weights, factor), sums, out=of_hidden[first : first + rows]).sub_(embedding[wanted])
            _add_product(of_embedding, weights.t(), (part / sums).to(products))
            of_embedding.index_add_(0, wanted, part, alpha=-1)
    return loss.to(hidden.dtype)


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    if left.dtype == total.dtype:
        total.addmm_(left, right)
    else:
        total += torch.mm(left, right)
