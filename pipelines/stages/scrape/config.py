"""The options of `webtext scrape`."""

from __future__ import annotations

import dataclasses

from pipelines.core.config import option

PROFILES = ("webtext-2019", "none")


@dataclasses.dataclass(frozen=True)
class ScrapeConfig:
    """Where submissions come from, and which of them make a link."""

    source: str = option(
        "dump",
        "dump: monthly Reddit dumps. urls: lists of URLs. praw: a listing of Reddit's API, at most 1,000 items.",
        choices=("dump", "urls", "praw"),
    )
    min_score: int = option(3, "Least score (karma) of a link.", minimum=0)
    karma: str = option(
        "max",
        "The score of a link that was submitted more than once: the highest, the sum, or the first one's.",
        choices=("max", "sum", "first"),
    )
    after: str | None = option(None, "Only submissions from this day on, YYYY-MM-DD (UTC).")
    before: str | None = option(None, "Only submissions before this day, YYYY-MM-DD (UTC).")
    profile: str = option("webtext-2019", "The rules for which links to leave out.", choices=PROFILES)
    subreddits: tuple[str, ...] = option((), "Only this subreddit.", flag="--subreddit")
    shards: int = option(64, "Number of shards; all links of a domain are in the same one.", minimum=1, maximum=10000)
    listing: str = option("new", "With --source praw: which listing of the subreddit.", choices=("new", "top", "hot"))
    limit: int = option(
        1000, "With --source praw: items to ask for; Reddit ends every listing at 1,000.", minimum=1, maximum=1000
    )

    @property
    def needs_files(self) -> bool:
        """Whether the source is made of files that have to be named."""
        return self.source != "praw"
