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
from collections.abc import Sequence
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


# Nine submissions in ten are dropped for a reason that was seen before.
_dropped = functools.cache(FilterResult)


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
        reason = self.post_reason(submission)
        return self.apply_to_url(submission) if reason is None else _dropped(reason)

    def post_reason(self, submission: Submission) -> str | None:
        """Return the first reason to drop a submission whatever its URL is; cheap, so these come first."""
        if self.subreddits and submission.subreddit.lower() not in self.subreddits:
            return "other_subreddit"
        if self.after is not None and submission.created_utc < self.after:
            return "too_early"
        if self.before is not None and submission.created_utc >= self.before:
            return "too_late"
        if submission.promoted is True:
            return "promoted"
        if submission.is_self:
            return "self_post"
        score = submission.score
        if score is None:
            return "missing_score" if self.needs_score else None
        return "low_score" if not reaches_minimum(score, self.min_score) else None

    def apply_to_url(self, submission: Submission) -> FilterResult:
        """Return the link of a submission, or the first reason to drop its URL."""
        if submission.url is None:
            return _dropped("missing_url")
        url = canonical_url(submission.url)
        domain = None if url is None else registered_domain(url)
        if url is None or domain is None:
            return _dropped("not_http")
        reason = self.profile.reason_to_drop(submission, url, domain)
        return FilterResult(None, url, domain) if reason is None else _dropped(reason)

    def select(self, submissions: Sequence[Submission], dropped: Counter[str]) -> list[tuple[Submission, FilterResult]]:
        """Return the submissions that make a link, with it; count the others in `dropped` by reason."""
        # All posts first, since nine in ten are dropped there: calling `apply` for each takes 1.5 times as long.
        reasons = [self.post_reason(submission) for submission in submissions]
        passed = [submission for submission, reason in zip(submissions, reasons, strict=True) if reason is None]
        links = [self.apply_to_url(submission) for submission in passed]
        dropped.update(filter(None, reasons))
        dropped.update(filter(None, [link.reason for link in links]))
        return [(submission, link) for submission, link in zip(passed, links, strict=True) if link.reason is None]

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

    def matches(self, submission: Submission, url: str, domain: str) -> bool:
        """Return whether the rule drops a submission with this canonical URL and registered domain."""
        if self.domains:
            return domain in self.domains
        if self.hosts:
            return host_of(url) in self.hosts
        if self.extensions:
            return _extension(url.partition("#")[0]) in self.extensions
        if self.over_18:
            return submission.over_18 is True
        if self.created_from is not None:
            return submission.created_utc >= midnight_utc(self.created_from)
        if self.subreddits:
            return submission.subreddit.lower() in self.subreddits
        if self.subreddit_words:
            subreddit = submission.subreddit.lower()
            return subreddit not in self.except_subreddits and any(word in subreddit for word in self.subreddit_words)
        submitted = submission.url or ""
        if self.endings:
            return _extension(submitted) in self.endings
        if self.shorter_than is not None:
            return len(submitted) < self.shorter_than
        return self.unlike is not None and self.unlike.fullmatch(submitted) is None


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

    def reason_to_drop(self, submission: Submission, url: str, domain: str) -> str | None:
        """Return the name of the first rule that matches a submission with this canonical URL and registered domain."""
        for rule in self.rule:
            if rule.matches(submission, url, domain):
                return rule.name
        return None


def load_profile(name: str) -> Profile:
    """Read a profile by name; raise UsageError if its file is invalid."""
    path = data_path(f"profiles/{name}.toml")
    return msgspec.structs.replace(read_toml(path, Profile), name=name, fingerprint=storage.sha256_of(path))


@functools.cache
def midnight_utc(day: dt.date) -> int:
    """Return the first second of a day, UTC."""
    return int(dt.datetime.combine(day, dt.time(), dt.UTC).timestamp())
