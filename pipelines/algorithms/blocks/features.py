"""Features of blocks: a table of named columns, a row per block."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pipelines.algorithms.blocks import markup
from pipelines.algorithms.blocks import segmentation as seg
from pipelines.algorithms.blocks.elements import (
    CHILDREN,
    CONTENT,
    GROUPS,
    OUTER_DEPTHS,
    PROSE_LINKS,
    PROSE_WORDS,
    TOTAL_BLOCKS,
    TOTAL_LINKS,
    TOTAL_PROSE,
    TOTAL_SENTENCES,
    TOTAL_WORDS,
    Elements,
    Floats,
    common_ancestors,
    describe_elements,
)
from pipelines.algorithms.blocks.stop_words import STOP_WORDS
from pipelines.algorithms.blocks.tags import TAGS, fnv_hash
from pipelines.algorithms.blocks.values import Values, sum_values, values_table

Columns = Iterator[tuple[str, Any]]

_CONTAINERS = 5
_NEIGHBOURS = (-3, -2, -1, 1, 2, 3)
_WINDOWS = (3, 8, 20)
_FAR_AWAY = -1000
# A heading that repeats the title of the page: at least this share of its words.
_TITLE_SHARE = 0.5


def _hash_words(words: list[str]) -> npt.NDArray[np.uint32]:
    return np.array([fnv_hash(word.encode()) & 0xFFFFFFFF for word in dict.fromkeys(words)], np.uint32)


_STOP_WORDS = values_table(_hash_words(STOP_WORDS), np.ones(len(set(STOP_WORDS)), np.float32))
_STOPS = np.isin(np.arange(256), [ord(sign) for sign in ".!?"])
_HEADINGS = np.zeros(256, np.float32)
for _level in range(1, 7):
    _HEADINGS[TAGS[f"h{_level}"]] = _level


class Blocks(NamedTuple):
    """What several groups of features use.

    Per block its element, its words, those in links, its words again if it is prose (else 0), the mean value of its
    words, the share of stop words, how its text ends, its heading level, and its words that are in the title.
    """

    page: seg.Segments
    elements: Elements
    element: npt.NDArray[np.int32]
    words: Floats
    links: Floats
    prose: Floats
    value: Floats
    stop: Floats
    ends: Floats
    heading: Floats
    title: Floats
    title_words: int


def block_features(
    page: seg.Segments, title: list[str], tokens: Values, words: Values, page_features: Mapping[str, float]
) -> tuple[list[str], Floats]:
    """Return the names of the features and their values, float32 of shape (features, blocks).

    `title` are the words of the title, `tokens` and `words` learned values of parts of class names and of words.
    """
    blocks, own = _describe(page, title, tokens, words)
    groups = (
        own,
        _ancestors(blocks),
        _containers(blocks),
        _main_container(blocks),
        _position(blocks),
        _repetition(blocks),
        _last_heading(blocks),
        _neighbours(blocks),
        _windows(blocks),
    )
    columns = [column for group in groups for column in group]
    columns += [(f"page {name}", value) for name, value in page_features.items()]
    features = np.empty((len(columns), len(blocks.words)), np.float32)
    for row, (_, values) in enumerate(columns):
        features[row] = values
    return [name for name, _ in columns], features


def _describe(
    page: seg.Segments, title: list[str], tokens: Values, words: Values
) -> tuple[Blocks, list[tuple[str, Any]]]:
    """Return what is known of each block, and the features of its own text and element."""
    table = page.blocks
    first, count = table[:, seg.FIRST_WORD], table[:, seg.WORDS]

    def total(values: npt.NDArray[Any]) -> Floats:
        sums = np.concatenate([[0], np.cumsum(values, dtype=np.float64)])
        return np.asarray(sums[first + count] - sums[first], np.float32)

    number = count.astype(np.float32)
    divisor = np.maximum(number, 1)
    links = total(page.word_flags & seg.IN_LINK != 0)
    elements = describe_elements(page, links, tokens)
    known, sums, lowest, highest = sum_values(page.words, table, words)
    stop = np.asarray(sum_values(page.words, table, _STOP_WORDS)[0] / divisor, np.float32)
    title_hashes = _hash_words(title)
    in_title = sum_values(page.words, table, values_table(title_hashes, np.ones(len(title_hashes), np.float32)))[0]
    element = table[:, seg.ELEMENT]
    tags = page.tags[element]
    ends, starts = _text_ends(page)
    blocks = Blocks(
        page=page,
        elements=elements,
        element=element,
        words=number,
        links=links,
        prose=np.where((number >= PROSE_WORDS) & (links < PROSE_LINKS * number), number, 0).astype(np.float32),
        value=sums / (known + 1),
        stop=stop,
        ends=ends,
        heading=_HEADINGS[tags],
        title=in_title,
        title_words=len(title_hashes),
    )
    characters = table[:, seg.CHARACTERS]
    flags = page.flags[element]
    own: list[tuple[str, Any]] = [
        ("log words", np.log1p(number)),
        ("log characters", np.log1p(characters)),
        ("characters per word", characters / divisor),
        ("words in links", links / divisor),
        ("words in strong", total(page.word_flags & seg.IN_STRONG != 0) / divisor),
        ("capitalized words", total(page.word_flags & seg.UPPER_CASE != 0) / divisor),
        ("stop words", stop),
        ("words of the title", in_title / divisor),
        ("ends a sentence", ends),
        ("begins with a capital", starts),
        ("sentences per word", table[:, seg.SENTENCES] / divisor),
        ("commas per word", table[:, seg.COMMAS] / divisor),
        ("digits", table[:, seg.DIGITS] / np.maximum(characters, 1)),
        ("CJK characters", table[:, seg.CJK] / np.maximum(characters, 1)),
        ("line breaks", table[:, seg.BREAKS]),
        ("images before", np.minimum(table[:, seg.IMAGES], 10)),
        ("signs", table[:, seg.SIGNS]),
        ("value of words", blocks.value),
        ("lowest word", lowest),
        ("highest word", highest),
        ("hidden by style", flags & markup.STYLED_HIDDEN != 0),
        ("hidden", flags & markup.HIDDEN != 0),
        ("aria-hidden", flags & markup.ARIA_HIDDEN != 0),
        ("tag", tags),
        ("depth", elements.depths[element]),
        ("heading level", blocks.heading),
    ]
    return blocks, own


def _text_ends(page: seg.Segments) -> tuple[Floats, Floats]:
    """Return how each text ends (1: a sentence, 0.5: a colon) and begins (1: a capital, 0.5: not ASCII)."""
    text = np.concatenate([page.text, np.zeros(1, np.uint8)])
    start, end = page.blocks[:, seg.START], page.blocks[:, seg.END]
    last, second, third, fourth = (text[np.maximum(end - back, start)] for back in (1, 2, 3, 4))
    stops = _STOPS[last] | (((last == 34) | (last == 41)) & _STOPS[second])
    stops |= (third == 227) & (second == 128) & (last == 130)  # an ideographic full stop
    stops |= (third == 226) & (second == 128) & _STOPS[fourth]  # before a quotation mark
    first = text[start]
    starts = np.where((first >= 65) & (first <= 90), 1.0, np.where(first >= 128, 0.5, 0.0))
    return np.where(stops, 1.0, np.where(last == 58, 0.5, 0.0)).astype(np.float32), starts.astype(np.float32)


def _above(blocks: Blocks) -> Iterator[npt.NDArray[np.int32]]:
    """Yield the element of each block, its parent, and so on; the document is its own parent."""
    parents = np.maximum(blocks.page.parents, 0)
    element = blocks.element
    while True:
        yield element
        element = parents[element]


def _ancestors(blocks: Blocks) -> Columns:
    element, elements = blocks.element, blocks.elements
    for group, names in enumerate(GROUPS):
        yield f"distance to {names}", elements.distances[element, group]
    paths = elements.paths[element]
    kinds = ("lowest own", "highest own", "own", "lowest", "highest", "sum", "nearest", "next")
    for column, kind in enumerate(kinds):
        yield f"{kind} class value", paths[:, column]
    yield "mean class value", paths[:, 5] / np.maximum(paths[:, 8], 1)
    all_prose = 1 + elements.totals[0, TOTAL_PROSE]
    for number, depth in enumerate(OUTER_DEPTHS):
        outer = elements.outer[element, number]
        totals = elements.totals[outer]
        yield f"class value at depth {depth}", elements.paths[outer, 2]
        yield f"share of prose at depth {depth}", totals[:, TOTAL_PROSE] / all_prose
        yield f"links at depth {depth}", _link_share(totals)


def _link_share(totals: Floats) -> Floats:
    return np.asarray(totals[:, TOTAL_LINKS] / np.maximum(totals[:, TOTAL_WORDS], 1), np.float32)


def _containers(blocks: Blocks) -> Columns:
    all_prose = 1 + blocks.elements.totals[0, TOTAL_PROSE]
    for level, element in zip(range(_CONTAINERS), _above(blocks), strict=False):
        totals = blocks.elements.totals[element]
        yield f"log words in container {level}", np.log1p(totals[:, TOTAL_WORDS])
        yield f"links in container {level}", _link_share(totals)
        yield f"words per block in container {level}", totals[:, TOTAL_WORDS] / np.maximum(totals[:, TOTAL_BLOCKS], 1)
        yield f"share of prose in container {level}", totals[:, TOTAL_PROSE] / all_prose
        yield f"children of container {level}", np.minimum(totals[:, CHILDREN], 50)
        yield f"sentences in container {level}", totals[:, TOTAL_SENTENCES] / np.maximum(totals[:, TOTAL_WORDS], 1)


def _main_container(blocks: Blocks) -> Columns:
    """Yield the position of each block relative to the element with most prose close to it."""
    elements = blocks.elements
    main = int(np.argmax(elements.totals[:, CONTENT]))
    common = common_ancestors(blocks.page.parents, main)[blocks.element]
    number = np.arange(len(common))
    first, last = int(elements.first[main]), int(elements.last[main])
    all_prose = 1 + elements.totals[0, TOTAL_PROSE]
    yield "depth below that common with the main container", elements.depths[blocks.element] - elements.depths[common]
    yield "depth of the main container below it", elements.depths[main] - elements.depths[common]
    yield "is the main container", common == main
    yield "position in the main container", (number - first) / (1 + last - first)
    yield "prose of the main container", elements.totals[main, TOTAL_PROSE] / all_prose
    yield "prose in common with it", elements.totals[common, TOTAL_PROSE] / all_prose
    yield "links of the main container", _link_share(elements.totals[main : main + 1])[0]
    yield "blocks to its end", last - number
    yield "blocks from its start", number - first


def _position(blocks: Blocks) -> Columns:
    words, prose = _before(blocks.words), _before(blocks.prose)
    all_words, all_prose = 1 + words[-1], 1 + prose[-1]
    count = len(blocks.words)
    number = np.arange(count)
    yield "position", number / count
    yield "words before, share", words[:-1] / all_words
    yield "blocks before", number
    yield "blocks after", count - 1 - number
    yield "log words before", np.log1p(words[:-1])
    yield "log words after", np.log1p(words[-1] - words[1:])
    yield "prose before", prose[:-1] / all_prose
    yield "prose after", (prose[-1] - prose[1:]) / all_prose
    title = _title_block(blocks)
    yield "blocks from the title", number - title if title is not None else np.full(count, _FAR_AWAY)
    yield "words from the title", words[:-1] - words[title] if title is not None else np.full(count, _FAR_AWAY)
    yield "prose from the title", prose[1:] - prose[title] if title is not None else np.full(count, _FAR_AWAY)
    headings = np.flatnonzero(blocks.heading == 1)
    yield "blocks from the first h1", number - headings[0] if len(headings) else np.full(count, _FAR_AWAY)


def _before(values: Floats) -> npt.NDArray[np.float64]:
    """Return the sum of the values before each block, and last of all."""
    return np.concatenate([[0], np.cumsum(values, dtype=np.float64)])


def _title_block(blocks: Blocks) -> int | None:
    """Return the first block that repeats most of the title of the page."""
    if not blocks.title_words:
        return None
    likeness = blocks.title / np.maximum(blocks.words, 1) * np.minimum(1, blocks.title / blocks.title_words)
    likeness += np.where(blocks.heading > 0, 0.3, 0)
    likeness[(blocks.words < 2) | (blocks.words > 40)] = 0
    best = int(np.argmax(likeness))
    return best if likeness[best] > _TITLE_SHARE else None


def _repetition(blocks: Blocks) -> Columns:
    _, kind = np.unique(blocks.elements.signatures[blocks.element], return_inverse=True)
    count = np.bincount(kind)
    words = np.bincount(kind, blocks.words)
    links = np.bincount(kind, blocks.links)
    yield "blocks of this kind", count[kind]
    yield "words per block of this kind", (words / count)[kind]
    yield "share of words of this kind", words[kind] / (1 + blocks.words.sum())
    yield "links of this kind", (links / np.maximum(words, 1))[kind]
    table = blocks.page.blocks
    sums = np.concatenate([[0], np.cumsum(blocks.page.words, dtype=np.uint64)])
    text = sums[table[:, seg.FIRST_WORD] + table[:, seg.WORDS]] - sums[table[:, seg.FIRST_WORD]]
    _, first, same, times = np.unique(text, return_index=True, return_inverse=True, return_counts=True)
    yield "equal texts", np.where(blocks.words > 1, times[same], 0)
    yield "repeats an earlier text", np.where(blocks.words > 1, first[same] < np.arange(len(text)), 0)


def _last_heading(blocks: Blocks) -> Columns:
    number = np.arange(len(blocks.words))
    latest = np.maximum.accumulate(np.where(blocks.heading > 0, number, -1))
    before = np.concatenate([[-1], latest[:-1]])
    known = before >= 0
    yield "blocks from the last heading", np.where(known, number - before, -1)
    yield "value of the last heading", np.where(known, blocks.value[before], 0)
    yield "level of the last heading", np.where(known, blocks.heading[before], 0)
    yield "class value of the last heading", np.where(known, blocks.elements.paths[blocks.element[before], 2], 0)


def _neighbours(blocks: Blocks) -> Columns:
    count = len(blocks.words)
    parent = blocks.page.parents[blocks.element]
    links = blocks.links / np.maximum(blocks.words, 1)
    values = blocks.elements.paths[blocks.element, 2]
    for offset in _NEIGHBOURS:
        other = np.arange(count) + offset
        inside = (other >= 0) & (other < count)
        other = np.clip(other, 0, count - 1)
        related = (blocks.element[other] == blocks.element) | (parent[other] == parent)
        yield f"log words at {offset:+}", np.where(inside, np.log1p(blocks.words[other]), -1)
        yield f"links at {offset:+}", np.where(inside, links[other], 0)
        yield f"value of words at {offset:+}", np.where(inside, blocks.value[other], 0)
        yield f"stop words at {offset:+}", np.where(inside, blocks.stop[other], 0)
        yield f"same container at {offset:+}", inside & related
        yield f"class value at {offset:+}", np.where(inside, values[other], 0)
        yield f"ends a sentence at {offset:+}", np.where(inside, blocks.ends[other], 0)


def _windows(blocks: Blocks) -> Columns:
    count = len(blocks.words)
    number = np.arange(count)
    sums = [_before(values) for values in (blocks.words, blocks.prose, blocks.links, blocks.value * blocks.words)]
    for reach in _WINDOWS:
        low, high = np.maximum(0, number - reach), np.minimum(count, number + reach + 1)
        words, prose, links, value = (total[high] - total[low] for total in sums)
        divisor = np.maximum(words, 1)
        yield f"prose within {reach}", prose / divisor
        yield f"links within {reach}", links / divisor
        yield f"value of words within {reach}", value / divisor
        yield f"words per block within {reach}", words / (high - low)


_GROUPS = (
    _ancestors,
    _containers,
    _main_container,
    _position,
    _repetition,
    _last_heading,
    _neighbours,
    _windows,
)
