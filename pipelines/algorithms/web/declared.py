"""What a page declares: its title, meta elements, JSON-LD and microdata, in one pass over its tree."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from pipelines.algorithms.web.json_ld import typed_objects

if TYPE_CHECKING:  # the parent process of `extract` imports this module, but does not parse
    from selectolax.lexbor import LexborHTMLParser, LexborNode

_DECLARING = 'title:not(svg title), meta, script[type="application/ld+json"], h1, time, [itemprop], [rel~="author"]'


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
