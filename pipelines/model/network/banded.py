"""Locally banded attention: a token attends to the latest `window` tokens up to itself (GPT-3, section 2.1).

GPT-3 alternates it with full attention and gives no window; GPT-Neo has 256. Compiled for a GPU it is torch's
`flex_attention`. Elsewhere the tokens are divided into chunks of `window`, each of which attends to itself and the
chunk before it: from two windows on that is faster than a mask over all pairs, which computes what it masks.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - torch's convention
from torch import Tensor

_attention = F.scaled_dot_product_attention


def banded_attention(query: Tensor, key: Tensor, value: Tensor, window: int, dropout: float = 0.0) -> Tensor:
    """Attend from each token to the latest `window` ones up to itself; all are [blocks, heads, tokens, head dim]."""
    blocks, heads, tokens, size = query.shape
    if tokens > window and query.is_cuda and torch.compiler.is_compiling() and not dropout:
        return flex_banded_attention(query, key, value, window)
    query_start, key_start, value_start = (part[:, :, :window] for part in (query, key, value))
    first = _attention(query_start, key_start, value_start, dropout_p=dropout, is_causal=True)
    if tokens <= window:
        return first

    def chunks(part: Tensor) -> Tensor:
        return F.pad(part, (0, 0, 0, -tokens % window)).reshape(blocks, heads, -1, window, size).transpose(1, 2)

    # [blocks x chunks, heads, window, head dim], keys and values with the chunk before, 2 x window.
    queries = chunks(query)[:, 1:].flatten(0, 1)
    keys, values = (torch.cat((part[:, :-1], part[:, 1:]), 3).flatten(0, 1) for part in (chunks(key), chunks(value)))
    visible = torch.ones(window, 2 * window, dtype=torch.bool, device=query.device).tril(window).triu(1)
    rest = _attention(queries, keys, values, visible, dropout_p=dropout)
    rest = rest.reshape(blocks, -1, heads, window, size).transpose(1, 2).flatten(2, 3)
    return torch.cat((first, rest[:, :, : tokens - window]), 2)


def flex_banded_attention(query: Tensor, key: Tensor, value: Tensor, window: int) -> Tensor:
    """Return `banded_attention` by one kernel that skips masked blocks, if compiled; it has no dropout."""
    # Deferred: it imports torch's compiler, for two seconds.
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    tokens = query.shape[2]

    def visible(_block: Tensor, _head: Tensor, query_index: Tensor, key_index: Tensor) -> Tensor:
        return (key_index <= query_index) & (query_index < key_index + window)

    mask = create_block_mask(visible, None, None, tokens, tokens, device=query.device)
    out: Tensor = flex_attention(query, key, value, block_mask=mask)
    return out


def latest_visible(visible: Tensor, window: int) -> Tensor:
    """Return a mask, [tokens, keys], with only the last `window` visible keys of each token.

    The visible keys of a token are the text before it, in order, whatever lies between them in a cache.
    """
    counts = visible.cumsum(1, dtype=torch.int32)
    return visible & (counts > counts[:, -1:] - window)
