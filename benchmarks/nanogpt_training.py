"""nanoGPT's model and training loop, reimplemented with the defaults of its model.py and train.py.

Without biases, GELU by the error function, scaled_dot_product_attention, logits of all tokens and F.cross_entropy over
them, AdamW (0.9, 0.95) with weight decay 0.1 on matrices, fused on CUDA only, gradients clipped at 1, random blocks
from the memory-mapped tokens, the next batch read between forward and backward pass. Only the vocabulary is not padded
to 50,304 entries, as in webtext.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - torch's convention
from torch import Tensor, nn


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The sizes of a model, and the batch size."""

    layers: int
    width: int
    heads: int
    context: int
    vocab_size: int
    batch_size: int


class LayerNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight, None, 1e-5)


class Attention(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.heads = sizes.heads
        self.c_attn = nn.Linear(sizes.width, 3 * sizes.width, bias=False)
        self.c_proj = nn.Linear(sizes.width, sizes.width, bias=False)
        self.resid_dropout = nn.Dropout(0.0)

    def forward(self, x: Tensor) -> Tensor:
        blocks, tokens, width = x.size()
        q, k, v = self.c_attn(x).split(width, dim=2)
        k = k.view(blocks, tokens, self.heads, width // self.heads).transpose(1, 2)
        q = q.view(blocks, tokens, self.heads, width // self.heads).transpose(1, 2)
        v = v.view(blocks, tokens, self.heads, width // self.heads).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=None, dropout_p=0, is_causal=True)
        y = y.transpose(1, 2).contiguous().view(blocks, tokens, width)
        out: Tensor = self.resid_dropout(self.c_proj(y))
        return out


class Block(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.ln_1 = LayerNorm(sizes.width)
        self.attn = Attention(sizes)
        self.ln_2 = LayerNorm(sizes.width)
        self.c_fc = nn.Linear(sizes.width, 4 * sizes.width, bias=False)
        self.gelu = nn.GELU()
        self.c_proj = nn.Linear(4 * sizes.width, sizes.width, bias=False)
        self.dropout = nn.Dropout(0.0)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        out: Tensor = x + self.dropout(self.c_proj(self.gelu(self.c_fc(self.ln_2(x)))))
        return out


class NanoGPT(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.wte = nn.Embedding(sizes.vocab_size, sizes.width)
        self.wpe = nn.Embedding(sizes.context, sizes.width)
        self.drop = nn.Dropout(0.0)
        self.h = nn.ModuleList(Block(sizes) for _ in range(sizes.layers))
        self.ln_f = LayerNorm(sizes.width)
        self.lm_head = nn.Linear(sizes.width, sizes.vocab_size, bias=False)
        self.wte.weight = self.lm_head.weight
        for name, weight in self.named_parameters():
            if weight.dim() >= 2:
                scale = math.sqrt(2 * sizes.layers) if name.endswith("c_proj.weight") else 1.0
                nn.init.normal_(weight, mean=0.0, std=0.02 / scale)

    def forward(self, idx: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        positions = torch.arange(0, idx.size(1), dtype=torch.long, device=idx.device)
        x = self.drop(self.wte(idx) + self.wpe(positions))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)


def make_optimizer(model: nn.Module) -> torch.optim.AdamW:
    """Return AdamW as its configure_optimizers does, with the decay and betas of train.py."""
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    groups: list[dict[str, Any]] = [
        {"params": [weight for weight in weights if weight.dim() >= 2], "weight_decay": 1e-1},
        {"params": [weight for weight in weights if weight.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=6e-4, betas=(0.9, 0.95))


def get_batch(path: str, sizes: Sizes) -> tuple[Tensor, Tensor]:
    """Read random blocks; the file is mapped again each time, as nanoGPT does to avoid a memory leak."""
    data = np.memmap(path, dtype=np.uint16, mode="r")
    ix = torch.randint(len(data) - sizes.context, (sizes.batch_size,))
    x = torch.stack([torch.from_numpy((data[i : i + sizes.context]).astype(np.int64)) for i in ix])
    y = torch.stack([torch.from_numpy((data[i + 1 : i + 1 + sizes.context]).astype(np.int64)) for i in ix])
    return x, y


def train_steps(path: str, sizes: Sizes, *, compiled: bool) -> Iterator[float]:
    """Train forever; yield the loss of each step."""
    model: Any = NanoGPT(sizes)
    optimizer = make_optimizer(model)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    if compiled:
        model = torch.compile(model)
    x, y = get_batch(path, sizes)
    step = 0
    while True:
        for group in optimizer.param_groups:
            group["lr"] = 6e-4 * min(1.0, (step + 1) / 2000)
        _, loss = model(x, y)
        x, y = get_batch(path, sizes)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        step += 1
        yield loss.item()
