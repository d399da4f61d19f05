"""The options of `webtext scrape`."""

from __future__ import annotations

import dataclasses

from pipelines.core.config import option
from pipelines.core.resources import data_names

ARCTIC_SHIFT_URL = "https://arctic-shift.photon-reddit.com"
PROFILES = data_names("profiles")
KARMA = ("max", "sum", "first")


@dataclasses.dataclass(frozen=True)
class ScrapeConfig:
    """Where submissions come from, and which of them make a link."""

    source: str = option(
        "dump",
        "dump: monthly Reddit dumps. urls: lists of URLs. praw: a listing of Reddit's API, at most 1,000 items. "
        "arctic-shift: that archive's search API.",
        choices=("dump", "urls", "praw", "arctic-shift"),
    )
    min_score: int | None = option(
        None, "Least score (karma) of a link; without it what the profile says, 3 in all of them.", minimum=0, example=3
    )
    karma: str | None = option(
        None,
        "The score of a link that was submitted more than once: the highest, the sum, or the first one's; without it "
        "what the profile says: sum in openwebtext2, max in the others.",
        choices=KARMA,
    )
    after: str | None = option(None, "Only submissions from this day on, YYYY-MM-DD (UTC).", example="2013-01-01")
    before: str | None = option(None, "Only submissions before this day, YYYY-MM-DD (UTC).", example="2018-01-01")
    profile: str = option("webtext-2019", "The rules for which links to leave out.", choices=PROFILES)
    subreddit: tuple[str, ...] = option((), "Keep only submissions to this subreddit.", renamed_from="subreddits")
    shards: int = option(64, "Number of shards; all links of a domain are in the same one.", minimum=1, maximum=10000)
    url_column: str = option(
        "url",
        "With --source urls: the column that holds the URL, or the field of JSON lines (a dot goes into an object: "
        "meta.url).",
    )
    listing: str = option(
        "new",
        "With --source praw: which listing of the subreddit.",
        choices=("new", "top", "hot", "controversial", "search"),
    )
    query: str | None = option(
        None, "With --listing search: what to search for, in Reddit's own syntax.", example="site:example.com"
    )
    time_filter: str = option(
        "all",
        "With --listing top, controversial or search: how far it looks back.",
        choices=("all", "year", "month", "week", "day", "hour"),
    )
    limit: int = option(
        1000, "With --source praw: items to ask for; Reddit ends every listing at 1,000.", minimum=1, maximum=1000
    )
    domain: tuple[str, ...] = option(
        (), "With --source arctic-shift: links to this host, with and without www.", renamed_from="domains"
    )
    api_url: str = option(ARCTIC_SHIFT_URL, "Where Arctic Shift's API is.", identity=False)
    accept_fresh_scores: bool = option(
        False, "Go on although the scores of a month look taken at ingestion.", identity=False
    )
    refresh_scores: str | None = option(
        None,
        "Fetch the scores of such months anew: from Arctic Shift, 500 submissions a request, or from Reddit, 100.",
        choices=("arctic-shift", "praw"),
        identity=False,  # so that a run that was refused for its scores goes on; it stands among the inputs instead
    )
    skip_damaged: bool = option(
        False,
        "Go on with what could be read of a file that is truncated, corrupt, or has many bad lines.",
        identity=False,
    )

    @property
    def needs_files(self) -> bool:
        """Whether the source is made of files that have to be named."""
        return self.source in ("dump", "urls")
