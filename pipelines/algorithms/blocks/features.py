"""Features of blocks: a row of numbers per block, ending with the features of its page."""

from __future__ import annotations

import math
import re
from urllib.parse import urlsplit

import numpy as np

from pipelines.algorithms.blocks import context_features, text_features
from pipelines.algorithms.blocks import segmentation as seg
from pipelines.algorithms.blocks.markup import TAGS
from pipelines.algorithms.blocks.page import ParsedPage
from pipelines.algorithms.blocks.text_features import Floats, Numbers, Values
from pipelines.algorithms.web.metadata import types_of

_WORD = re.compile(r"\w+")
_CURRENCY_SIGNS = tuple(sign.encode() for sign in "$£€¥")
# Words of URLs and types of JSON-LD that are typical of kinds of pages.
_URL_WORDS = {
    "product": "product shop item /p/ /dp/ store buy".split(),
    "forum": "forum thread topic /t/ discussion community question".split(),
    "documentation": "doc guide wiki manual reference api help learn tutorial".split(),
    "collection": "categor /tag collection search browse list archive /c/".split(),
    "article": f"blog news article post story {' '.join(map(str, range(2000, 2030)))}".split(),
    "service": "service solution about pricing feature platform".split(),
}
_JSON_LD_TYPES = {
    "article": {"Article", "NewsArticle", "BlogPosting", "Report", "TechArticle"},
    "product": {"Product", "Offer"},
    "collection": {"ItemList", "CollectionPage", "SearchResultsPage"},
    "forum": {"QAPage", "DiscussionForumPosting", "Comment", "Question"},
    "service": {"FAQPage", "Service", "Organization", "LocalBusiness", "Corporation"},
}
_OPEN_GRAPH_TYPES = {"": 0, "article": 1, "product": 2, "website": 3}
_COUNTED_TAGS = ("article", "main", "h1", "h2", "h3", "li", "img", "input", "tr", "time")
_WORDS_IN_TAGS = ("p", "li", "td")


def words_of(text: str) -> list[str]:
    """Return the lower-cased words of a text."""
    return _WORD.findall(text.lower())


PAGE_NAMES = (
    "title words", "log words", "log blocks", "links", "log long blocks", "Open Graph type", "log currency signs",
    *(f"words in {name}" for name in _WORDS_IN_TAGS),
    *(f"log {name}" for name in _COUNTED_TAGS),
    *(f"JSON-LD {kind}" for kind in _JSON_LD_TYPES),
    "URL parts", "URL length", "URL digits", "URL suffix", "URL query", "URL hyphens",
    *(f"URL {kind}" for kind in _URL_WORDS),
)  # fmt: skip


def page_features(page: ParsedPage, url: str | None, title: list[str]) -> list[float]:
    """Return the features that all blocks of a page share, in the order of PAGE_NAMES; `title` are its words."""
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
        math.log1p(sum(text.count(sign) for sign in _CURRENCY_SIGNS if sign[-1:] in text)),  # one byte is found faster
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
        sum(map(str.isdigit, parts.path)),
        parts.path.endswith((".html", ".htm", ".php", ".aspx")),
        bool(parts.query),
        names[-1].count("-") if names else 0,
        *(any(word in searched for word in words) for words in _URL_WORDS.values()),  # faster than patterns
    ]


NAMES = (*text_features.NAMES, *context_features.NAMES, *(f"page {name}" for name in PAGE_NAMES))


def block_features(page: ParsedPage, url: str | None, tokens: Values, words: Values) -> tuple[Floats, Numbers]:
    """Return the features of the blocks of a page, float32 of shape (blocks, len(NAMES)), and their groups.

    Groups are numbers from 0 on, of shape (2, blocks): one per kind of block, and one per parent element.
    `tokens` and `words` are learned values of parts of class names and of words.
    """
    segments = page.segments
    rows = np.empty((len(segments.blocks), len(NAMES)), np.float32)
    title_words = words_of(page.declared.title)
    title = text_features.hash_words(title_words)
    signals = text_features.describe_text(segments, title, words, rows)
    elements = context_features.describe_elements(segments, signals, tokens)
    kinds = context_features.describe_context(segments, signals, elements, len(title), rows)
    rows[:, -len(PAGE_NAMES) :] = page_features(page, url, title_words)
    parents = segments.parents[segments.blocks[:, seg.ELEMENT]]
    # In the same order from 0 on, as by np.unique, which sorts.
    ranks = [np.cumsum(np.bincount(numbers) > 0, dtype=np.int32) - 1 for numbers in (kinds, parents + 1)]
    return rows, np.stack([ranks[0][kinds], ranks[1][parents + 1]])
