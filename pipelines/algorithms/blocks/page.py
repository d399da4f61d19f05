"""A parsed page: what it declares, and its segments."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pipelines.algorithms.blocks import segmentation as seg
from pipelines.algorithms.blocks.markup import TAGS
from pipelines.algorithms.blocks.parsing import parse_html
from pipelines.algorithms.web.declared import Declared, read_declared

# As lexbor writes it; a script in the head may contain the tag alone.
_BODY = b"</head><body"
_MARKUP = re.compile(r"</?[a-zA-Z][^<>]*>")
_JSON_LD_TEXT = 40
_JSON_LD_TEXTS = ("articleBody", "description", "text", "reviewBody", "recipeInstructions")
_DESCRIPTIONS = ("description", "og:description", "twitter:description")


class ParsedPage(NamedTuple):
    """What a page declares, and its segments; the first `descriptions` elements of their body are declared texts."""

    declared: Declared
    segments: seg.Segments
    descriptions: int

    def address(self, url: str | None) -> str:
        """Return the URL of the page: if none is known, what it declares, or an empty string."""
        return url or self.declared.meta.get("og:url", "")

    def are_descriptions(self) -> npt.NDArray[np.bool_]:
        """Return which blocks are declared texts."""
        element = self.segments.blocks[:, seg.ELEMENT]
        body = int(np.argmax(self.segments.tags == TAGS["body"]))
        return np.asarray((element > body) & (element <= body + self.descriptions))


def parse_page(page: bytes | str) -> ParsedPage:
    """Parse a page; descriptions in its metadata become blocks at the start: some pages have their text only there."""
    tree = parse_html(page)
    declared = read_declared(tree)
    normalized = (tree.html or "").encode("utf-8", "replace")
    body = normalized.find(_BODY)
    start = normalized.find(b">", body + len(_BODY)) + 1 if body >= 0 else 0
    texts = list(dict.fromkeys(_descriptions(declared))) if start else []
    added = "".join(f'<section class="page-description">{text}</section>' for text in texts)
    segments = seg.segment(normalized[:start], added.encode("utf-8", "replace"), normalized[start:])
    return ParsedPage(declared, segments, len(texts))


def _descriptions(declared: Declared) -> Iterator[str]:
    """Yield the texts in the metadata of a page that describe or contain what it is about, as HTML without elements."""
    texts = [declared.meta.get(name, "") for name in _DESCRIPTIONS]
    values = [item.get(name) for item in declared.objects for name in _JSON_LD_TEXTS]
    texts += [value for value in values if isinstance(value, str) and len(value) > _JSON_LD_TEXT]
    plain = (" ".join(_MARKUP.sub(" ", html.unescape(text)).split()) for text in texts)
    # Segments read only the references that lexbor writes, which are none for quotes.
    return (html.escape(text, quote=False) for text in plain if text)
