"""Reddit's API by PRAW: listings of subreddits as NDJSON in the format of the dumps, and submissions by name."""

from __future__ import annotations

import functools
import itertools
import json
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from pipelines.engine.retry import RetryPolicy, requested_wait_s
from pipelines.errors import InputError, UsageError
from pipelines.stages.scrape.api_client import LONGEST_WAIT_S
from pipelines.stages.scrape.request_failures import RetryNotes, failure_cause

# The fields that links are built from; the rest of a response (authors, texts, votes of the account) is not stored.
_FIELDS = (
    "id",
    "name",
    "created_utc",
    "score",
    "url",
    "url_overridden_by_dest",
    "domain",
    "is_self",
    "over_18",
    "promoted",
    "title",
    "permalink",
    "num_comments",
)

_CREDENTIALS = (
    "Reddit's API needs client_id, client_secret and user_agent, in praw.ini "
    "(https://praw.readthedocs.io/en/stable/getting_started/configuration/prawini.html) or in the environment as "
    "praw_client_id, praw_client_secret and praw_user_agent"
)

# The listings that take a time filter.
TIMED_LISTINGS = ("top", "controversial", "search")

# PRAW itself makes three attempts in a row; these are rounds of those.
_POLICY = RetryPolicy(attempts=5, longest_wait_s=LONGEST_WAIT_S)
_POLICY_UNREACHABLE = RetryPolicy(attempts=3)

Result = TypeVar("Result")


def connect() -> Any:
    """Return a `praw.Reddit` with credentials from `praw.ini` or the environment; raise UsageError without them."""
    import configparser

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
    submissions = _open_listing(reddit.subreddit(subreddit), listing, limit=limit, time_filter=time_filter, query=query)
    # A PRAW generator keeps its position when a request fails, so that a retry loses nothing.
    while (submission := _with_retries(lambda: next(submissions, None), place)) is not None:
        # `vars`, because PRAW would request the submission again for an attribute that the response lacks.
        yield json.dumps(_record(vars(submission), subreddit), ensure_ascii=True, sort_keys=True).encode() + b"\n"


def info(reddit: Any, names: list[str]) -> list[dict[str, Any]]:
    """Return the fields of the submissions of up to 100 full names (`t3_...`), in any order, without unknown ones."""
    submissions = _with_retries(lambda: list(reddit.info(fullnames=names)), "submissions by name")
    return [vars(submission) for submission in submissions]


def _open_listing(subreddit: Any, listing: str, limit: int, time_filter: str, query: str) -> Any:
    timed = {"time_filter": time_filter} if listing in TIMED_LISTINGS else {}
    if listing == "search":
        return subreddit.search(query, limit=limit, **timed)
    return getattr(subreddit, listing)(limit=limit, **timed)


@functools.cache
def _notes() -> RetryNotes:
    """Return the notes of all requests of this process, which are sent one after another."""
    return RetryNotes("Reddit", time.monotonic)


def _with_retries(request: Callable[[], Result], place: str) -> Result:
    """Return the result of a request; retry if Reddit is busy, failed, or sent a truncated response."""
    import prawcore

    for failures in itertools.count(1):
        try:
            return request()
        except (
            prawcore.TooManyRequests,
            prawcore.ServerError,
            prawcore.RequestException,
            prawcore.BadJSON,
        ) as error:
            cause = failure_cause(error)
            policy = _POLICY_UNREACHABLE if cause.unreachable else _POLICY
            delay_s = policy.delay_s(failures, _requested_wait_s(error))
            if delay_s is None:
                raise InputError(_refusal(place, error)) from error
            _notes().note_retry(cause.text, failures + 1, policy.attempts, delay_s)
        except prawcore.PrawcoreException as error:
            raise InputError(_refusal(place, error)) from error
        time.sleep(delay_s)
    raise AssertionError("the last attempt returns or raises")


def _requested_wait_s(error: Exception) -> float | None:
    response = getattr(error, "response", None)
    if response is None or response.status_code != 429:
        return None
    return requested_wait_s(response.headers, time.time())


def _record(fields: dict[str, Any], subreddit: str) -> dict[str, Any]:
    record = {field: fields[field] for field in _FIELDS if field in fields}
    record["subreddit"] = str(fields.get("subreddit") or subreddit)
    if parents := fields.get("crosspost_parent_list"):
        names = (*_FIELDS, "subreddit")
        record["crosspost_parent_list"] = [{name: post[name] for name in names if name in post} for post in parents]
    return record


def _refusal(place: str, error: Exception) -> str:
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status == 401:
        return f"{place}: Reddit refused the credentials (401); check client_id and client_secret. {_CREDENTIALS}"
    if status in (302, 403, 404):
        return f"{place}: no such subreddit, or it is private ({error})"
    if status == 429:
        return f"{place}: too many requests (429); re-run the same command in a few minutes"
    cause = failure_cause(error)
    if cause.unreachable:
        return f"{place}: {cause.text}, no response from Reddit; check the network, then re-run the same command"
    return f"{place}: unexpected response from Reddit ({cause.text}); re-run the same command"
