"""The network that judges blocks: convolutions over the blocks of a page, and averages over all of them."""

from __future__ import annotations

from math import sqrt
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pipelines.algorithms.blocks.values import Floats, Numbers
from pipelines.algorithms.kernels.compilation import kernel

# Each layer sees the blocks at these distances, times -2 to 2.
DILATIONS = (1, 2, 4)
KERNEL_SIZE = 5
# What the outputs say of a block: is it main content, is it the body of an article.
MAIN, ARTICLE = 0, 1
_EPSILON = 1e-5


class Network(NamedTuple):
    """The weights, float32; `F` features, `H` hidden units (a multiple of 4), `L` layers, `K` types of pages.

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


def root(features: Floats) -> Floats:
    """Return the square roots of features, with their signs: counts of all sizes become comparable."""
    values = np.abs(features)
    np.sqrt(values, out=values)
    return np.asarray(np.copysign(values, features, out=values))


def evaluate(
    network: Network, features: Floats, groups: Numbers, tags: npt.NDArray[np.uint8], words: Floats
) -> tuple[Floats, Floats]:
    """Return the log odds of each block, of shape (blocks, 2), and of each type of page.

    `features` is float32 of shape (blocks, F), `groups` of shape (2, blocks); `tags` are those of the elements.
    """
    shares = np.sqrt(words)
    shares /= max(shares.sum(), 1e-6)
    values = root(features)
    np.clip(values, network.low, network.high, out=values)
    # In place, since most of the time goes into the memory of intermediate results.
    hidden = values @ network.inputs
    hidden += network.tags[tags]
    hidden += network.input_bias
    np.maximum(hidden, 0, out=hidden)
    normal, nearby = np.empty_like(hidden), np.empty_like(hidden)
    means = np.empty((len(hidden), len(groups) * hidden.shape[1]), np.float32)
    sums, counts = np.empty_like(hidden), np.empty(len(hidden), np.float32)
    for layer, dilation in enumerate(DILATIONS):
        _normalize(hidden, network.norms[layer], normal)
        _convolve(normal, network.kernels[layer], network.kernel_biases[layer], dilation, nearby)
        page = np.concatenate([shares @ normal, normal.max(axis=0)]) @ network.pooled[layer]
        _average(normal, groups, sums, counts, means)
        wide = nearby @ network.expand[layer]
        wide += means @ network.grouped[layer]
        wide += network.expand_biases[layer] + page
        np.maximum(wide, 0, out=wide)
        hidden += wide @ network.contract[layer]
        hidden += network.contract_biases[layer]
    _normalize(hidden, network.norm, normal)
    odds = normal @ network.outputs + network.output_bias
    return odds, np.asarray((shares @ normal) @ network.types + network.type_bias)


@kernel
def _normalize(hidden: Any, norm: Any, normal: Any) -> None:
    """Scale each row to mean 0 and variance 1, then by the learned scale and shift."""
    # Four sums side by side: LLVM keeps the order of additions, and each waits for the one before.
    units = hidden.shape[1]
    for row in range(len(hidden)):
        values, scaled = hidden[row], normal[row]
        first = second = third = fourth = np.float32(0)
        for unit in range(0, units, 4):
            first += values[unit]
            second += values[unit + 1]
            third += values[unit + 2]
            fourth += values[unit + 3]
        mean = ((first + second) + (third + fourth)) / np.float32(units)
        first = second = third = fourth = np.float32(0)
        for unit in range(0, units, 4):
            first += (values[unit] - mean) ** 2
            second += (values[unit + 1] - mean) ** 2
            third += (values[unit + 2] - mean) ** 2
            fourth += (values[unit + 3] - mean) ** 2
        variance = ((first + second) + (third + fourth)) / np.float32(units)
        factor = np.float32(1) / np.float32(sqrt(variance + np.float32(_EPSILON)))
        for unit in range(units):
            scaled[unit] = (values[unit] - mean) * factor * norm[0, unit] + norm[1, unit]


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
def _average(normal: Any, groups: Any, sums: Any, counts: Any, means: Any) -> None:
    """Fill for each row the means over the rows of its groups, one after the other."""
    units = normal.shape[1]
    for number in range(len(groups)):
        group = groups[number]
        sums[:] = 0
        counts[:] = 0
        for row in range(len(normal)):
            counts[group[row]] += np.float32(1)
            total, values = sums[group[row]], normal[row]
            for unit in range(units):
                total[unit] += values[unit]
        for row in range(len(normal)):
            factor = np.float32(1) / counts[group[row]]
            total, values = sums[group[row]], means[row, number * units : (number + 1) * units]
            for unit in range(units):
                values[unit] = total[unit] * factor
