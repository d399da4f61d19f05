"""Features of the context of each block: the elements around it, its neighbours, and what the page repeats."""

from __future__ import annotations

from math import log1p
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pipelines.algorithms.blocks import segmentation as seg
from pipelines.algorithms.blocks.markup import tag_groups
from pipelines.algorithms.blocks.text_features import (
    HEADING,
    LINKS,
    PROSE,
    TITLE,
    VALUE,
    WORDS,
    Floats,
    Numbers,
    Values,
    value_of,
)
from pipelines.algorithms.blocks.text_features import NAMES as TEXT_NAMES
from pipelines.algorithms.kernels.compilation import helper, kernel
from pipelines.algorithms.kernels.hash_table import Table, find_or_add, new_table

# For each group, the distance to the nearest ancestor of it is a feature.
GROUPS = (
    "nav menu", "header hgroup", "footer", "aside", "article", "main", "form fieldset", "table", "ul ol dir", "li",
    "figure figcaption", "blockquote", "pre code", "a", "button label", "noscript", "section", "p", "dl dt dd",
    "details summary", "h1", "h2", "h3 h4", "h5 h6", "td th",
)  # fmt: skip
FAR = 30
# Elements a little below the body divide a page into header, columns and footer.
OUTER_DEPTHS = (3, 4, 5, 6)
# The share of its prose that an element passes on to its parent, and the number of ancestors that get a share.
_DECAY, _LEVELS = 0.55, 4

(OWN_MIN, OWN_MAX, OWN_MEAN, PATH_MIN, PATH_MAX, PATH_SUM, NEAR, NEXT_NEAR, PATH_COUNT) = range(9)
(TOTAL_WORDS, TOTAL_LINKS, TOTAL_BLOCKS, TOTAL_PROSE, TOTAL_SENTENCES, CHILDREN, CONTENT) = range(7)


class Elements(NamedTuple):
    """Properties of each element.

    `outer` are its ancestors at `OUTER_DEPTHS` (the document if it is not that deep), `paths` statistics of the values
    of its tokens and those of its ancestors, `totals` sums over the blocks in it, `distances` the distances to the
    nearest ancestor of each group, `first` and `last` the first and last block in it. `signatures` are equal for
    elements with equal tag and first token whose parents and grandparents have equal ones, too.
    """

    depths: npt.NDArray[np.int32]
    outer: npt.NDArray[np.int32]
    paths: Floats
    totals: Floats
    distances: npt.NDArray[np.uint8]
    first: npt.NDArray[np.int32]
    last: npt.NDArray[np.int32]
    signatures: npt.NDArray[np.uint32]


def describe_elements(page: seg.Segments, signals: Floats, tokens: Values) -> Elements:
    """Return the properties of the elements of a page.

    `signals` are those of its blocks, `tokens` learned values of parts of classes and ids.
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


_GROUP = tag_groups(GROUPS)


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
        element, signal = blocks[block, seg.ELEMENT], signals[block]
        totals[element, TOTAL_WORDS] += signal[WORDS]
        totals[element, TOTAL_LINKS] += signal[LINKS]
        totals[element, TOTAL_BLOCKS] += np.float32(1)
        totals[element, TOTAL_SENTENCES] += np.float32(blocks[block, seg.SENTENCES])
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


_CONTAINERS = 5
_FIRST_COLUMN = len(TEXT_NAMES)
_FAR_AWAY = -1000
# A heading that repeats the title of the page: at least this share of its words.
_TITLE_SHARE = 0.5
# Running sums of the signals of blocks.
(_SUM_WORDS, _SUM_PROSE) = range(2)
# Sums over the blocks of a kind: those whose elements have equal signatures.
(_KIND_BLOCKS, _KIND_WORDS, _KIND_LINKS, _EQUAL_TEXTS) = range(4)

NAMES = (
    "depth",
    *(f"distance to {names}" for names in GROUPS),
    *(
        f"{kind} class value"
        for kind in ("lowest own", "highest own", "own", "lowest", "highest", "sum", "nearest", "next")
    ),
    "mean class value",
    *(f"{name} at depth {depth}" for depth in OUTER_DEPTHS for name in ("class value", "share of prose", "links")),
    *(
        f"{name} {level}"
        for level in range(_CONTAINERS)
        for name in (
            "log words in container", "links in container", "words per block in container",
            "share of prose in container", "children of container", "sentences in container",
        )
    ),
    "depth below that common with the main container", "depth of the main container below it",
    "is the main container", "position in the main container", "prose of the main container",
    "prose in common with it", "links of the main container", "blocks to its end", "blocks from its start",
    "position", "words before, share", "blocks before", "blocks after", "log words before", "log words after",
    "prose before", "prose after", "blocks from the title", "words from the title", "prose from the title",
    "blocks from the first h1",
    "blocks of this kind", "words per block of this kind", "share of words of this kind", "links of this kind",
    "equal texts", "repeats an earlier text",
    "blocks from the last heading", "value of the last heading", "level of the last heading",
    "class value of the last heading",
)  # fmt: skip


class _Kinds(NamedTuple):
    """Groups of blocks with equal signatures, and of blocks with equal texts.

    `firsts` has for each block the first block of its kind and of its text, `sums` has sums per group in the row of its
    first block, and the tables map signatures and texts to first blocks.
    """

    firsts: Numbers
    sums: Floats
    by_signature: Table
    by_text: Table


def describe_context(
    page: seg.Segments, signals: Floats, elements: Elements, title_words: int, rows: Floats
) -> Numbers:
    """Fill the columns of `rows` after those of the texts; `title_words` is the number of words of the title.

    Return for each block the first of its kind: of those whose elements have equal signatures.
    """
    count = len(page.blocks)
    kinds = _Kinds(np.zeros((2, count), np.int32), np.zeros((count, 4), np.float32), new_table(count), new_table(count))
    main = int(np.argmax(elements.totals[:, CONTENT]))
    common = np.full(len(page.parents), -1, np.int32)
    _describe_context(page, signals, elements, common, main, title_words, np.zeros((count + 1, 2)), kinds, rows)
    return np.asarray(kinds.firsts[0])


@kernel
def _describe_context(
    page: Any, signals: Any, elements: Any, common: Any, main: Any, title_words: Any, sums: Any, kinds: Any, rows: Any
) -> None:
    _find_common_ancestors(page.parents, main, common)
    blocks = page.blocks
    title, top_heading = _sum_signals(blocks, signals, title_words, sums)
    _sum_kinds(blocks, page.words, signals, elements.signatures, kinds)
    heading = -1
    for block in range(len(blocks)):
        row, element = rows[block, _FIRST_COLUMN:], blocks[block, seg.ELEMENT]
        row[0] = elements.depths[element]
        at = _add_ancestors(row, 1, element, elements)
        at = _add_containers(row, at, element, page.parents, elements.totals)
        at = _add_main_container(row, at, block, element, elements, common, main)
        at = _add_position(row, at, block, sums, title, top_heading)
        at = _add_repetition(row, at, block, signals, kinds, sums)
        _add_last_heading(row, at, block, heading, blocks, signals, elements.paths)
        if signals[block, HEADING] > 0:
            heading = block


@helper
def _find_common_ancestors(parents: Any, main: Any, common: Any) -> None:
    """Fill in the innermost element that contains both an element and the main container, for each element."""
    while main >= 0:
        common[main] = main
        main = parents[main]
    for element in range(1, len(parents)):
        if common[element] < 0:
            common[element] = common[parents[element]]


@helper
def _ratio(part: Any, whole: Any) -> Any:
    return part / max(whole, 1)


@helper
def _sum_signals(blocks: Any, signals: Any, title_words: Any, sums: Any) -> Any:
    """Fill the running sums; return the first block that repeats most of the title, and the first h1, or -1."""
    title, top_heading = -1, -1
    best = _TITLE_SHARE
    for block in range(len(blocks)):
        signal = signals[block]
        sums[block + 1, _SUM_WORDS] = sums[block, _SUM_WORDS] + signal[WORDS]
        sums[block + 1, _SUM_PROSE] = sums[block, _SUM_PROSE] + signal[PROSE]
        if top_heading < 0 and signal[HEADING] == 1:
            top_heading = block
        if title_words > 0 and 2 <= signal[WORDS] <= 40:
            likeness = signal[TITLE] / signal[WORDS] * min(1, signal[TITLE] / title_words)
            likeness += 0.3 if signal[HEADING] > 0 else 0
            if likeness > best:
                best, title = likeness, block
    return title, top_heading


@helper
def _sum_kinds(blocks: Any, words: Any, signals: Any, signatures: Any, kinds: Any) -> None:
    """Sum blocks, words and words in links over the blocks of a kind, in the row of its first; count equal texts."""
    sums = kinds.sums
    for block in range(len(blocks)):
        kind = find_or_add(kinds.by_signature, np.uint64(signatures[blocks[block, seg.ELEMENT]]), block)
        sums[kind, _KIND_BLOCKS] += np.float32(1)
        sums[kind, _KIND_WORDS] += signals[block, WORDS]
        sums[kind, _KIND_LINKS] += signals[block, LINKS]
        text_key = np.uint64(0)
        first = blocks[block, seg.FIRST_WORD]
        for position in range(first, first + blocks[block, seg.WORDS]):
            text_key += words[position]
        text = find_or_add(kinds.by_text, text_key, block)
        sums[text, _EQUAL_TEXTS] += np.float32(1)
        kinds.firsts[0, block], kinds.firsts[1, block] = kind, text


@helper
def _add_ancestors(row: Any, at: Any, element: Any, elements: Any) -> Any:
    paths, totals = elements.paths, elements.totals
    for group in range(len(GROUPS)):
        row[at + group] = elements.distances[element, group]
    at += len(GROUPS)
    path = paths[element]
    for column in range(PATH_COUNT):
        row[at + column] = path[column]
    row[at + PATH_COUNT] = _ratio(path[PATH_SUM], path[PATH_COUNT])
    at += PATH_COUNT + 1
    for number in range(len(OUTER_DEPTHS)):
        above = elements.outer[element, number]
        row[at] = paths[above, OWN_MEAN]
        row[at + 1] = totals[above, TOTAL_PROSE] / (1 + totals[0, TOTAL_PROSE])
        row[at + 2] = _ratio(totals[above, TOTAL_LINKS], totals[above, TOTAL_WORDS])
        at += 3
    return at


@helper
def _add_containers(row: Any, at: Any, element: Any, parents: Any, totals: Any) -> Any:
    for _ in range(_CONTAINERS):
        total = totals[element]
        row[at] = log1p(total[TOTAL_WORDS])
        row[at + 1] = _ratio(total[TOTAL_LINKS], total[TOTAL_WORDS])
        row[at + 2] = _ratio(total[TOTAL_WORDS], total[TOTAL_BLOCKS])
        row[at + 3] = total[TOTAL_PROSE] / (1 + totals[0, TOTAL_PROSE])
        row[at + 4] = min(total[CHILDREN], 50)
        row[at + 5] = _ratio(total[TOTAL_SENTENCES], total[TOTAL_WORDS])
        at += 6
        element = max(parents[element], 0)
    return at


@helper
def _add_main_container(row: Any, at: Any, block: Any, element: Any, elements: Any, common: Any, main: Any) -> Any:
    """Add the position relative to the main container: the element that most prose is directly in or close below."""
    depths, totals, first, last = elements.depths, elements.totals, elements.first, elements.last
    above = common[element]
    all_prose = 1 + totals[0, TOTAL_PROSE]
    row[at] = depths[element] - depths[above]
    row[at + 1] = depths[main] - depths[above]
    row[at + 2] = above == main
    row[at + 3] = (block - first[main]) / (1 + last[main] - first[main])
    row[at + 4] = totals[main, TOTAL_PROSE] / all_prose
    row[at + 5] = totals[above, TOTAL_PROSE] / all_prose
    row[at + 6] = _ratio(totals[main, TOTAL_LINKS], totals[main, TOTAL_WORDS])
    row[at + 7], row[at + 8] = last[main] - block, block - first[main]
    return at + 9


@helper
def _add_position(row: Any, at: Any, block: Any, sums: Any, title: Any, top_heading: Any) -> Any:
    count = len(sums) - 1
    words, prose = sums[:, _SUM_WORDS], sums[:, _SUM_PROSE]
    row[at], row[at + 1] = block / count, words[block] / (1 + words[count])
    row[at + 2], row[at + 3] = block, count - 1 - block
    row[at + 4], row[at + 5] = log1p(words[block]), log1p(words[count] - words[block + 1])
    row[at + 6] = prose[block] / (1 + prose[count])
    row[at + 7] = (prose[count] - prose[block + 1]) / (1 + prose[count])
    row[at + 8] = block - title if title >= 0 else _FAR_AWAY
    row[at + 9] = words[block] - words[title] if title >= 0 else _FAR_AWAY
    row[at + 10] = prose[block + 1] - prose[title] if title >= 0 else _FAR_AWAY
    row[at + 11] = block - top_heading if top_heading >= 0 else _FAR_AWAY
    return at + 12


@helper
def _add_repetition(row: Any, at: Any, block: Any, signals: Any, kinds: Any, sums: Any) -> Any:
    kind, first = kinds.sums[kinds.firsts[0, block]], kinds.firsts[1, block]
    row[at] = kind[_KIND_BLOCKS]
    row[at + 1] = kind[_KIND_WORDS] / kind[_KIND_BLOCKS]
    row[at + 2] = kind[_KIND_WORDS] / (1 + sums[len(sums) - 1, _SUM_WORDS])
    row[at + 3] = _ratio(kind[_KIND_LINKS], kind[_KIND_WORDS])
    has_words = signals[block, WORDS] > 1
    row[at + 4] = kinds.sums[first, _EQUAL_TEXTS] if has_words else 0
    row[at + 5] = has_words and first < block
    return at + 6


@helper
def _add_last_heading(row: Any, at: Any, block: Any, heading: Any, blocks: Any, signals: Any, paths: Any) -> None:
    if heading >= 0:
        row[at], row[at + 1], row[at + 2] = block - heading, signals[heading, VALUE], signals[heading, HEADING]
        row[at + 3] = paths[blocks[heading, seg.ELEMENT], OWN_MEAN]
    else:
        row[at], row[at + 1], row[at + 2], row[at + 3] = -1, 0, 0, 0
