"""A parsed page: its segments, its title, and what it says about itself."""

from __future__ import annotations

import contextlib
import html
import json
import math
import re
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np
from selectolax.lexbor import LexborHTMLParser

from pipelines.algorithms.blocks import segmentation as seg
from pipelines.algorithms.blocks.parsing import parse_html
from pipelines.algorithms.blocks.tags import TAGS

_WORD = re.compile(r"\w+")
_TITLE = re.compile(r"<title[^>]*>(.*?)</title", re.DOTALL)
_META = re.compile(
    r'<meta\s[^>]*?(?:name|property)="(description|og:description|twitter:description|og:type)"[^>]*>', re.IGNORECASE
)
_CONTENT = re.compile(r'\scontent="([^"]*)"')
_BODY = re.compile(r"<body[^>]*>")
_MARKUP = re.compile(r"<[^<>]+>")
_JSON_LD = "application/ld+json"
_JSON_LD_DEPTH, _JSON_LD_TEXT = 8, 40
_JSON_LD_TEXTS = ("articleBody", "description", "text", "reviewBody", "recipeInstructions")
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
    """A page as lexbor parsed it, its segments and title, and the types that Open Graph and JSON-LD declare.

    The first `descriptions` elements in the body of the segments are texts of the metadata.
    """

    tree: LexborHTMLParser
    segments: seg.Segments
    descriptions: int
    title: str
    open_graph_type: str
    json_ld_types: frozenset[str]


def parse_page(text: str) -> ParsedPage:
    """Parse a page; descriptions in its metadata become blocks at the start: some pages have their text only there."""
    tree = parse_html(text)
    normalized = tree.html or ""
    body = _BODY.search(normalized)
    head = normalized[: body.start()] if body else ""
    title = _TITLE.search(head)
    descriptions, open_graph_type = [], ""
    for meta in _META.finditer(head):
        content = _CONTENT.search(meta[0])
        if content and meta[1].lower() == "og:type":
            open_graph_type = content[1].lower()
        elif content and content[1].strip():
            descriptions.append(content[1])
    types: set[str] = set()
    for value in _json_ld(normalized):
        descriptions += [html.escape(_MARKUP.sub(" ", html.unescape(text))) for text in _json_ld_texts(value, types)]
    descriptions = list(dict.fromkeys(descriptions)) if body else []
    if body:
        added = "".join(f'<section class="page-description">{text}</section>' for text in descriptions)
        normalized = f"{normalized[: body.end()]}{added}{normalized[body.end() :]}"
    return ParsedPage(
        tree,
        seg.segment(normalized.encode("utf-8", "replace")),
        len(descriptions),
        html.unescape(title[1]) if title else "",
        open_graph_type,
        frozenset(types),
    )


def words_of(text: str) -> list[str]:
    """Return the lower-cased words of a text."""
    return _WORD.findall(text.lower())


def _json_ld(normalized: str) -> Iterator[Any]:
    """Yield the values of the JSON-LD scripts of a page that are valid."""
    position = normalized.find(_JSON_LD)
    while position >= 0:
        start = normalized.find(">", position) + 1
        end = normalized.find("</script", start)
        with contextlib.suppress(ValueError, RecursionError):  # many are not valid JSON
            yield json.loads(normalized[start:end], strict=False)
        position = normalized.find(_JSON_LD, max(start, end))


def _json_ld_texts(value: Any, types: set[str], depth: int = 0) -> Iterator[str]:
    """Yield the long texts in a JSON-LD value; add its types to `types`."""
    if depth > _JSON_LD_DEPTH:
        return
    if isinstance(value, list):
        for item in value:
            yield from _json_ld_texts(item, types, depth + 1)
    elif isinstance(value, dict):
        for key, item in value.items():
            if key == "@type":
                types.update(name for name in (item if isinstance(item, list) else [item]) if isinstance(name, str))
            elif key in _JSON_LD_TEXTS and isinstance(item, str):
                if len(item) > _JSON_LD_TEXT:
                    yield item
            else:
                yield from _json_ld_texts(item, types, depth + 1)


PAGE_NAMES = (
    "title words", "log words", "log blocks", "links", "log long blocks", "Open Graph type", "log currency signs",
    *(f"words in {name}" for name in _WORDS_IN_TAGS),
    *(f"log {name}" for name in _COUNTED_TAGS),
    *(f"JSON-LD {kind}" for kind in _JSON_LD_TYPES),
    "URL parts", "URL length", "URL digits", "URL suffix", "URL query", "URL hyphens",
    *(f"URL {kind}" for kind in _URL_PATTERNS),
)  # fmt: skip


def page_features(page: ParsedPage, url: str | None) -> list[float]:
    """Return the features of a page that all of its blocks have, in the order of PAGE_NAMES."""
    segments = page.segments
    words = segments.blocks[:, seg.WORDS]
    total = 1 + int(words.sum())
    tags = segments.tags[segments.blocks[:, seg.ELEMENT]]
    text = segments.text.tobytes()
    return [
        len(words_of(page.title)),
        math.log1p(total),
        math.log1p(len(words)),
        np.count_nonzero(segments.word_flags & seg.IN_LINK) / total,
        math.log1p(np.count_nonzero(words >= 20)),
        _OPEN_GRAPH_TYPES.get(page.open_graph_type, 4),
        math.log1p(sum(map(text.count, _CURRENCY_SIGNS))),
        *(words[tags == TAGS[name]].sum() / total for name in _WORDS_IN_TAGS),
        *(math.log1p(segments.tag_counts[TAGS[name]]) for name in _COUNTED_TAGS),
        *(bool(names & page.json_ld_types) for names in _JSON_LD_TYPES.values()),
        *_url_features(url or ""),
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
