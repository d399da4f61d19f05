"""A page as a reader of HTML finds it: its tags and its text, every tag closed."""

from __future__ import annotations

from html.parser import HTMLParser

_VOID = {"meta", "br"}


class Page(HTMLParser):
    """Collects tags, attributes and text, and checks that every tag is closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"script", "style"} & set(self.open):
            self.text += data

    def numbers(self, tag: str, name: str) -> list[float]:
        return [float(attributes[name] or 0) for each, attributes in self.tags if each == tag and name in attributes]
