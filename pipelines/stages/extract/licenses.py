"""The license of a page: where the page states it, and its name, such as `cc-by-sa-4.0`; see docs/signals.md."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin

from pipelines.algorithms.web.metadata import Declared, as_list, types_of
from pipelines.engine.config import read_toml
from pipelines.storage.resources import data_path

if TYPE_CHECKING:
    from selectolax.lexbor import LexborNode

# The place of a link to a license that need not be that of the page: it can be that of a picture.
_MENTION = "body"
_MAX_STATEMENTS, _MAX_CHARACTERS = 20, 500
_META_NAME = re.compile(r"((dc|dcterms|og|cc|article)[.:])?(rights|licen[cs]e)([.:](license|uri|url))?")
# Objects of JSON-LD whose license is not that of the text.
_OTHER_WORKS = re.compile(r"(Image|Video|Audio|Media)Object$|^(Photograph|SoftwareApplication|Dataset)$")
_URL = re.compile(r"(?:https?:)?//[^\s\"'<>()]+", re.IGNORECASE)


def find_license(declared: Declared, page_url: str | None) -> dict[str, str | None]:
    """Return the license that a page states, as columns: its name, its URL, and all places, the most trusted first.

    The name is None if statements disagree about more than the version, or if the page only mentions a license.
    """
    statements = [*dict.fromkeys(_statements(declared, page_url or ""))][:_MAX_STATEMENTS]
    names = [name for name, _, place in statements if place != _MENTION]
    is_clear = len({name and re.split(r"-\d", name)[0] for name in names}) == 1
    places = "; ".join(dict.fromkeys(place for *_, place in statements))
    url = next((url for _, url, _ in statements if url), None)
    return {"license": names[0] if is_clear else None, "license_url": url, "license_location": places or None}


def _statements(declared: Declared, page_url: str) -> Iterator[tuple[str | None, str | None, str]]:
    """Yield the name, URL and place of each statement of a license; mentions come last."""
    texts: list[tuple[Any, str]] = [(text, "meta") for name, text in declared.elements if _META_NAME.fullmatch(name)]
    for item in declared.objects:
        if "license" in item and not any(map(_OTHER_WORKS.search, types_of(item))):
            values = [value if isinstance(value, dict) else {"url": value} for value in as_list(item["license"])]
            texts += [(value.get("url") or value.get("@id") or value.get("name"), "json-ld") for value in values]
    for text, place in texts:
        if isinstance(text, str):
            url = _URL.search(text := text[:_MAX_CHARACTERS])
            yield name_license(text), url and url[0], place
    links: list[tuple[str, str]] = []
    for node in (*declared.nodes.get("link", []), *declared.nodes.get("a", [])):
        href, rel = (str(node.attributes.get(name) or "").strip().lower() for name in ("href", "rel"))
        is_license = "license" in rel.split()
        is_stated = is_license or (node.tag == "a" and "creativecommons" in href and name_license(href))
        if href and is_stated and len(links) < _MAX_STATEMENTS:
            links.append((_place_of(node, is_license), str(node.attributes["href"]).strip()[:_MAX_CHARACTERS]))
    for place, href in sorted(links, key=lambda link: link[0] == _MENTION):
        with contextlib.suppress(ValueError):  # of an invalid IPv6 address
            yield name_license(href), urljoin(page_url, href), place


def _place_of(node: LexborNode, is_license: bool) -> str:
    """Return `footer` for a link in a footer, `link` or `a` for another one with rel=license, or else `body`."""
    parent: LexborNode | None = node.parent
    while parent is not None and parent.tag != "figure":
        names = parent.attributes
        if parent.tag == "footer" or "footer" in f"{names.get('class')} {names.get('id')}".lower():
            return "footer"
        parent = parent.parent
    return str(node.tag) if parent is None and is_license else _MENTION


def name_license(text: str) -> str | None:
    """Return the name of the license at a URL or in a text, such as `cc-by-nc-sa-3.0-us`; None if it is unknown."""
    words, licenses = _patterns()
    text = functools.reduce(lambda text, pattern: pattern[0].sub(pattern[1], text), words, text.lower())
    for pattern, name in licenses:
        if match := pattern.search(text):
            return "-".join(re.sub("[^a-z0-9.+]+", "-", part) for part in (name, *match.groups()) if part)
    return None


@functools.cache
def _patterns() -> list[list[tuple[re.Pattern[str], str]]]:
    tables = read_toml(data_path("licenses.toml"), dict[str, dict[str, str]])
    return [[(re.compile(pattern), name) for pattern, name in tables[key].items()] for key in ("words", "licenses")]
