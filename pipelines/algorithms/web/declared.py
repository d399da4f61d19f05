"""What a page declares: its title, meta elements, JSON-LD (schema.org) and microdata, in one pass over its tree."""

from __future__ import annotations

import contextlib
import dataclasses
import html
import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the parent process of `extract` imports this module, but does not parse
    from selectolax.lexbor import LexborHTMLParser, LexborNode

_DECLARING = 'title:not(svg title), meta, script[type="application/ld+json"], h1, time, [itemprop], [rel~="author"]'
# Real pages nest six levels; hostile ones are bounded.
_MAX_DEPTH, _MAX_VALUES = 8, 5_000


@dataclasses.dataclass(frozen=True, slots=True)
class Declared:
    """What a page declares.

    `meta` has the first non-empty content of meta elements by lower-cased name, `objects` the JSON-LD objects with a
    type, the outer ones first, `nodes` the declaring elements by tag, by `itemprop`, and as "author" by `rel`.
    """

    body: LexborNode | None
    title: str
    meta: dict[str, str]
    objects: list[dict[str, Any]]
    nodes: dict[str, list[LexborNode]]


def read_declared(tree: LexborHTMLParser) -> Declared:
    """Return what a page declares, wherever it does: markup that is not allowed in the head ends it before its end."""
    meta: dict[str, str] = {}
    nodes: dict[str, list[LexborNode]] = {}
    for node in tree.css(_DECLARING):
        tag, attributes = node.tag or "", node.attributes
        prop = attributes.get("itemprop") or ""
        if tag == "meta" and (content := attributes.get("content")):
            meta.setdefault((attributes.get("property") or attributes.get("name") or prop).lower(), content)
        for key in (tag, "author" if "author" in (attributes.get("rel") or "") else prop):
            nodes.setdefault(key, []).append(node)
    title = nodes["title"][0].text() if "title" in nodes else ""
    return Declared(tree.body, title, meta, list(typed_objects(node.text() for node in nodes.get("script", []))), nodes)


def typed_objects(scripts: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yield the objects that have a type, the outer ones first; scripts that are not valid JSON are ignored."""
    values: deque[tuple[Any, int]] = deque()
    for script in scripts:
        with contextlib.suppress(ValueError, RecursionError):
            values.append((json.loads(script, strict=False), 0))
    for _ in range(_MAX_VALUES):
        if not values:
            return
        value, depth = values.popleft()
        if isinstance(value, dict) and "@type" in value:
            yield value
        if depth < _MAX_DEPTH and isinstance(value, dict | list):
            members = value.values() if isinstance(value, dict) else value
            values.extend((member, depth + 1) for member in members if isinstance(member, dict | list))


def types_of(item: Mapping[str, Any]) -> list[str]:
    """Return the types of an object without the vocabulary: Article for https://schema.org/Article."""
    return [name.rpartition("/")[2] for name in as_list(item.get("@type")) if isinstance(name, str)]


def name_of(value: Any, names: Mapping[str, Any]) -> str:
    """Return a string, or the name of an object or of the one it refers to (`names` by @id); empty if there is none."""
    if isinstance(value, dict):
        reference = value.get("@id")
        value = value.get("name") or (names.get(reference) if isinstance(reference, str) else None)
    name = next(iter(as_list(value)), None)
    return html.unescape(name) if isinstance(name, str) else ""


def as_list(value: Any) -> list[Any]:
    """Return a list as it is, another value as a list of one."""
    return value if isinstance(value, list) else [value]
