"""Pieces of HTML that the sections of the overlap page are put together from; what they are given is text."""

from __future__ import annotations

import html
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pipelines.reports.overlap_words import count, percent
from pipelines.reports.tokenizer_plots import escaped

_TURNS_TEXT = {*map(chr, range(0x202A, 0x202F)), *map(chr, range(0x2066, 0x206A))}
_KEPT_CONTROLS = {"\n", "\t"}


class Cell(NamedTuple):
    """A cell of a table: what it shows, as HTML, and the number it is sorted by, where that is not its text."""

    shown: str
    value: float | None = None
    is_share: bool = False
    is_text: bool = False

    def html(self) -> str:
        """Return the cell; a share also has a bar of its length."""
        style = ' class="text"' if self.is_text else ""
        if self.is_share and self.value is not None:
            style = f' class="bar" style="--share:{min(100.0, max(0.0, self.value)):.2f}%"'
        # What has no value is sorted last, and not as 0.
        data = "" if self.is_text else f' data-value="{"" if self.value is None else self.value}"'
        return f"<td{style}{data}>{self.shown}</td>"


def count_cell(value: int | None) -> Cell:
    """Return a cell with a whole number."""
    return Cell(count(value), value)


def percent_cell(value: float | None) -> Cell:
    """Return a cell with a share in percent and its bar."""
    return Cell(percent(value), value, is_share=True)


def text_cell(text: str) -> Cell:
    """Return a cell with a text."""
    return Cell(escaped(text), is_text=True)


def row(head: str, cells: Iterable[Cell], style: str = "") -> str:
    """Return a row of a table; its head is HTML."""
    styled = f' class="{style}"' if style else ""
    return f'<tr{styled}><th scope="row">{head}</th>{"".join(cell.html() for cell in cells)}</tr>'


def table(
    heads: Sequence[str],
    rows: Sequence[str],
    name: str,
    *,
    groups: Sequence[tuple[str, int]] = (),
    foot: Sequence[str] = (),
    is_sorted: bool = False,
    style: str = "",
) -> str:
    """Return a table in a box that scrolls where it is too narrow, also by the keyboard.

    `groups` are headings above the headings with the number of columns each spans, empty ones for none.
    """
    head = "".join(_sorting_head(each) if is_sorted else f'<th scope="col">{escaped(each)}</th>' for each in heads)
    above = "".join(
        f'<th scope="colgroup" colspan="{columns}"><span>{escaped(each)}</span></th>'
        if each
        else f'<td colspan="{columns}"></td>'
        for each, columns in groups
    )
    above = f'<tr class="groups">{above}</tr>' if groups else ""
    feet = f"<tfoot>{''.join(foot)}</tfoot>" if foot else ""
    classes = " ".join(filter(None, ("sortable" if is_sorted else "", style)))
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escaped(name)}"><table class="{classes}">'
        f"<thead>{above}<tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody>{feet}</table></div>"
    )


def _sorting_head(name: str) -> str:
    return f'<th scope="col" aria-sort="none"><button type="button">{escaped(name)}</button></th>'


def note(text: str) -> str:
    """Return a remark in small print, of HTML."""
    return f'<p class="note">{text}</p>'


def running_text(text: str) -> str:
    """Return text of a document as HTML that keeps its lines, and is shown in the order in which it is written.

    What has no sign of its own and would turn the page about (directional overrides, ESC, halves of surrogate pairs)
    is written as `\\x1b`; joiners and odd spaces, which words of many scripts need, stay.
    """
    joined = text.replace("\r\n", "\n").replace("\r", "\n")
    signs = (_written_out(each) if _is_unsafe(each) else each for each in joined)
    return html.escape("".join(signs), quote=True)


def _is_unsafe(character: str) -> bool:
    if character in _KEPT_CONTROLS:
        return False
    return character in _TURNS_TEXT or unicodedata.category(character) in ("Cc", "Cs")


def _written_out(character: str) -> str:
    return character.encode("unicode_escape").decode()


def link(source: Mapping[str, Any], most_characters: int) -> str:
    """Return a link to a document, its id where its URL is none of http or https."""
    id, url = str(source["id"]), source["url"]
    if url is None or not url.isprintable() or not url.lower().startswith(("http://", "https://")):
        return f"<code>{escaped(id)}</code>"
    shown = url if len(url) <= most_characters else f"{url[: most_characters - 1]}…"
    return f'<a href="{escaped(url)}" title="{escaped(id)}" rel="noreferrer noopener">{escaped(shown)}</a>'
