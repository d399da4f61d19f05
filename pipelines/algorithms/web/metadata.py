"""What a page says about itself: title, author, date of publication, site and type.

Declared values come first: JSON-LD (schema.org), Open Graph and other meta elements, microdata, read in one pass over
the tree. Where they are absent, the text around the heading is searched for bylines and dates. benchmarks/extract.md
states the accuracy.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import functools
import html
import itertools
import json
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin

from pipelines.algorithms.web.urls import canonical_url, registered_domain

if TYPE_CHECKING:  # the parent process of `extract` imports this module, but does not parse
    from selectolax.lexbor import LexborHTMLParser, LexborNode

_DECLARING = (
    'title:not(svg title), meta, script[type="application/ld+json"], h1, time, [itemprop], [rel~="author"], '
    'link:is([rel~="canonical" i], [rel~="license" i]), a[href]:not([rel~="author"]), base'
)
# Real pages nest six levels; hostile ones are bounded.
_MAX_DEPTH, _MAX_VALUES = 8, 5_000


@dataclasses.dataclass(frozen=True, slots=True)
class Declared:
    """What a page declares.

    `meta` has the first non-empty content of meta elements by lower-cased name, `elements` all of them; `objects` the
    JSON-LD objects with a type, the outer ones first, `nodes` the declaring elements by tag, by `itemprop`, and as
    "author" by `rel`. Of `a`, these are links to licenses.
    """

    body: LexborNode | None
    title: str
    meta: dict[str, str]
    elements: list[tuple[str, str]]
    objects: list[dict[str, Any]]
    nodes: dict[str, list[LexborNode]]

    def url(self) -> tuple[str | None, str | None]:
        """Return the canonical form of the page's absolute URL, and where it is from: `canonical`, `og` or None.

        Canonical links that contradict each other are ignored.
        """
        base = next((node.attributes.get("href") or "" for node in self.nodes.get("base", [])), "")
        links = [node.attributes for node in self.nodes.get("link", [])]
        links = [link for link in links if "canonical" in (link.get("rel") or "").lower().split()]
        urls = {*filter(None, (_absolute_url(link.get("href"), base) for link in links))}
        if len(urls) == 1:
            return urls.pop(), "canonical"
        og_url = _absolute_url(self.meta.get("og:url"), base)
        return og_url, og_url and "og"


def _absolute_url(url: str | None, base: str) -> str | None:
    with contextlib.suppress(ValueError):  # of an invalid IPv6 address
        return canonical_url(urljoin(base, url)) if url and url.strip(" #") else None
    return None


def read_declared(tree: LexborHTMLParser) -> Declared:
    """Return what a page declares, wherever it does: markup that is not allowed in the head ends it before its end."""
    elements: list[tuple[str, str]] = []
    nodes: dict[str, list[LexborNode]] = {}
    for node in tree.css(_DECLARING):
        tag, attributes = node.tag or "", node.attributes
        prop = attributes.get("itemprop") or ""
        if tag == "meta" and (content := attributes.get("content")):
            elements.append(((attributes.get("property") or attributes.get("name") or prop).lower(), content))
        for key in (tag, "author" if "author" in (attributes.get("rel") or "") else prop):
            nodes.setdefault(key, []).append(node)
    title = nodes["title"][0].text() if "title" in nodes else ""
    objects = list(typed_objects(node.text() for node in nodes.get("script", [])))
    return Declared(tree.body, title, dict(reversed(elements)), elements, objects, nodes)


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


_BY = re.compile(
    r"\W*((written |posted |published )?by|von|par|por|door|autore?|author|auteur|text|di|de)\b\s*:?\s+", re.I
)
_URL = re.compile(r"https?://\S+")
_AND = re.compile(r"\s*[,;|/]\s*|\s+(?:and|und|et|y|e|&)\s+")
_PLACEHOLDERS = "admin|administrator|author|autor|name|unknown|redaktion|editor|guest|user|staff"
_NOT_A_NAME = re.compile(rf"www\.|[@©{{}}<>*?!:…]|\b\d|\.[a-z]{{2,4}}$|^\W*$|^({_PLACEHOLDERS})$", re.I)
_CAPITALIZED, _PARTICLE = r"[^\W\d_a-z][\w.'’-]", "(?:de|del|della|di|da|dos|du|la|le|van|von|der|den|bin|al) "
_PERSON = rf"{_CAPITALIZED}+(?: (?:{_PARTICLE})*{_CAPITALIZED}*){{1,3}}"
_PERSONS = re.compile(rf"{_PERSON}(?:(?:, | (?:and|und|et|y|e|&) ){_PERSON})*")
_BYLINE = re.compile(rf"\b(?:[Bb]y|BY|[Vv]on|VON|[Pp]or|Par|Text|Autore?|Author|Di)\b:?\s+({_PERSONS.pattern})")
_MAX_CHARACTERS, _MAX_WORDS = 60, 6


def split_names(text: str) -> list[str]:
    """Return the names in a declared value or a byline, without placeholders such as "admin", addresses and dates."""
    names = _AND.split(_BY.sub("", _URL.sub("", text), count=1))
    names = [name for name in names if 1 < len(name) <= _MAX_CHARACTERS and len(name.split()) <= _MAX_WORDS]
    return [name for name in names if not _NOT_A_NAME.search(name)]


def is_byline(text: str) -> bool:
    """Return whether a text consists of full names, with or without a "by"."""
    return bool(_PERSONS.fullmatch(_BY.sub("", text, count=1)))


def find_byline(text: str) -> str:
    """Return the names after the first "by" in the first 500 characters of a text, or ""; a line break ends a name."""
    lines = "\n".join(" ".join(line.split()) for line in text.split("\n") if not line.isspace())
    match = _BYLINE.search(lines[:_MAX_TEXT])
    return match[1] if match else ""


# English, German, Dutch, French, Spanish, Italian, Portuguese, Polish, Russian and Turkish; abbreviations have at least
# three of the letters.
_MONTHS = (
    "january januar januari janvier enero gennaio janeiro stycznia января ocak",
    "february februar februari février fevrier febrero febbraio fevereiro lutego февраля şubat",
    "march märz mrz maart mrt mars marzo março marco marca марта mart",
    "april avril abril aprile kwietnia апреля nisan",
    "may mai mei mayo maggio maio maja мая mayıs",
    "june juni juin junio giugno junho czerwca июня haziran",
    "july juli juillet julio luglio julho lipca июля temmuz",
    "august augustus août aout agosto sierpnia августа ağustos",
    "september septembre septiembre settembre setembro września сентября eylül",
    "october oktober octobre octubre ottobre outubro października октября ekim",
    "november novembre noviembre novembro listopada ноября kasım",
    "december dezember décembre decembre diciembre dicembre dezembro grudnia декабря aralık",
)
_MONTH_NUMBERS = {
    name[:size]: number
    for number, names in enumerate(_MONTHS, 1)
    for name in names.split()
    for size in range(3, len(name) + 1)
} | {"sept": 9}
_MONTH = r"(?P<name>[^\W\d]{3,})\.?"
_DAY, _YEAR = r"(?<!\d)(?P<day>\d\d?)", r"(?P<year>(?:19|20)\d\d)"
_PATTERNS = [
    re.compile(pattern)
    for pattern in (
        rf"(?<!\d){_YEAR}(?P<sign>[-/.]?)(?P<month>0[1-9]|1[0-2])(?P=sign)(?P<day>\d\d)(?!\d)",
        rf"(?<!\d){_YEAR}(?:[-/.]|年\s?)(?P<month>0?[1-9]|1[0-2])(?:[-/.]|月\s?)(?P<day>\d\d?)(?!\d)",
        rf"{_DAY}\s?(?P<sign>[./|-])\s?(?P<month>\d\d?)\s?(?P=sign)\s?{_YEAR}(?!\d)",
        rf"{_DAY}(?:\.|º|st|nd|rd|th|er)?[\s-]+(?:de\s+)?{_MONTH},?[\s-]+(?:del?\s+)?{_YEAR}(?!\d)",
        rf"\b{_MONTH}\s+(?P<day>\d\d?)(?:st|nd|rd|th)?,?\s+{_YEAR}(?!\d)",
    )
]
_YEARS = re.compile(r"(?:19|20)\d\d")
_MAX_YEARS = 20
# The web is younger; 1970-01-01 stands for a missing time.
_FIRST_YEAR = 1991


def find_date(text: str) -> str | None:
    """Return the first valid date since 1991 in a text, YYYY-MM-DD; 5/6/2020 is read day first, 5/16/2020 month first.

    Only the text around the first 20 years is searched.
    """
    for year in itertools.islice(_YEARS.finditer(text), _MAX_YEARS):
        part = text[max(0, year.start() - 25) : year.end() + 8].lower()
        for match in filter(None, (pattern.search(part) for pattern in _PATTERNS)):
            groups = match.groupdict()
            month, day = int(groups.get("month") or _MONTH_NUMBERS.get(groups["name"], 0)), int(groups["day"])
            if month > 12:
                month, day = day, month
            with contextlib.suppress(ValueError):
                date = dt.date(int(groups["year"]), month, day)
                if date.year >= _FIRST_YEAR:
                    return date.isoformat()
    return None


_BYLINES = '[class*="author" i], [class*="byline" i]'
_AUTHOR_NAMES = ("author", "article:author", "dc.creator", "parsely-author")
_DATE_NAMES = ("article:published_time", "dc.date.issued", "date", "dc.date", "datepublished", "parsely-pub-date")
_MODIFIED_NAMES = ("article:modified_time", "og:updated_time", "datemodified", "last-modified")
# Bounds: elements of a kind, names, characters of a value and of a line with a date.
_MAX_NODES, _MAX_NAMES, _MAX_TEXT, _MAX_DATELINE = 20, 20, 500, 80
# Characters before and after the heading that may contain its date; the first date of the next ones is a guess.
_BEFORE, _AFTER, _FAR_AFTER, _ENOUGH_TEXT = 500, 1_500, 20_000, 3_000

_WORK = re.compile(r"(Article|Posting|Report|Recipe|Product|Event|Course|Book|Movie|QAPage|VideoObject)$")
_URL_DATE = re.compile(r"[/_-]((?:19|20)\d\d(?:[-/]\d\d?[-/]\d\d?|[01]\d[0-3]\d))(?!\d)")
_SEPARATOR = re.compile(r"(\s+[|\-–—·•»«:⋆/~]{1,2}\s+|\s*[|»]\s*)")
_NOT_IN_KEY = re.compile(r"[\W_]+")
_END = "\n"  # between the texts of two elements


@dataclasses.dataclass(frozen=True, slots=True)
class Metadata:
    """What a page says about itself; None for what it does not say. `published` is a date, YYYY-MM-DD."""

    title: str | None = None
    author: str | None = None
    published: str | None = None
    site_name: str | None = None
    declared_type: str | None = None
    license: str | None = None
    license_url: str | None = None
    license_location: str | None = None


def read_metadata(declared: Declared, url: str | None) -> Metadata:
    """Return the metadata of a page; several authors are separated by "; "."""
    page = _Page(declared, url or "")
    published = next(filter(None, map(find_date, page.dates())), None)
    author = next(filter(None, map(page.join_names, page.authors())), None)
    return Metadata(page.title.rstrip("¶ ") or None, author, published, page.site or None, page.declared_type() or None)


class _Page:
    """The values that a page declares, and what is found around its heading."""

    def __init__(self, declared: Declared, url: str) -> None:
        self.url, self.host = url, _key(registered_domain(url) or "")
        self.body, self.meta, self.nodes, objects = declared.body, declared.meta, declared.nodes, declared.objects
        self.page_title = _clean(declared.title)
        self.headings = {text: node for node in self.nodes.get("h1", [])[:_MAX_NODES] if (text := _text_of(node))}
        self.names = {item["@id"]: item.get("name") for item in objects if isinstance(item.get("@id"), str)}
        works = [item for item in objects if any(map(_WORK.search, types_of(item)))]
        self.items = works + [item for item in objects if "WebPage" in types_of(item)]
        self.site = next(filter(None, map(_clean, self._sites([*works, *objects]))), "")
        self.site_key = _key(self.site)
        self.title = self._title()

    def _sites(self, objects: list[dict[str, object]]) -> Iterator[str | None]:
        yield self.meta.get("og:site_name")
        yield from (name_of(item.get("publisher"), self.names) for item in objects)
        yield from (name_of(item, {}) for item in objects if "WebSite" in types_of(item))
        yield self.meta.get("application-name")
        parts = _SEPARATOR.split(self.page_title)
        yield from (part for part in parts if len(_key(part)) > 2 and _key(part) in self.host)

    def _is_site(self, text: str) -> bool:
        key = _key(text)
        return len(key) > 2 and (key == self.site_key or key in self.host)

    def _without_site(self, title: str) -> str:
        parts = _SEPARATOR.split(title)  # with the separators
        while len(parts) > 1 and self._is_site(parts[-1]):
            del parts[-2:]
        while len(parts) > 1 and self._is_site(parts[0]):
            del parts[:2]
        return "".join(parts)

    def _title(self) -> str:
        """Return the heading that a declared title contains, else the declared title that a heading contains."""
        declared = [name_of(item.get("headline") or item.get("name"), {}) for item in self.items[:1]]
        declared += [self.meta.get("og:title", ""), self.meta.get("twitter:title", ""), self.page_title]
        titles = [self._without_site(title) for title in map(_clean, declared) if title]
        headings = [text for text in self.headings if not self._is_site(text)]
        keys = {text: _key(text) for text in (*titles, *headings)}
        for texts, others in (headings, titles), (titles, headings):
            if parts := [text for text in texts if len(keys[text]) > 3 and any(keys[text] in keys[o] for o in others)]:
                return max(parts, key=len)
        return next(iter(headings if len(headings) == 1 else titles + headings), "")

    @functools.cached_property
    def around(self) -> tuple[LexborNode | None, str, str, str]:
        """The smallest element around the heading with enough text, its text, and that after and before the heading."""
        headings, title = self.nodes.get("h1", []), _key(self.title)
        titled = [node for text, node in self.headings.items() if title in _key(text)]
        element = next(iter([*titled, *headings]), self.body)
        text = element.text(separator=_END, skip_empty=True) if element else ""
        heading = text if headings else self.title
        for _ in range(_MAX_NODES):
            if not element or not element.parent or element.tag == "body" or len(text) > _ENOUGH_TEXT:
                break
            element = element.parent
            text = element.text(separator=_END, skip_empty=True)
        before, separator, after = text.partition(heading or "\0")
        return element, text, after, before if separator else ""

    def authors(self) -> Iterator[list[str]]:
        """Yield the names that each source states, the most reliable source first."""
        for item in self.items:
            yield [_clean(name_of(author, self.names)) for author in as_list(item.get("author"))[:_MAX_NAMES]]
        yield from ([_clean(self.meta.get(name))] for name in _AUTHOR_NAMES)
        yield from ([_text_of(node)] for node in self.nodes.get("author", [])[:_MAX_NODES])
        element, _, after, before = self.around
        texts = map(_text_of, element.css(_BYLINES)[: 2 * _MAX_NODES] if element else [])
        yield from ([text] for text in texts if is_byline(text))
        yield from ([find_byline(text)] for text in (after[: 2 * _BEFORE], before[-2 * _BEFORE :]))

    def join_names(self, texts: list[str]) -> str:
        """Return the names of people in bylines; not that of the site, which `site_name` has."""
        names = {_key(name): name for text in texts for name in split_names(text)}
        names.pop(self.site_key, None)
        return "; ".join(list(names.values())[:_MAX_NAMES])

    def dates(self) -> Iterator[str]:
        """Yield texts that may contain the date of publication, the most reliable first."""
        yield from _URL_DATE.findall(self.url)[:1]
        yield from (self.meta.get(name, "")[:_MAX_TEXT] for name in _DATE_NAMES)
        values = [item.get(key) for key in ("datePublished", "uploadDate") for item in self.items]
        yield from (value[:_MAX_TEXT] for value in values if isinstance(value, str))
        for node in (*self.nodes.get("datePublished", [])[:1], *self.nodes.get("time", [])[:2]):
            attributes = node.attributes
            yield _clean(attributes.get("datetime") or attributes.get("content")) or _text_of(node)
        _, text, after, before = self.around
        yield from (" ".join(part.split())[:_AFTER] for part in (after[: 3 * _AFTER], before[-2 * _BEFORE :]))
        yield from (self.meta.get(name, "")[:_MAX_TEXT] for name in _MODIFIED_NAMES)
        yield _END.join([line for line in text.split(_END) if len(line) < _MAX_DATELINE])
        yield text[:_FAR_AFTER]

    def declared_type(self) -> str:
        """Return the type of the JSON-LD that describes the page's content, else that of Open Graph."""
        types = [name for item in self.items[:1] for name in types_of(item) if _WORK.search(name)]
        return _clean(next(iter(types), self.meta.get("og:type")))


def _clean(text: str | None) -> str:
    """Return a text on one line, empty if it is too long for a title or a name."""
    text = " ".join((text or "")[: 10 * _MAX_TEXT].split())
    return text if len(text) <= _MAX_TEXT else ""


def _text_of(node: LexborNode) -> str:
    return _clean(node.text(separator=" "))


def _key(text: str) -> str:
    return _NOT_IN_KEY.sub("", text.casefold())
