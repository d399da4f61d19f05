"""Plain text of blocks: a blank line between paragraphs, a line per list item and table row, tabs between cells."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from pipelines.algorithms.blocks import segmentation as seg
from pipelines.algorithms.blocks.tags import TAGS

_ROW, _TABLE = TAGS["tr"], TAGS["table"]
_LISTS = {TAGS[name] for name in ("ul", "ol", "dl", "menu", "dir")}


def render_blocks(page: seg.Segments, keep: npt.NDArray[np.bool_]) -> str:
    """Return the text of the blocks to keep, in order."""
    text = page.text.tobytes()
    parts: list[str] = []
    last: dict[str, int] = {}
    for block in np.flatnonzero(keep):
        start, end, element = page.blocks[block, [seg.START, seg.END, seg.ELEMENT]].tolist()
        around = dict(_structures(page, element))
        if parts:
            parts.append(_separator(last, around))
        parts.append(text[start:end].decode())
        last = around
    return "".join(parts)


def _separator(last: dict[str, int], around: dict[str, int]) -> str:
    for structure, separator in (("row", "\t"), ("table", "\n"), ("list", "\n")):
        if structure in around and around[structure] == last.get(structure):
            return separator
    return "\n\n"


def _structures(page: seg.Segments, element: int) -> Iterator[tuple[str, int]]:
    """Yield the outermost list, and the innermost table and row, that contain an element."""
    row = table = None
    while element > 0:
        tag = int(page.tags[element])
        if tag in _LISTS:
            yield "list", element
        elif tag == _ROW and row is None:
            row = element
            yield "row", element
        elif tag == _TABLE and table is None:
            table = element
            yield "table", element
        element = int(page.parents[element])
