"""Which submissions make a link, and for what reason the others are dropped."""

from __future__ import annotations

import dataclasses
import datetime as dt
import re
from typing import NamedTuple

from pipelines.algorithms.web.urls import canonical_url, registered_domain
from pipelines.core.config import spec_of
from pipelines.core.errors import UsageError
from pipelines.stages.scrape.config import ScrapeConfig
from pipelines.stages.scrape.profile import Profile, load_profile, midnight_utc
from pipelines.stages.scrape.submission import RawSubmission

_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


class Verdict(NamedTuple):
    """The link of a submission, or why it makes none (`reason`; then the others are empty)."""

    reason: str | None
    url: str = ""
    domain: str = ""


@dataclasses.dataclass(frozen=True)
class Selection:
    """What a submission must be, and a link. Times in seconds since 1970, UTC.

    `least_score` is None where the score is not judged submission by submission: for lists of URLs, which have none,
    and where the score of the link decides (`karma` is `sum` or `first`), which is only known after the merge; then
    `least_link_score` is what it has to reach.
    """

    profile: Profile
    karma: str
    least_score: int | None
    least_link_score: int | None
    needs_score: bool
    after: int | None = None
    before: int | None = None
    subreddits: frozenset[str] = frozenset()

    def judge(self, submission: RawSubmission) -> Verdict:
        """Return the link of a submission, or the first reason against it."""
        reason = self.reason_against_post(submission)
        return Verdict(reason) if reason is not None else self.judge_url(submission)

    def judge_url(self, submission: RawSubmission) -> Verdict:
        """Return the link of a submission that is a good post, or the first reason against its URL."""
        if submission.url is None:
            return Verdict("missing_url")
        url = canonical_url(submission.url)
        domain = None if url is None else registered_domain(url)
        if url is None or domain is None:
            return Verdict("not_http")
        reason = self.profile.reason_to_drop(submission, url, domain)
        return Verdict(reason) if reason is not None else Verdict(None, url, domain)

    def reason_against_post(self, submission: RawSubmission) -> str | None:
        """Return why a submission is dropped whatever its URL is; these are tried first because they cost nothing."""
        if self.subreddits and submission.subreddit.lower() not in self.subreddits:
            return "other_subreddit"
        if self.after is not None and submission.created_utc < self.after:
            return "too_early"
        if self.before is not None and submission.created_utc >= self.before:
            return "too_late"
        if submission.promoted:
            return "promoted"
        if submission.is_self:
            return "self_post"
        if self.needs_score and submission.score is None:
            return "missing_score"
        if self.least_score is not None and submission.score is not None and submission.score < self.least_score:
            return "low_score"
        return None


_OF_LISTINGS = ("listing", "query", "time_filter", "limit")
# Options that a source has no use for; one that is set all the same is refused rather than silently without effect.
_UNUSED_OPTIONS = {
    "dump": ("url_column", *_OF_LISTINGS, "domains"),
    "urls": (
        "min_score",
        "karma",
        "after",
        "before",
        "subreddits",
        *_OF_LISTINGS,
        "domains",
        "api_url",
        "refresh_scores",
        "accept_fresh_scores",
    ),
    "praw": ("url_column", "domains", "api_url"),
    "arctic-shift": ("url_column", *_OF_LISTINGS),
}


def resolved(config: ScrapeConfig) -> ScrapeConfig:
    """Return a config with the score and karma that its profile says where no option does.

    For lists of URLs, which know no scores, both stay None. Raises UsageError for an option that cannot apply.
    """
    _refuse_unused_options(config)
    if config.source == "urls":
        return config
    profile = load_profile(config.profile)
    min_score = profile.min_score if config.min_score is None else config.min_score
    return dataclasses.replace(config, min_score=min_score, karma=config.karma or profile.karma)


def make_selection(config: ScrapeConfig) -> Selection:
    """Return the selection of a config; raise UsageError for a date that is none or an option that cannot apply."""
    config = resolved(config)
    after, before = _day(config.after, "--after"), _day(config.before, "--before")
    if after is not None and before is not None and after >= before:
        raise UsageError(f"--after {config.after} is not earlier than --before {config.before}: nothing can be found")
    karma = config.karma or "max"
    # A listing holds what Reddit put into it: r/all and r/popular are of many subreddits.
    names = () if config.source == "praw" else subreddit_names(config)
    return Selection(
        profile=load_profile(config.profile),
        karma=karma,
        least_score=config.min_score if karma == "max" else None,
        least_link_score=config.min_score if karma != "max" else None,
        needs_score=config.source != "urls",
        after=after,
        before=before,
        subreddits=frozenset(name.lower() for name in names),
    )


def subreddit_names(config: ScrapeConfig) -> list[str]:
    """Return the names of `--subreddit` without `r/`."""
    return [name.strip("/").removeprefix("r/") for name in config.subreddits]


def _refuse_unused_options(config: ScrapeConfig) -> None:
    for field in dataclasses.fields(config):
        if field.name in _UNUSED_OPTIONS[config.source] and getattr(config, field.name) != field.default:
            flag = spec_of(field).flag or "--" + field.name.replace("_", "-")
            raise UsageError(f"{flag} has no meaning with --source {config.source}; leave it out")


def _day(text: str | None, flag: str) -> int | None:
    if text is None:
        return None
    try:
        if not _DAY.fullmatch(text):
            raise ValueError
        return midnight_utc(dt.date.fromisoformat(text))
    except ValueError:
        raise UsageError(f"{flag} {text} is not a day written YYYY-MM-DD") from None
