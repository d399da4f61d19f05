"""What the features of a block take from the elements around it, in one pass down and one up the tree of elements."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pipelines.algorithms.blocks.segmentation import ELEMENT, SENTENCES, Segments
from pipelines.algorithms.blocks.tags import TAGS
from pipelines.algorithms.blocks.text_features import LINKS, PROSE, WORDS
from pipelines.algorithms.blocks.values import Floats, Values, value_of
from pipelines.algorithms.kernels.compilation import helper, kernel

# For each group, the distance to the nearest ancestor of it is a feature.
GROUPS = (
    "nav menu", "header hgroup", "footer", "aside", "article", "main", "form fieldset", "table", "ul ol dir", "li",
    "figure figcaption", "blockquote", "pre code", "a", "button label", "noscript", "section", "p", "dl dt dd",
    "details summary", "h1", "h2", "h3 h4", "h5 h6", "td th",
)  # fmt: skip
FAR = 30
# Elements a little below the body divide a page into header, columns and footer.
OUTER_DEPTHS = (3, 4, 5, 6)
# How much prose counts for the parent of its element, and again for the next ones.
_DECAY, _LEVELS = 0.55, 4

(OWN_MIN, OWN_MAX, OWN_MEAN, PATH_MIN, PATH_MAX, PATH_SUM, NEAR, NEXT_NEAR, PATH_COUNT) = range(9)
(TOTAL_WORDS, TOTAL_LINKS, TOTAL_BLOCKS, TOTAL_PROSE, TOTAL_SENTENCES, CHILDREN, CONTENT) = range(7)


class Elements(NamedTuple):
    """Properties of each element.

    `outer` are its ancestors at `OUTER_DEPTHS` (else the document), `paths` the values of its tokens and of those of
    its ancestors, `totals` sums of the blocks in it, `distances` those to the nearest ancestor of each group, `first`
    and `last` the blocks in it. `signatures` are equal for elements whose tag and first token are, and those of the two
    elements around them.
    """

    depths: npt.NDArray[np.int32]
    outer: npt.NDArray[np.int32]
    paths: Floats
    totals: Floats
    distances: npt.NDArray[np.uint8]
    first: npt.NDArray[np.int32]
    last: npt.NDArray[np.int32]
    signatures: npt.NDArray[np.uint32]


def describe_elements(page: Segments, signals: Floats, tokens: Values) -> Elements:
    """Return what the features take from elements.

    `signals` are those of the blocks, `tokens` learned values of parts of classes and ids.
    """
    count = len(page.parents)
    elements = Elements(
        np.zeros(count, np.int32),
        np.zeros((count, len(OUTER_DEPTHS)), np.int32),
        np.zeros((count, 9), np.float32),
        np.zeros((count, 7), np.float32),
        np.full((count, len(GROUPS)), FAR, np.uint8),
        np.full(count, np.iinfo(np.int32).max, np.int32),
        np.full(count, -1, np.int32),
        np.zeros(count, np.uint32),
    )
    _describe_down(page, tokens, elements, np.zeros(count, np.uint32))
    _describe_up(page.blocks, signals, page.parents, elements)
    return elements


def common_ancestors(parents: npt.NDArray[np.int32], element: int) -> npt.NDArray[np.int32]:
    """Return for each element the innermost one that contains it and a given element, or is that element."""
    common = np.full(len(parents), -1, np.int32)
    above = element
    while above >= 0:
        common[above] = above
        above = int(parents[above])
    _fill_from_parents(parents, common)
    return common


@kernel
def _fill_from_parents(parents: Any, values: Any) -> None:
    for element in range(1, len(parents)):
        if values[element] < 0:
            values[element] = values[parents[element]]


def _group_of_tags() -> npt.NDArray[np.int8]:
    groups = np.full(256, -1, np.int8)
    for group, names in enumerate(GROUPS):
        for name in names.split():
            groups[TAGS[name]] = group
    return groups


_GROUP = _group_of_tags()


@kernel
def _describe_down(page: Any, values: Any, elements: Any, own_signatures: Any) -> None:
    parents, tags, token_starts, tokens = page.parents, page.tags, page.token_starts, page.tokens
    depths, outer, paths, distances = elements.depths, elements.outer, elements.paths, elements.distances
    for element in range(len(parents)):
        parent = parents[element]
        signature = np.uint32(tags[element] + 1) * np.uint32(2654435761)
        if token_starts[element + 1] > token_starts[element]:
            signature ^= tokens[token_starts[element]]
        own_signatures[element] = signature
        _add_own_values(tokens[token_starts[element] : token_starts[element + 1]], values, paths[element])
        if parent >= 0:
            depths[element] = depths[parent] + 1
            signature = np.uint32(signature * np.uint32(31)) ^ own_signatures[parent]
            if parents[parent] >= 0:
                signature = np.uint32(signature * np.uint32(31)) ^ own_signatures[parents[parent]]
            _add_path(paths[element], paths[parent])
            for number in range(len(OUTER_DEPTHS)):
                outer[element, number] = element if depths[element] == OUTER_DEPTHS[number] else outer[parent, number]
            for group in range(distances.shape[1]):
                distances[element, group] = min(FAR, distances[parent, group] + 1)
        else:
            _add_path(paths[element], paths[element])
        elements.signatures[element] = signature
        if _GROUP[tags[element]] >= 0:
            distances[element, _GROUP[tags[element]]] = 0


@helper
def _add_own_values(tokens: Any, values: Any, path: Any) -> None:
    known = 0
    for token in tokens:
        value = value_of(values, token)
        if value == value:  # not NaN
            path[OWN_MIN] = value if known == 0 else min(path[OWN_MIN], value)
            path[OWN_MAX] = value if known == 0 else max(path[OWN_MAX], value)
            path[OWN_MEAN] += value
            known += 1
    if known > 0:
        path[OWN_MEAN] /= np.float32(known)


@helper
def _add_path(path: Any, above: Any) -> None:
    """Combine an element's own values with the path of its parent."""
    path[PATH_MIN] = min(above[PATH_MIN], path[OWN_MIN])
    path[PATH_MAX] = max(above[PATH_MAX], path[OWN_MAX])
    path[PATH_SUM] = above[PATH_SUM] + path[OWN_MEAN]
    path[NEAR], path[NEXT_NEAR], path[PATH_COUNT] = above[NEAR], above[NEXT_NEAR], above[PATH_COUNT]
    if path[OWN_MEAN] != 0:
        path[NEXT_NEAR], path[NEAR] = path[NEAR], path[OWN_MEAN]
        path[PATH_COUNT] += np.float32(1)


@kernel
def _describe_up(blocks: Any, signals: Any, parents: Any, elements: Any) -> None:
    totals, first, last = elements.totals, elements.first, elements.last
    for block in range(len(blocks)):
        element, signal = blocks[block, ELEMENT], signals[block]
        totals[element, TOTAL_WORDS] += signal[WORDS]
        totals[element, TOTAL_LINKS] += signal[LINKS]
        totals[element, TOTAL_BLOCKS] += np.float32(1)
        totals[element, TOTAL_SENTENCES] += np.float32(blocks[block, SENTENCES])
        totals[element, TOTAL_PROSE] += signal[PROSE]
        first[element] = min(first[element], block)
        last[element] = max(last[element], block)
        share = signal[PROSE]
        for _ in range(_LEVELS):
            if element >= 0 and share > 0:
                totals[element, CONTENT] += share
                share *= np.float32(_DECAY)
                element = parents[element]
    for element in range(len(parents) - 1, 0, -1):
        parent = parents[element]
        for column in range(TOTAL_SENTENCES + 1):
            totals[parent, column] += totals[element, column]
        totals[parent, CHILDREN] += np.float32(1)
        first[parent] = min(first[parent], first[element])
        last[parent] = max(last[parent], last[element])
