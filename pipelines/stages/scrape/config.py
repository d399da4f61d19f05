"""The options of `webtext scrape`."""

from __future__ import annotations

import dataclasses

from pipelines.engine.config import option
from pipelines.storage.resources import data_names

# The listings of Reddit that take a time range.
TIMED_LISTINGS = ("top", "controversial", "search")
# The sources that have scores, times and subreddits.
_SUBMISSIONS = "source=dump|praw|arctic-shift"
PROFILES = data_names("profiles")


@dataclasses.dataclass(frozen=True)
class ScrapeConfig:
    """The source of submissions, and which of them make a link."""

    source: str = option(
        "dump",
        "dump: monthly Reddit dumps. urls: lists of URLs. praw: listings of Reddit's API, at most 1,000 items each. "
        "arctic-shift: the search API of that archive.",
        choices=("dump", "urls", "praw", "arctic-shift"),
        group="Source",
    )
    url_column: str = option(
        "url",
        "With --source urls: column with the URL, or field of JSON lines (a dot selects a nested field: meta.url).",
        only_with="source=urls",
    )
    listing: str = option(
        "new",
        "With --source praw: listing of the subreddit.",
        choices=("new", "top", "hot", "controversial", "search"),
        only_with="source=praw",
    )
    query: str | None = option(
        None, "With --listing search: query in Reddit's syntax.", example="site:example.com", only_with="listing=search"
    )
    time_filter: str = option(
        "all",
        "With --listing top, controversial or search: time range.",
        choices=("all", "year", "month", "week", "day", "hour"),
        only_with="listing=" + "|".join(TIMED_LISTINGS),
    )
    limit: int = option(
        1000,
        "With --source praw: maximum number of items; Reddit limits listings to 1,000.",
        minimum=1,
        maximum=1000,
        only_with="source=praw",
    )
    host: tuple[str, ...] = option(
        (),
        "With --source arctic-shift: search links to this host, with and without www.",
        only_with="source=arctic-shift",
    )
    api_url: str = option(
        "https://arctic-shift.photon-reddit.com",
        "URL of Arctic Shift's API.",
        identity=False,
        only_with="source=dump|arctic-shift",
    )
    min_score: int | None = option(
        None,
        "Minimum score (karma) of a link; by default that of the profile, 3 in all of them.",
        minimum=0,
        example=3,
        only_with=_SUBMISSIONS,
        group="Scores",
    )
    karma: str | None = option(
        None,
        "How to combine the scores of several submissions of a link; the default depends on the profile (sum in "
        "openwebtext2, max in the others).",
        choices=("max", "sum", "first"),
        only_with=_SUBMISSIONS,
    )
    accept_fresh_scores: bool = option(
        False,
        "Use scores recorded seconds after posting, before anyone voted; by default, months with such scores are "
        "refused.",
        identity=False,
        only_with=_SUBMISSIONS,
    )
    refresh_scores: str | None = option(
        None,
        "Replace scores recorded seconds after posting by current ones, from Arctic Shift (500 per request) or "
        "Reddit's API (100).",
        choices=("arctic-shift", "praw"),
        identity=False,  # so that a run refused for its scores can be resumed; it is recorded as an input instead
        only_with=_SUBMISSIONS,
    )
    after: str | None = option(
        None,
        "Keep only submissions on or after this day, YYYY-MM-DD (UTC).",
        example="2013-01-01",
        only_with=_SUBMISSIONS,
        group="Selection",
    )
    before: str | None = option(
        None, "Keep only submissions before this day, YYYY-MM-DD (UTC).", example="2018-01-01", only_with=_SUBMISSIONS
    )
    profile: str = option("webtext-2019", "Filter rules, and defaults for --min-score and --karma.", choices=PROFILES)
    subreddit: tuple[str, ...] = option((), "Keep only submissions to this subreddit.", only_with=_SUBMISSIONS)
    skip_damaged: bool = option(
        False, "Use the readable part of files that are truncated, corrupt, or have many bad lines.", identity=False
    )
    shards: int = option(
        64, "Number of shards; all links of a domain are in the same shard.", minimum=1, maximum=10000, group="Result"
    )
    keep_partitions: bool = option(
        True,
        "Keep the submissions of every file, so that files can be added later without reading the others again.",
        identity=False,
        only_with="source=dump|urls",
    )

    @property
    def needs_files(self) -> bool:
        """Whether the source reads files."""
        return self.source in ("dump", "urls")
