"""Plain text of blocks: a blank line between paragraphs, a line per list item and table row, tabs between cells."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pipelines.algorithms.blocks.markup import ARIA_HIDDEN, KEEPS_SPACE, tag_groups
from pipelines.algorithms.blocks.segmentation import ELEMENT, END, START, WORDS, Segments
from pipelines.algorithms.kernels.compilation import as_read_only, helper, kernel

# Elements that may contain two blocks: the innermost item or cell, row and table, and the outermost list.
_UNIT, _ROW, _TABLE, _LIST = range(4)
# A row whose cells have at most this many words is kept as a whole if at least a third of its cells is; a table of such
# rows, most of them with several cells, if at least half of its cells are.
_CELL_WORDS, _CELLS = 40, 3
# Blocks of one item or cell are paragraphs if one of them has this many words.
_PARAGRAPH_WORDS = 10
_SPACE, _TAB, _LINE, _BLANK_LINE = range(4)
SEPARATORS = (" ", "\t", "\n", "\n\n")
# Added to the separator in a table of data; instead of it for a block that is not shown.
IS_CELL, NOT_SHOWN = 4, 8

_STRUCTURES = tag_groups(("li dt dd td th caption", "tr", "table", "ul ol dl menu dir"))


class Layout(NamedTuple):
    """The text of a page; per block, the separator before it, and the item or cell, row, table and list around it."""

    text: str
    separators: npt.NDArray[np.uint8]
    around: npt.NDArray[np.int32]


def render_blocks(page: Segments, keep: npt.NDArray[np.bool_]) -> str:
    """Return the text of the blocks to keep."""
    return lay_out_blocks(page, keep).text


def lay_out_blocks(page: Segments, keep: npt.NDArray[np.bool_]) -> Layout:
    """Lay out the blocks to keep, in order, without blocks that repeat the previous one for screen readers.

    Tables of data are complete, as are rows: a table without some of its cells has another meaning.
    """
    kept = keep.astype(np.uint8)
    around = np.empty((len(page.parents), 4), np.int32)
    counts = np.zeros((len(page.parents), 3), np.int32)
    rendered = np.empty(len(page.text) + 2 * len(kept) + len(page.parents), np.uint8)
    separators, size = np.full(len(kept), NOT_SHOWN, np.uint8), np.zeros(1, np.int64)
    _render(
        as_read_only(page.text), page.blocks, kept, page.parents, page.tags, page.flags, around, counts, rendered,
        separators, size,
    )  # fmt: skip
    return Layout(rendered[: size[0]].tobytes().decode(), separators, around[page.blocks[:, ELEMENT]])


@helper
def _is_data(counts: Any, table: Any, blocks: Any) -> Any:
    return table > 0 and counts[table, 0] <= len(blocks) and 2 * counts[table, 0] >= 3 * counts[table, 2] > 3


@helper
def _complete_tables(blocks: Any, kept: Any, flags: Any, around: Any, counts: Any) -> None:
    """Keep all cells of a table or row or none, except in tables for layout, where a cell has code or a long text.

    `counts` become the cells of each row and table, more than there are blocks if they are layout, the cells to keep,
    and the rows of each table.
    """
    last = last_row = words = parts = 0
    for block in range(len(blocks)):
        element = blocks[block, ELEMENT]
        unit, row, table = around[element, _UNIT], around[element, _ROW], around[element, _TABLE]
        words, parts = (words, parts + 1) if unit == last else (0, 1)
        words += blocks[block, WORDS]
        if row > 0:
            is_long = words > _CELL_WORDS or parts > _CELLS or flags[element] & KEEPS_SPACE
            counts[row, 0] += len(blocks) if is_long or unit == last else 1
            counts[table, 0] += len(blocks) if is_long else unit != last
            counts[row, 1] += kept[block]
            counts[table, 1] += kept[block] and unit != last
            counts[table, 2] += row != last_row
            last_row = row
        last = unit
    for block in range(len(blocks)):
        row, table = around[blocks[block, ELEMENT], _ROW], around[blocks[block, ELEMENT], _TABLE]
        if _is_data(counts, table, blocks) and 2 * counts[table, 1] >= counts[table, 0]:
            kept[block] = 1
        elif row > 0 and 1 < counts[row, 0] < len(blocks):
            kept[block] = _CELLS * counts[row, 1] >= counts[row, 0]


@helper
def _is_copy(text: Any, blocks: Any, flags: Any, block: Any, last: Any) -> Any:
    """Return whether two blocks have the same text, and one of them is hidden from screen readers."""
    if not (flags[blocks[block, ELEMENT]] ^ flags[blocks[last, ELEMENT]]) & ARIA_HIDDEN:
        return False
    start, other, size = blocks[block, START], blocks[last, START], blocks[block, END] - blocks[block, START]
    if blocks[last, END] - other != size:
        return False
    for position in range(size):  # noqa: SIM110 - for numba
        if text[start + position] != text[other + position]:
            return False
    return True


@helper
def _separator(blocks: Any, around: Any, block: Any, last: Any, is_cell: Any) -> Any:
    above, below = around[blocks[last, ELEMENT]], around[blocks[block, ELEMENT]]
    if above[_UNIT] > 0 and above[_UNIT] == below[_UNIT]:
        if is_cell:
            return _SPACE
        return _BLANK_LINE if max(blocks[last, WORDS], blocks[block, WORDS]) >= _PARAGRAPH_WORDS else _LINE
    if above[_ROW] > 0 and above[_ROW] == below[_ROW]:
        return _TAB
    for kind in (_TABLE, _LIST):
        if above[kind] > 0 and above[kind] == below[kind]:
            return _LINE
    return _BLANK_LINE


@kernel
def _render(
    text: Any, blocks: Any, kept: Any, parents: Any, tags: Any, flags: Any, around: Any, counts: Any, rendered: Any,
    separators: Any, size: Any,
) -> None:  # fmt: skip
    around[0] = 0
    for element in range(1, len(parents)):
        kind = _STRUCTURES[tags[element]]
        for column in range(4):
            around[element, column] = around[parents[element], column]
        if kind == _LIST:
            # Its items are lines, also in a cell.
            around[element, _UNIT] = around[element, _ROW] = around[element, _TABLE] = 0
        if kind >= 0 and not (kind == _LIST and around[element, _LIST] > 0):
            around[element, kind] = element
    _complete_tables(blocks, kept, flags, around, counts)
    filled = 0
    last = -1
    for block in range(len(blocks)):
        if not kept[block]:
            continue
        previous, last = last, block
        above = around[blocks[block, ELEMENT]]
        is_cell = above[_ROW] > 0 and _is_data(counts, above[_TABLE], blocks)
        separator = np.int64(_BLANK_LINE)
        if previous >= 0:
            if _is_copy(text, blocks, flags, block, previous):
                continue
            separator = _separator(blocks, around, block, previous, is_cell)
            rendered[filled] = 32 if separator == _SPACE else 9 if separator == _TAB else 10
            rendered[filled + 1] = 10
            filled += 2 if separator == _BLANK_LINE else 1
        separators[block] = separator + IS_CELL * is_cell
        if is_cell:
            # A tab for each empty cell before it.
            before = around[blocks[block - 1, ELEMENT], _UNIT] if block > 0 else 0
            for element in range(max(above[_ROW], before) + 1, above[_UNIT]):
                if around[element, _UNIT] == element and around[element, _ROW] == above[_ROW]:
                    rendered[filled] = 9
                    filled += 1
        for position in range(blocks[block, START], blocks[block, END]):
            rendered[filled] = 32 if is_cell and text[position] == 10 else text[position]
            filled += 1
    size[0] = filled
