"""The block classifier: a network over the blocks of a page, and the choice of its main content.

The network consists of convolutions over the blocks in order, and of averages over groups of blocks and over the page.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from math import sqrt
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pipelines.algorithms.blocks import segmentation as seg
from pipelines.algorithms.blocks.features import NAMES, block_features
from pipelines.algorithms.blocks.markup import IN_PRE
from pipelines.algorithms.blocks.page import ParsedPage
from pipelines.algorithms.blocks.text_features import Floats, Numbers, Values, values_table
from pipelines.algorithms.kernels.compilation import kernel

# Types of pages, as in the Web Content Extraction Benchmark.
KINDS = ("article", "collection", "documentation", "forum", "listing", "product", "service")
# Characters without white space; Chinese, Japanese and Korean ones count twice. A shorter text is hardly ever the
# content of a page, but a remnant of a page whose scripts would load it. The same holds for a description alone.
_SHORT, _SHORT_DESCRIPTION = 40, 300
# Each layer sees the blocks at these distances, times -2 to 2.
DILATIONS = (1, 2, 4)
KERNEL_SIZE = 5
# Outputs per block: the log odds that it is main content, and that it is in the body of an article.
MAIN, ARTICLE = 0, 1
_EPSILON = 1e-5

Flags = npt.NDArray[np.bool_]


class Network(NamedTuple):
    """The weights, float32; `F` features, `H` hidden units, `L` layers, `K` types of pages.

    Inputs: the square roots of the features, between `low` and `high`, are multiplied by `inputs` (F, H); `tags`
    (256, H) are added for the tag of the element. Layers: `norms` (L, 2, H) scale and shift, `kernels` (L, 5, H) with
    `kernel_biases`, `expand` (L, H, 2H) with `expand_biases`, `grouped` (L, 2H, 2H) of means over each group of the
    block, `pooled` (L, 2H, 2H) of means and maxima over the page, `contract` (L, 2H, H) with `contract_biases`. Last
    come `norm` (2, H), `outputs` (H, 2) and `types` (H, K).
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
    # Arrays are reused, since allocating intermediate results takes most of the time.
    hidden, added = np.zeros((blocks, units), np.float32), np.empty((blocks, units), np.float32)
    wide = np.empty((blocks, 2 * units), np.float32)
    margin = KERNEL_SIZE // 2 * max(DILATIONS)
    padded = np.zeros((blocks + 2 * margin, units), np.float32)  # zeros before and after the blocks, to convolve
    normal, pooled = padded[margin:-margin], np.empty((2, units), np.float32)
    first = int(groups[0].max()) + 1
    means = np.empty((first + int(groups[1].max()) + 1, units), np.float32)
    of_means, counts = np.empty((len(means), 2 * units), np.float32), np.empty(len(means), np.float32)
    rows = np.stack([groups[0], groups[1] + first])
    np.matmul(scale(features, network.low, network.high), network.inputs, out=added)
    _activate(added, network.tags, tags[None].astype(rows.dtype), network.input_bias)
    biases = [np.zeros(units, np.float32), *network.contract_biases]
    for layer, dilation in enumerate(DILATIONS):
        _normalize(hidden, added, biases[layer], network.norms[layer], normal)
        _convolve(padded, network.kernels[layer], network.kernel_biases[layer], dilation, added)
        _average(normal, rows, shares, counts, means, pooled)
        np.matmul(added, network.expand[layer], out=wide)
        np.matmul(means[:first], network.grouped[layer, :units], out=of_means[:first])
        np.matmul(means[first:], network.grouped[layer, units:], out=of_means[first:])
        _activate(wide, of_means, rows, pooled.ravel() @ network.pooled[layer] + network.expand_biases[layer])
        np.matmul(wide, network.contract[layer], out=added)
    _normalize(hidden, added, biases[-1], network.norm, normal)
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
    """Add a bias and the rows of `added` with its numbers to each row; then set negative values to 0 (ReLU)."""
    for row in range(len(values)):
        for number in numbers[:, row]:
            for unit in range(values.shape[1]):
                values[row, unit] += added[number, unit]
        for unit in range(values.shape[1]):
            values[row, unit] = max(np.float32(0), values[row, unit] + bias[unit])


# Without `reassoc`, LLVM keeps the order of additions, so that each waits for the previous one.
@functools.partial(kernel, fastmath={"reassoc"})
def _normalize(hidden: Any, added: Any, bias: Any, norm: Any, normal: Any) -> None:
    """Add to `hidden`; scale each row to mean 0 and variance 1, then by the learned scale and shift."""
    units = hidden.shape[1]
    for row in range(len(hidden)):
        mean = variance = np.float32(0)
        for unit in range(units):
            hidden[row, unit] += added[row, unit] + bias[unit]
        for unit in range(units):
            mean += hidden[row, unit]
        mean /= np.float32(units)
        for unit in range(units):
            variance += (hidden[row, unit] - mean) ** 2
        factor = np.float32(1) / np.float32(sqrt(variance / np.float32(units) + np.float32(_EPSILON)))
        for unit in range(units):
            normal[row, unit] = (hidden[row, unit] - mean) * factor * norm[0, unit] + norm[1, unit]


@kernel
def _convolve(padded: Any, taps: Any, bias: Any, dilation: Any, nearby: Any) -> None:
    """Add to each row the rows at the distances of the taps, multiplied by the weights of the tap."""
    margin = (len(padded) - len(nearby)) // 2
    for row in range(len(nearby)):
        for unit in range(nearby.shape[1]):
            value = padded[row + margin, unit] + bias[unit]
            for tap in range(KERNEL_SIZE):
                value += padded[row + margin + (tap - KERNEL_SIZE // 2) * dilation, unit] * taps[tap, unit]
            nearby[row, unit] = value


@kernel
def _average(normal: Any, numbers: Any, shares: Any, counts: Any, means: Any, pooled: Any) -> None:
    """Fill the means over the rows with each number, and the mean by shares and the maximum of all rows."""
    counts[:] = 0
    means[:] = 0
    pooled[0], pooled[1] = 0, -np.inf
    for row in range(len(normal)):
        for number in numbers[:, row]:
            counts[number] += np.float32(1)
            for unit in range(normal.shape[1]):
                means[number, unit] += normal[row, unit]
        for unit in range(normal.shape[1]):
            pooled[0, unit] += shares[row] * normal[row, unit]
            pooled[1, unit] = max(pooled[1, unit], normal[row, unit])
    for number in range(len(means)):
        factor = np.float32(1) / max(np.float32(1), counts[number])
        for unit in range(normal.shape[1]):
            means[number, unit] *= factor


class BlockModel(NamedTuple):
    """A network, and the values of class names and of words that its features need."""

    network: Network
    tokens: Values
    words: Values


class Choice(NamedTuple):
    """Per block the probability that it is main content, and whether it is kept; the expected F1; the page's type.

    `are_repeated` says which blocks are dropped because their text is kept elsewhere. `why_nothing` says why a page
    keeps none.
    """

    shares: Floats
    keep: Flags
    confidence: float
    kind: str | None
    are_repeated: Flags
    why_nothing: str | None = None


@functools.lru_cache(maxsize=1)
def load_model(path: str) -> BlockModel:
    """Read a model; raise ValueError if it is not one."""
    with np.load(path, allow_pickle=False) as arrays:
        tables = [
            values_table(arrays[f"{name}_hashes"], arrays[f"{name}_values"].astype(np.float32))
            for name in ("tokens", "words")
        ]
        network = Network(*(arrays[f"network_{name}"].astype(np.float32) for name in Network._fields))
        features = tuple(arrays["features"].tobytes().decode().split("\n"))
    if features != NAMES:
        raise ValueError("the model was trained with other features")
    return BlockModel(network, *tables)


def choose_blocks(model: BlockModel, page: ParsedPage, url: str | None, content: str = "auto") -> Choice:
    """Return which blocks of a page are its main content.

    `content` is `main` for what readers come for, `article` for the body of an article without its byline, captions
    and related links, `auto` for the body on pages that are articles.
    """
    segments = page.segments
    if not len(segments.blocks):
        none = np.zeros(0, np.bool_)
        return Choice(np.zeros(0, np.float32), none, 0.0, None, none, "the page is empty")
    words = segments.blocks[:, seg.WORDS].astype(np.float32)
    features, groups = block_features(page, url, model.tokens, model.words)
    tags = segments.tags[segments.blocks[:, seg.ELEMENT]]
    odds, types = evaluate(model.network, features, groups, tags, words)
    kind = KINDS[int(np.argmax(types))]
    shares = np.asarray(1 / (1 + np.exp(-odds[:, output_of(content, kind)])), np.float32)
    shares = _share_with_formulas(segments, shares)
    likely, confidence = select_blocks(shares, words)
    are_descriptions = page.are_descriptions()
    keep = without_repetitions(segments, likely, are_descriptions)
    # Not words, since some scripts do not separate them.
    size = int(segments.blocks[keep][:, [seg.CHARACTERS, seg.CJK]].sum())
    why_nothing = None
    if not likely.any():
        why_nothing = f"its estimated F1, {confidence:.2f}, is too low"
    elif size < _SHORT_DESCRIPTION and not np.any(keep & ~are_descriptions):
        why_nothing = f"too little text, all from the metadata (characters: {size:,})"
    elif size < _SHORT:
        why_nothing = f"too little text (characters: {size:,})"
    if why_nothing:
        keep = np.zeros_like(keep)
    are_repeated = likely & ~keep if not why_nothing else np.zeros_like(keep)
    return Choice(shares, keep, confidence, kind, are_repeated, why_nothing)


def _share_with_formulas(segments: seg.Segments, shares: Floats) -> Floats:
    """Return the shares, with those of the text around formulas that are blocks of their own."""
    text, starts, ends = segments.text, segments.blocks[:, seg.START], segments.blocks[:, seg.END]
    is_formula = (text[starts] == ord("$")) & (text[ends - 1] == ord("$")) & (ends - starts > 4)  # $$$$ is a price
    for _ in range(8 if is_formula.any() else 0):  # as many formulas follow each other
        around = np.maximum(np.append(0, shares[:-1]), np.append(shares[1:], 0))
        shares = np.where(is_formula, np.maximum(shares, around), shares)
    return np.asarray(shares, np.float32)


def output_of(content: str, kind: str | None) -> int:
    """Return which of the outputs, MAIN or ARTICLE, decides for a page of this type."""
    return ARTICLE if content == "article" or (content == "auto" and kind == "article") else MAIN


# Below this expected F1, the page is more likely to have no main content at all.
_MIN_EXPECTED = 0.5


def select_blocks(shares: Floats, words: Floats) -> tuple[npt.NDArray[np.bool_], float]:
    """Return which blocks to keep, and their estimated F1 by words.

    `shares` are the expected shares of each block's words that are main content. Of the blocks in descending order of
    their shares, the first k have an F1 of about 2 * (expected words in common) / (words in them + expected words of
    the content).
    """
    if not len(shares):
        return np.zeros(0, np.bool_), 0.0
    order = np.argsort(-shares, kind="stable")
    common = np.cumsum((shares * words)[order], dtype=np.float64)
    chosen = np.cumsum(words[order], dtype=np.float64)
    expected = 2 * common / np.maximum(chosen + common[-1], 1e-9)
    best = int(np.argmax(expected))
    if expected[best] < _MIN_EXPECTED:
        return np.zeros(len(shares), np.bool_), float(expected[best])
    keep = np.zeros(len(shares), np.bool_)
    keep[order[: best + 1]] = True
    return keep, float(expected[best])


# A text of the metadata is dropped if at least this share of its runs of three words is in the other blocks.
_RUN, _CONTAINED = 3, 0.5
# Consecutive blocks that repeat earlier ones are dropped if they have at least this many words; code may repeat itself.
# Copies for small screens are on pages of hundreds of class names; a page with fewer of them repeats itself on purpose.
_REPEATED_WORDS, _STYLED = 20, 500


def without_repetitions(segments: seg.Segments, keep: Flags, are_descriptions: Flags) -> Flags:
    """Return which of the kept blocks remain when repeated texts are dropped; the first of equal texts remains."""
    keep = keep.copy()
    in_body, declared = keep & ~are_descriptions, np.flatnonzero(keep & are_descriptions)
    if len(declared) and in_body.any():
        known = np.sort(_runs(segments.words[np.repeat(in_body, segments.blocks[:, seg.WORDS])]))
        for block in declared.tolist():
            first = segments.blocks[block, seg.FIRST_WORD]
            runs = _runs(segments.words[first : first + segments.blocks[block, seg.WORDS]])
            is_known = np.searchsorted(known, runs) < np.searchsorted(known, runs, "right")
            keep[block] = len(runs) > 0 and is_known.mean() < _CONTAINED
    if len(segments.tokens) >= _STYLED:
        for repeated in _repeated_rows(segments, np.flatnonzero(keep)):
            keep[repeated] = False
    return keep


def _runs(words: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint64]:
    """Return a number for each run of three words."""
    numbers = words.astype(np.uint64)
    runs = np.zeros(max(0, len(words) - _RUN + 1), np.uint64)
    for start in range(_RUN):
        runs = runs * np.uint64(0x9E3779B97F4A7C15) + numbers[start : start + len(runs)]
    return runs


def _repeated_rows(segments: seg.Segments, blocks: npt.NDArray[np.int64]) -> Iterator[list[int]]:
    """Yield consecutive blocks that repeat earlier ones and have enough words."""
    words = segments.words.tobytes()
    starts, counts = (segments.blocks[blocks, column].tolist() for column in (seg.FIRST_WORD, seg.WORDS))
    texts = [words[4 * start : 4 * (start + count)] for start, count in zip(starts, counts, strict=True)]
    if len(set(texts)) == len(texts):  # as on most pages
        return
    first = {text: number for number, text in reversed([*enumerate(texts)])}
    is_code = segments.flags[segments.blocks[blocks, seg.ELEMENT]] & IN_PRE != 0
    repeats = [first[text] < number and not is_code[number] for number, text in enumerate(texts)]
    for repeat, numbers in itertools.groupby(range(len(texts)), key=repeats.__getitem__):
        row = [*numbers]
        if repeat and sum(counts[number] for number in row) >= _REPEATED_WORDS:
            yield blocks[row].tolist()
