"""A small model with the gradients of one batch, the same in every process."""

from __future__ import annotations

import torch

from pipelines.model.network.gpt2 import GPT2, Architecture, empty_model, initialize, next_token_loss


def model_with_gradients() -> GPT2:
    model = empty_model(Architecture(layers=2, width=12, heads=2, context=9, vocab_size=31))
    initialize(model, 1)
    blocks = torch.randint(0, 31, (3, 10), generator=torch.Generator().manual_seed(2))
    next_token_loss(model, blocks).backward()  # type: ignore[no-untyped-call]
    return model
