"""The rules of a profile, and tables by which the first one that fits is found without trying them one by one."""

from __future__ import annotations

import bisect
import dataclasses
import re
from collections.abc import Iterable, Sequence

from pipelines.algorithms.web.urls import host_of, registered_domain
from pipelines.stages.scrape.submission import RawSubmission

# A hostile dump may hold endless names of subreddits; the real ones of a month are far fewer.
_REMEMBERED_SUBREDDITS = 1 << 17


@dataclasses.dataclass(frozen=True)
class Rule:
    """One reason to drop a submission; only one of the conditions is set. Times in seconds since 1970, UTC.

    `extensions` are those of the canonical URL's path; `endings`, `shorter_than` (characters) and `unlike` (a regular
    expression that the whole has to match, case ignored) judge the URL as it was submitted. `except_subreddits` belongs
    to `subreddit_words`.
    """

    name: str
    domains: frozenset[str] = frozenset()
    hosts: frozenset[str] = frozenset()
    extensions: frozenset[str] = frozenset()
    endings: frozenset[str] = frozenset()
    shorter_than: int | None = None
    unlike: str | None = None
    created_from: int | None = None
    over_18: bool = False
    subreddits: frozenset[str] = frozenset()
    subreddit_words: frozenset[str] = frozenset()
    except_subreddits: frozenset[str] = frozenset()


class RuleTables:
    """For every condition a table from a value to the place of the first rule that drops it; the least place wins.

    A table is not asked where a rule before all of its own fits already. `none` is the place after the last rule.
    """

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.names = (*(rule.name for rule in rules), None)
        self.none = none = len(rules)
        self.domains = _first_places(rule.domains for rule in rules)
        self.hosts = _first_places(rule.hosts for rule in rules)
        self.domains_of_hosts = frozenset(registered_domain(f"http://{host}/") for host in self.hosts)
        self.extensions = _first_places(rule.extensions for rule in rules)
        self.least_by_extension = min(self.extensions.values(), default=none)
        self.days, self.place_by_day = _places_of_days(rules)
        self.least_by_day = self.place_by_day[-1]
        self.over_18 = min((place for place, rule in enumerate(rules) if rule.over_18), default=none)
        self.subreddits = _SubredditPlaces(rules)
        by_subreddit = (place for place, rule in enumerate(rules) if rule.subreddits or rule.subreddit_words)
        self.least_by_subreddit = min(by_subreddit, default=none)
        self.endings = _first_places(rule.endings for rule in rules)
        self.short = _places_of_lengths(rules)
        self.unlike = [
            (place, re.compile(rule.unlike, re.IGNORECASE)) for place, rule in enumerate(rules) if rule.unlike
        ]
        by_submitted = (*self.endings.values(), *self.short, *(place for place, _ in self.unlike))
        self.least_by_submitted = min(by_submitted, default=none)

    def place_of_host(self, host: str, domain: str) -> int:
        """Return the place of the first rule that drops a host with this registered domain, whatever the rest."""
        first = self.domains.get(domain, self.none)
        return min(first, self.hosts.get(host, first)) if domain in self.domains_of_hosts else first

    def first(self, submission: RawSubmission, url: str, domain: str) -> str | None:
        """Return the name of the first rule that drops a submission with this canonical URL and registered domain."""
        first = self.domains.get(domain, self.none)
        if domain in self.domains_of_hosts:
            first = self.place_of_host(host_of(url) or "", domain)
        if self.least_by_extension < first:
            path = url.partition("#")[0].partition("?")[0] if "?" in url or "#" in url else url
            # What follows the last dot may hold a slash and more, but then it is in no table.
            place = self.extensions.get(path[path.rfind(".") + 1 :].lower(), first)
            if place < first:
                first = place
        if self.least_by_day < first:
            place = self.place_by_day[bisect.bisect_right(self.days, submission.created_utc)]
            if place < first:
                first = place
        if self.over_18 < first and submission.over_18:
            first = self.over_18
        if self.least_by_subreddit < first:
            place = self.subreddits[submission.subreddit]
            if place < first:
                first = place
        if self.least_by_submitted < first:
            first = self._first_by_submitted(submission.url or "", first)
        return self.names[first]

    def _first_by_submitted(self, submitted: str, first: int) -> int:
        if self.endings:
            head = submitted.partition("?")[0] if "?" in submitted else submitted
            first = min(first, self.endings.get(head[head.rfind(".") + 1 :].lower(), first))
        if len(submitted) < len(self.short):
            first = min(first, self.short[len(submitted)])
        for place, pattern in self.unlike:
            if place < first and not pattern.fullmatch(submitted):
                return place
        return first


def _first_places(values_by_rule: Iterable[frozenset[str]]) -> dict[str, int]:
    places: dict[str, int] = {}
    for place, values in enumerate(values_by_rule):
        for value in values:
            places.setdefault(value, place)
    return places


def _places_of_lengths(rules: Sequence[Rule]) -> list[int]:
    """Return, by number of characters, the place of the first rule that finds a URL of so many too short."""
    limits = [0 if rule.shorter_than is None else rule.shorter_than for rule in rules]
    return [
        next(place for place, limit in enumerate(limits) if length < limit) for length in range(max(limits, default=0))
    ]


def _places_of_days(rules: Sequence[Rule]) -> tuple[list[int], list[int]]:
    """Return the sorted first seconds, and for each stretch between two of them the place of the first rule."""
    starts = sorted((rule.created_from, place) for place, rule in enumerate(rules) if rule.created_from is not None)
    places = [len(rules)]
    for _, place in starts:
        places.append(min(place, places[-1]))
    return [start for start, _ in starts], places


class _SubredditPlaces(dict[str, int]):
    """The place of the first rule that drops a subreddit, found once for each spelling of a name."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        super().__init__()
        self._none = len(rules)
        self._names = _first_places(rule.subreddits for rule in rules)
        self._words = [
            (place, re.compile("|".join(map(re.escape, sorted(rule.subreddit_words)))), rule.except_subreddits)
            for place, rule in enumerate(rules)
            if rule.subreddit_words
        ]

    def __missing__(self, subreddit: str) -> int:
        if len(self) >= _REMEMBERED_SUBREDDITS:
            self.clear()
        name = subreddit.lower()
        first = self._names.get(name, self._none)
        for place, words, exceptions in self._words:
            if place < first and name not in exceptions and words.search(name):
                first = place
        self[subreddit] = first
        return first
