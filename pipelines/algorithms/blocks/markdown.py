"""Markdown of blocks, by CommonMark with the tables of GitHub: what a reader of the page sees, a Markdown reader shows.

Emphasis, link targets and images are left out; formulas stay as they are. Only what would be markup is escaped.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
from collections import defaultdict
from typing import NamedTuple

import numpy as np

from pipelines.algorithms.blocks.markup import NAMES, TAGS, tag_groups
from pipelines.algorithms.blocks.rendering import IS_CELL, NOT_SHOWN, SEPARATORS, Layout
from pipelines.algorithms.blocks.segmentation import ELEMENT, END, START, Segments

_QUOTE, _ITEM, _LIST, _CELL, _HEADING, _PRE, _TABLE, _PARAGRAPH = range(8)
_GROUPS = tag_groups(("blockquote", "li", "ul ol menu dir", "td th", "h1 h2 h3 h4 h5 h6", "pre", "table"))
_FIELDS = {_HEADING: "heading", _PRE: "pre", _TABLE: "table"}
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


class _Container(NamedTuple):
    """A quote, or an item of a list: its element, its list (0: a quote), its number (-1: a bullet)."""

    element: int
    list: int = 0
    number: int = -1


class _Place(NamedTuple):
    """What is around an element: quotes and items, and the innermost list, heading, `<pre>` and table."""

    path: tuple[_Container, ...] = ()
    list: int = 0
    heading: int = 0
    pre: int = 0
    table: int = 0


@dataclasses.dataclass
class _Chunk:
    """Blocks that become one paragraph, heading, fence or table, `kind`; of the element `key` if it is not 0.

    Of a table, `rows` has the texts of each cell.
    """

    path: tuple[_Container, ...]
    kind: int = -1
    key: int = 0
    text: list[str] = dataclasses.field(default_factory=list)
    rows: dict[int, dict[int, list[str]]] = dataclasses.field(default_factory=dict)


class _Span(NamedTuple):
    start: int
    end: int
    is_code: bool


def render_markdown(page: Segments, html: bytes, layout: Layout) -> str:
    """Return the blocks of a layout as Markdown, given the HTML of the page, whose attributes name languages."""
    return _Writer(page, html).write(layout)


class _Writer:
    def __init__(self, page: Segments, html: bytes) -> None:
        self._page, self._html = page, html
        self._tags, self._parents = page.tags.tolist(), page.parents.tolist()
        self._cells = defaultdict[int, list[int]](list)  # of each row
        self._places = self._find_places()
        self._spans = self._find_spans()
        self._protected = list[str]()  # code and formulas
        self._divided = set[int]()  # tables with lists in their cells

    def write(self, layout: Layout) -> str:
        chunks = list[_Chunk]()
        for block in np.flatnonzero(layout.separators != NOT_SHOWN).tolist():
            separator = int(layout.separators[block])
            unit, row, table, _ = layout.around[block].tolist()
            place = self._places[self._page.blocks[block, ELEMENT]]
            if not table:
                self._divided.add(place.table)
            kind, key = _PARAGRAPH, 0
            if separator >= IS_CELL:
                kind, key = _TABLE, table
            elif place.pre or place.heading:
                kind, key = (_PRE, place.pre) if place.pre else (_HEADING, place.heading)
            chunk = chunks[-1] if chunks else _Chunk(())
            joint = SEPARATORS[separator % IS_CELL]
            is_same = (chunk.kind, chunk.key) == (kind, key) and (kind == _TABLE or chunk.path == place.path)
            if not is_same or (kind == _PARAGRAPH and joint == "\n\n"):
                chunks.append(chunk := _Chunk(place.path, kind, key))
                joint = ""
            if kind == _TABLE:
                chunk.rows.setdefault(row, {}).setdefault(unit, []).append(self._text_of(block))
            else:
                chunk.text += [joint and "\n" if kind == _PRE else joint, self._text_of(block)]
        return "\n".join(self._lines(chunks))

    def _lines(self, chunks: list[_Chunk]) -> list[str]:
        """Return the lines of all chunks, after the signs of their quotes and items."""
        lines, indents = list[str](), list[str]()
        path: tuple[_Container, ...] = ()
        signs = dict[int, str]()
        for chunk in chunks:
            before, path = path, chunk.path
            pairs = zip(before, path, strict=False)
            shared = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
            added, left = path[shared:], before[shared:]
            del indents[shared:]
            item, last = added[0] if added else _Container(0), (left or before or (_Container(0),))[0 if left else -1]
            # Items follow each other without a blank line; a number other than 1 begins no list below a paragraph.
            is_tight = item.list and last.list and (last.list == item.list if left else item.number < 2)
            if lines and not is_tight:
                lines.append("".join(indents).rstrip())
            start = "".join(indents)
            for container in added:
                choices = "-*" if container.number < 0 else ".)"
                # Another sign separates lists that follow each other.
                is_used = bool(left) and signs.get(last.list) == choices[0]
                sign = signs.setdefault(container.list, choices[is_used]) if container.list else ">"
                sign = f"{container.number}{sign} " if container.number >= 0 else f"{sign} "
                start += sign
                indents.append(" " * len(sign) if container.list else sign)
                left = ()
            rest = "".join(indents)
            for number, line in enumerate(self._content(chunk).split("\n")):
                lines.append((rest if number else start) + line if line else rest.rstrip())
        return lines

    def _content(self, chunk: _Chunk) -> str:
        text = "".join(chunk.text)
        if chunk.kind == _PRE:
            fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
            return f"{fence}{self._language(chunk.key)}\n{text}\n{fence}"
        if chunk.kind == _HEADING:
            text = _HEADING_END.sub(r"\\", _escape(" ".join(text.split())))
            return f"{int(NAMES[self._tags[chunk.key]][1]) * '#'} {self._restore(text)}"
        if chunk.kind == _TABLE and chunk.key not in self._divided:
            rows = []
            for row, texts in chunk.rows.items():
                cells = (" ".join(texts.get(cell, ())) for cell in dict.fromkeys([*self._cells[row], *texts]))
                rows.append([self._restore(_escape(" ".join(cell.split()))).replace("|", "\\|") for cell in cells])
            columns = max(map(len, rows))
            rows[0] += [""] * (columns - len(rows[0]))
            return "\n".join(f"| {' | '.join(row)} |" for row in (rows[0], ["---"] * columns, *rows[1:]))
        if chunk.kind == _TABLE:
            text = "\n".join("\t".join(map(" ".join, row.values())) for row in chunk.rows.values())
        lines = "\n".join(line.strip() for line in _escape(text).strip().split("\n"))
        lines = re.sub(r"(?<!\n)\n(?!\n)", "  \n", re.sub(r"\n\n+", "\n\n", _LINE_START.sub(r"\1\\", lines)))
        return self._restore(lines)

    def _restore(self, text: str) -> str:
        return _NUMBER.sub(lambda number: self._protected[int(number[1])], text)

    def _text_of(self, block: int) -> str:
        """Return the text of a block; code and formulas in it are replaced by their numbers between NULs."""
        position, end = self._page.blocks[block, [START, END]].tolist()
        if self._places[self._page.blocks[block, ELEMENT]].pre:
            return self._decode(position, end)
        parts = []
        for span in self._spans.get(block, ()):
            text = self._decode(max(position, span.start), min(end, span.end))
            own = text.strip()
            if span.is_code or own[:1] == own[-1:] == "$":
                protected = "\n".join(self._protect(line.strip(), span.is_code) for line in own.split("\n"))
                # With the white space around it.
                parts += [self._decode(position, span.start), protected.join(text.split(own)) if own else text]
                position = min(end, span.end)
        return "".join([*parts, self._decode(position, end)])

    def _decode(self, start: int, end: int) -> str:
        return self._page.text[start:end].tobytes().decode()

    def _protect(self, text: str, is_code: bool) -> str:
        if not text:
            return ""
        if is_code:
            runs = {*map(len, re.findall("`+", text))}
            ticks = "`" * next(size for size in range(1, len(runs) + 2) if size not in runs)
            space = " " if "`" in (text[0], text[-1]) else ""
            text = f"{ticks}{space}{text}{space}{ticks}"
        self._protected.append(text)
        is_display = not is_code and text.startswith("$$")
        return f"\n\n\0{len(self._protected) - 1}\0\n\n" if is_display else f"\0{len(self._protected) - 1}\0"

    def _find_places(self) -> list[_Place]:
        places = [_Place()]
        numbers, items = dict[int, int](), dict[int, tuple[_Container, ...]]()
        groups = _GROUPS[self._page.tags].tolist()
        for element in range(1, len(groups)):
            parent, group = self._parents[element], groups[element]
            place = places[parent]
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
            elif group == _CELL:
                self._cells[parent].append(element)
            elif group >= 0:
                place = place._replace(**{_FIELDS[group]: element})
            places.append(place)
        return places

    def _find_spans(self) -> dict[int, list[_Span]]:
        """Return the inline code and the formulas of each block."""
        found = defaultdict[int, list[_Span]](list)
        bounds = self._page.blocks[:, [START, END]].tolist()
        depth = start = first = formula = 0
        is_code = False
        for position, block, change in self._page.marks.tolist():
            if not change:
                change = 1 - 2 * formula
                formula = 1 - formula
            if not depth:
                start, first, is_code = position, block, not formula
            depth += change
            for number in range(first, min(block + 1, len(bounds))) if not depth else ():
                begin = start if number == first else bounds[number][0]
                span = _Span(begin, position if number == block else bounds[number][1], is_code)
                before = found[number][-1] if found[number] else None
                has_space = not self._page.text[begin : begin + 1].tobytes().strip()
                if before and before.is_code and is_code and before.end == begin and not has_space:
                    span = _Span(found[number].pop().start, span.end, True)
                found[number].append(span)
        return found

    def _attributes(self, element: int) -> str:
        start = int(self._page.tag_ends[element])
        match = _TAG_END.match(self._html, start, start + _MAX_ATTRIBUTES)
        return match[0].decode(errors="ignore") if match else ""

    def _language(self, pre: int) -> str:
        """Return the language that a `<pre>`, its first element or a box around it names, or an empty string."""
        elements = [pre + 1] if self._parents[pre + 1 : pre + 2] == [pre] else []
        elements.append(pre)
        while len(elements) < _BOX_LEVELS + 2 and self._tags[self._parents[elements[-1]]] in _BOXES:
            elements.append(self._parents[elements[-1]])
        names = map(_LANGUAGE.search, map(self._attributes, elements))
        return next((name[1] for name in names if name), "")


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
