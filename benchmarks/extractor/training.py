"""Training of the network that judges blocks, with PyTorch."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.extractor.augmentation import Shares, augment
from benchmarks.extractor.encodings import Encoder, token_statistics, word_statistics
from benchmarks.extractor.pages import LabelledPage
from pipelines.algorithms.blocks import segmentation as seg
from pipelines.algorithms.blocks.features import NAMES, block_features
from pipelines.algorithms.blocks.model import ARTICLE, DILATIONS, KERNEL_SIZE, KINDS, MAIN, BlockModel, Network, scale
from pipelines.algorithms.blocks.text_features import Values
from pipelines.algorithms.kernels.hash_table import FREE

Floats = npt.NDArray[np.float32]
# Values for the pages of a quarter of the groups come from the other three quarters: else a value would know the labels
# of the page that it is used on.
_PARTS = 4
_MIN_PAGES, _SMOOTHING = {"tokens": 4, "words": 8}, {"tokens": 4.0, "words": 8.0}
# A page of few words has less weight: below this sum of the square roots of its words.
_FULL_WEIGHT = 30
# Blocks of a batch, with the padding of its pages to the length of the longest.
_BATCH_BLOCKS = 6000
# Features beyond these percentiles are cut.
_PERCENTILES = (0.5, 99.5)


@dataclasses.dataclass(frozen=True)
class Recipe:
    """What the network is and how it is trained; chosen by cross-validation."""

    seed: int = 1
    hidden: int = 64
    epochs: int = 10
    learning_rate: float = 3e-3
    weight_decay: float = 0.1
    dropout: float = 0.25
    # This share of pages is trained on as if their URLs were unknown, which those of HTML files are.
    without_url: float = 0.25
    averaging: float = 0.995
    # The F1 of a page is bounded: a page that is annotated in part costs less than by cross-entropy.
    f1_weight: float = 2.0
    type_weight: float = 0.1
    segment_weight: float = 0.5
    article_weight: float = 0.5
    # The log odds are multiplied by this in the end: the network is less sure than it could be.
    sharpness: float = 1.5
    variants: Shares = dataclasses.field(default_factory=Shares)


class Encoders:
    """Values of class names and of words from the pages of any groups."""

    def __init__(self, pages: Sequence[LabelledPage]) -> None:
        groups = [page.group for page in pages]
        functions = {"tokens": token_statistics, "words": word_statistics}
        self._encoders = {}
        for name, function in functions.items():
            statistics = [function(page.page.segments, page.labels) for page in pages]
            self._encoders[name] = Encoder(statistics, groups, _MIN_PAGES[name], _SMOOTHING[name])

    def tables(self, groups: Sequence[int]) -> tuple[Values, Values]:
        """Return the values of class names and of words from the pages of some groups."""
        return self._encoders["tokens"].table(groups), self._encoders["words"].table(groups)


class Example(NamedTuple):
    """A page as the network reads it; labels and weights per block, and its kind (-1: only segments are known)."""

    features: Floats
    groups: npt.NDArray[np.int64]
    tags: npt.NDArray[np.int64]
    words: Floats
    labels: Floats
    weights: Floats
    kind: int


def train(pages: Sequence[LabelledPage], groups: Sequence[int], recipe: Recipe) -> BlockModel:
    """Train a model on the pages of some groups."""
    used = [page for page in pages if page.group in groups and len(page.labels)]
    # The values of words and class names come from real pages only.
    encoders = Encoders(used)
    used += augment(used, list(groups), recipe.variants, recipe.seed)
    examples: list[Example] = []
    for part in range(_PARTS):
        own = [group for number, group in enumerate(groups) if number % _PARTS == part]
        tables = encoders.tables([group for group in groups if group not in own])
        examples += [_example(page, tables) for page in used if page.group in own]
    return BlockModel(_train_network(examples, recipe), *encoders.tables(groups))


def _example(page: LabelledPage, tables: tuple[Values, Values]) -> Example:
    blocks = page.page.segments.blocks
    words = blocks[:, seg.WORDS].astype(np.float32)
    if page.kind is None:
        weights = ~np.isnan(page.labels) / max(1, np.count_nonzero(~np.isnan(page.labels)))
    else:
        weights = np.sqrt(words) / max(np.sqrt(words).sum(), _FULL_WEIGHT)
    features, groups = block_features(page.page, page.url, *tables)
    return Example(
        features=features,
        groups=groups.T.astype(np.int64),
        tags=page.page.segments.tags[blocks[:, seg.ELEMENT]].astype(np.int64),
        words=words,
        labels=np.nan_to_num(page.labels),
        weights=weights.astype(np.float32),
        kind=-1 if page.kind is None else KINDS.index(page.kind),
    )


class _Batch(NamedTuple):
    features: Tensor
    groups: Tensor
    tags: Tensor
    words: Tensor
    labels: Tensor
    weights: Tensor
    mask: Tensor
    kinds: Tensor


class _Layer(nn.Module):
    def __init__(self, hidden: int, dilation: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden)
        padding = dilation * (KERNEL_SIZE // 2)
        self.convolution = nn.Conv1d(hidden, hidden, KERNEL_SIZE, padding=padding, dilation=dilation, groups=hidden)
        self.expand = nn.Linear(hidden, 2 * hidden)
        self.grouped = nn.Linear(2 * hidden, 2 * hidden, bias=False)
        self.pooled = nn.Linear(2 * hidden, 2 * hidden, bias=False)
        self.contract = nn.Linear(2 * hidden, hidden)
        self.dropout = nn.Dropout(dropout)

    def forward(self, values: Tensor, groups: Tensor, mask: Tensor, shares: Tensor) -> Tensor:
        normal = self.norm(values) * mask
        nearby = normal + self.convolution(normal.transpose(1, 2)).transpose(1, 2)
        mean = (normal * shares).sum(1, keepdim=True)
        highest = (normal - 1e4 * (1 - mask)).amax(1, keepdim=True)
        means = torch.cat([_average(normal, groups[:, :, number], mask) for number in range(groups.shape[2])], -1)
        pooled = self.grouped(means) + self.pooled(torch.cat([mean, highest], -1))
        wide = functional.relu(self.expand(nearby) + pooled)
        return values + self.dropout(self.contract(wide))


def _average(values: Tensor, groups: Tensor, mask: Tensor) -> Tensor:
    """Return for each block the mean over the blocks of its group on its page."""
    pages, blocks, units = values.shape
    index = (groups + blocks * torch.arange(pages)[:, None]).reshape(-1)
    sums = torch.zeros(pages * blocks, units).index_add(0, index, values.reshape(-1, units))
    counts = torch.zeros(pages * blocks, 1).index_add(0, index, mask.reshape(-1, 1))
    return (sums / counts.clamp(min=1))[index].reshape(values.shape)


class _Net(nn.Module):
    def __init__(self, features: int, recipe: Recipe, scaling: _Scaling) -> None:
        super().__init__()
        is_url = [name.startswith("page URL") for name in NAMES]
        self.is_url, self.without_url = torch.tensor(is_url), recipe.without_url
        # The features of an unknown URL are 0.
        self.unknown = torch.from_numpy(scaling.apply(np.zeros((1, features), np.float32)))
        self.tags = nn.Embedding(256, recipe.hidden)
        nn.init.normal_(self.tags.weight, std=0.1)
        self.inputs = nn.Linear(features, recipe.hidden)
        # A feature is dropped for all blocks of a page.
        self.dropout = nn.Dropout1d(recipe.dropout)
        self.layers = nn.ModuleList(_Layer(recipe.hidden, dilation, recipe.dropout) for dilation in DILATIONS)
        self.norm = nn.LayerNorm(recipe.hidden)
        self.output, self.difference = nn.Linear(recipe.hidden, 1), nn.Linear(recipe.hidden, 1)
        nn.init.zeros_(self.difference.weight)
        self.types = nn.Linear(recipe.hidden, len(KINDS))

    def forward(self, batch: _Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Return the log odds of blocks to be main content, to be the body of an article, and of types."""
        mask = batch.mask[..., None]
        roots = torch.sqrt(batch.words) * batch.mask
        shares = (roots / roots.sum(1, keepdim=True).clamp(min=1e-6))[..., None]
        values = batch.features
        if self.training:
            is_unknown = torch.rand(len(values), 1, 1) < self.without_url
            values = torch.where(is_unknown & self.is_url, self.unknown, values)
        values = values * self.dropout(torch.ones_like(values[:, 0, :, None])).transpose(1, 2)
        hidden = functional.relu(self.inputs(values) + self.tags(batch.tags))
        for layer in self.layers:
            hidden = layer(hidden, batch.groups, mask, shares)
        normal = self.norm(hidden)
        main = self.output(normal)[..., 0]
        return main, main + self.difference(normal)[..., 0], self.types((normal * shares).sum(1))


def _train_network(examples: list[Example], recipe: Recipe) -> Network:
    torch.manual_seed(recipe.seed)
    random = np.random.default_rng(recipe.seed)
    scaling = _scaling(examples)
    examples = [example._replace(features=scaling.apply(example.features)) for example in examples]
    net = _Net(len(NAMES), recipe, scaling)
    average = torch.optim.swa_utils.AveragedModel(
        net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(recipe.averaging)
    )
    optimizer = torch.optim.AdamW(net.parameters(), lr=recipe.learning_rate, weight_decay=recipe.weight_decay)
    # The number of batches differs a little from epoch to epoch.
    steps = recipe.epochs * (len(list(_batches(examples, random))) + 5)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, recipe.learning_rate, total_steps=steps, pct_start=0.15)
    net.train()
    for _ in range(recipe.epochs):
        for batch in _batches(examples, random):
            optimizer.zero_grad()
            _loss(net, batch, recipe).backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            average.update_parameters(net)
    return _export(average.module, scaling, recipe.sharpness)


class _Scaling(NamedTuple):
    """How features become inputs: the limits of their roots, and what is subtracted from and multiplied with them."""

    low: Floats
    high: Floats
    mean: Floats
    factor: Floats

    def apply(self, features: Floats) -> Floats:
        return np.asarray((scale(features, self.low, self.high) - self.mean) * self.factor)


def _scaling(examples: list[Example]) -> _Scaling:
    sample = np.concatenate([example.features[::7] for example in examples])
    endless = np.full(sample.shape[1], np.inf, np.float32)
    low, high = np.percentile(scale(sample, -endless, endless), _PERCENTILES, axis=0).astype(np.float32)
    sample = scale(sample, low, high)
    return _Scaling(low, high, sample.mean(axis=0), 1 / (sample.std(axis=0) + np.float32(0.01)))


def _batches(examples: list[Example], random: np.random.Generator) -> Iterator[_Batch]:
    """Yield the pages in random order, but pages of about equal length together."""
    lengths = np.array([len(example.labels) for example in examples])
    batches: list[list[Example]] = [[]]
    for index in np.argsort(lengths * random.uniform(1, 1.3, len(lengths))):
        if lengths[index] * (len(batches[-1]) + 1) > _BATCH_BLOCKS and batches[-1]:
            batches.append([])
        batches[-1].append(examples[index])
    for number in random.permutation(len(batches)):
        yield _collate(batches[number])


def _collate(examples: list[Example]) -> _Batch:
    def pad(arrays: Sequence[npt.NDArray[Any]]) -> Tensor:
        return nn.utils.rnn.pad_sequence([torch.from_numpy(values) for values in arrays], batch_first=True)

    return _Batch(
        features=pad([example.features for example in examples]),
        groups=pad([example.groups for example in examples]),
        tags=pad([example.tags for example in examples]),
        words=pad([example.words for example in examples]),
        labels=pad([example.labels for example in examples]),
        weights=pad([example.weights for example in examples]),
        mask=pad([np.ones(len(example.labels), np.float32) for example in examples]),
        kinds=torch.tensor([example.kind for example in examples]),
    )


def _loss(net: _Net, batch: _Batch, recipe: Recipe) -> Tensor:
    """Return the loss: cross-entropy of blocks, expected F1 of pages, and cross-entropy of their types.

    Where only segments are known, the cross-entropy of their blocks as the body of an article.
    """
    main, article, types = net(batch)
    is_full, is_article = batch.kinds >= 0, (batch.kinds == KINDS.index("article")).float()
    words = batch.words * batch.mask

    def losses(odds: Tensor) -> Tensor:
        entropy = functional.binary_cross_entropy_with_logits(odds, batch.labels, reduction="none")
        probability = torch.sigmoid(odds)
        common = (probability * batch.labels * words).sum(1)
        f1 = (2 * common + 1) / ((probability * words).sum(1) + (batch.labels * words).sum(1) + 1)
        return (entropy * batch.weights).sum(1) + recipe.f1_weight * is_full * (1 - f1)

    full = losses(main) + recipe.article_weight * is_article * losses(article)
    total = torch.where(is_full, full, recipe.segment_weight * losses(article)).mean()
    type_losses = functional.cross_entropy(types, batch.kinds, ignore_index=-1, reduction="sum")
    return total + recipe.type_weight * type_losses / len(batch.kinds)


def _export(net: nn.Module, scaling: _Scaling, sharpness: float) -> Network:
    def array(values: Tensor) -> Floats:
        return values.detach().numpy().astype(np.float32)

    def stack(*values: Tensor) -> Floats:
        return np.stack([array(value) for value in values])

    layers: list[Any] = list(net.layers)
    weights = array(net.inputs.weight) * scaling.factor
    main, difference = net.output, net.difference
    outputs = {MAIN: array(main.weight[0]), ARTICLE: array(main.weight[0] + difference.weight[0])}
    biases = {MAIN: array(main.bias[0]), ARTICLE: array(main.bias[0] + difference.bias[0])}
    return Network(
        low=scaling.low,
        high=scaling.high,
        inputs=weights.T.copy(),
        input_bias=array(net.inputs.bias) - weights @ scaling.mean,
        tags=array(net.tags.weight),
        norms=np.stack([stack(layer.norm.weight, layer.norm.bias) for layer in layers]),
        kernels=np.stack([array(layer.convolution.weight[:, 0]).T for layer in layers]),
        kernel_biases=stack(*(layer.convolution.bias for layer in layers)),
        expand=np.stack([array(layer.expand.weight).T for layer in layers]),
        expand_biases=stack(*(layer.expand.bias for layer in layers)),
        grouped=np.stack([array(layer.grouped.weight).T for layer in layers]),
        pooled=np.stack([array(layer.pooled.weight).T for layer in layers]),
        contract=np.stack([array(layer.contract.weight).T for layer in layers]),
        contract_biases=stack(*(layer.contract.bias for layer in layers)),
        norm=stack(net.norm.weight, net.norm.bias),
        outputs=np.stack([outputs[MAIN], outputs[ARTICLE]], axis=1) * np.float32(sharpness),
        output_bias=np.array([biases[MAIN], biases[ARTICLE]], np.float32) * np.float32(sharpness),
        types=array(net.types.weight).T.copy(),
        type_bias=array(net.types.bias),
    )


def save_model(path: str, model: BlockModel) -> None:
    """Write a model as a compressed .npz file of arrays without Python objects."""
    arrays: dict[str, npt.NDArray[Any]] = {
        f"network_{name}": values.astype(np.float16) for name, values in model.network._asdict().items()
    }
    for name, table in (("tokens", model.tokens), ("words", model.words)):
        used = table.keys != FREE
        arrays |= {
            f"{name}_hashes": table.keys[used].astype(np.uint32),
            f"{name}_values": table.values[used].astype(np.float16),
        }
    arrays["features"] = np.frombuffer("\n".join(NAMES).encode(), np.uint8)
    np.savez_compressed(path, allow_pickle=False, **arrays)
