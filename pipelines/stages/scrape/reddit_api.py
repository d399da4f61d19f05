"""A listing of Reddit's API, by PRAW, as NDJSON in the form of the dumps."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from pipelines.core import progress
from pipelines.core.errors import InputError, UsageError

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


def listing_lines(subreddits: list[str], listing: str, limit: int) -> Iterator[bytes]:
    """Yield the submissions of the listings of subreddits as lines of NDJSON, at most `limit` of each.

    Credentials come from `praw.ini` or from the environment, and from nowhere else. Raises UsageError where they are
    missing, and InputError where Reddit refuses or does not answer.
    """
    import configparser

    import praw.exceptions
    import prawcore

    try:
        # PRAW would otherwise ask the package index for a newer version of itself.
        reddit = praw.Reddit(check_for_updates=False)
    except (praw.exceptions.MissingRequiredAttributeException, configparser.Error) as error:
        raise UsageError(f"{_CREDENTIALS} ({str(error).splitlines()[0].strip()})") from error
    for name in subreddits:
        try:
            for submission in getattr(reddit.subreddit(name), listing)(limit=limit):
                # `vars`, because an attribute that the answer lacks would make PRAW ask for the submission again.
                yield json.dumps(_record(vars(submission), name), ensure_ascii=True, sort_keys=True).encode() + b"\n"
                progress.advance()
        except prawcore.PrawcoreException as error:
            raise InputError(_refusal(name, error)) from error


def _record(answer: dict[str, Any], subreddit: str) -> dict[str, Any]:
    record = {field: answer[field] for field in _FIELDS if field in answer}
    record["subreddit"] = str(answer.get("subreddit") or subreddit)
    if parents := answer.get("crosspost_parent_list"):
        wanted = (*_FIELDS, "subreddit")
        record["crosspost_parent_list"] = [{key: post[key] for key in wanted if key in post} for post in parents]
    return record


def _refusal(name: str, error: Exception) -> str:
    response = getattr(error, "response", None)
    status = getattr(response, "status_code", None)
    if status == 401:
        return f"r/{name}: Reddit refused the credentials (401); check client_id and client_secret. {_CREDENTIALS}"
    if status in (302, 403, 404):
        return f"r/{name}: there is no such subreddit, or it is private ({error})"
    if status == 429:
        return f"r/{name}: Reddit asks for fewer requests (429); run the same command again in some minutes"
    return f"r/{name}: Reddit's API did not answer as expected ({error}); run the same command again"
