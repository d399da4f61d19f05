"""The options of `webtext scrape`."""

from __future__ import annotations

import dataclasses

from pipelines.engine.config import option
from pipelines.storage.resources import data_names

ARCTIC_SHIFT_URL = "https://arctic-shift.photon-reddit.com"
PROFILES = data_names("profiles")
KARMA = ("max", "sum", "first")


@dataclasses.dataclass(frozen=True)
class ScrapeConfig:
    """The source of submissions, and which of them make a link."""

    source: str = option(
        "dump",
        "dump: monthly Reddit dumps. urls: lists of URLs. praw: listings of Reddit's API, at most 1,000 items each. "
        "arctic-shift: the search API of that archive.",
        choices=("dump", "urls", "praw", "arctic-shift"),
    )
    min_score: int | None = option(
        None,
        "Minimum score (karma) of a link; by default that of the profile (3 in all of them).",
        minimum=0,
        example=3,
    )
    karma: str | None = option(
        None,
        "Score of a link that was submitted several times: the highest, the sum, or that of the first submission; by "
        "default that of the profile (sum in openwebtext2, max in the others).",
        choices=KARMA,
    )
    after: str | None = option(
        None, "Keep only submissions of this day or later, YYYY-MM-DD (UTC).", example="2013-01-01"
    )
    before: str | None = option(None, "Keep only submissions before this day, YYYY-MM-DD (UTC).", example="2018-01-01")
    profile: str = option(
        "webtext-2019", "Filter rules, and the defaults of --min-score and --karma.", choices=PROFILES
    )
    subreddit: tuple[str, ...] = option((), "Keep only submissions to this subreddit.")
    shards: int = option(64, "Number of shards; all links of a domain are in the same shard.", minimum=1, maximum=10000)
    url_column: str = option(
        "url",
        "With --source urls: column with the URL, or field of JSON lines (a dot selects a nested field: meta.url).",
    )
    listing: str = option(
        "new",
        "With --source praw: listing of the subreddit.",
        choices=("new", "top", "hot", "controversial", "search"),
    )
    query: str | None = option(None, "With --listing search: query in Reddit's syntax.", example="site:example.com")
    time_filter: str = option(
        "all",
        "With --listing top, controversial or search: time range.",
        choices=("all", "year", "month", "week", "day", "hour"),
    )
    limit: int = option(
        1000, "With --source praw: maximum number of items; Reddit cuts listings at 1,000.", minimum=1, maximum=1000
    )
    domain: tuple[str, ...] = option((), "With --source arctic-shift: search links to this host, with and without www.")
    api_url: str = option(ARCTIC_SHIFT_URL, "URL of Arctic Shift's API.", identity=False)
    accept_fresh_scores: bool = option(
        False,
        "Use the scores of months that were archived seconds after posting, before users had voted; by default, such "
        "months are refused.",
        identity=False,
    )
    refresh_scores: str | None = option(
        None,
        "Fetch the current scores of months that were archived seconds after posting: from Arctic Shift (500 "
        "submissions per request) or Reddit's API (100).",
        choices=("arctic-shift", "praw"),
        identity=False,  # so that a run refused for its scores can be resumed; it is recorded as an input instead
    )
    skip_damaged: bool = option(
        False,
        "Use what could be read of files that are truncated, corrupt, or have many bad lines.",
        identity=False,
    )

    keep_partitions: bool = option(
        True,
        "Keep the submissions of every file next to the links, so that a further file can be added without reading the "
        "others again.",
        identity=False,
    )

    @property
    def needs_files(self) -> bool:
        """Whether the source reads files."""
        return self.source in ("dump", "urls")
