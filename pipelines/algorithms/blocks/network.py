"""The network that judges blocks: convolutions over the blocks of a page, and averages over all of them."""

from __future__ import annotations

import functools
from math import sqrt
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pipelines.algorithms.blocks.text_features import Floats, Numbers
from pipelines.algorithms.kernels.compilation import kernel

# Each layer sees the blocks at these distances, times -2 to 2.
DILATIONS = (1, 2, 4)
KERNEL_SIZE = 5
# What the outputs say of a block: is it main content, is it the body of an article.
MAIN, ARTICLE = 0, 1
_EPSILON = 1e-5


class Network(NamedTuple):
    """The weights, float32; `F` features, `H` hidden units, `L` layers, `K` types of pages.

    Inputs: the square roots of the features, between `low` and `high`, are multiplied by `inputs` (F, H); `tags`
    (256, H) are added for the tag of the element. Layers: `norms` (L, 2, H) scale and shift, `kernels` (L, 5, H) with
    `kernel_biases`, `expand` (L, H, 2H) with `expand_biases`, `grouped` (L, 2H, 2H) of means over each group of the
    block, `pooled` (L, 2H, 2H) of means and maxima over the page,
    `contract` (L, 2H, H) with `contract_biases`. At last `norm` (2, H), `outputs` (H, 2) and `types` (H, K).
    """

    low: Floats
    high: Floats
    inputs: Floats
    input_bias: Floats
    tags: Floats
    norms: Floats
    kernels: Floats
    kernel_biases: Floats
    expand: Floats
    expand_biases: Floats
    grouped: Floats
    pooled: Floats
    contract: Floats
    contract_biases: Floats
    norm: Floats
    outputs: Floats
    output_bias: Floats
    types: Floats
    type_bias: Floats


def evaluate(
    network: Network, features: Floats, groups: Numbers, tags: npt.NDArray[np.uint8], words: Floats
) -> tuple[Floats, Floats]:
    """Return the log odds of each block, of shape (blocks, 2), and of each type of page.

    `features` is float32 of shape (blocks, F), `groups` of shape (2, blocks) with numbers from 0 on; `tags` are those
    of the elements.
    """
    blocks, units = len(features), network.inputs.shape[1]
    shares = np.sqrt(words)
    shares /= max(shares.sum(), 1e-6)
    # Arrays are reused, since most of the time goes into the memory of intermediate results.
    hidden, normal, nearby = np.empty((3, blocks, units), np.float32)
    wide = np.empty((blocks, 2 * units), np.float32)
    first = int(groups[0].max()) + 1
    means = np.empty((first + int(groups[1].max()) + 1, units), np.float32)
    of_means, counts = np.empty((len(means), 2 * units), np.float32), np.empty(len(means), np.float32)
    rows = np.stack([groups[0], groups[1] + first])
    np.matmul(scale(features, network.low, network.high), network.inputs, out=hidden)
    _activate(hidden, network.tags, tags[None].astype(rows.dtype), network.input_bias)
    for layer, dilation in enumerate(DILATIONS):
        _normalize(hidden, network.norms[layer], normal)
        _convolve(normal, network.kernels[layer], network.kernel_biases[layer], dilation, nearby)
        _average(normal, rows, counts, means)
        np.matmul(nearby, network.expand[layer], out=wide)
        np.matmul(means[:first], network.grouped[layer, :units], out=of_means[:first])
        np.matmul(means[first:], network.grouped[layer, units:], out=of_means[first:])
        page = np.concatenate([shares @ normal, normal.max(axis=0)]) @ network.pooled[layer]
        _activate(wide, of_means, rows, page + network.expand_biases[layer])
        hidden += np.matmul(wide, network.contract[layer], out=nearby)
        hidden += network.contract_biases[layer]
    _normalize(hidden, network.norm, normal)
    odds = normal @ network.outputs + network.output_bias
    return odds, np.asarray((shares @ normal) @ network.types + network.type_bias)


def scale(features: Floats, low: Floats, high: Floats) -> Floats:
    """Return the square roots of features, with their signs, between limits: counts of all sizes become comparable."""
    scaled = np.empty_like(features)
    _scale(features, low, high, scaled)
    return scaled


@kernel
def _scale(features: Any, low: Any, high: Any, scaled: Any) -> None:
    for row in range(len(features)):
        for column in range(features.shape[1]):
            value = features[row, column]
            root = np.float32(sqrt(abs(value)))
            scaled[row, column] = max(low[column], min(high[column], root if value > 0 else -root))


@kernel
def _activate(values: Any, added: Any, numbers: Any, bias: Any) -> None:
    """Add to each row a bias, and those of `added` with its numbers; then negative values become 0."""
    for row in range(len(values)):
        for number in numbers[:, row]:
            for unit in range(values.shape[1]):
                values[row, unit] += added[number, unit]
        for unit in range(values.shape[1]):
            values[row, unit] = max(np.float32(0), values[row, unit] + bias[unit])


# LLVM keeps the order of additions, in which each waits for the one before, unless it is told that any will do.
@functools.partial(kernel, fastmath={"reassoc"})
def _normalize(hidden: Any, norm: Any, normal: Any) -> None:
    """Scale each row to mean 0 and variance 1, then by the learned scale and shift."""
    units = hidden.shape[1]
    for row in range(len(hidden)):
        mean = variance = np.float32(0)
        for unit in range(units):
            mean += hidden[row, unit]
        mean /= np.float32(units)
        for unit in range(units):
            variance += (hidden[row, unit] - mean) ** 2
        factor = np.float32(1) / np.float32(sqrt(variance / np.float32(units) + np.float32(_EPSILON)))
        for unit in range(units):
            normal[row, unit] = (hidden[row, unit] - mean) * factor * norm[0, unit] + norm[1, unit]


@kernel
def _convolve(normal: Any, taps: Any, bias: Any, dilation: Any, nearby: Any) -> None:
    """Add to each row those at the distances of the taps, each times its weights."""
    for row in range(len(normal)):
        for unit in range(normal.shape[1]):
            nearby[row, unit] = normal[row, unit] + bias[unit]
        for tap in range(KERNEL_SIZE):
            other = row + (tap - KERNEL_SIZE // 2) * dilation
            if 0 <= other < len(normal):
                for unit in range(normal.shape[1]):
                    nearby[row, unit] += normal[other, unit] * taps[tap, unit]


@kernel
def _average(normal: Any, numbers: Any, counts: Any, means: Any) -> None:
    """Fill the means over the rows with each number."""
    counts[:] = 0
    means[:] = 0
    for row in range(len(normal)):
        for number in numbers[:, row]:
            counts[number] += np.float32(1)
            for unit in range(normal.shape[1]):
                means[number, unit] += normal[row, unit]
    for number in range(len(means)):
        factor = np.float32(1) / max(np.float32(1), counts[number])
        for unit in range(normal.shape[1]):
            means[number, unit] *= factor
