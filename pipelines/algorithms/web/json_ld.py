"""The objects in the JSON-LD of a page: their types and names, by the vocabulary of schema.org."""

from __future__ import annotations

import contextlib
import html
import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

# Real pages nest six levels; hostile ones are bounded.
_MAX_DEPTH, _MAX_VALUES = 8, 5_000


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
