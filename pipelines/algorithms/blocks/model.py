"""The block classifier: a file of arrays, and the main content of a page by it."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pipelines.algorithms.blocks.features import block_features
from pipelines.algorithms.blocks.forest import Floats, Forest, sigmoid, sum_of_leaves
from pipelines.algorithms.blocks.page import ParsedPage, page_features, words_of
from pipelines.algorithms.blocks.segmentation import WORDS
from pipelines.algorithms.blocks.selection import select_blocks
from pipelines.algorithms.blocks.values import Values, values_table


class BlockModel(NamedTuple):
    """Trees, the names of their features, and the values of class names and of words."""

    forest: Forest
    features: tuple[str, ...]
    tokens: Values
    words: Values


class Choice(NamedTuple):
    """Per block the expected share in the main content and whether it is kept; the expected F1 of those kept."""

    shares: Floats
    keep: npt.NDArray[np.bool_]
    confidence: float


def save_model(path: str, model: BlockModel) -> None:
    """Write a model as a compressed .npz file of arrays without Python objects."""
    arrays: dict[str, npt.NDArray[Any]] = {f"forest_{name}": values for name, values in model.forest._asdict().items()}
    for name, table in (("tokens", model.tokens), ("words", model.words)):
        used = table.hashes != 0
        arrays |= {f"{name}_hashes": table.hashes[used], f"{name}_values": table.values[used].astype(np.float16)}
    arrays["features"] = np.frombuffer("\n".join(model.features).encode(), np.uint8)
    np.savez_compressed(path, allow_pickle=False, **arrays)


@functools.lru_cache(maxsize=1)
def load_model(path: str) -> BlockModel:
    """Read a model; raise ValueError if it is not one."""
    with np.load(path, allow_pickle=False) as arrays:
        tables = (
            values_table(arrays[f"{name}_hashes"], arrays[f"{name}_values"].astype(np.float32))
            for name in ("tokens", "words")
        )
        forest = Forest(*(arrays[f"forest_{name}"] for name in Forest._fields))
        return BlockModel(forest, tuple(arrays["features"].tobytes().decode().split("\n")), *tables)


def choose_blocks(model: BlockModel, page: ParsedPage, url: str | None) -> Choice:
    """Return which blocks of a page are its main content; raise ValueError if the model has other features."""
    segments = page.segments
    if not len(segments.blocks):
        return Choice(np.zeros(0, np.float32), np.zeros(0, np.bool_), 0.0)
    names, features = block_features(
        segments, words_of(page.title), model.tokens, model.words, page_features(page, url)
    )
    if tuple(names) != model.features:
        raise ValueError("the model was trained with other features")
    shares = sigmoid(sum_of_leaves(model.forest, features))
    return Choice(shares, *select_blocks(shares, segments.blocks[:, WORDS].astype(np.float32)))
