"""GPT-2 as in the paper (section 2.3) and the released code.

A decoder-only transformer: token and learned position embeddings; in each block, layer norm before attention and before
the feed-forward layer (GPT-1 had it after them); a final layer norm; and an output that shares the token embedding.
Parameters have the names of the released weights: wte, wpe, h.0.ln_1, h.0.attn.c_attn, ... GPT-3 differs in its
attention only: every second layer is locally banded.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 - torch's convention
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pipelines.errors import InputError
from pipelines.model.network.banded import banded_attention, latest_visible

LAYER_NORM_EPSILON = 1e-5
_WEIGHT_STD = 0.02
_POSITION_STD = 0.01  # as in the released code
# Logits computed at a time on a CPU: few enough to stay in its caches until they are used again.
LOGITS_AT_ONCE = 1 << 23
# GPU matrix units need sizes that this divides; an odd vocabulary size is considerably slower.
_ALIGNMENT = 128


@dataclasses.dataclass(frozen=True)
class Architecture:
    """The sizes that determine the shapes of all weights, the dropout, and the attention.

    With an `attention_window` of 0 attention is full; else tokens attend to the latest `attention_window` ones in every
    second layer.
    """

    layers: int
    width: int
    heads: int
    context: int
    vocab_size: int
    dropout: float = 0.0
    attention_window: int = 0


# Far beyond any GPT-2: larger sizes come from a damaged config, and would take minutes or all memory.
_MAX_SIZES = Architecture(
    layers=1000, width=1 << 17, heads=1 << 17, context=1 << 22, vocab_size=1 << 24, attention_window=1 << 22
)


class KeyValueCache:
    """The keys and values of earlier tokens, so that each token is computed only once.

    `length` tokens of [layers, blocks, heads, capacity, head dimension] are filled, the same number in every block;
    the capacity defaults to the context.
    """

    def __init__(
        self, architecture: Architecture, blocks: int, device: torch.device, dtype: torch.dtype, capacity: int = 0
    ) -> None:
        size = architecture
        shape = (size.layers, blocks, size.heads, capacity or size.context, size.width // size.heads)
        self.keys = torch.zeros(shape, device=device, dtype=dtype)
        self.values = torch.zeros(shape, device=device, dtype=dtype)
        self.length = 0

    def extend(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Store the new tokens' keys and values of a layer; return those of all tokens so far."""
        end = self.length + key.shape[2]
        self.keys[layer, :, :, self.length : end] = key
        self.values[layer, :, :, self.length : end] = value
        return self.keys[layer, :, :, :end], self.values[layer, :, :, :end]


class Branches(NamedTuple):
    """New tokens that do not simply follow those in the cache: several continuations of one text, or several texts.

    `positions` are [tokens]; `visible`, [tokens, cached + new tokens], says which tokens a new token attends to.
    """

    positions: Tensor
    visible: Tensor


# Texts that attention computes together on a CPU: few, so that they have similar lengths.
_TEXTS_AT_ONCE = 4


class Packing(NamedTuple):
    """Texts of several lengths, one after another in one block, so that only attention computes padding.

    `positions`, [tokens], are those of the tokens in their texts. Attention computes groups of texts of similar length:
    `padded` are the indices of their tokens, group after group, `shapes` the texts and the longest text of a group, and
    `places`, [tokens], where the tokens are in the groups.
    """

    positions: Tensor
    padded: Tensor
    shapes: list[tuple[int, int]]
    places: Tensor


def pack(lengths: Tensor) -> Packing:
    """Return the packing of texts with these lengths, [texts]."""
    tokens = torch.arange(int(lengths.sum()), device=lengths.device)
    positions = tokens - (lengths.cumsum(0) - lengths).repeat_interleave(lengths)
    order = lengths.argsort(stable=True)
    at_once = _TEXTS_AT_ONCE if lengths.device.type == "cpu" else len(lengths)
    groups = torch.split(lengths[order], at_once)
    padded_lengths = torch.cat([group[-1:].expand(len(group)) for group in groups])
    starts = torch.empty_like(lengths).scatter_(0, order, padded_lengths.cumsum(0) - padded_lengths)
    places = positions + starts.repeat_interleave(lengths)
    # Later tokens are not visible to earlier ones, so any token, such as the first, can be the padding.
    padded = tokens.new_zeros(int(padded_lengths.sum())).scatter_(0, places, tokens)
    return Packing(positions, padded, [(len(group), int(group[-1])) for group in groups], places)


class GPT2(nn.Module):
    """The model; its weights are uninitialized until `initialize` or `load_state_dict`.

    With `activation_checkpointing` each layer saves only its input for the backward pass and is computed twice: less
    memory, slower.
    """

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        self.architecture = architecture
        self.activation_checkpointing = False
        # Without these weights, nn.Embedding would import torch's compiler on the meta device, for two seconds.
        tokens = torch.randn(architecture.vocab_size, architecture.width)
        positions = torch.randn(architecture.context, architecture.width)
        self.wte = nn.Embedding(architecture.vocab_size, architecture.width, _weight=tokens)
        self.wpe = nn.Embedding(architecture.context, architecture.width, _weight=positions)
        self.drop = nn.Dropout(architecture.dropout)
        self.h = nn.ModuleList(Block(architecture, layer) for layer in range(architecture.layers))
        self.ln_f = nn.LayerNorm(architecture.width, eps=LAYER_NORM_EPSILON)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of the next token, [blocks, tokens, vocabulary], for token ids [blocks, tokens]."""
        return F.linear(self.hidden(tokens), self.wte.weight)

    def hidden(
        self, tokens: Tensor, cache: KeyValueCache | None = None, branches: Branches | None = None,
        packing: Packing | None = None,
    ) -> Tensor:  # fmt: skip
        """Return the input of the output layer: the residual stream after the final norm, [blocks, tokens, width].

        With a cache, `tokens` follow those in the cache, and are added to it. With a packing, they are one block.
        """
        start, new = cache.length if cache is not None else 0, tokens.shape[1]
        layout = branches or packing
        positions = layout.positions if layout else torch.arange(start, start + new, device=tokens.device)
        visible, window = branches and branches.visible, self.architecture.attention_window
        if visible is None and start and new > 1:
            # A single new token attends to all earlier ones; several need a causal mask, [new, all].
            visible = torch.ones(new, start + new, dtype=torch.bool, device=tokens.device).tril(start)
        latest = latest_visible(visible, window) if window and visible is not None else visible
        x = self.drop(self.wte(tokens) + self.wpe(positions))
        for layer, block in enumerate(self.h):
            if self.activation_checkpointing and self.training:
                x = checkpoint(block, x, packing=packing, use_reentrant=False)
            else:
                x = block(x, cache, latest if layer % 2 else visible, packing)
        if cache is not None:
            cache.length += new
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

    def forward(
        self, x: Tensor, cache: KeyValueCache | None = None, visible: Tensor | None = None,
        packing: Packing | None = None,
    ) -> Tensor:  # fmt: skip
        """Return the residual stream after this layer, [blocks, tokens, width]."""
        attended: Tensor = x + self.attn(self.ln_1(x), cache, visible, packing)
        out: Tensor = attended + self.mlp(self.ln_2(attended))
        return out


class Attention(nn.Module):
    """Causal multi-head self-attention, full or locally banded."""

    def __init__(self, architecture: Architecture, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.window = architecture.attention_window if layer % 2 else 0
        self.heads = architecture.heads
        self.dropout = architecture.dropout
        self.c_attn = nn.Linear(architecture.width, 3 * architecture.width)
        self.c_proj = nn.Linear(architecture.width, architecture.width)
        self.resid_drop = nn.Dropout(architecture.dropout)

    def forward(
        self, x: Tensor, cache: KeyValueCache | None = None, visible: Tensor | None = None,
        packing: Packing | None = None,
    ) -> Tensor:  # fmt: skip
        """Attend from each token to itself and earlier ones, or to the `visible` ones; [blocks, tokens, width]."""
        mixed = self.c_attn(x)
        if packing is None:
            out = self._attend(mixed, cache, visible)
        else:
            rows = torch.split(mixed[0].index_select(0, packing.padded), list(map(math.prod, packing.shapes)))
            groups = [self._attend(row.view(*shape, -1)) for row, shape in zip(rows, packing.shapes, strict=True)]
            out = torch.cat([group.flatten(0, 1) for group in groups]).index_select(0, packing.places)[None]
        projected: Tensor = self.resid_drop(self.c_proj(out))
        return projected

    def _attend(self, mixed: Tensor, cache: KeyValueCache | None = None, visible: Tensor | None = None) -> Tensor:
        """Return the values that tokens attend to, from queries, keys and values, [blocks, tokens, 3 * width]."""
        blocks, tokens, width = mixed.shape[0], mixed.shape[1], mixed.shape[2] // 3
        query, key, value = (
            part.view(blocks, tokens, self.heads, width // self.heads).transpose(1, 2)
            for part in torch.split(mixed, width, dim=2)
        )
        dropout = self.dropout if self.training else 0.0
        start = cache.length if cache is not None else 0
        if cache is not None:
            stored = cache.extend(self.layer, key, value)
            key, value = stored if start or visible is not None else (key, value)
        is_causal = visible is None and not start
        if is_causal and self.window:
            out = banded_attention(query, key, value, self.window, dropout)
        else:
            if visible is None and self.window:  # a single new token
                key, value = key[:, :, -self.window :], value[:, :, -self.window :]
            out = F.scaled_dot_product_attention(query, key, value, visible, dropout_p=dropout, is_causal=is_causal)
        return out.transpose(1, 2).reshape(blocks, tokens, width)


class FeedForward(nn.Module):
    """Two linear layers, four times as wide in the middle, with the tanh approximation of GELU."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        self.c_fc = nn.Linear(architecture.width, 4 * architecture.width)
        self.c_proj = nn.Linear(4 * architecture.width, architecture.width)
        self.resid_drop = nn.Dropout(architecture.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Return [blocks, tokens, width]."""
        out: Tensor = self.resid_drop(self.c_proj(F.gelu(self.c_fc(x), approximate="tanh")))
        return out


def empty_weights(architecture: Architecture, path: str) -> dict[str, Tensor]:
    """Return weights without memory; raise InputError, naming the config, for sizes that no GPT-2 has."""
    for name, largest in dataclasses.asdict(_MAX_SIZES).items():
        smallest = 0 if name == "attention_window" else 1
        if name != "dropout" and not smallest <= (size := getattr(architecture, name)) <= largest:
            raise InputError(f"{path}: {name} is {size:,}, expected {smallest} to {largest:,}")
    if architecture.width % architecture.heads:
        raise InputError(f"{path}: the width {architecture.width} is not a multiple of {architecture.heads} heads")
    with torch.device("meta"):
        return dict(GPT2(architecture).state_dict())


def empty_model(architecture: Architecture) -> GPT2:
    """Return a model on the CPU with uninitialized weights."""
    with torch.device("meta"):  # skips torch's own initialization
        model = GPT2(architecture)
    return model.to_empty(device="cpu")


@torch.no_grad()
def initialize(model: GPT2, seed: int) -> None:
    """Draw initial weights: N(0, 0.02), positions N(0, 0.01), biases 0, gains 1.

    The N = 2 x layers projections into the residual stream are scaled by 1/sqrt(N), so that the stream does not grow
    with depth. Paper, section 2.3.
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
    """Return the summed loss, in nats, of all tokens but the first of each block; ids [blocks, tokens + 1]."""
    hidden = model.hidden(blocks[:, :-1])
    return summed_loss(hidden.flatten(0, 1), model.wte.weight, blocks[:, 1:].flatten())


def summed_loss(
    hidden: Tensor,
    embedding: Tensor,
    targets: Tensor,
    logits_at_once: int = LOGITS_AT_ONCE,
    token_weights: Tensor | None = None,
) -> Tensor:
    """Return the sum of -log p(target) in nats, with the logits `hidden @ embedding.T`.

    `hidden` is [tokens, width], `embedding` [vocabulary, width], `targets` [tokens]; `token_weights`, [tokens], are
    the factors of the summands. `logits_at_once` limits memory on a CPU.
    """
    if hidden.device.type != "cpu":
        return padded_loss(hidden, embedding, targets, token_weights)
    exact = torch.promote_types(hidden.dtype, torch.float32)
    dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else exact
    rows = max(1, min(len(hidden), logits_at_once // len(embedding)))
    with torch.autocast("cpu", enabled=False):
        if not torch.is_grad_enabled():
            return _chunked_loss(hidden.to(exact), embedding, targets, dtype, rows, None, token_weights)
        values = hidden.to(exact), embedding, targets, dtype, rows, token_weights
        loss: Tensor = _SummedLoss.apply(*values)  # type: ignore[no-untyped-call]
        return loss


def padded_loss(hidden: Tensor, embedding: Tensor, targets: Tensor, token_weights: Tensor | None = None) -> Tensor:
    """Return the loss from all logits at once, with the vocabulary padded for GPUs; torch.compile fuses it."""
    entries = len(embedding)
    aligned = F.pad(embedding, (0, 0, 0, -entries % _ALIGNMENT))
    logits = F.linear(hidden, aligned)[:, :entries]
    if token_weights is not None:
        return F.cross_entropy(logits.float(), targets, reduction="none") @ token_weights
    return F.cross_entropy(logits.float(), targets, reduction="sum")


class _SummedLoss(torch.autograd.Function):
    """Computes the gradients along with the loss, from the same logits; the backward pass only scales them."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, embedding: Tensor, targets: Tensor, dtype: torch.dtype, rows: int,
        token_weights: Tensor | None,
    ) -> Tensor:  # fmt: skip
        gradients = torch.empty_like(hidden), torch.zeros_like(embedding)
        loss = _chunked_loss(hidden, embedding, targets, dtype, rows, gradients, token_weights)
        ctx.save_for_backward(*gradients)
        return loss

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, Tensor, None, None, None, None]:
        hidden_gradient, embedding_gradient = ctx.saved_tensors
        return hidden_gradient * outer[0], embedding_gradient * outer[0], None, None, None, None


def _chunked_loss(
    hidden: Tensor,
    embedding: Tensor,
    targets: Tensor,
    dtype: torch.dtype,
    rows: int,
    gradients: tuple[Tensor, Tensor] | None,
    token_weights: Tensor | None,
) -> Tensor:
    """Return the loss, computed for `rows` tokens at a time, and write the gradients of hidden and embedding.

    Factors of matrix products are rounded to `dtype`; everything else has the dtype of `hidden`.
    """
    factor = embedding.to(dtype)
    loss = hidden.new_zeros((), dtype=torch.float64)
    for start in range(0, len(hidden), rows):
        chunk, chunk_targets = hidden[start : start + rows], targets[start : start + rows]
        logits = torch.mm(chunk.to(dtype), factor.t()).to(chunk.dtype)
        logits -= logits.amax(1, keepdim=True)  # so that no exponential overflows
        target_logits = logits.gather(1, chunk_targets[:, None]).squeeze(1)
        exponentials = logits.exp_()
        sums = exponentials.sum(1, keepdim=True)
        losses = sums.squeeze(1).log() - target_logits
        scale = None if token_weights is None else token_weights[start : start + rows]
        loss += (losses if scale is None else losses * scale).sum(dtype=torch.float64)
        if gradients is not None:
            # A logit's gradient is its probability, minus one for the target; probabilities are never materialized.
            hidden_gradient, embedding_gradient = gradients
            weights = exponentials.to(dtype)
            torch.div(torch.mm(weights, factor), sums, out=hidden_gradient[start : start + rows])
            hidden_gradient[start : start + rows].sub_(embedding[chunk_targets])
            if scale is not None:
                hidden_gradient[start : start + rows].mul_(scale[:, None])
                chunk = chunk * scale[:, None]
            product = weights.t(), (chunk / sums).to(dtype)
            if dtype == embedding_gradient.dtype:
                embedding_gradient.addmm_(*product)
            else:
                embedding_gradient += torch.mm(*product)
            embedding_gradient.index_add_(0, chunk_targets, chunk, alpha=-1)
    return loss.to(hidden.dtype)
