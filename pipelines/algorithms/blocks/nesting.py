"""A limit on the depth of elements, since the time that lexbor takes grows with its square."""

from __future__ import annotations

import re

from pipelines.algorithms.blocks.tags import KINDS, TAGS, WITHOUT_END

# 20,000 nested elements take 2 s. Real pages have fewer tags, and a depth of 50 at most.
_MANY_TAGS = 20_000
# libxml2 has the same limit.
_MAX_DEPTH = 256
_TAG = re.compile(r"<(/?)([a-zA-Z][a-zA-Z0-9]*)[^<>]*>")
# The next one ends these, if nothing else does, so many without an end are not nested.
_ENDED_BY_NEXT = frozenset("p li dt dd tr td th thead tbody tfoot option a nobr html head body".split())
_NOT_NESTED = _ENDED_BY_NEXT | {name for name, tag in TAGS.items() if KINDS[tag] & WITHOUT_END}


def limit_depth(html: str) -> str:
    """Return a page without the tags of elements that are nested more than 256 deep; their text stays."""
    if html.count("<") <= _MANY_TAGS:
        return html
    depth = 0

    def replace(tag: re.Match[str]) -> str:
        nonlocal depth
        if tag[2].lower() in _NOT_NESTED:
            return tag[0]
        depth = max(0, depth + (-1 if tag[1] else 1))
        return tag[0] if depth + bool(tag[1]) <= _MAX_DEPTH else " "

    return _TAG.sub(replace, html)
