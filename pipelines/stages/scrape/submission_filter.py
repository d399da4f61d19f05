"""The filter that decides which submissions make a link, and for what reason the others are dropped."""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
import re
from collections import Counter
from collections.abc import Sequence

import msgspec

from pipelines.algorithms.web.urls import canonical_url, registered_domain
from pipelines.errors import UsageError
from pipelines.stages.scrape.config import ScrapeConfig
from pipelines.stages.scrape.profile import Profile, load_profile, midnight_utc
from pipelines.stages.scrape.submission import Submission

_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")

_LISTING_OPTIONS = ("listing", "query", "time_filter", "limit")
_SUBMISSION_OPTIONS = ("min_score", "karma", "after", "before", "subreddit")
# Options that have no effect on a source; setting one is an error.
_UNUSED_OPTIONS = {
    "dump": ("url_column", *_LISTING_OPTIONS, "domain"),
    "urls": (
        *_SUBMISSION_OPTIONS,
        *_LISTING_OPTIONS,
        "domain",
        "api_url",
        "refresh_scores",
        "accept_fresh_scores",
    ),
    "praw": ("url_column", "domain", "api_url"),
    "arctic-shift": ("url_column", *_LISTING_OPTIONS),
}


class FilterResult(msgspec.Struct, frozen=True, gc=False):
    """The link of a submission, or the `reason` why it is dropped (the other fields are then empty)."""

    reason: str | None
    url: str = ""
    domain: str = ""


# Nine submissions in ten are dropped for a reason that was seen before.
_dropped = functools.cache(FilterResult)


@dataclasses.dataclass(frozen=True)
class SubmissionFilter:
    """What a submission and its link have to be. Times in seconds since 1970, UTC.

    `needs_score` and `min_score` apply to submissions, `min_link_score` to the link that is merged from all submissions
    of a URL. Only one of the scores is set: a maximum reaches what one of its submissions reaches, while a sum or the
    score of the first one is known only after merging. Lists of URLs have neither.
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
        return "low_score" if self.min_score is not None and score < self.min_score else None

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
    """Return a config with the profile's score and karma where no option sets them; lists of URLs have neither.

    Raises UsageError for an option that cannot apply.
    """
    for field in dataclasses.fields(config):
        if field.name in _UNUSED_OPTIONS[config.source] and getattr(config, field.name) != field.default:
            raise UsageError(f"--{field.name.replace('_', '-')} has no effect with --source {config.source}; omit it")
    if config.source == "urls":
        return config
    profile = load_profile(config.profile)
    min_score = profile.min_score if config.min_score is None else config.min_score
    return dataclasses.replace(config, min_score=min_score, karma=config.karma or profile.karma)


def make_filter(config: ScrapeConfig) -> SubmissionFilter:
    """Return the filter of a config; raise UsageError for an invalid date or an option that cannot apply."""
    config = resolve_config(config)
    after, before = _parse_day(config.after, "--after"), _parse_day(config.before, "--before")
    if after is not None and before is not None and after >= before:
        raise UsageError(f"--after {config.after} is not earlier than --before {config.before}: nothing can match")
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
    """Return the names of `--subreddit` without `r/`."""
    return [name.strip("/").removeprefix("r/") for name in config.subreddit]


def _parse_day(text: str | None, flag: str) -> int | None:
    if text is None:
        return None
    try:
        if not _DAY.fullmatch(text):
            raise ValueError
        return midnight_utc(dt.date.fromisoformat(text))
    except ValueError:
        raise UsageError(f"{flag} {text} is not a day written YYYY-MM-DD") from None
