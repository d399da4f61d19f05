"""The chunked loss and its gradients, compared with torch over all logits."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own custom
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pipelines.model.network.gpt2 import padded_loss, summed_loss


def _plain(hidden: Tensor, embedding: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(hidden, embedding), targets, reduction="sum")


def _inputs(tokens: int, width: int, entries: int, scale: float, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    hidden = (torch.randn(tokens, width, generator=generator) * scale).requires_grad_()
    embedding = torch.randn(entries, width, generator=generator).requires_grad_()
    return hidden, embedding, torch.randint(0, entries, (tokens,), generator=generator)


@settings(deadline=None, max_examples=40)
@given(
    tokens=st.integers(1, 40),
    width=st.integers(1, 9),
    entries=st.integers(1, 70),
    scale=st.sampled_from([0.1, 1.0, 30.0]),
    at_once=st.integers(1, 500),
    seed=st.integers(0, 5),
)
def test_loss_and_gradients_match_torch(
    tokens: int, width: int, entries: int, scale: float, at_once: int, seed: int
) -> None:
    hidden, embedding, targets = _inputs(tokens, width, entries, scale, seed)
    expected = _plain(hidden, embedding, targets)
    wanted = torch.autograd.grad(expected * 0.5, (hidden, embedding))
    loss = summed_loss(hidden, embedding, targets, at_once)  # the last chunk is often shorter
    result = torch.autograd.grad(loss * 0.5, (hidden, embedding))
    with torch.no_grad():
        plain_loss = summed_loss(hidden, embedding, targets, at_once).item()
    assert plain_loss == pytest.approx(loss.item(), rel=1e-6, abs=1e-6)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5, abs=1e-4)
    for own, reference in zip(result, wanted, strict=True):
        torch.testing.assert_close(own, reference, rtol=1e-4, atol=1e-4 * max(1.0, scale))


def test_large_logits_do_not_overflow() -> None:
    hidden, embedding = torch.tensor([[1000.0], [-1000.0]]), torch.tensor([[1.0], [-1.0]])
    assert summed_loss(hidden, embedding, torch.tensor([0, 1])).item() == 0.0
    assert summed_loss(hidden, embedding, torch.tensor([1, 1])).item() == 2000.0


@pytest.mark.parametrize("entries", [67, 128])
def test_the_padded_loss_ignores_the_padding(entries: int) -> None:
    hidden, embedding, targets = _inputs(12, 8, entries, 1.0)
    loss = padded_loss(hidden, embedding, targets)
    assert loss.item() == pytest.approx(_plain(hidden, embedding, targets).item(), rel=1e-6)
    result = torch.autograd.grad(loss, (hidden, embedding))
    wanted = torch.autograd.grad(_plain(hidden, embedding, targets), (hidden, embedding))
    torch.testing.assert_close(result, wanted)


@pytest.mark.parametrize("way", [summed_loss, padded_loss])
def test_tokens_can_have_weights(way: Callable[..., Tensor]) -> None:
    hidden, embedding, targets = _inputs(12, 8, 67, 1.0)
    weights = torch.linspace(0, 2, 12)
    wanted = torch.nn.functional.cross_entropy(hidden @ embedding.t(), targets, reduction="none") @ weights
    loss = way(hidden, embedding, targets, token_weights=weights)
    assert loss.item() == pytest.approx(wanted.item(), rel=1e-6)
    gradients = (torch.autograd.grad(one, (hidden, embedding)) for one in (loss, wanted))
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("way", [summed_loss, padded_loss])
def test_both_losses_in_bfloat16(way: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
    hidden, embedding, targets = _inputs(12, 8, 67, 1.0)
    with torch.autocast("cpu", torch.bfloat16):
        loss = way(hidden, embedding, targets)
    assert loss.item() == pytest.approx(_plain(hidden, embedding, targets).item(), rel=0.02)
    result = torch.autograd.grad(loss, (hidden, embedding))
    wanted = torch.autograd.grad(_plain(hidden, embedding, targets), (hidden, embedding))
    assert [entry.shape for entry in result] == [entry.shape for entry in wanted]
    torch.testing.assert_close(result[1], wanted[1], rtol=0.1, atol=0.1)


def test_nan_propagates() -> None:
    hidden, embedding, targets = _inputs(4, 3, 5, 1.0)
    with torch.no_grad():
        hidden[2, 1] = float("nan")
    assert summed_loss(hidden, embedding, targets).isnan()
