"""A parsed page: its segments and what it declares, and the features that all of its blocks have."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt

from pipelines.algorithms.blocks import segmentation as seg
from pipelines.algorithms.blocks.parsing import parse_html
from pipelines.algorithms.blocks.tags import TAGS
from pipelines.algorithms.web.declared import Declared, read_declared
from pipelines.algorithms.web.json_ld import types_of

_WORD = re.compile(r"\w+")
# As lexbor writes it; a script in the head may contain the tag alone.
_BODY = b"</head><body"
_MARKUP = re.compile(r"</?[a-zA-Z][^<>]*>")
_JSON_LD_TEXT = 40
_JSON_LD_TEXTS = ("articleBody", "description", "text", "reviewBody", "recipeInstructions")
_DESCRIPTIONS = ("description", "og:description", "twitter:description")
_CURRENCY_SIGNS = tuple(sign.encode() for sign in "$£€¥")
# Words of URLs and types of JSON-LD that go with kinds of pages.
_URL_WORDS = {
    "product": r"product|shop|item|/p/|/dp/|store|buy",
    "forum": r"forum|thread|topic|/t/|discussion|viewtopic|community|question",
    "documentation": r"docs?|documentation|guide|wiki|manual|reference|api|help|learn|tutorial",
    "collection": r"categor|/tag|collection|search|browse|list|archive|/c/",
    "article": r"blog|news|article|post|story|20[012]\d",
    "service": r"service|solution|about|pricing|feature|platform",
}
_JSON_LD_TYPES = {
    "article": {"Article", "NewsArticle", "BlogPosting", "Report", "TechArticle"},
    "product": {"Product", "Offer"},
    "collection": {"ItemList", "CollectionPage", "SearchResultsPage"},
    "forum": {"QAPage", "DiscussionForumPosting", "Comment", "Question"},
    "service": {"FAQPage", "Service", "Organization", "LocalBusiness", "Corporation"},
}
_OPEN_GRAPH_TYPES = {"": 0, "article": 1, "product": 2, "website": 3}
_URL_PATTERNS = {kind: re.compile(pattern) for kind, pattern in _URL_WORDS.items()}
_COUNTED_TAGS = ("article", "main", "h1", "h2", "h3", "li", "img", "input", "tr", "time")
_WORDS_IN_TAGS = ("p", "li", "td")


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


def words_of(text: str) -> list[str]:
    """Return the lower-cased words of a text."""
    return _WORD.findall(text.lower())


PAGE_NAMES = (
    "title words", "log words", "log blocks", "links", "log long blocks", "Open Graph type", "log currency signs",
    *(f"words in {name}" for name in _WORDS_IN_TAGS),
    *(f"log {name}" for name in _COUNTED_TAGS),
    *(f"JSON-LD {kind}" for kind in _JSON_LD_TYPES),
    "URL parts", "URL length", "URL digits", "URL suffix", "URL query", "URL hyphens",
    *(f"URL {kind}" for kind in _URL_PATTERNS),
)  # fmt: skip


def page_features(page: ParsedPage, url: str | None, title: list[str]) -> list[float]:
    """Return the features of a page that all of its blocks have, in the order of PAGE_NAMES; `title` are its words."""
    segments = page.segments
    words = segments.blocks[:, seg.WORDS]
    total = 1 + int(words.sum())
    tags = segments.tags[segments.blocks[:, seg.ELEMENT]]
    text = segments.text.tobytes()
    types = {name for item in page.declared.objects for name in types_of(item)}
    return [
        len(title),
        math.log1p(total),
        math.log1p(len(words)),
        np.count_nonzero(segments.word_flags & seg.IN_LINK) / total,
        math.log1p(np.count_nonzero(words >= 20)),
        _OPEN_GRAPH_TYPES.get(page.declared.meta.get("og:type", "").strip().lower(), 4),
        math.log1p(sum(map(text.count, _CURRENCY_SIGNS))),
        *(words[tags == TAGS[name]].sum() / total for name in _WORDS_IN_TAGS),
        *(math.log1p(segments.tag_counts[TAGS[name]]) for name in _COUNTED_TAGS),
        *(bool(names & types) for names in _JSON_LD_TYPES.values()),
        *_url_features(page.address(url)),
    ]


def _url_features(url: str) -> list[float]:
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = urlsplit("")
    names = [name for name in parts.path.split("/") if name]
    searched = (parts.netloc + parts.path).lower()
    return [
        len(names),
        len(parts.path),
        sum(character.isdigit() for character in parts.path),
        parts.path.endswith((".html", ".htm", ".php", ".aspx")),
        bool(parts.query),
        names[-1].count("-") if names else 0,
        *(bool(pattern.search(searched)) for pattern in _URL_PATTERNS.values()),
    ]
