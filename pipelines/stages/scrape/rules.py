"""The rules of a profile."""

from __future__ import annotations

import dataclasses
import re

from pipelines.algorithms.web.urls import host_of
from pipelines.stages.scrape.submission import Submission


@dataclasses.dataclass(frozen=True, slots=True)
class Rule:
    """One reason to drop a submission; exactly one of the conditions is set. Times in seconds since 1970, UTC.

    `extensions` are those of the canonical URL's path; `endings`, `shorter_than` (characters) and `unlike` (a regular
    expression that has to match all of it, ignoring case) apply to the URL as it was submitted. `except_subreddits`
    belongs to `subreddit_words`.
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
            return submission.created_utc >= self.created_from
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
        return self.unlike is not None and re.fullmatch(self.unlike, submitted, re.IGNORECASE) is None


def _extension(url: str) -> str:
    """Return what follows the last dot before the query, in lower case; this may contain a slash."""
    return url.partition("?")[0].rpartition(".")[2].lower()
