"""Recognizes pages that are not documents: error pages, bot checks, walls and placeholders.

There are three kinds of evidence: a part of the title, a sentence near the start of the text, and facts of the HTML and
of redirects. A longer text needs more evidence; a long text is never rejected.
"""

from __future__ import annotations

import functools
import re
from html import unescape
from typing import Annotated, NamedTuple
from urllib.parse import urlsplit

import msgspec

from pipelines.algorithms.web.urls import registered_domain
from pipelines.engine.config import compile_pattern, read_toml
from pipelines.storage.resources import data_path

# A title is enough evidence for a text of at most _TINY words. A text of fewer than _NEARLY_EMPTY words is dropped
# anyway; the rest of the page is searched for the reason if it has at most _SHORT_PAGE words.
_TINY, _NEARLY_EMPTY, _SHORT_PAGE = 8, 5, 60
_LONG_CHARACTERS = 5_000
_TITLE_CHARACTERS, _PAGE_CHARACTERS, _DETAIL_CHARACTERS = 200, 50_000, 80
# Chinese, Japanese, Thai, Lao, Burmese and Khmer have no spaces between words.
_WITHOUT_SPACES = re.compile("[\u3040-\u30ff\u3400-\u9fff\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff]")
_HTML_TITLE = re.compile(r"<title[^>]{0,200}>([^<]{1,200})", re.IGNORECASE)
# An element without an end tag extends to the end of the page, which keeps the time linear.
_MARKUP = re.compile(
    r"<(script|style|template|title)\b.*?(?:</\1[^<>]*>|\Z)|<!--.*?(?:-->|\Z)|<[^<>]*>", re.IGNORECASE | re.DOTALL
)
_TITLE_SEPARATOR = re.compile(r"\s*[|•·»‹›]\s*|\s+[-–—:/]\s+")
# A sentence may begin with an apology.
_APOLOGY = "sorry|we are sorry|oops|ups|whoops|lo sentimos|désolée?s?|leider|к сожалению|抱歉|申し訳ありませんが?"
_BEGINNING = rf"(?:^|[.!?…:;。！–—|¡]) *(?:(?:{_APOLOGY})[,!，、]? ?)?"
_OPEN_QUOTE = re.compile(r"[\"“„«「][^\n]*$")
_NEVER = "(?!)"
# Of a title.
_END = "[.!…]*"
_Count = Annotated[int, msgspec.Meta(ge=0, le=100_000)]


class Rejection(NamedTuple):
    """Why a page is not a document: the drop reason, and the words that show it."""

    reason: str
    detail: str


class _Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table of `data/rejection.toml`."""

    few_words: _Count
    many_words: _Count
    start_characters: _Count
    titles: tuple[str, ...]
    sentences: tuple[str, ...]
    clear_titles: tuple[str, ...] = (_NEVER,)
    html: re.Pattern[str] | None = None
    redirected_to: re.Pattern[str] | None = None
    whole_page: bool = False

    def __post_init__(self) -> None:
        """Raise ValueError for what is not a regular expression."""
        for patterns, end in ((self.titles, _END), (self.clear_titles, _END), (self.sentences, "")):
            _any_of(patterns, end)


def find_rejection(
    title: str | None, text: str, page: bytes, url: str | None = None, requested_url: str | None = None
) -> Rejection | None:
    """Return why a page, HTML in UTF-8, with this extracted text is not a document, or None.

    `url` is where the redirects from `requested_url` ended. A page without text is rejected if a reason is found.
    """
    # Most pages return here, at no cost.
    if len(text) > _LONG_CHARACTERS:
        return None
    size = estimate_words(text)
    rules = _rules()
    if size > max((rule.many_words for rule in rules.values()), default=0):
        return None
    html = page.decode()
    # Extractors use headings as titles, such as the heading of a login form next to the text.
    html_title = _HTML_TITLE.search(html, 0, _PAGE_CHARACTERS)
    shown_title = _normalize(unescape(html_title[1]) if html_title else title or "")[:_TITLE_CHARACTERS]
    title_parts = [shown_title, *_TITLE_SEPARATOR.split(shown_title)]
    whole = functools.cache(lambda: _normalize(_visible_text(html))[:_PAGE_CHARACTERS])
    text = whole() if size < _NEARLY_EMPTY and estimate_words(whole()) <= _SHORT_PAGE else _normalize(text)
    redirect = url if url and requested_url and url != requested_url else ""
    for reason, rule in rules.items():
        clear = next(filter(None, map(_any_of(rule.clear_titles, _END).fullmatch, title_parts)), None)
        titled = clear or next(filter(None, map(_any_of(rule.titles, _END).fullmatch, title_parts)), None)
        redirected = rule.redirected_to and rule.redirected_to.search(redirect)
        named = titled or redirected
        sentence = _find_sentence(rule, text[: rule.start_characters])
        if not (named or sentence or rule.whole_page):
            continue
        has_fact = bool((rule.html and rule.html.search(html)) or (titled and redirected))
        has_fact |= reason == "soft_404" and _is_sent_home(redirect, requested_url)
        # Extractors drop messages, too, but a message elsewhere on the page is weaker evidence than one in the text.
        elsewhere = _find_sentence(rule, whole()) if not sentence and (named or has_fact) else None
        evidence = bool(named) + 2 * bool(sentence) + bool(elsewhere) + has_fact
        match = sentence or elsewhere or named
        few, many = rule.few_words, rule.many_words
        if match and size <= (0, few // 2 if clear else _TINY, few, many)[min(evidence, 3)]:
            return Rejection(reason, " ".join(match[0].split())[:_DETAIL_CHARACTERS])
    return Rejection("nearly_empty", f"{size} words") if 0 < size < _NEARLY_EMPTY else None


def estimate_words(text: str) -> int:
    """Return the number of words of a text; two characters of scripts without spaces count as a word."""
    characters = len(_WITHOUT_SPACES.findall(text))
    return len((_WITHOUT_SPACES.sub(" ", text) if characters else text).split()) + characters // 2


@functools.cache
def _rules() -> dict[str, _Rule]:
    return read_toml(data_path("rejection.toml"), dict[str, _Rule])


@functools.cache
def _any_of(patterns: tuple[str, ...], end: str) -> re.Pattern[str]:
    """Return what matches one of the titles before an `end`, or the beginning of one of the sentences."""
    return compile_pattern(f"(?m){'' if end else _BEGINNING}(?:{'|'.join(patterns)}){end}")


def _find_sentence(rule: _Rule, text: str) -> re.Match[str] | None:
    """Return the first sentence of a rule, outside of quotation marks, or None."""
    matches = _any_of(rule.sentences, "").finditer(text)
    return next((match for match in matches if not _OPEN_QUOTE.search(text, 0, match.start())), None)


def _normalize(text: str) -> str:
    return text.replace("\u2019", "'").replace("\xa0", " ").strip()


def _visible_text(html: str) -> str:
    """Return the text of HTML, a line per element, without a parser, which takes minutes for deeply nested tags."""
    return "\n".join(" ".join(line.split()) for line in unescape(_MARKUP.sub("\0", html)).split("\0") if line.strip())


def _is_sent_home(redirect: str, requested_url: str | None) -> bool:
    """Return whether a page other than the home page was redirected to the home page of its site."""
    if not redirect or not requested_url or registered_domain(redirect) != registered_domain(requested_url):
        return False
    return urlsplit(redirect).path in ("", "/") and urlsplit(requested_url).path not in ("", "/")
