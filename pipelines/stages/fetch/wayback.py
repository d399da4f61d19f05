"""Pages from the Wayback Machine: for each link, a query of its index (CDX) and the capture as it was received.

It serves a few requests per minute, and blocks who ignores that: one process asks, at a rate, up to a budget.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import itertools
import json
import re
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import requests

from pipelines.core import progress
from pipelines.core.errors import WebtextError, exception_chain
from pipelines.core.retry import RetryPolicy, is_retryable_status, requested_wait_s
from pipelines.core.run import StageRun, TaskResult
from pipelines.stages.fetch.captures import (
    Capture,
    CaptureError,
    Wanted,
    is_same_page,
    record_answer,
    usable_response,
    wanted_links,
)
from pipelines.stages.fetch.config import FetchConfig
from pipelines.stages.fetch.crawl import check_stop_file, user_agent
from pipelines.stages.fetch.exchange import Response
from pipelines.stages.fetch.known import FetchContext
from pipelines.stages.fetch.links import LinkShard
from pipelines.stages.fetch.segments import SegmentWriter
from pipelines.stages.fetch.visit import REDIRECTS

_CAPTURES = 5
_MAX_REDIRECTS = 5
_POLICY = RetryPolicy(attempts=6, longest_backoff_s=600.0)
# After a 429 without Retry-After; those who ask on are blocked for an hour.
_REFUSED_S = 60.0
_STAMP = "%Y%m%d%H%M%S"
_PLAYBACK = re.compile(r"/web/(\d{14})id_/(.+)")
_ORIGINAL = "x-archive-orig-"


class _OutOfBudgetError(Exception):
    """The requests of this run are used up."""


class Wayback:
    """Sends requests at a rate, up to a budget."""

    def __init__(self, config: FetchConfig) -> None:
        self._config = config
        self._session = requests.Session()
        self._session.headers["User-Agent"] = user_agent(config)
        self._next_at = 0.0
        self.sent = 0

    def find_page(self, wanted: Wanted) -> tuple[Capture | None, Counter[str]]:
        """Return the capture nearest to the time of a link that is a page; count the others by reason."""
        refused: Counter[str] = Counter()
        for stamp, original in self._query(wanted):
            try:
                if not is_same_page(original, wanted.url):
                    raise CaptureError("other_page")
                return self._playback(stamp, original, wanted), refused
            except CaptureError as error:
                refused[str(error)] += 1
        return None, refused

    def _query(self, wanted: Wanted) -> list[tuple[str, str]]:
        """Return time stamp and URL of the captures of a link, the nearest first."""
        at = dt.datetime.now(dt.UTC) if wanted.at is None else dt.datetime.fromtimestamp(wanted.at, dt.UTC)
        parameters: dict[str, Any] = {
            "url": wanted.url,
            "output": "json",
            "fl": "timestamp,original",
            "filter": ["statuscode:200|30[12378]", "!mimetype:warc/revisit"],
            "sort": "closest",
            "closest": at.strftime(_STAMP),
            "limit": _CAPTURES,
        }
        if self._config.archive_window is not None and wanted.at is not None:
            window = dt.timedelta(days=self._config.archive_window)
            parameters |= {"from": (at - window).strftime(_STAMP), "to": (at + window).strftime(_STAMP)}
        return _index_rows(*self._get(f"{self._config.wayback_url}/cdx/search/cdx", parameters))

    def _playback(self, stamp: str, original: str, wanted: Wanted) -> Capture:
        url = f"{self._config.wayback_url}/web/{stamp}id_/{original}"
        for _ in range(1 + _MAX_REDIRECTS):
            answer, body = self._get(url)
            place = _PLAYBACK.search(answer.url)
            if place is None:
                raise CaptureError("left_the_archive")
            if answer.status_code in REDIRECTS:
                url = requests.compat.urljoin(answer.url, answer.headers.get("Location", ""))
                if not url.startswith(self._config.wayback_url):
                    raise CaptureError("left_the_archive")
                continue
            headers = list(answer.headers.items())
            stored = [(name[len(_ORIGINAL) :], value) for name, value in headers if name.lower().startswith(_ORIGINAL)]
            stored = [(name, value) for name, value in stored if name.lower() != "content-encoding"] or headers
            if not any(name.lower() == "content-type" for name, _ in stored):
                stored.append(("Content-Type", answer.headers.get("Content-Type", "")))
            response = Response(answer.status_code, answer.reason, "HTTP/1.1", tuple(stored), body=body)
            captured_at = dt.datetime.strptime(place[1], _STAMP).replace(tzinfo=dt.UTC)
            response = usable_response(response, place[2], wanted, self._config)
            return Capture(place[2], captured_at, response, answer.url)
        raise CaptureError("too_many_redirects")

    def _get(self, url: str, parameters: dict[str, Any] | None = None) -> tuple[requests.Response, bytes]:
        """Send a request when the rate allows it, again after what passes; raise WebtextError if it does not pass.

        With parameters, it is one to the index.
        """
        for failures in range(1, _POLICY.attempts + 1):
            if self.sent >= self._config.wayback_requests:
                raise _OutOfBudgetError
            time.sleep(max(0.0, self._next_at - time.monotonic()))
            self._next_at = time.monotonic() + 60.0 / self._config.wayback_rate
            self.sent += 1
            wait_s: float | None = None
            try:
                with self._session.get(
                    url, params=parameters, timeout=self._config.timeout, allow_redirects=False, stream=True
                ) as answer:
                    if not is_retryable_status(answer.status_code):
                        body = self._read(answer)
                        if parameters:
                            _index_rows(answer, body)
                        return answer, body
                problem = f"status {answer.status_code}"
                wait_s = requested_wait_s(answer.headers, time.time())
                if wait_s is None and answer.status_code == 429:
                    wait_s = _REFUSED_S * 2 ** (failures - 1)
            except requests.RequestException as error:
                problem = str(list(exception_chain(error))[-1])
            if (delay_s := _POLICY.delay_s(failures, wait_s)) is None:
                break
            self._next_at = time.monotonic() + delay_s
        raise WebtextError(
            f"{self._config.wayback_url}: does not answer ({problem}, {_POLICY.attempts} times); what it has answered "
            "is kept. Re-run the same command later to resume, with a lower --wayback-rate if it refused"
        )

    def _read(self, answer: requests.Response) -> bytes:
        """Return the body, up to one byte more than a page may have; raise Timeout if it takes too long."""
        body, deadline = bytearray(), time.monotonic() + 4 * self._config.timeout
        for chunk in answer.iter_content(1 << 16):
            body += chunk
            if len(body) > self._config.max_bytes:
                break
            if time.monotonic() > deadline:
                raise requests.Timeout("the answer takes too long")
        return bytes(body[: self._config.max_bytes + 1])


def _index_rows(answer: requests.Response, body: bytes) -> list[tuple[str, str]]:
    """Return time stamp and URL of the captures in an answer of the index; raise RequestException for any other."""
    if answer.status_code in (403, 404):
        return []  # excluded by the site's owner, or never captured
    answer.raise_for_status()
    with contextlib.suppress(ValueError, TypeError):
        rows = json.loads(body) if body.strip() else []
        return [(str(stamp), str(original)) for stamp, original in rows[1:]]
    problem = f"an answer of its index that is none, to {answer.url}: {body[:80].decode('utf-8', 'replace')!r}"
    raise requests.exceptions.InvalidJSONError(problem)


def ask_wayback(run: StageRun, link_shards: Sequence[LinkShard], context: FetchContext, token: str) -> None:
    """Look up the wanted links one by one, and store the nearest page of each, until the budget is used up."""
    config = context.config
    wayback = Wayback(config)
    every = itertools.chain.from_iterable(wanted_links(context, shard, token) for shard in link_shards)
    total = sum(1 for _ in itertools.islice(every, config.wayback_requests))

    def ask(shard: LinkShard) -> TaskResult:
        left = 0
        with SegmentWriter(context.segments_folder(shard)) as writer:
            for wanted in list(wanted_links(context, shard, token)):
                check_stop_file(config)
                try:
                    capture, refused = wayback.find_page(wanted)
                except _OutOfBudgetError:
                    left += 1
                    continue
                record_answer(writer, wanted, token, capture, refused)
                progress.advance(1)
                writer.flush_if_due()
        return TaskResult(counts={"wayback_not_asked": left})

    entries = run.map(ask, link_shards, phase=token, work=True, serial=True, total=total)
    if left := int(sum(entry.counts.get("wayback_not_asked", 0) for entry in entries)):
        run.note(f"wayback: {left:,} links were not asked for; raise --wayback-requests and re-run to ask for the rest")
