"""Training of the block classifier: features with values of class names and words from other pages, then trees."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import lightgbm
import numpy as np
import numpy.typing as npt

from benchmarks.extractor.encodings import Encoder, token_statistics, word_statistics
from benchmarks.extractor.pages import LabelledPage
from pipelines.algorithms.blocks import segmentation as seg
from pipelines.algorithms.blocks.features import block_features
from pipelines.algorithms.blocks.forest import Forest
from pipelines.algorithms.blocks.model import BlockModel
from pipelines.algorithms.blocks.page import page_features, words_of
from pipelines.algorithms.blocks.values import Values

Floats = npt.NDArray[np.float32]
# Values for the pages of a quarter of the groups come from the other three quarters: else a value would know the labels
# of the page that it is used on.
_PARTS = 4
_MIN_PAGES, _SMOOTHING = {"tokens": 4, "words": 8}, {"tokens": 4.0, "words": 8.0}
# A page with few words counts less.
_FULL_WEIGHT = 30


@dataclasses.dataclass(frozen=True)
class Recipe:
    """The parameters of LightGBM and the number of trees."""

    trees: int = 400
    learning_rate: float = 0.04
    leaves: int = 31
    min_blocks: int = 30
    features: float = 0.15
    rows: float = 0.8
    seed: int = 1

    def parameters(self) -> dict[str, Any]:
        """Return the parameters as LightGBM names them."""
        return {
            "objective": "cross_entropy", "learning_rate": self.learning_rate, "num_leaves": self.leaves,
            "min_data_in_leaf": self.min_blocks, "feature_fraction": self.features, "bagging_fraction": self.rows,
            "bagging_freq": 1, "lambda_l2": 5.0, "max_bin": 63, "seed": self.seed, "deterministic": True, "verbose": -1,
        }  # fmt: skip


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


def features_of(page: LabelledPage, tables: tuple[Values, Values]) -> tuple[list[str], Floats]:
    """Return the names of the features and their values, of shape (features, blocks)."""
    return block_features(page.page.segments, words_of(page.page.title), *tables, page_features(page.page, page.url))


def train(pages: Sequence[LabelledPage], groups: Sequence[int], recipe: Recipe) -> BlockModel:
    """Train a model on the pages of some groups."""
    used = [page for page in pages if page.group in groups and len(page.labels)]
    encoders = Encoders(used)
    parts = [[group for number, group in enumerate(groups) if number % _PARTS == part] for part in range(_PARTS)]
    rows: list[Floats] = []
    names: list[str] = []
    for part in parts:
        tables = encoders.tables([group for group in groups if group not in part])
        for page in used:
            if page.group in part:
                names, features = features_of(page, tables)
                rows.append(features.T)
    ordered = [page for part in parts for page in used if page.group in part]
    labels = np.concatenate([page.labels for page in ordered])
    weights = np.concatenate([block_weights(page) for page in ordered])
    known = weights > 0
    data = lightgbm.Dataset(np.concatenate(rows)[known], labels[known], weight=weights[known] / weights[known].mean())
    trees = lightgbm.train(recipe.parameters(), data, recipe.trees)
    return BlockModel(flatten(trees.dump_model()), tuple(names), *encoders.tables(groups))


def block_weights(page: LabelledPage) -> Floats:
    """Return the weight of each block: the pages have equal weights, long blocks more than short ones."""
    weights = np.sqrt(page.page.segments.blocks[:, seg.WORDS])
    return (weights / max(weights.sum(), _FULL_WEIGHT)).astype(np.float32)


def flatten(model: dict[str, Any]) -> Forest:
    """Return the trees of `lightgbm.Booster.dump_model()` as flat arrays."""
    roots: list[int] = []
    nodes: list[tuple[int, float, int]] = []

    def add(node: dict[str, Any]) -> None:
        position = len(nodes)
        if "leaf_value" in node:
            nodes.append((-1, node["leaf_value"], 0))
            return
        threshold = np.float32(node["threshold"])
        if threshold > node["threshold"]:  # rounded up, a value between the two would change sides
            threshold = np.nextafter(threshold, np.float32(-np.inf))
        nodes.append((node["split_feature"], float(threshold), 0))
        add(node["left_child"])
        nodes[position] = (*nodes[position][:2], len(nodes))
        add(node["right_child"])

    for tree in model["tree_info"]:
        roots.append(len(nodes))
        add(tree["tree_structure"])
    features, thresholds, right = zip(*nodes, strict=True)
    return Forest(
        np.array(roots, np.int32),
        np.array(features, np.int16),
        np.array(thresholds, np.float32),
        np.array(right, np.int32),
    )
