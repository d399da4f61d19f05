"""Arctic Shift's search, page by page in order of time.

The API has no cursor, only `after` and `before`, and does not say whether they include their own second. So each page
is asked for from the last second of the page before on, once more, and what is known by its id is left out: submissions
of one second that a page's edge cut apart are neither lost nor doubled.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterable, Mapping
from typing import Any

from pipelines.core.errors import InputError
from pipelines.stages.scrape.api_client import ApiClient, SlowQueryError

Record = dict[str, Any]

_SEARCH = "/api/posts/search"
# What the links are made of, of the fields that the API lets one choose.
_FIELDS = ("created_utc", "crosspost_parent", "id", "over_18", "score", "subreddit", "title", "url")
# How many records to ask for, the most first; `auto` brings 100 to 1,000, as the server can. It gives slow queries up.
_LIMITS = ("auto", "100", "50", "25", "10")
_LEAST_OF_AUTO = 100
_THREAD = re.compile(r"^(?:https?://(?:[a-z]+\.)?reddit\.com)?/(?:r/[^/]+/)?comments/([0-9a-z]+)", re.IGNORECASE)


@dataclasses.dataclass(frozen=True)
class Window:
    """A span of time: from `start` on, before `end`; seconds since 1970, UTC."""

    start: int
    end: int


@dataclasses.dataclass(frozen=True)
class Page:
    """The submissions that one answer added, in order of time; `last` where nothing can come after them."""

    records: list[Record]
    last: bool


def subreddit_queries(name: str) -> list[dict[str, str]]:
    """Return the one query for the submissions of a subreddit."""
    return [{"subreddit": name}]


def domain_queries(host: str) -> list[dict[str, str]]:
    """Return the queries that together find the links to a host and to `www.` before it.

    The API compares the beginning of a URL, so `https://example.com` alone would also find `https://example.com.net/`:
    each query ends the host, by a slash or by being the whole URL.
    """
    hosts = [host] if host.startswith("www.") else [host, f"www.{host}"]
    starts = [f"{scheme}://{each}" for each in hosts for scheme in ("http", "https")]
    return [{"url": f"{start}/"} for start in starts] + [{"url": start, "url_exact": "true"} for start in starts]


class Search:
    """One query in a window of time, asked for page by page; `go_on_after` takes up what was read before."""

    def __init__(self, client: ApiClient, query: Mapping[str, str], window: Window) -> None:
        self._client = client
        self._query = dict(query)
        self._window = window
        self._second = window.start
        self._known: dict[str, int] = {}
        self._limit = 0
        self._after_is_included = False

    def go_on_after(self, records: Iterable[Record]) -> None:
        """Count records as read; they reach back at least to the second before the newest of them."""
        for record in records:
            self._known[record["id"]] = record["created_utc"]
            self._second = max(self._second, record["created_utc"])
        self._known = {id: second for id, second in self._known.items() if second >= self._second - 1}

    def next_page(self) -> Page:
        """Ask for the next page.

        Raises InputError where more submissions are of one second than an answer holds, and as `ApiClient.records`.
        """
        records, full = self._ask()
        new = self._new(records)
        if full and not new:
            # The largest limit, and by now it is known whether `after` includes its own second: that may go further.
            self._limit = 0
            records, full = self._ask()
            new = self._new(records)
        passed_end = bool(records) and records[-1]["created_utc"] >= self._window.end
        if not new and full and not passed_end:
            raise InputError(
                f"{self._words()}: {len(records)} submissions and more are of the second {self._second} (UTC), which "
                "is more than the API gives at once, so that some would be lost; take the dump of that month instead"
            )
        self.go_on_after(new)
        return Page(new, last=not new or passed_end)

    def _ask(self) -> tuple[list[Record], bool]:
        """Return the records from the last known second on, and whether there may be more than these."""
        while True:
            limit = _LIMITS[self._limit]
            try:
                answer = self._client.records(_SEARCH, self._parameters(limit))
            except SlowQueryError:
                if self._limit + 1 == len(_LIMITS):
                    raise
                self._limit += 1
                continue
            records = [self._record(each) for each in answer]
            if any(one["created_utc"] > two["created_utc"] for one, two in itertools.pairwise(records)):
                raise InputError(f"{self._words()}: the answer is not in order of time; is --api-url an Arctic Shift?")
            self._limit = max(0, self._limit - 1)
            self._after_is_included |= bool(records) and records[0]["created_utc"] < self._second
            return records, len(records) >= (_LEAST_OF_AUTO if limit == "auto" else int(limit))

    def _parameters(self, limit: str) -> dict[str, str]:
        after = self._second if self._after_is_included else self._second - 1
        times = {"after": str(after), "before": str(self._window.end)}
        return {**self._query, **times, "sort": "asc", "limit": limit, "fields": ",".join(_FIELDS)}

    def _new(self, records: list[Record]) -> list[Record]:
        fresh = {record["id"]: record for record in records if record["id"] not in self._known}
        return [record for record in fresh.values() if self._window.start <= record["created_utc"] < self._window.end]

    def _record(self, answer: Record) -> Record:
        record = {field: answer[field] for field in _FIELDS if field in answer}
        try:
            record["created_utc"] = int(record["created_utc"])
            record["id"] = str(record["id"]).removeprefix("t3_")
        except (KeyError, TypeError, ValueError):
            raise InputError(f"{self._words()}: an answer holds a submission without id or created_utc") from None
        record["is_self"] = _is_self(record)
        return record

    def _words(self) -> str:
        return " ".join(self._query.values())


def _is_self(record: Record) -> bool:
    """Tell whether a submission links to its own thread, or as a crosspost to that of the post that it repeats.

    The API does not offer `is_self`; this is what the URL of a self post is.
    """
    thread = _THREAD.match(record.get("url") or "")
    parent = str(record.get("crosspost_parent") or "").removeprefix("t3_")
    return thread is not None and thread[1].lower() in (record["id"], parent)
