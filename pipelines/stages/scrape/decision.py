"""Which submissions make a link, and for what reason the others are dropped.

The rules are data: profiles are named, versioned sets of rules in `data/profiles/NAME.toml`. A rule has one condition,
and its name is the reason of its drops. A profile also has the defaults of the minimum score of a link, and of how the
scores of its submissions are combined.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import functools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from pipelines import storage
from pipelines.algorithms.web.urls import canonical_url, host_of, registered_domain
from pipelines.engine.config import check_effects, read_toml
from pipelines.errors import UsageError
from pipelines.stages.scrape.config import ScrapeConfig
from pipelines.stages.scrape.submission import Submission
from pipelines.storage.resources import data_path

_INT64_MIN = -(2**63)


class FilterResult(msgspec.Struct, frozen=True, gc=False):
    """The link of a submission, or the `reason` why it is dropped (the other fields are then empty)."""

    reason: str | None
    url: str = ""
    domain: str = ""


Link = tuple[Submission, FilterResult]


def reaches_minimum(scores: Any, minimum: int | None) -> Any:
    """Return whether a score (or each of an array) is at least the minimum, if there is one: by default 3 karma."""
    return scores >= (_INT64_MIN if minimum is None else minimum)


@dataclasses.dataclass(frozen=True)
class SubmissionFilter:
    """The conditions that a submission and its link must meet. Times in seconds since 1970, UTC.

    `needs_score` and `min_score` apply to submissions, `min_link_score` to the link that is merged from all submissions
    of a URL. Only one of them is set: the maximum of a link reaches the minimum if one of its submissions does, while a
    sum or the first score is known only after merging. Lists of URLs have neither.
    """

    profile: Profile
    karma: str
    min_score: int | None
    min_link_score: int | None
    needs_score: bool
    after: int | None = None
    before: int | None = None
    subreddits: frozenset[str] = frozenset()

    def apply(self, submission: Submission) -> FilterResult:
        """Return the link of a submission, or the first reason to drop it."""
        dropped = Counter[str]()
        links = self.select([submission], dropped)
        return links[0][1] if links else FilterResult(next(iter(dropped)))

    def select(self, submissions: Sequence[Submission], dropped: Counter[str]) -> list[Link]:
        """Return the submissions that make a link, with it; count the others in `dropped` by the first reason."""
        kept: Sequence[Any] = submissions
        for reason, remaining in self._conditions(submissions):
            if len(remaining) < len(kept):
                dropped[reason] += len(kept) - len(remaining)
            kept = remaining
        return list(kept)

    def _conditions(self, posts: Sequence[Submission]) -> Iterator[tuple[str, Sequence[Any]]]:
        """Yield each reason to drop a submission, with those that neither it nor one before it drops; finally links."""
        # Cheap conditions first: nine in ten are dropped by them. Lists, since a call per submission takes longer.
        if self.subreddits:
            yield "other_subreddit", (posts := [post for post in posts if post.subreddit.lower() in self.subreddits])
        if (after := self.after) is not None:
            yield "too_early", (posts := [post for post in posts if post.created_utc >= after])
        if (before := self.before) is not None:
            yield "too_late", (posts := [post for post in posts if post.created_utc < before])
        yield "promoted", (posts := [post for post in posts if post.promoted is not True])
        yield "self_post", (posts := [post for post in posts if not post.is_self])
        if self.needs_score:
            yield "missing_score", (posts := [post for post in posts if post.score is not None])
        if (minimum := self.min_score) is not None:
            yield "low_score", (posts := [post for post in posts if post.score is None or post.score >= minimum])
        yield "missing_url", (posts := [post for post in posts if post.url is not None])
        links = [
            (post, FilterResult(None, url, domain))
            for post in posts
            if (url := canonical_url(post.url or "")) is not None and (domain := registered_domain(url)) is not None
        ]
        yield "not_http", links
        for rule in self.profile.rule:
            yield rule.name, (links := rule.select(links))

    def without_score(self) -> SubmissionFilter:
        """Return the filter that ignores the scores of submissions."""
        return dataclasses.replace(self, needs_score=False, min_score=None)


def resolve_config(config: ScrapeConfig) -> ScrapeConfig:
    """Return a config with the profile's score and karma where no option sets them.

    Lists of URLs have no scores, times and subreddits, so that no option about them applies. Raises UsageError for one
    that is set.
    """
    check_effects(config)
    if config.source == "urls":
        return dataclasses.replace(config, min_score=None, karma=None, after=None, before=None, subreddit=())
    profile = load_profile(config.profile)
    min_score = profile.min_score if config.min_score is None else config.min_score
    return dataclasses.replace(config, min_score=min_score, karma=config.karma or profile.karma)


def make_filter(config: ScrapeConfig) -> SubmissionFilter:
    """Return the filter of a config; raise UsageError for an invalid date."""
    config = resolve_config(config)
    after, before = _parse_day(config.after, "--after"), _parse_day(config.before, "--before")
    if after is not None and before is not None and after >= before:
        raise UsageError(f"--after {config.after} is not earlier than --before {config.before}, so nothing can match")
    karma = config.karma or "max"
    # A listing contains what Reddit put into it: r/all and r/popular are of many subreddits.
    subreddits = () if config.source == "praw" else subreddit_names(config)
    return SubmissionFilter(
        profile=load_profile(config.profile),
        karma=karma,
        min_score=config.min_score if karma == "max" else None,
        min_link_score=config.min_score if karma != "max" else None,
        needs_score=config.source != "urls",
        after=after,
        before=before,
        subreddits=frozenset(name.lower() for name in subreddits),
    )


def subreddit_names(config: ScrapeConfig) -> list[str]:
    """Return the names of `--subreddit` without `r/`, of those that differ only in case the first."""
    names: dict[str, str] = {}
    for subreddit in config.subreddit:
        name = subreddit.strip("/").removeprefix("r/")
        names.setdefault(name.lower(), name)
    return list(names.values())


def _parse_day(text: str | None, flag: str) -> int | None:
    if text is None:
        return None
    # Only this form, since the text is part of the run's identity.
    with contextlib.suppress(ValueError):
        if (day := dt.date.fromisoformat(text)).isoformat() == text:
            return midnight_utc(day)
    raise UsageError(f"{flag} {text}: is not a day written YYYY-MM-DD")


Names = Annotated[frozenset[Annotated[str, Meta(pattern=r"^[^A-Z\s]+$")]], Meta(min_length=1)]
# Only the part after the last dot is compared.
Endings = Annotated[frozenset[Annotated[str, Meta(pattern="^[a-z0-9]+$")]], Meta(min_length=1)]
Number = Annotated[int, Meta(ge=0, le=2**31)]


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One reason to drop a submission; exactly one of the conditions is set.

    Lists are in lower case. `created_from` is a day. `extensions` are those of the canonical URL's path; `endings`,
    `shorter_than` (characters) and `unlike` (a regular expression that has to match all of it, ignoring case) apply to
    the URL as it was submitted. `except_subreddits` belongs to `subreddit_words`.
    """

    name: Annotated[str, Meta(pattern="^[a-z][a-z0-9_]*$")]
    domains: Names = frozenset()
    hosts: Names = frozenset()
    extensions: Endings = frozenset()
    endings: Endings = frozenset()
    shorter_than: Annotated[int, Meta(ge=1, le=1000)] | None = None
    unlike: re.Pattern[str] | None = None
    created_from: dt.date | None = None
    over_18: bool = False
    subreddits: Names = frozenset()
    subreddit_words: Names = frozenset()
    except_subreddits: Names = frozenset()

    def __post_init__(self) -> None:
        """Raise ValueError for a rule without a condition, or with several."""
        values = msgspec.structs.asdict(self)
        conditions = [name for name in values if values[name] and name not in ("name", "except_subreddits")]
        if len(conditions) != 1:
            raise ValueError(f"rule {self.name!r} has {len(conditions)} conditions, expected 1")
        if self.except_subreddits and not self.subreddit_words:
            raise ValueError(f"rule {self.name!r}: except_subreddits requires subreddit_words")

    def select(self, links: list[Link]) -> list[Link]:
        """Return the links that the rule keeps."""
        if self.domains:
            return [link for link in links if link[1].domain not in self.domains]
        if self.hosts:
            return [link for link in links if host_of(link[1].url) not in self.hosts]
        if self.extensions:
            return [link for link in links if _extension(link[1].url.partition("#")[0]) not in self.extensions]
        if self.over_18:
            return [link for link in links if link[0].over_18 is not True]
        if self.created_from is not None:
            end = midnight_utc(self.created_from)
            return [link for link in links if link[0].created_utc < end]
        if self.subreddits:
            return [link for link in links if link[0].subreddit.lower() not in self.subreddits]
        if self.subreddit_words:
            names = ((link, link[0].subreddit.lower()) for link in links)
            kept, words = self.except_subreddits, self.subreddit_words
            return [link for link, name in names if name in kept or not any(word in name for word in words)]
        if self.endings:
            return [link for link in links if _extension(link[0].url or "") not in self.endings]
        if self.shorter_than is not None:
            return [link for link in links if len(link[0].url or "") >= self.shorter_than]
        return [link for link in links if self.unlike is None or self.unlike.fullmatch(link[0].url or "")]


def _extension(url: str) -> str:
    """Return what follows the last dot before the query, in lower case; this may contain a slash."""
    return url.partition("?")[0].rpartition(".")[2].lower()


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The rules of a profile in order, and its defaults of `--min-score` and `--karma`."""

    version: Number
    description: str
    min_score: Number
    karma: Annotated[str, Meta(pattern="^(max|sum|first)$")]
    rule: tuple[Rule, ...] = ()
    name: str = ""
    fingerprint: str = ""

    def __post_init__(self) -> None:
        """Raise ValueError if two rules have the same name."""
        if len({rule.name for rule in self.rule}) < len(self.rule):
            raise ValueError("two rules have the same name; rule names are drop reasons, so they must be unique")


def load_profile(name: str) -> Profile:
    """Read a profile by name; raise UsageError if its file is invalid."""
    path = data_path(f"profiles/{name}.toml")
    return msgspec.structs.replace(read_toml(path, Profile), name=name, fingerprint=storage.sha256_of(path))


@functools.cache
def midnight_utc(day: dt.date) -> int:
    """Return the first second of a day, UTC."""
    return int(dt.datetime.combine(day, dt.time(), dt.UTC).timestamp())
