"""Reddit's API, by PRAW: listings of subreddits as NDJSON in the form of the dumps, and submissions by their names."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from pipelines.core.errors import InputError, UsageError
from pipelines.stages.scrape.api_client import LONGEST_WAIT_S, requested_wait_s
from pipelines.stages.scrape.no_answer import RetryNotes, cause_of

# What the links are made of; the rest of an answer (authors, texts, votes of the account) is not kept.
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

# The listings that look at a span of time.
TIMED_LISTINGS = ("top", "controversial", "search")

# PRAW itself asks three times in a row; these are the rounds of that.
_TRIES = 5
_TRIES_OF_UNREACHABLE = 3
_LONGEST_BACK_OFF_S = 60.0

# Of all requests of this process, which are made one after the other.
_notes = RetryNotes("Reddit", time.monotonic)

Answer = TypeVar("Answer")


def connect() -> Any:
    """Return a `praw.Reddit` with the credentials of `praw.ini` or the environment, which are read from nowhere else.

    Raises UsageError where they are missing.
    """
    import configparser

    import praw
    import praw.exceptions
    import prawcore

    try:
        # PRAW would otherwise ask the package index for a newer version of itself.
        return praw.Reddit(check_for_updates=False)
    except (praw.exceptions.MissingRequiredAttributeException, configparser.Error) as error:
        raise UsageError(f"{_CREDENTIALS} ({str(error).splitlines()[0].strip()})") from error
    except prawcore.InvalidInvocation as error:
        raise UsageError(f"{_CREDENTIALS} ({error})") from error


def listing_lines(
    reddit: Any, subreddit: str, listing: str, *, limit: int, time_filter: str = "all", query: str = ""
) -> Iterator[bytes]:
    """Yield the submissions of one listing of a subreddit as lines of NDJSON, at most `limit`.

    `time_filter` is for the listings `top`, `controversial` and `search`, `query` for `search`. Raises InputError
    where Reddit refuses, or gives no answer after several tries.
    """
    place = f"r/{subreddit}"
    submissions = _open_listing(reddit.subreddit(subreddit), listing, limit, time_filter, query)
    # A generator of PRAW keeps its place when a request fails, so that asking again loses nothing.
    while (submission := _tried(lambda: next(submissions, None), place)) is not None:
        # `vars`, because an attribute that the answer lacks would make PRAW ask for the submission again.
        yield json.dumps(_record(vars(submission), subreddit), ensure_ascii=True, sort_keys=True).encode() + b"\n"


def info(reddit: Any, names: list[str]) -> list[dict[str, Any]]:
    """Return the fields of the submissions of up to 100 full names (`t3_...`), in any order, without unknown ones."""
    found = _tried(lambda: list(reddit.info(fullnames=names)), "submissions by name")
    return [vars(submission) for submission in found]


def _open_listing(subreddit: Any, listing: str, limit: int, time_filter: str, query: str) -> Any:
    timed = {"time_filter": time_filter} if listing in TIMED_LISTINGS else {}
    if listing == "search":
        return subreddit.search(query, limit=limit, **timed)
    return getattr(subreddit, listing)(limit=limit, **timed)


def _tried(ask: Callable[[], Answer], place: str) -> Answer:
    """Return what `ask` returns; wait and ask again where Reddit is busy, failed, or sent half an answer."""
    import prawcore

    for failures in itertools.count(1):
        try:
            return ask()
        except (
            prawcore.TooManyRequests,
            prawcore.ServerError,
            prawcore.RequestException,
            prawcore.BadJSON,
        ) as error:
            cause = cause_of(error)
            tries = _TRIES_OF_UNREACHABLE if cause.unreachable else _TRIES
            wait_s = _wait_s(error, failures, time.time())
            if failures >= tries or wait_s > LONGEST_WAIT_S:
                raise InputError(_refusal(place, error)) from error
            _notes.note(cause.words, failures + 1, tries, wait_s)
        except prawcore.PrawcoreException as error:
            raise InputError(_refusal(place, error)) from error
        time.sleep(wait_s)
    raise AssertionError("the last try returns or raises")


def _wait_s(error: Exception, failures: int, now: float) -> float:
    response = getattr(error, "response", None)
    if response is not None and response.status_code == 429:
        asked_s = requested_wait_s(response.headers, now)
        if asked_s is not None:
            return asked_s
    return min(2.0 ** (failures - 1), _LONGEST_BACK_OFF_S)


def _record(answer: dict[str, Any], subreddit: str) -> dict[str, Any]:
    record = {field: answer[field] for field in _FIELDS if field in answer}
    record["subreddit"] = str(answer.get("subreddit") or subreddit)
    if parents := answer.get("crosspost_parent_list"):
        wanted = (*_FIELDS, "subreddit")
        record["crosspost_parent_list"] = [{key: post[key] for key in wanted if key in post} for post in parents]
    return record


def _refusal(place: str, error: Exception) -> str:
    response = getattr(error, "response", None)
    status = getattr(response, "status_code", None)
    if status == 401:
        return f"{place}: Reddit refused the credentials (401); check client_id and client_secret. {_CREDENTIALS}"
    if status in (302, 403, 404):
        return f"{place}: there is no such subreddit, or it is private ({error})"
    if status == 429:
        return f"{place}: Reddit asks for fewer requests (429); run the same command again in some minutes"
    cause = cause_of(error)
    if cause.unreachable:
        return f"{place}: {cause.words}, Reddit gave no answer; check the network, then run the same command again"
    return f"{place}: Reddit's API did not answer as expected ({cause.words}); run the same command again"
