"""GPT-2 as the paper (section 2.3) and the released code have it.

A decoder-only transformer: token and learned position embeddings; in each block, layer norm before attention and before
the feed-forward layer (GPT-1 had it behind); a final layer norm; and an output that shares the token embedding.
The parameters bear the names of the released weights: wte, wpe, h.0.ln_1, h.0.attn.c_attn, ...
"""

from __future__ import annotations

import dataclasses
import math

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own custom
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pipelines.model.network.token_loss import summed_loss

LAYER_NORM_EPSILON = 1e-5
_WEIGHT_STD = 0.02
_POSITION_STD = 0.01  # half of the others' in the released code


@dataclasses.dataclass(frozen=True)
class Architecture:
    """The sizes that decide the shape of every weight, and the dropout."""

    layers: int
    width: int
    heads: int
    context: int
    vocab_size: int
    dropout: float = 0.0


class KeyValueCache:
    """The keys and values of the tokens that a model has seen, so that each token goes through it once.

    `length` tokens of [layers, blocks, heads, context, width of a head] are filled, the same number in every block.
    """

    def __init__(self, architecture: Architecture, blocks: int, device: torch.device, dtype: torch.dtype) -> None:
        size = architecture
        shape = (size.layers, blocks, size.heads, size.context, size.width // size.heads)
        self.keys = torch.zeros(shape, device=device, dtype=dtype)
        self.values = torch.zeros(shape, device=device, dtype=dtype)
        self.length = 0

    def extended(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Put the new tokens' keys and values of a layer in; return those of all tokens so far."""
        end = self.length + key.shape[2]
        self.keys[layer, :, :, self.length : end] = key
        self.values[layer, :, :, self.length : end] = value
        return self.keys[layer, :, :, :end], self.values[layer, :, :, :end]


class GPT2(nn.Module):
    """The model; its weights are only set by `initialise` or `load_state_dict`.

    With `recompute` each layer keeps nothing for the backward pass but its input, and is computed twice instead:
    the memory of training falls, and so does its speed.
    """

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        self.architecture = architecture
        self.recompute = False
        self.wte = nn.Embedding(architecture.vocab_size, architecture.width)
        self.wpe = nn.Embedding(architecture.context, architecture.width)
        self.drop = nn.Dropout(architecture.dropout)
        self.h = nn.ModuleList(Block(architecture, layer) for layer in range(architecture.layers))
        self.ln_f = nn.LayerNorm(architecture.width, eps=LAYER_NORM_EPSILON)

    def forward(self, tokens: Tensor, cache: KeyValueCache | None = None) -> Tensor:
        """Return the logits of the next token, [blocks, tokens, vocabulary], for token ids [blocks, tokens].

        With a cache, `tokens` are those after the ones it holds, and are added to it.
        """
        return F.linear(self.hidden(tokens, cache), self.wte.weight)

    def hidden(self, tokens: Tensor, cache: KeyValueCache | None = None) -> Tensor:
        """Return what the logits are made of: the residual stream after the final norm, [blocks, tokens, width]."""
        seen = cache.length if cache is not None else 0
        positions = torch.arange(seen, seen + tokens.shape[1], device=tokens.device)
        x = self.drop(self.wte(tokens) + self.wpe(positions))
        for block in self.h:
            if self.recompute and self.training:
                x = checkpoint(block, x, use_reentrant=False)
            else:
                x = block(x, cache)
        if cache is not None:
            cache.length += tokens.shape[1]
        out: Tensor = self.ln_f(x)
        return out


class Block(nn.Module):
    """One layer: attention, then the feed-forward layer, each added to the residual stream."""

    def __init__(self, architecture: Architecture, layer: int) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(architecture.width, eps=LAYER_NORM_EPSILON)
        self.attn = Attention(architecture, layer)
        self.ln_2 = nn.LayerNorm(architecture.width, eps=LAYER_NORM_EPSILON)
        self.mlp = FeedForward(architecture)

    def forward(self, x: Tensor, cache: KeyValueCache | None = None) -> Tensor:
        """Return the residual stream after this layer, [blocks, tokens, width] as given."""
        mixed: Tensor = x + self.attn(self.ln_1(x), cache)
        out: Tensor = mixed + self.mlp(self.ln_2(mixed))
        return out


class Attention(nn.Module):
    """Causal self-attention with several heads."""

    def __init__(self, architecture: Architecture, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.heads = architecture.heads
        self.dropout = architecture.dropout
        self.c_attn = nn.Linear(architecture.width, 3 * architecture.width)
        self.c_proj = nn.Linear(architecture.width, architecture.width)
        self.resid_drop = nn.Dropout(architecture.dropout)

    def forward(self, x: Tensor, cache: KeyValueCache | None = None) -> Tensor:
        """Let each token look at itself and those before it; [blocks, tokens, width] as given."""
        blocks, tokens, width = x.shape
        query, key, value = (
            part.view(blocks, tokens, self.heads, width // self.heads).transpose(1, 2)
            for part in self.c_attn(x).split(width, dim=2)
        )
        dropout = self.dropout if self.training else 0.0
        if cache is None or cache.length == 0:
            if cache is not None:
                cache.extended(self.layer, key, value)
            mixed = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
        else:
            # One new token may look at all before it; of several, each only at those before itself.
            key, value = cache.extended(self.layer, key, value)
            mask = None if tokens == 1 else _looks_back(tokens, key.shape[2], x.device)
            mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout)
        joined = mixed.transpose(1, 2).reshape(blocks, tokens, width)
        out: Tensor = self.resid_drop(self.c_proj(joined))
        return out


def _looks_back(new: int, all_tokens: int, device: torch.device) -> Tensor:
    """Return which of all tokens each new one, the last of them, may look at: [new, all_tokens] of bool."""
    return torch.ones(new, all_tokens, dtype=torch.bool, device=device).tril(all_tokens - new)


class FeedForward(nn.Module):
    """Two layers, four times as wide between, with GELU by the tanh formula."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        self.c_fc = nn.Linear(architecture.width, 4 * architecture.width)
        self.c_proj = nn.Linear(4 * architecture.width, architecture.width)
        self.resid_drop = nn.Dropout(architecture.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Return [blocks, tokens, width] as given."""
        out: Tensor = self.resid_drop(self.c_proj(F.gelu(self.c_fc(x), approximate="tanh")))
        return out


def empty_model(architecture: Architecture) -> GPT2:
    """Return a model on the CPU whose weights hold nothing yet."""
    with torch.device("meta"):  # so that nothing is drawn only to be drawn again
        model = GPT2(architecture)
    return model.to_empty(device="cpu")


@torch.no_grad()
def initialise(model: GPT2, seed: int) -> None:
    """Draw the first weights: N(0, 0.02), positions N(0, 0.01), biases 0, gains 1.

    The projections into the residual stream are scaled by 1/sqrt(N), N = 2 x layers being their number, so that the
    stream does not grow with depth. Paper, section 2.3.
    """
    generator = torch.Generator().manual_seed(seed)
    residual_std = _WEIGHT_STD / math.sqrt(2 * model.architecture.layers)
    for name, weight in model.named_parameters():
        if weight.dim() < 2:
            weight.fill_(1.0 if ".ln_" in f".{name}" and name.endswith("weight") else 0.0)
        elif name == "wpe.weight":
            weight.normal_(0.0, _POSITION_STD, generator=generator)
        else:
            std = residual_std if name.endswith("c_proj.weight") else _WEIGHT_STD
            weight.normal_(0.0, std, generator=generator)


def next_token_loss(model: GPT2, blocks: Tensor) -> Tensor:
    """Return the sum of the losses, in nats, of all tokens but the first of each block; ids [blocks, tokens + 1]."""
    hidden = model.hidden(blocks[:, :-1])
    return summed_loss(hidden.flatten(0, 1), model.wte.weight, blocks[:, 1:].flatten())
