"""The block classifier: a file of arrays, and the main content of a page by it."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pipelines.algorithms.blocks import network as net
from pipelines.algorithms.blocks import segmentation as seg
from pipelines.algorithms.blocks.features import NAMES, block_features
from pipelines.algorithms.blocks.page import ParsedPage
from pipelines.algorithms.blocks.repetition import Flags, without_repetitions
from pipelines.algorithms.blocks.selection import select_blocks
from pipelines.algorithms.blocks.values import Floats, Values, values_table
from pipelines.algorithms.kernels.hash_table import FREE

# Types of pages, as in the Web Content Extraction Benchmark.
KINDS = ("article", "collection", "documentation", "forum", "listing", "product", "service")
# Characters without white space. A shorter text is hardly ever the content of a page, rather a remnant of one whose
# scripts would load it, unless it is surely wanted; nor is a description alone.
_SHORT, _SURE, _SHORT_DESCRIPTION = 100, 0.8, 300


class BlockModel(NamedTuple):
    """A network, and the values of class names and of words that its features need."""

    network: net.Network
    tokens: Values
    words: Values


class Choice(NamedTuple):
    """Per block its probability to be wanted and whether it is kept; the expected F1 of those kept; the page's type.

    `are_repeated` says which blocks are dropped because their text is kept elsewhere. `why_nothing` says why none is
    kept of a page that has some.
    """

    shares: Floats
    keep: Flags
    confidence: float
    kind: str | None
    are_repeated: Flags
    why_nothing: str | None = None


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


@functools.lru_cache(maxsize=1)
def load_model(path: str) -> BlockModel:
    """Read a model; raise ValueError if it is not one."""
    with np.load(path, allow_pickle=False) as arrays:
        tables = [
            values_table(arrays[f"{name}_hashes"], arrays[f"{name}_values"].astype(np.float32))
            for name in ("tokens", "words")
        ]
        network = net.Network(*(arrays[f"network_{name}"].astype(np.float32) for name in net.Network._fields))
        features = tuple(arrays["features"].tobytes().decode().split("\n"))
    if features != NAMES:
        raise ValueError("the model was trained with other features")
    return BlockModel(network, *tables)


def choose_blocks(model: BlockModel, page: ParsedPage, url: str | None, content: str = "auto") -> Choice:
    """Return which blocks of a page are its main content.

    `content` is what is wanted: `main` what readers came for, `article` the body of an article without its byline,
    captions and related links, `auto` the latter on pages that are articles.
    """
    segments = page.segments
    if not len(segments.blocks):
        return Choice(np.zeros(0, np.float32), np.zeros(0, np.bool_), 0.0, None, np.zeros(0, np.bool_))
    words = segments.blocks[:, seg.WORDS].astype(np.float32)
    features, groups = block_features(page, url, model.tokens, model.words)
    tags = segments.tags[segments.blocks[:, seg.ELEMENT]]
    odds, types = net.evaluate(model.network, features, groups, tags, words)
    kind = KINDS[int(np.argmax(types))]
    shares = np.asarray(1 / (1 + np.exp(-odds[:, output_of(content, kind)])), np.float32)
    likely, confidence = select_blocks(shares, words)
    are_descriptions = page.are_descriptions()
    keep = without_repetitions(segments, likely, are_descriptions)
    # Not words, which some scripts do not divide.
    size = int(segments.blocks[keep, seg.CHARACTERS].sum())
    why_nothing = None
    if not likely.any():
        why_nothing = f"the F1 to expect, {confidence:.2f}, is too low"
    elif size < _SHORT_DESCRIPTION and not np.any(keep & ~are_descriptions):
        why_nothing = f"{_characters(size)} in the metadata alone, without any of the page, are too few"
    elif size < _SHORT and confidence < _SURE:
        why_nothing = f"{_characters(size)} are too few for an F1 to expect of {confidence:.2f}"
    if why_nothing:
        keep = np.zeros_like(keep)
    are_repeated = likely & ~keep if not why_nothing else np.zeros_like(keep)
    return Choice(shares, keep, confidence, kind, are_repeated, why_nothing)


def _characters(size: int) -> str:
    return f"{size:,} character{'' if size == 1 else 's'} of text"


def output_of(content: str, kind: str | None) -> int:
    """Return which of the outputs, MAIN or ARTICLE, decides for a page of this type."""
    return net.ARTICLE if content == "article" or (content == "auto" and kind == "article") else net.MAIN
