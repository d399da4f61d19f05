"""Markdown of blocks, by CommonMark with the tables of GitHub: what a reader of the page sees, a Markdown reader shows.

Emphasis, link targets and images are left out; formulas stay as they are. Only what would be markup is escaped.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pipelines.algorithms.blocks.markup import NAMES, TAGS, tag_groups
from pipelines.algorithms.blocks.rendering import IS_CELL, NOT_SHOWN, SEPARATORS, Layout
from pipelines.algorithms.blocks.segmentation import ELEMENT, END, START, Segments

_QUOTE, _ITEM, _LIST, _HEADING, _PRE, _TABLE, _PARAGRAPH = range(7)
_GROUPS = tag_groups(("blockquote", "li", "ul ol menu dir", "h1 h2 h3 h4 h5 h6", "pre", "table"))
_CODE, _FORMULA = 1, 2
# Lists and quotes nested deeper are written at this depth, so that indentation does not multiply the size of the text.
_MAX_NESTING = 12
# Bytes to read of a tag, since many elements can be in one whose class is long.
_MAX_ATTRIBUTES = 2000

_TAG_END = re.compile(rb'(?:[^>"]|"[^"]*")*')
_START_NUMBER = re.compile(r'\sstart="(\d{1,8})"')
_LANGUAGE = re.compile(
    r'\s(?:data-lang(?:uage)?="|class="(?:[^"]*?[\s-])??(?:lang(?:uage)?[-:]|(?:highlight|hl)-(?:source-|text-|i(?=py))?|'
    r"brush: ?|syntaxhighlighter +(?:nogutter +)?|code (?=[\w+#.-]+ literal-block)|hljs |sourceCode ))"
    r"(?!(?:default|none|wrapper|lines?|code|block|container|te?xt|plain\w*)[\"\s]|lang)"
    r"([a-zA-Z][\w+#.-]*)"
)
# The elements around a `<pre>` whose class can name its language.
_BOXES, _BOX_LEVELS = (TAGS["div"], TAGS["figure"]), 3

# What can be markup anywhere in a paragraph. Code and formulas, replaced by their numbers between NULs, count as signs.
_MARKUP = r"\\(?=[!-/:-@\[-`{-~\0\n])|<(?=[a-zA-Z/!?]|[^\s<>@]+@)|&(?=#?\w+;)|\](?=\()"
# Signs that are markup if one that opens is followed by one that closes: these two patterns, and what then is escaped.
_PAIRS = {
    "*": (re.compile(r"\*(?=[^\s*])"), re.compile(r"(?<=[^\s*])\*"), r"(?<=\S)\*|\*(?=\S)"),
    "_": (re.compile(r"(?<!\w)_+(?=[^\s_])"), re.compile(r"(?<=[^\s_])_+(?!\w)"), r"(?<![^\W_])_|_(?![^\W_])"),
    "~": (re.compile(r"~(?=[^\s~])"), re.compile(r"(?<=[^\s~])~"), "~"),
    "`": (re.compile("`"), re.compile("[`\0]"), "`"),
}
# At the start of a line: number of an item, heading, quote, item, underline, rule, border of a table, fence, box to
# check, definition of a link.
_LINE_START = re.compile(
    r"""(?mx)^([0-9]{1,9}(?=[.)](?:\s|$)) | (?=\#{1,6}(?:\s|$) | > | [-+*](?:\s|$) | =++$ | [*_][*_ \t]*+$
    | [|: \t]*+-[-|: \t]*+$ | ``` | ~~~ | \[(?:[ xX]\](?:\s|$) | (?s:.{0,999}?)\]:)))"""
)
_HEADING_END = re.compile(r"(?:^|(?<=\s))(?=#+$)")
_NUMBER = re.compile("\0(\\d+)\0")
_LINE = re.compile(r"\S(?:.*\S)?")


class _Container(NamedTuple):
    """A quote, or an item of a list: its element, its list (0: a quote), its number (-1: a bullet)."""

    element: int
    list: int = 0
    number: int = -1


# Text that is in no further container.
_TEXT = _Container(0)


class _Place(NamedTuple):
    """What is around an element: quotes and items; the heading or `<pre>`; the innermost list and table."""

    path: tuple[_Container, ...] = ()
    kind: int = _PARAGRAPH
    element: int = 0
    list: int = 0
    table: int = 0


class _Chunk(NamedTuple):
    """Blocks that become one paragraph, heading, fence or table, `kind`, of an element if it is not a paragraph."""

    path: tuple[_Container, ...]
    kind: int
    element: int
    text: list[str]


def render_markdown(page: Segments, layout: Layout) -> str:
    """Return the blocks of a layout as Markdown."""
    return _Writer(page).write(layout)


class _Writer:
    def __init__(self, page: Segments) -> None:
        self._page = page
        self._tags, self._parents = page.tags.tolist(), page.parents.tolist()
        self._places = {0: _Place()}
        self._find_places()
        self._markup = _find_markup(page)
        self._protected = list[str]()  # code and formulas
        self._divided = set[int]()  # tables with lists in their cells
        self._signs = dict[int, str]()  # of each list

    def write(self, layout: Layout) -> str:
        chunks = list[_Chunk]()
        for block in np.flatnonzero(layout.separators != NOT_SHOWN).tolist():
            place = self._place_of(int(self._page.blocks[block, ELEMENT]))
            text = self._text_of(block, place)
            is_cell, separator = divmod(int(layout.separators[block]), IS_CELL)
            joint = SEPARATORS[separator]
            if is_cell:
                place = self._places[place.table]._replace(kind=_TABLE, element=place.table)
                text = "\t" * int(layout.empty_cells[block]) + " ".join(text.split())
            elif place.list > place.table:
                self._divided.add(place.table)
            is_same = bool(chunks) and chunks[-1][:3] == place[:3]
            if not is_same or (place.kind == _PARAGRAPH and joint == "\n\n"):
                chunks.append(_Chunk(*place[:3], [text]))
            else:
                chunks[-1].text.extend(("\n" if place.kind == _PRE else joint, text))
        return "\n".join(self._lines(chunks))

    def _lines(self, chunks: Iterable[_Chunk], parent: _Container = _TEXT, depth: int = 0) -> list[str]:
        """Return the lines of chunks, whose paths agree up to a depth, where `parent` is."""
        lines = list[str]()
        last = _TEXT
        for container, group in itertools.groupby(chunks, lambda chunk: (*chunk.path, _TEXT)[depth]):
            # Items follow each other without a blank line; a number other than 1 begins no list below a paragraph.
            is_next = container.list == last.list if last.element else parent.list and container.number < 2
            if lines and not (container.list and is_next):
                lines.append("")
            if container == _TEXT:
                lines += "\n\n".join(map(self._content, group)).split("\n")
            else:
                sign = self._sign(container, last)
                indent = " " * len(sign) if container.list else sign
                inner = self._lines(group, container, depth + 1)
                lines.append(sign + inner[0])
                lines += [indent + line if line else indent.rstrip() for line in inner[1:]]
            last = container
        return lines

    def _sign(self, container: _Container, last: _Container) -> str:
        if not container.list:
            return "> "
        choices = "-*" if container.number < 0 else ".)"
        # Another sign separates lists that follow each other.
        is_used = self._signs.get(last.list) == choices[0]
        sign = self._signs.setdefault(container.list, choices[is_used])
        return f"{container.number if container.number >= 0 else ''}{sign} "

    def _content(self, chunk: _Chunk) -> str:
        text = "".join(chunk.text)
        if chunk.kind == _PRE:
            fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
            return f"{fence}{self._language(chunk.element)}\n{text}\n{fence}"
        if chunk.kind == _HEADING:
            text = _HEADING_END.sub(r"\\", _escape(" ".join(text.split())))
            return f"{int(NAMES[self._tags[chunk.element]][1]) * '#'} {self._restore(text)}"
        if chunk.kind == _TABLE and chunk.element not in self._divided:
            lines = (line.split("\t") for line in text.split("\n"))
            rows = [[self._restore(_escape(cell)).replace("|", "\\|") for cell in line] for line in lines]
            columns = max(map(len, rows))
            rows.insert(1, ["---"] * columns)
            return "\n".join(f"| {' | '.join(row + [''] * (columns - len(row)))} |" for row in rows)
        text = "\n".join(line.strip() for line in _escape(text).strip().split("\n"))
        text = re.sub(r"(?<!\n)\n(?!\n)", "  \n", re.sub(r"\n\n+", "\n\n", _LINE_START.sub(r"\1\\", text)))
        return self._restore(text)

    def _restore(self, text: str) -> str:
        return _NUMBER.sub(lambda number: self._protected[int(number[1])], text)

    def _text_of(self, block: int, place: _Place) -> str:
        """Return the text of a block; code and formulas in it are replaced by their numbers between NULs."""
        start, end = self._page.blocks[block, [START, END]].tolist()
        borders = (start + 1 + np.flatnonzero(np.diff(self._markup[start:end]))).tolist()
        parts = []
        for first, last in itertools.pairwise([start, *borders, end]):
            text = self._page.text[first:last].tobytes().decode()
            kind = 0 if place.kind == _PRE else self._markup[first]
            if kind == _CODE:
                text = _LINE.sub(lambda line: self._protect(_as_code(line[0])), text)
            elif kind == _FORMULA and text.lstrip().startswith("$") and text.rstrip().endswith("$"):
                text = _LINE.sub(lambda line: self._protect(line[0]), text)
            parts.append(text)
        return "".join(parts)

    def _protect(self, text: str) -> str:
        self._protected.append(text)
        number = f"\0{len(self._protected) - 1}\0"
        return f"\n\n{number}\n\n" if text.startswith("$$") else number

    def _find_places(self) -> None:
        """Find what is around each element that changes it."""
        groups = _GROUPS[self._page.tags]
        numbers, items = dict[int, int](), dict[int, tuple[_Container, ...]]()
        for element in np.flatnonzero(groups >= 0).tolist():
            parent, group = self._parents[element], groups[element]
            place = self._place_of(parent)
            if group == _LIST:
                # A list directly in a list belongs to the item before it.
                path = items.get(parent, place.path) if groups[parent] == _LIST else place.path
                place = place._replace(path=path, list=element)
                if self._tags[element] == TAGS["ol"]:
                    number = _START_NUMBER.search(self._attributes(element))
                    numbers[element] = int(number[1]) if number else 1
            elif group in (_QUOTE, _ITEM):
                own = _Container(element)
                if group == _ITEM:
                    own = _Container(element, place.list or parent, numbers.get(place.list, -1))
                    numbers[place.list] = own.number + (own.number >= 0)
                path = items[own.list] = (*place.path[: _MAX_NESTING - 1], own)
                place = place._replace(path=path)
            elif group == _TABLE:
                place = place._replace(table=element)
            elif place.kind != _PRE:
                place = place._replace(kind=group, element=element)
            self._places[element] = place

    def _place_of(self, element: int) -> _Place:
        while element not in self._places:
            element = self._parents[element]
        return self._places[element]

    def _attributes(self, element: int) -> str:
        start = int(self._page.tag_ends[element])
        match = _TAG_END.match(self._page.html[start : start + _MAX_ATTRIBUTES].tobytes())
        return match[0].decode(errors="ignore") if match else ""

    def _language(self, pre: int) -> str:
        """Return the language that a `<pre>`, its first element or a box around it names, or an empty string."""
        elements = [pre + 1] if self._parents[pre + 1 : pre + 2] == [pre] else []
        elements.append(pre)
        while len(elements) < _BOX_LEVELS + 2 and self._tags[self._parents[elements[-1]]] in _BOXES:
            elements.append(self._parents[elements[-1]])
        names = map(_LANGUAGE.search, map(self._attributes, elements))
        return next((name[1] for name in names if name), "")


def _find_markup(page: Segments) -> npt.NDArray[np.uint8]:
    """Return for each byte of the text whether it is code, in a formula, or neither (0)."""
    position, block, change = page.marks.T
    # White space at the end of a block is cut off.
    position = np.minimum(position, np.append(page.blocks[:, END], len(page.text))[block])
    code, formulas = np.zeros((2, len(page.text) + 2), np.int32)
    # The space before an element is written after its start.
    has_space = np.append(page.text, ord("."))[position] <= ord(" ")
    is_outermost = (change > 0) & (np.cumsum(change) == 1)
    np.add.at(code, position + (is_outermost & has_space), change)
    borders = position[change == 0]
    np.add.at(formulas, borders, np.resize([1, -1], len(borders)))
    return np.where(np.cumsum(code) > 0, _CODE, np.where(np.cumsum(formulas) > 0, _FORMULA, 0)).astype(np.uint8)


def _as_code(text: str) -> str:
    runs = {*map(len, re.findall("`+", text))}
    ticks = "`" * next(size for size in range(1, len(runs) + 2) if size not in runs)
    space = " " if "`" in (text[0], text[-1]) else ""
    return f"{ticks}{space}{text}{space}{ticks}"


@functools.cache
def _special(signs: str) -> re.Pattern[str]:
    return re.compile("|".join([_MARKUP, *(_PAIRS[sign][2] for sign in signs)]))


def _escape(text: str) -> str:
    """Escape what would be markup in the text of a paragraph, except at the start of its lines."""
    signs = ""
    for sign, (opening, closing, _) in _PAIRS.items():
        match = opening.search(text) if sign in text else None
        if match and closing.search(text, match.end()):
            signs += sign
    return _special(signs).sub(r"\\\g<0>", text)
