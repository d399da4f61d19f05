"""Current scores of submissions, by their ids."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from pipelines.stages.scrape.api_client import ApiClient, SlowQueryError
from pipelines.stages.scrape.reddit_api import connect, info

# The maximum number of ids per request.
_BATCH_SIZES = {"praw": 100, "arctic-shift": 500}
# A query that is too slow for the server is halved down to this number of ids.
_MIN_IDS = 50


def batch_size(service: str) -> int:
    """Return how many ids `fetch_scores` accepts per call, which is one request."""
    return _BATCH_SIZES[service]


def check_service(service: str) -> None:
    """Raise UsageError if a service needs credentials that are missing; sends no request.

    For the start of a run, because scores are fetched only after hours of reading.
    """
    if service == "praw":
        _reddit()


def fetch_scores(service: str, ids: Sequence[str], api_url: str) -> dict[str, int]:
    """Return the scores of the ids (with or without `t3_`) that the service knows, by id without `t3_`.

    `service` is `praw` (Reddit itself) or `arctic-shift` (at `api_url`, which Reddit ignores). Retries as the listings
    do. Raises UsageError for missing credentials, InputError if the service refuses or does not respond.
    """
    names = [id.removeprefix("t3_") for id in ids]
    if len(names) > batch_size(service):
        raise ValueError(f"{len(names)} ids are more than the {batch_size(service)} of one request")
    if not names:
        return {}
    if service == "praw":
        records = info(_reddit(), [f"t3_{name}" for name in names])
    else:
        records = _fetch_archived(_client(api_url), names)
    requested = set(names)
    return {
        record["id"]: record["score"]
        for record in records
        if record.get("id") in requested and isinstance(record.get("score"), int)
    }


def _fetch_archived(client: ApiClient, names: list[str]) -> list[dict[str, Any]]:
    try:
        return client.records("/api/posts/ids", {"ids": ",".join(names), "fields": "id,score"})
    except SlowQueryError:
        if len(names) <= _MIN_IDS:
            raise
        half = len(names) // 2
        return _fetch_archived(client, names[:half]) + _fetch_archived(client, names[half:])


# Kept between calls: a client knows when its next request is allowed; PRAW also has the access token.
@functools.lru_cache(maxsize=8)
def _client(api_url: str) -> ApiClient:
    return ApiClient(api_url)


@functools.lru_cache(maxsize=1)
def _reddit() -> Any:
    return connect()
