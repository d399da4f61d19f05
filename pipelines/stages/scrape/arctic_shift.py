"""Arctic Shift: its search, page by page in order of time, and submissions by id.

The API has no cursor, only `after` and `before`, and does not document whether these are inclusive. Each request
therefore begins at the last second of the previous page, and submissions whose id is already known are skipped: those
of one second that fall on both sides of a page boundary are neither lost nor duplicated. Each page is stored as it
arrives, so that a killed run resumes after the last one.
"""

from __future__ import annotations

import datetime as dt
import itertools
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from pipelines import progress, storage
from pipelines.engine.manifest import ShardEntry
from pipelines.engine.retry import (
    Retries,
    RetryableError,
    RetryPolicy,
    check_proxies,
    describe_failure,
    is_retryable_status,
    requested_wait_s,
    shorten,
)
from pipelines.engine.run import StageRun, TaskResult
from pipelines.errors import InputError, UsageError
from pipelines.format import mask_credentials
from pipelines.stages.scrape.config import ScrapeConfig
from pipelines.stages.scrape.decision import SubmissionFilter, subreddit_names
from pipelines.stages.scrape.sources import write_listing

Record = dict[str, Any]

_USER_AGENT = "webtext/0.1"
# At most two requests per second.
REQUEST_DELAY_S = 0.5
_TIMEOUT_S = (10.0, 90.0)  # to connect, and between two chunks of a response
# A server that asks for a pause of more than an hour is not waited for.
_POLICY = RetryPolicy(attempts=8, longest_wait_s=3600.0)
_LONG_WAIT_S = 60.0

# Arctic Shift archives a submission when it is posted, and updates its score after about this time.
_SCORES_SETTLE_S = 36 * 3600
_FIRST_SUBMISSION_UTC = 1117584000  # 2005-06-01
_HOST = re.compile(r"(?:[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?\.)+[a-z0-9-]+")

# The fields that links are built from, of those that the API can return.
_FIELDS = ("author", "created_utc", "crosspost_parent", "id", "over_18", "score", "subreddit", "title", "url")
# How many records to request, the largest first; `auto` returns 100 to 1,000 depending on the server's load. Smaller
# limits are for queries that the server aborts as too slow.
_LIMITS = ("auto", "100", "50", "25", "10")
_MIN_OF_AUTO = 100
# The number of ids per request by id; a query that is too slow for the server is halved down to this.
_MIN_IDS = 50
_THREAD = re.compile(r"^(?:https?://(?:[a-z]+\.)?reddit\.com)?/(?:r/[^/]+/)?comments/([0-9a-z]+)", re.IGNORECASE)


class SlowQueryError(InputError):
    """The server aborted a query because it took too long; a smaller one may succeed."""


class ApiClient:
    """Client of the JSON API: one request at a time, rate limited, retried after failures and malformed responses.

    In practice the API sends 429 with the time to wait in a header, 500 and 502 for minutes, truncated bodies, and 422
    for a query that took the server too long. Tests replace `clock` (monotonic, s), `now` (s since 1970) and `sleep`.
    """

    def __init__(
        self,
        base_url: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        import requests

        check_proxies()
        self._base_url = base_url.rstrip("/")
        self._clock, self._now, self._sleep = clock, now, sleep
        self._session = requests.Session()
        self._session.headers.update({"User-Agent": _USER_AGENT, "Accept": "application/json"})
        self._next_request = clock()
        self._retries = Retries(mask_credentials(self._base_url).rpartition("//")[2], _POLICY, clock, sleep)

    def records(self, path: str, parameters: Mapping[str, str]) -> list[Record]:
        """Return the list under `data` in the response to a query.

        Waits as long as the server requests. Makes up to 8 attempts after failed connections, server errors and
        malformed responses, 3 if the server was never reached. Raises SlowQueryError if the server aborted the query,
        InputError for other refusals and after the last attempt.
        """
        return self._retries.run(lambda: self._request(path, parameters))

    def _request(self, path: str, parameters: Mapping[str, str]) -> list[Record]:
        import requests

        delay_s = self._next_request - self._clock()
        if delay_s > _LONG_WAIT_S:
            self._retries.note(f"rate limit reached; waiting {delay_s:.0f} s")
        if delay_s > 0:
            self._sleep(delay_s)
        self._next_request = self._clock() + REQUEST_DELAY_S
        try:
            response = self._session.get(self._base_url + path, params=dict(parameters), timeout=_TIMEOUT_S)
        except (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError) as error:
            raise describe_failure(error) from error
        except requests.RequestException as error:
            raise InputError(f"{self._base_url}: failed ({shorten(str(error))}); check --api-url, proxy") from error
        status, wait_s = response.status_code, None
        if status == 429 or _is_used_up(response.headers):
            wait_s = requested_wait_s(response.headers, self._now())
            self._retries.check_wait(wait_s)
            self._postpone(wait_s or 0.0)
        if is_retryable_status(status):
            raise RetryableError(f"status {status} {response.reason or ''}".strip(), requested_wait_s=wait_s)
        try:
            value = json.loads(response.content)
        except (ValueError, RecursionError) as error:
            raise RetryableError(f"{len(response.content)} bytes that are not JSON") from error
        reason = value.get("error") if isinstance(value, dict) else None
        message = shorten(str(reason)) if reason else ""
        if status == 422 and "time" in message.lower():
            self._postpone(2.0)
            raise SlowQueryError(
                f"{self._base_url}{path}: the server aborted the query as too slow ({message}); "
                "re-run the same command later to resume"
            )
        if status != 200:
            raise InputError(f"{self._base_url}{path}: refused with status {status} ({message or 'no reason given'})")
        records = value.get("data") if isinstance(value, dict) else None
        if not isinstance(records, list) or not all(isinstance(record, dict) for record in records):
            raise RetryableError(f"no list of records, but {message or 'unexpected JSON'}")
        return records

    def _postpone(self, delay_s: float) -> None:
        self._next_request = max(self._next_request, self._clock() + delay_s)


def _is_used_up(headers: Mapping[str, str]) -> bool:
    try:
        return float(headers.get("X-RateLimit-Remaining", "1")) < 1
    except ValueError:
        return False


def archived_records(client: ApiClient, ids: list[str]) -> list[Record]:
    """Return `id` and `score` of the submissions of up to 500 ids, without unknown ones."""
    try:
        return client.records("/api/posts/ids", {"ids": ",".join(ids), "fields": "id,score"})
    except SlowQueryError:
        if len(ids) <= _MIN_IDS:
            raise
        half = len(ids) // 2
        return archived_records(client, ids[:half]) + archived_records(client, ids[half:])


def check_options(config: ScrapeConfig) -> None:
    """Raise UsageError unless either subreddits or valid hosts are named."""
    if bool(config.subreddit) == bool(config.host):
        raise UsageError("--source arctic-shift needs either --subreddit or --host")
    for host in _hosts(config):
        if not _HOST.fullmatch(host):
            raise UsageError(f"--host {host}: is not a host such as example.com (no scheme, no path)")


def _hosts(config: ScrapeConfig) -> list[str]:
    return list(dict.fromkeys(host.lower().rstrip(".") for host in config.host))


def fetch_listings(run: StageRun, config: ScrapeConfig, filter: SubmissionFilter) -> Iterator[ShardEntry]:
    """Yield the entry of the listing of each subreddit or host, which is requested unless it is stored."""
    start, end = _fixed_window(run, config, filter)
    client = ApiClient(config.api_url)
    targets = [(name, [{"subreddit": name}]) for name in subreddit_names(config)]
    targets += [(host, domain_queries(host)) for host in _hosts(config)]
    for index, (target, queries) in enumerate(targets):
        stored = [_StoredPages(run.work, f"page-{index:05d}-{number}-") for number in range(len(queries))]

        def store(
            index: int = index, queries: list[dict[str, str]] = queries, stored: list[_StoredPages] = stored
        ) -> TaskResult:
            for query, pages in zip(queries, stored, strict=True):
                pages.fetch_missing(Search(client, query, start, end))
            return write_listing(run.output, index, (line for pages in stored for line in pages.lines()))

        entry = run.once(f"listing-{target.lower()}", store, unit="submissions")
        for pages in stored:
            pages.remove()
        if not entry.counts["listed_submissions"]:
            run.note(f"{target}: Arctic Shift has no submissions in this time range; check the name and the dates")
        yield entry


class _StoredPages:
    """The pages of one search in the work folder, numbered from 0."""

    def __init__(self, folder: str, prefix: str) -> None:
        self._folder = folder
        self._prefix = prefix

    def fetch_missing(self, search: Search) -> None:
        """Request and store the pages after the last stored one."""
        is_last = False
        names = self._names()
        for name in names:
            submissions, is_last = self._read(name)
            search.resume_after(submissions)
        for number in itertools.count(len(names)):
            if is_last:
                break
            submissions, is_last = search.next_page()
            path = storage.join(self._folder, f"{self._prefix}{number:07d}.json")
            storage.write_bytes(path, json.dumps({"submissions": submissions, "last": is_last}).encode())
            progress.advance(len(submissions))

    def lines(self) -> Iterator[bytes]:
        """Yield all submissions as lines of NDJSON sorted by time and id, whatever the order of the responses."""
        records = (record for name in self._names() for record in self._read(name)[0])
        for _, same_second in itertools.groupby(records, key=lambda record: record["created_utc"]):
            for record in sorted(same_second, key=lambda record: record["id"]):
                yield json.dumps(record, ensure_ascii=True, sort_keys=True).encode() + b"\n"

    def remove(self) -> None:
        """Remove the files."""
        for name in self._names():
            storage.remove(storage.join(self._folder, name))

    def _names(self) -> list[str]:
        return [name for name in storage.list_folder(self._folder) if name.startswith(self._prefix)]

    def _read(self, name: str) -> tuple[list[Record], bool]:
        page = storage.read_json(storage.join(self._folder, name))
        return page["submissions"], page["last"]


def _fixed_window(run: StageRun, config: ScrapeConfig, filter: SubmissionFilter) -> tuple[int, int]:
    """Return the first second to request and the one after the last, which is fixed when a run starts."""
    start = _FIRST_SUBMISSION_UTC if filter.after is None else filter.after

    def fix_end() -> TaskResult:
        newest = int(time.time()) - (0 if config.accept_fresh_scores else _SCORES_SETTLE_S)
        end = newest if filter.before is None else min(newest, filter.before)
        if end <= start:
            raise UsageError(
                f"--after {config.after}: scores of submissions less than 36 hours old are not final; "
                "choose an earlier day, or add --accept-fresh-scores"
            )
        return TaskResult(counts={"asked_until_utc": end})

    end = int(run.once("window", fix_end).counts["asked_until_utc"])
    if filter.before is None or end < filter.before:
        date = dt.datetime.fromtimestamp(end, dt.UTC).strftime("%Y-%m-%d %H:%M:%S")
        why = "" if config.accept_fresh_scores else "; the scores of the last 36 hours are not final yet"
        run.note(f"requesting submissions from Arctic Shift up to {date} UTC{why}")
    return start, end


def domain_queries(host: str) -> list[dict[str, str]]:
    """Return the queries that together match the links to a host and to `www.` in front of it.

    The API matches prefixes of URLs, so `https://example.com` alone would also match `https://example.com.net/`: each
    query ends the host with a slash or with the end of the URL.
    """
    hosts = [host] if host.startswith("www.") else [host, f"www.{host}"]
    prefixes = [f"{scheme}://{name}" for name in hosts for scheme in ("http", "https")]
    return [{"url": f"{prefix}/"} for prefix in prefixes] + [{"url": url, "url_exact": "true"} for url in prefixes]


class Search:
    """One query from `start` on, before `end` (seconds since 1970), requested page by page.

    `resume_after` skips what was read before.
    """

    def __init__(self, client: ApiClient, query: Mapping[str, str], start: int, end: int) -> None:
        self._client = client
        self._query = query
        self._label = " ".join(query.values())
        self._start, self._end = start, end
        self._second = start
        self._known: dict[str, int] = {}
        self._limit_index = 0
        self._after_is_inclusive = False

    def resume_after(self, records: Iterable[Record]) -> None:
        """Mark records as read."""
        for record in records:
            self._known[record["id"]] = record["created_utc"]
            self._second = max(self._second, record["created_utc"])
        self._known = {id: second for id, second in self._known.items() if second >= self._second - 1}

    def next_page(self) -> tuple[list[Record], bool]:
        """Return the new submissions of the next page, in order of time, and whether no more can follow.

        Raises InputError if a single second has more submissions than a response, and as `ApiClient.records` does.
        """
        records, full = self._request()
        new = self._new_records(records)
        if full and not new:
            # Retry with the largest limit; it is known by now whether `after` is inclusive, which may reach further.
            self._limit_index = 0
            records, full = self._request()
            new = self._new_records(records)
        passed_end = bool(records) and records[-1]["created_utc"] >= self._end
        if not new and full and not passed_end:
            raise InputError(
                f"{self._label}: the second {self._second} (UTC) has at least {len(records)} submissions, more than "
                "the API returns at once, so some would be lost; use the dump of that month instead"
            )
        self.resume_after(new)
        return new, not new or passed_end

    def _request(self) -> tuple[list[Record], bool]:
        """Return the records from the last known second on, and whether there may be more."""
        while True:
            limit = _LIMITS[self._limit_index]
            after = self._second if self._after_is_inclusive else self._second - 1
            times = {"after": str(after), "before": str(self._end)}
            options = {"sort": "asc", "limit": limit, "fields": ",".join(_FIELDS)}
            try:
                response = self._client.records("/api/posts/search", {**self._query, **times, **options})
            except SlowQueryError:
                if self._limit_index + 1 == len(_LIMITS):
                    raise
                self._limit_index += 1
                continue
            records = [self._make_record(fields) for fields in response]
            if any(first["created_utc"] > second["created_utc"] for first, second in itertools.pairwise(records)):
                raise InputError(f"{self._label}: the response is not sorted by time; check --api-url")
            self._limit_index = max(0, self._limit_index - 1)
            self._after_is_inclusive |= bool(records) and records[0]["created_utc"] < self._second
            return records, len(records) >= (_MIN_OF_AUTO if limit == "auto" else int(limit))

    def _new_records(self, records: list[Record]) -> list[Record]:
        unique = {record["id"]: record for record in records if record["id"] not in self._known}
        return [record for record in unique.values() if self._start <= record["created_utc"] < self._end]

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
