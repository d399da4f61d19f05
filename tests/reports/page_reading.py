"""Parses a page as a browser would: its tags and its text; every tag must be closed."""

from __future__ import annotations

from html.parser import HTMLParser

from pipelines.reports.charts import Chart
from pipelines.reports.render import ENVIRONMENT

_VOID = {"meta", "br"}
_INLINE = {"a", "b", "button", "code", "em", "mark", "span", "strong"}


class Page(HTMLParser):
    """Collects tags, attributes and text (one space for any whitespace, and between blocks and cells)."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)
        self.close()
        self.text = " ".join(self.text.split())
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._separate(tag)
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        self._separate(tag)

    def handle_data(self, data: str) -> None:
        if not {"script", "style"} & set(self.open):
            self.text += data

    def _separate(self, tag: str) -> None:
        if tag not in _INLINE:
            self.text += " "

    def all(self, tag: str) -> list[dict[str, str | None]]:
        """Return the attributes of all elements with a tag."""
        return [attributes for name, attributes in self.tags if name == tag]

    def numbers(self, tag: str, name: str) -> list[float]:
        """Return a numeric attribute, or one in percent, of all elements with a tag."""
        return [float((attributes[name] or "0").rstrip("%")) for attributes in self.all(tag) if name in attributes]


def render_figure(chart: Chart) -> str:
    """Return the HTML of one chart."""
    template = ENVIRONMENT.from_string('{% from "macros.html" import figure %}{{ figure(chart) }}')
    return template.render(chart=chart)
