"""The next-token loss, computed from the residual stream without holding the logits of all tokens in memory."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's convention
from torch import Tensor

from pipelines.model.network import LOGITS_AT_ONCE

# GPU matrix units need sizes that this divides; an odd vocabulary size is considerably slower.
_ALIGNMENT = 128


def summed_loss(hidden: Tensor, embedding: Tensor, targets: Tensor, logits_at_once: int = LOGITS_AT_ONCE) -> Tensor:
    """Return the sum of -log p(target) in nats, with the logits `hidden @ embedding.T`.

    `hidden` is [tokens, width], `embedding` [vocabulary, width], `targets` [tokens]. `logits_at_once` limits memory on
    a CPU.
    """
    if hidden.device.type != "cpu":
        return padded_loss(hidden, embedding, targets)
    dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else torch.float32
    rows = max(1, min(len(hidden), logits_at_once // len(embedding)))
    with torch.autocast("cpu", enabled=False):
        if not torch.is_grad_enabled():
            return _chunked_loss(hidden.float(), embedding, targets=targets, dtype=dtype, rows=rows, gradients=None)
        loss: Tensor = _SummedLoss.apply(hidden.float(), embedding, targets, dtype, rows)  # type: ignore[no-untyped-call]
        return loss


def padded_loss(hidden: Tensor, embedding: Tensor, targets: Tensor) -> Tensor:
    """Return the loss from all logits at once, with the vocabulary padded for GPUs; torch.compile fuses it."""
    entries = len(embedding)
    aligned = F.pad(embedding, (0, 0, 0, -entries % _ALIGNMENT))
    logits = F.linear(hidden, aligned)[:, :entries]
    return F.cross_entropy(logits.float(), targets, reduction="sum")


class _SummedLoss(torch.autograd.Function):
    """Computes the gradients along with the loss, from the same logits; the backward pass only scales them."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, embedding: Tensor, targets: Tensor, dtype: torch.dtype, rows: int) -> Tensor:
        gradients = torch.empty_like(hidden), torch.zeros_like(embedding)
        loss = _chunked_loss(hidden, embedding, targets=targets, dtype=dtype, rows=rows, gradients=gradients)
        ctx.save_for_backward(*gradients)
        return loss

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        hidden_gradient, embedding_gradient = ctx.saved_tensors
        return hidden_gradient * outer[0], embedding_gradient * outer[0], None, None, None


def _chunked_loss(
    hidden: Tensor,
    embedding: Tensor,
    targets: Tensor,
    dtype: torch.dtype,
    rows: int,
    gradients: tuple[Tensor, Tensor] | None,
) -> Tensor:
    """Return the loss, computed for `rows` tokens at a time, and write the gradients of hidden and embedding.

    Factors of matrix products are rounded to `dtype`; everything else is float32.
    """
    factor = embedding.to(dtype)
    loss = hidden.new_zeros((), dtype=torch.float64)
    for start in range(0, len(hidden), rows):
        chunk, chunk_targets = hidden[start : start + rows], targets[start : start + rows]
        logits = torch.mm(chunk.to(dtype), factor.t()).float()
        logits -= logits.amax(1, keepdim=True)  # so that no exponential overflows
        target_logits = logits.gather(1, chunk_targets[:, None]).squeeze(1)
        exponentials = logits.exp_()
        sums = exponentials.sum(1, keepdim=True)
        loss += (sums.squeeze(1).log() - target_logits).sum(dtype=torch.float64)
        if gradients is not None:
            # A logit's gradient is its probability, minus one for the target; probabilities are never materialized.
            hidden_gradient, embedding_gradient = gradients
            weights = exponentials.to(dtype)
            torch.div(torch.mm(weights, factor), sums, out=hidden_gradient[start : start + rows])
            hidden_gradient[start : start + rows].sub_(embedding[chunk_targets])
            product = weights.t(), (chunk / sums).to(dtype)
            if dtype == embedding_gradient.dtype:
                embedding_gradient.addmm_(*product)
            else:
                embedding_gradient += torch.mm(*product)
            embedding_gradient.index_add_(0, chunk_targets, chunk, alpha=-1)
    return loss.to(hidden.dtype)
