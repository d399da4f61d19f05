"""Arctic Shift's search, page by page in order of time.

The API has no cursor, only `after` and `before`, and does not document whether these are inclusive. Each request
therefore begins at the last second of the previous page, and submissions whose id is already known are skipped: those
of one second that fall on both sides of a page boundary are neither lost nor duplicated.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterable, Mapping
from typing import Any

from pipelines.errors import InputError
from pipelines.stages.scrape.api_client import ApiClient, SlowQueryError

Record = dict[str, Any]

_SEARCH = "/api/posts/search"
# The fields that links are built from, of those that the API can return.
_FIELDS = ("created_utc", "crosspost_parent", "id", "over_18", "score", "subreddit", "title", "url")
# How many records to request, the largest first; `auto` returns 100 to 1,000 depending on the server's load. Smaller
# limits are for queries that the server aborts as too slow.
_LIMITS = ("auto", "100", "50", "25", "10")
_MIN_OF_AUTO = 100
_THREAD = re.compile(r"^(?:https?://(?:[a-z]+\.)?reddit\.com)?/(?:r/[^/]+/)?comments/([0-9a-z]+)", re.IGNORECASE)


@dataclasses.dataclass(frozen=True)
class Window:
    """A time span: from `start` on, before `end`; seconds since 1970, UTC."""

    start: int
    end: int


@dataclasses.dataclass(frozen=True)
class SearchPage:
    """The new submissions of one response, in order of time; `last` if no more can follow."""

    records: list[Record]
    last: bool


def subreddit_queries(name: str) -> list[dict[str, str]]:
    """Return the one query for the submissions of a subreddit."""
    return [{"subreddit": name}]


def domain_queries(host: str) -> list[dict[str, str]]:
    """Return the queries that together match the links to a host and to `www.` in front of it.

    The API matches prefixes of URLs, so `https://example.com` alone would also match `https://example.com.net/`: each
    query ends the host with a slash or with the end of the URL.
    """
    hosts = [host] if host.startswith("www.") else [host, f"www.{host}"]
    prefixes = [f"{scheme}://{name}" for name in hosts for scheme in ("http", "https")]
    return [{"url": f"{prefix}/"} for prefix in prefixes] + [{"url": url, "url_exact": "true"} for url in prefixes]


class Search:
    """One query in a time window, requested page by page; `resume_after` skips what was read before."""

    def __init__(self, client: ApiClient, query: Mapping[str, str], window: Window) -> None:
        self._client = client
        self._query = dict(query)
        self._window = window
        self._second = window.start
        self._known: dict[str, int] = {}
        self._limit_index = 0
        self._after_is_inclusive = False

    def resume_after(self, records: Iterable[Record]) -> None:
        """Mark records as read; they must go back at least to the second before the newest of them."""
        for record in records:
            self._known[record["id"]] = record["created_utc"]
            self._second = max(self._second, record["created_utc"])
        self._known = {id: second for id, second in self._known.items() if second >= self._second - 1}

    def next_page(self) -> SearchPage:
        """Request the next page.

        Raises InputError if a single second has more submissions than a response, and as `ApiClient.records` does.
        """
        records, full = self._request()
        new = self._new_records(records)
        if full and not new:
            # Retry with the largest limit; it is known by now whether `after` is inclusive, which may reach further.
            self._limit_index = 0
            records, full = self._request()
            new = self._new_records(records)
        passed_end = bool(records) and records[-1]["created_utc"] >= self._window.end
        if not new and full and not passed_end:
            raise InputError(
                f"{self._label}: the second {self._second} (UTC) has at least {len(records)} submissions, more than "
                "the API returns at once, so some would be lost; use the dump of that month instead"
            )
        self.resume_after(new)
        return SearchPage(new, last=not new or passed_end)

    @property
    def _label(self) -> str:
        return " ".join(self._query.values())

    def _request(self) -> tuple[list[Record], bool]:
        """Return the records from the last known second on, and whether there may be more."""
        while True:
            limit = _LIMITS[self._limit_index]
            try:
                response = self._client.records(_SEARCH, self._parameters(limit))
            except SlowQueryError:
                if self._limit_index + 1 == len(_LIMITS):
                    raise
                self._limit_index += 1
                continue
            records = [self._make_record(fields) for fields in response]
            if any(first["created_utc"] > second["created_utc"] for first, second in itertools.pairwise(records)):
                raise InputError(f"{self._label}: the response is not sorted by time; is --api-url an Arctic Shift?")
            self._limit_index = max(0, self._limit_index - 1)
            self._after_is_inclusive |= bool(records) and records[0]["created_utc"] < self._second
            return records, len(records) >= (_MIN_OF_AUTO if limit == "auto" else int(limit))

    def _parameters(self, limit: str) -> dict[str, str]:
        after = self._second if self._after_is_inclusive else self._second - 1
        times = {"after": str(after), "before": str(self._window.end)}
        return {**self._query, **times, "sort": "asc", "limit": limit, "fields": ",".join(_FIELDS)}

    def _new_records(self, records: list[Record]) -> list[Record]:
        unique = {record["id"]: record for record in records if record["id"] not in self._known}
        return [record for record in unique.values() if self._window.start <= record["created_utc"] < self._window.end]

    def _make_record(self, fields: Record) -> Record:
        record = {name: fields[name] for name in _FIELDS if name in fields}
        try:
            record["created_utc"] = int(record["created_utc"])
            record["id"] = str(record["id"]).removeprefix("t3_")
        except (KeyError, TypeError, ValueError, OverflowError):
            raise InputError(f"{self._label}: the response has a submission without id or created_utc") from None
        record["is_self"] = _is_self(record)
        return record


def _is_self(record: Record) -> bool:
    """Return whether a submission links to its own thread, or as a crosspost to the thread of the repeated post.

    The API does not return `is_self`; this is what the URL of a self post is.
    """
    thread = _THREAD.match(str(record.get("url")))
    parent = str(record.get("crosspost_parent") or "").removeprefix("t3_")
    return thread is not None and thread[1].lower() in (record["id"], parent)
