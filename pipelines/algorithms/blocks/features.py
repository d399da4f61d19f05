"""Features of blocks: a row of numbers per block."""

from __future__ import annotations

import numpy as np

from pipelines.algorithms.blocks import place_features, text_features
from pipelines.algorithms.blocks import segmentation as seg
from pipelines.algorithms.blocks.elements import describe_elements
from pipelines.algorithms.blocks.page import PAGE_NAMES, ParsedPage, page_features, words_of
from pipelines.algorithms.blocks.values import Floats, Numbers, Values

NAMES = (*text_features.NAMES, *place_features.NAMES, *(f"page {name}" for name in PAGE_NAMES))


def block_features(page: ParsedPage, url: str | None, tokens: Values, words: Values) -> tuple[Floats, Numbers]:
    """Return the features of the blocks of a page, float32 of shape (blocks, len(NAMES)), and their groups.

    Groups are numbers of shape (2, blocks), equal for blocks of one kind, and for those with the same parent element.

    `tokens` and `words` are learned values of parts of class names and of words.
    """
    segments = page.segments
    rows = np.empty((len(segments.blocks), len(NAMES)), np.float32)
    title_words = words_of(page.declared.title)
    title = text_features.hash_words(title_words)
    signals = text_features.describe_text(segments, title, words, rows)
    elements = describe_elements(segments, signals, tokens)
    kinds = place_features.describe_places(segments, signals, elements, len(title), rows)
    rows[:, -len(PAGE_NAMES) :] = page_features(page, url, title_words)
    parents = segments.parents[segments.blocks[:, seg.ELEMENT]]
    return rows, np.stack([_number_densely(kinds), _number_densely(parents + 1)])


def _number_densely(numbers: Numbers) -> Numbers:
    """Return numbers from 0 on in the order of others, without sorting these."""
    is_used = np.zeros(int(numbers.max()) + 1, np.bool_)
    is_used[numbers] = True
    return (np.cumsum(is_used, dtype=np.int32) - 1)[numbers]
