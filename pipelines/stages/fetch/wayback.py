"""Pages from the Wayback Machine: for each link, a query of its index (CDX) and the capture as it was received.

It serves a few requests per minute, and blocks clients that ignore that: one process sends them at a rate, up to a
budget.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import itertools
import json
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlencode

from pipelines import progress
from pipelines.engine.retry import Retries, RetryableError, RetryPolicy, is_retryable_status
from pipelines.engine.run import StageRun, TaskResult
from pipelines.errors import InputError
from pipelines.records.documents import parse_instant
from pipelines.stages.fetch.captures import Capture, Wanted, find_page, is_same_page, record_answer, wanted_links
from pipelines.stages.fetch.config import FetchConfig
from pipelines.stages.fetch.crawl import user_agent
from pipelines.stages.fetch.exchange import Response
from pipelines.stages.fetch.links import LinkShard, redirect_url, request_url
from pipelines.stages.fetch.outcomes import REDIRECTS, Failure
from pipelines.stages.fetch.segments import FetchContext, SegmentWriter
from pipelines.stages.fetch.transfer import Request
from pipelines.stages.fetch.transport import Client

# The index ignores case, so some rows may be of other pages; at most this many captures of the page are requested.
_INDEX_ROWS = 50
_CAPTURES = 5
_INDEX_BYTES = 1 << 20
_MAX_REDIRECTS = 5
_POLICY = RetryPolicy(attempts=6, longest_backoff_s=600.0, longest_wait_s=3600.0)
# After this many links in a row without an answer, the archive is down.
_UNANSWERED_LINKS = 3
# After a 429 without Retry-After; clients that ignore it are blocked for an hour.
_REFUSED_S = 60.0
_STAMP = "%Y%m%d%H%M%S"
_PLAYBACK = re.compile(r"/web/(\d{8})(\d{6})id_/(.+)")
_ORIGINAL = "x-archive-orig-"


class _OutOfBudgetError(Exception):
    """The requests of this run are used up."""


class Wayback:
    """Sends requests at a rate, up to a budget; `refusals` are the answers 429 in a row."""

    def __init__(self, config: FetchConfig, client: Client[None]) -> None:
        self._config = config
        self._client = client
        self._retries = Retries(config.wayback_url, _POLICY, sleep=self._pause)
        self._next_at = 0.0
        self._sent = 0
        self.refusals = 0

    def find_page(self, wanted: Wanted) -> tuple[Capture | None, Counter[str]]:
        """Return the capture nearest to the time of a link that is a page; count the others by reason.

        Raises InputError if there is no answer.
        """
        captures = self._query(wanted)
        same = [capture for capture in captures if is_same_page(capture["url"], wanted.url)]
        others = [capture for capture in captures if capture not in same]
        page, _, refused = find_page([*others, *same[:_CAPTURES]], self._playback, wanted, wanted.url, self._config)
        return page, refused

    def _query(self, wanted: Wanted) -> list[dict[str, str]]:
        """Return time stamp and URL of the captures of a link, the nearest first."""
        at = dt.datetime.now(dt.UTC) if wanted.at is None else dt.datetime.fromtimestamp(wanted.at, dt.UTC)
        parameters: dict[str, Any] = {
            "url": wanted.url,
            "output": "json",
            "fl": "timestamp,original",
            "filter": ["statuscode:200|30[12378]", "!mimetype:warc/revisit"],
            "sort": "closest",
            "closest": at.strftime(_STAMP),
            "limit": _INDEX_ROWS,
        }
        if self._config.archive_window is not None and wanted.at is not None:
            window = dt.timedelta(days=self._config.archive_window)
            parameters |= {"from": (at - window).strftime(_STAMP), "to": (at + window).strftime(_STAMP)}
        url = f"{self._config.wayback_url}/cdx/search/cdx?{urlencode(parameters, doseq=True)}"
        return self._retries.run(lambda: self._send(url, _index_rows))

    def _playback(self, row: dict[str, str]) -> Capture:
        url = request_url(f"{self._config.wayback_url}/web/{row['timestamp']}id_/{row['url']}")
        for _ in range(1 + _MAX_REDIRECTS):
            answer = self._retries.run(functools.partial(self._send, url))
            place = _PLAYBACK.search(url)
            if place is None:
                raise Failure("left_the_archive")
            if answer.status in REDIRECTS:
                url = redirect_url(url, answer.header("location") or "")
                if not url.startswith(f"{self._config.wayback_url}/"):
                    raise Failure("left_the_archive")
                continue
            prefix = len(_ORIGINAL)
            stored = [(name[prefix:], value) for name, value in answer.headers if name.lower().startswith(_ORIGINAL)]
            # The body is decoded.
            decoded = ("content-encoding", "content-length")
            stored = [item for item in stored or answer.headers if item[0].lower() not in decoded]
            if not any(name.lower() == "content-type" for name, _ in stored):
                stored.append(("Content-Type", answer.header("content-type") or ""))
            body = (answer.body or b"")[: self._config.max_page_bytes + 1]
            response = Response(answer.status, answer.reason, "HTTP/1.1", tuple(stored), body=body)
            if (captured_at := parse_instant(f"{place[1]}T{place[2]}Z")) is None:
                raise Failure("no_date")
            return Capture(place[3], captured_at, response, url)
        raise Failure("too_many_redirects")

    def _pause(self, seconds: float) -> None:
        """Send the next request no earlier than this."""
        self._next_at = time.monotonic() + seconds

    def _send(self, url: str, parse: Callable[[Response], Any] | None = None) -> Any:
        """Send a request when the rate allows it and return what `parse` makes of the response, by default a capture.

        Raises RetryableError for a temporary error or a ValueError of `parse`, Failure for what cannot be decoded.
        """
        if self._sent >= self._config.wayback_requests:
            raise _OutOfBudgetError
        time.sleep(max(0.0, self._next_at - time.monotonic()))
        self._pause(60.0 / self._config.wayback_rate)
        self._sent += 1
        timeout_s, max_bytes = 4 * self._config.timeout, max(self._config.max_page_bytes, _INDEX_BYTES)
        request = Request(url, timeout_s, max_bytes, lambda head: not is_retryable_status(head.status), truncate=True)
        exchange = self._client.perform(request, None)
        self.refusals = self.refusals + 1 if exchange.status == 429 else 0
        if exchange.failure is not None:
            if parse is None and exchange.failure.reason in ("bad_encoding", "unsupported_encoding"):
                raise exchange.failure
            raise RetryableError(exchange.failure.detail, unreachable=not exchange.reached)
        assert exchange.response is not None
        if is_retryable_status(exchange.response.status):
            refused_s = _REFUSED_S * 2 ** (self.refusals - 1) if self.refusals else 0.0
            raise RetryableError(f"status {exchange.status}", requested_wait_s=exchange.requested_wait_s or refused_s)
        try:
            return parse(exchange.response) if parse else exchange.response
        except ValueError as error:
            raise RetryableError(f"unexpected answer to {url}: {error}") from error


def _index_rows(answer: Response) -> list[dict[str, str]]:
    """Return time stamp and URL of the captures in an answer of the index; raise ValueError for any other."""
    if answer.status in (403, 404):
        return []  # excluded by the site's owner, or never captured
    body = (answer.body or b"")[:_INDEX_BYTES]
    with contextlib.suppress(ValueError, TypeError):
        if answer.status == 200:
            rows = json.loads(body) if body.strip() else []
            return [{"timestamp": str(stamp), "url": str(original)} for stamp, original in rows[1:]]
    raise ValueError(f"status {answer.status}, {body[:80].decode('utf-8', 'replace')!r}")


def query_wayback(run: StageRun, link_shards: Sequence[LinkShard], context: FetchContext, token: str) -> None:
    """Look up the wanted links one by one, and store the nearest page of each, until the budget is used up."""
    config = context.config
    client = Client[None]({"User-Agent": user_agent(config)}, 1, allow_private_addresses=True, decode=True)
    wayback = Wayback(config, client)
    every = itertools.chain.from_iterable(wanted_links(context, shard, token) for shard in link_shards)
    total = sum(1 for _ in itertools.islice(every, config.wayback_requests))

    def look_up_shard(shard: LinkShard) -> TaskResult:
        remaining = 0
        unanswered: list[Wanted] = []
        with SegmentWriter(context.segments_folder(shard)) as writer:
            for wanted in list(wanted_links(context, shard, token)):
                try:
                    capture, refused = wayback.find_page(wanted)
                except _OutOfBudgetError:
                    remaining += 1
                    continue
                except InputError:
                    unanswered.append(wanted)
                    if wayback.refusals or len(unanswered) == _UNANSWERED_LINKS:
                        raise
                    continue
                for link in unanswered:  # the archive answers, but not for these
                    record_answer(writer, link, token, None, {"no_answer": 1})
                unanswered.clear()
                record_answer(writer, wanted, token, capture, refused)
                progress.advance(1)
        return TaskResult(counts={"links_unanswered_by_wayback": remaining + len(unanswered)})

    with contextlib.closing(client):
        entries = run.map(look_up_shard, link_shards, phase=token, work=True, serial=True, total=total)
    if remaining := int(sum(entry.counts.get("links_unanswered_by_wayback", 0) for entry in entries)):
        run.note(
            f"wayback: {remaining:,} links were not looked up; raise --wayback-requests and re-run to look them up"
        )
