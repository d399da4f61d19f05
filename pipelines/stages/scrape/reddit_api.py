"""Reddit's API by PRAW: listings of subreddits as NDJSON in the format of the dumps, and submissions by name."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

from pipelines import progress
from pipelines.engine.manifest import ShardEntry
from pipelines.engine.retry import Result, Retries, RetryPolicy, describe_failure, requested_wait_s
from pipelines.engine.run import StageRun, TaskResult
from pipelines.errors import InputError, UsageError
from pipelines.extras import require_extra
from pipelines.stages.scrape.config import TIMED_LISTINGS, ScrapeConfig
from pipelines.stages.scrape.decision import subreddit_names
from pipelines.stages.scrape.sources import write_listing

# The fields that links are built from; the rest of a response (texts, votes of the account) is not stored.
_FIELDS = (
    "id name created_utc score url url_overridden_by_dest domain is_self over_18 promoted title permalink num_comments"
).split()

_CREDENTIALS = (
    "Reddit's API needs client_id, client_secret and user_agent, in praw.ini "
    "(https://praw.readthedocs.io/en/stable/getting_started/configuration/prawini.html) or in the environment as "
    "praw_client_id, praw_client_secret and praw_user_agent"
)

# Reddit ends a listing somewhat before 1,000 if submissions were deleted.
_NEARLY_ALL = 900

# PRAW itself makes three attempts in a row; these are rounds of those.
_POLICY = RetryPolicy(attempts=5, longest_wait_s=3600.0)


def check_options(config: ScrapeConfig) -> None:
    """Raise UsageError without a subreddit, and for a search without a query."""
    if not config.subreddit:
        raise UsageError("--source praw needs at least one --subreddit")
    if config.listing == "search" and not config.query:
        raise UsageError("--listing search needs --query")


def fetch_listings(run: StageRun, config: ScrapeConfig) -> Iterator[ShardEntry]:
    """Yield the entry of the listing of each subreddit, which is requested unless it is stored."""
    options: dict[str, Any] = {"time_filter": config.time_filter, "query": config.query or "", "limit": config.limit}
    for index, subreddit in enumerate(subreddit_names(config)):

        def store(index: int = index, subreddit: str = subreddit) -> TaskResult:
            return write_listing(run.output, index, listing_lines(connect(), subreddit, config.listing, **options))

        entry = run.once(f"listing-{subreddit.lower()}", store, unit="submissions")
        count = int(entry.counts["listed_submissions"])
        if count >= min(config.limit, _NEARLY_ALL):
            run.note(
                f"r/{subreddit}/{config.listing}: truncated at {count} submissions, by --limit {config.limit} or by "
                "Reddit, which ends every listing at about 1,000. No listing covers the whole history; for that, use "
                "dumps or --source arctic-shift"
            )
        yield entry


@functools.cache
def connect() -> Any:
    """Return a `praw.Reddit` with credentials from `praw.ini` or the environment; raise UsageError without them.

    It is kept, because it has the access token.
    """
    import configparser

    require_extra("reddit", "Reddit's API", "praw")
    import praw
    import praw.exceptions
    import prawcore

    try:
        # Otherwise PRAW queries the package index for a newer version of itself.
        return praw.Reddit(check_for_updates=False)
    except (praw.exceptions.MissingRequiredAttributeException, configparser.Error) as error:
        raise UsageError(f"{_CREDENTIALS} ({str(error).splitlines()[0].strip()})") from error
    except prawcore.InvalidInvocation as error:
        raise UsageError(f"{_CREDENTIALS} ({error})") from error


def listing_lines(
    reddit: Any, subreddit: str, listing: str, *, limit: int, time_filter: str = "all", query: str = ""
) -> Iterator[bytes]:
    """Yield the submissions of one listing of a subreddit as lines of NDJSON, at most `limit`.

    `time_filter` applies to the listings `top`, `controversial` and `search`, `query` to `search`. Raises InputError if
    Reddit refuses, or does not respond after several attempts.
    """
    place = f"r/{subreddit}"
    arguments: dict[str, Any] = {"time_filter": time_filter} if listing in TIMED_LISTINGS else {}
    arguments |= {"query": query} if listing == "search" else {}
    submissions = getattr(reddit.subreddit(subreddit), listing)(limit=limit, **arguments)
    # A PRAW generator keeps its position when a request fails, so that a retry loses nothing.
    while (submission := _send(lambda: next(submissions, None), place)) is not None:
        # `vars`, because PRAW would request the submission again for an attribute that the response lacks.
        yield json.dumps(_record(vars(submission), subreddit), ensure_ascii=True, sort_keys=True).encode() + b"\n"
        progress.advance()


def submissions_by_name(reddit: Any, names: list[str]) -> list[dict[str, Any]]:
    """Return the fields of the submissions of up to 100 full names (`t3_...`), in any order, without unknown ones."""
    submissions = _send(lambda: list(reddit.info(fullnames=names)), "submissions by name")
    return [vars(submission) for submission in submissions]


@functools.cache
def _retries() -> Retries:
    """Return the retries of all requests of this process, which are sent one after another."""
    return Retries("Reddit", _POLICY, sleep=time.sleep)


def _send(request: Callable[[], Result], place: str) -> Result:
    """Return the result of a request; retry if Reddit is busy, failed, or sent a truncated response."""
    import prawcore

    def attempt() -> Result:
        try:
            return request()
        except (prawcore.TooManyRequests, prawcore.ServerError, prawcore.RequestException, prawcore.BadJSON) as error:
            failure = describe_failure(error)
            if isinstance(error, prawcore.TooManyRequests):
                failure.requested_wait_s = requested_wait_s(error.response.headers, time.time())
            raise failure from error
        except prawcore.PrawcoreException as error:
            status = getattr(getattr(error, "response", None), "status_code", None)
            if status == 401:
                advice = f"Reddit refused the credentials (401); check client_id and client_secret. {_CREDENTIALS}"
            elif status in (302, 403, 404):
                advice = f"no such subreddit, or it is private ({error})"
            else:
                advice = f"unexpected response from Reddit ({describe_failure(error)}); re-run the same command"
            raise InputError(f"{place}: {advice}") from error

    return _retries().run(attempt)


def _record(fields: dict[str, Any], subreddit: str) -> dict[str, Any]:
    record = {field: fields[field] for field in _FIELDS if field in fields}
    record["subreddit"] = str(fields.get("subreddit") or subreddit)
    record["author"] = str(fields.get("author") or "")
    if parents := fields.get("crosspost_parent_list"):
        names = [*_FIELDS, "subreddit"]
        record["crosspost_parent_list"] = [{name: post[name] for name in names if name in post} for post in parents]
    return record
