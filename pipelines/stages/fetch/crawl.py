"""The crawl of one shard: it gives hosts' visits to threads, and records what came of each link.

All state lives in the calling thread; the threads only make requests. A visit that is redirected waits in the queue of
the host that it was sent to, so politeness and robots.txt hold for every hop, and no thread waits for a turn.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import time
from collections.abc import Sequence
from typing import Protocol

from pipelines.algorithms.web.urls import registered_domain
from pipelines.core import progress
from pipelines.core.errors import WebtextError
from pipelines.stages.fetch.config import FetchConfig
from pipelines.stages.fetch.decoding import ACCEPT_ENCODING
from pipelines.stages.fetch.hosts import Host, HostQueues
from pipelines.stages.fetch.outcomes import Failure, Outcome
from pipelines.stages.fetch.robots import product_of
from pipelines.stages.fetch.threads import Threads
from pipelines.stages.fetch.transport import Client
from pipelines.stages.fetch.urls import BadUrlError, origin_of, request_url, robots_url
from pipelines.stages.fetch.visit import End, Follow, Retry, Step, Visit, take_step

_TICK_S = 0.25

# After so many pages in a row that a host failed, the rest of its links get the same outcome without a request: a host
# with a million links that answers nothing would otherwise hold its shard for months.
_GIVE_UP_AFTER = 20
_HOST_FAILURES = frozenset({"dns", "connection", "tls", "timeout", "http_rate_limited"})

# So many sites in a row without any answer mean that the fault is ours; their outcomes are not recorded.
_UNREACHED_SITES = 100
UNREACHED = frozenset({"dns", "connection", "timeout"})


class Recorder(Protocol):
    """Where records and outcomes go."""

    def append(self, records: bytes) -> int:
        """Add WARC records and return their offset."""

    def conclude(self, outcome: Outcome) -> None:
        """Add the outcome of a link."""

    def flush_if_due(self) -> None:
        """Make what was added durable, if it is time."""


def user_agent(config: FetchConfig) -> str:
    """Return the User-Agent header: the name, and how to reach who runs it."""
    return f"{config.user_agent} (+{config.contact})" if config.contact else config.user_agent


def crawl(links: Sequence[str], done: bytearray, config: FetchConfig, recorder: Recorder) -> None:
    """Fetch the links whose position is not marked in `done`, and record an outcome for each.

    Raises WebtextError where no site answers at all, StorageError where the recorder cannot write.
    """
    headers = {"User-Agent": user_agent(config), "Accept": "text/html,application/xhtml+xml,text/plain;q=0.9,*/*;q=0.1"}
    headers["Accept-Encoding"] = ACCEPT_ENCODING
    client = Client(headers, config.concurrency, config.allow_private_addresses)
    work = _Crawl(links, done, config, recorder)
    count = min(config.concurrency, max(1, work.open))
    with Threads(count, client, lambda visit: take_step(visit, client, config)) as threads:
        work.run(threads)


class _Crawl:
    def __init__(self, links: Sequence[str], done: bytearray, config: FetchConfig, recorder: Recorder) -> None:
        self._links = links
        self._config = config
        self._recorder = recorder
        self._product = product_of(config.user_agent)
        self.open = 0
        self._unreached: list[Outcome] = []
        self._unreached_sites: set[str | None] = set()
        self._queues = HostQueues(self._sorted_by_host(done), config.per_host_delay_s)

    def _sorted_by_host(self, done: bytearray) -> dict[str, list[int]]:
        """Return the positions by origin, in order; those that need no request are concluded at once."""
        waiting: dict[str, list[int]] = {}
        seen: set[str] = set()
        for link, url in enumerate(self._links):
            try:
                wire = request_url(url)
            except BadUrlError as error:
                failure: Failure | None = Failure("bad_url", str(error))
            else:
                failure = Failure("duplicate_url", "an earlier link is the same request") if wire in seen else None
                seen.add(wire)
            if done[link]:
                continue
            self.open += 1
            if failure is None:
                waiting.setdefault(origin_of(wire), []).append(link)
            else:
                self._record(Outcome(link, failure, None, None, dt.datetime.now(dt.UTC)))
        return waiting

    def run(self, threads: Threads) -> None:
        """Work until every link has its outcome."""
        while self.open:
            self._hand_out(threads)
            step = threads.take(self._pause_s(threads)) if self.open else None
            if step is not None:
                self._apply(step)
            self._recorder.flush_if_due()
        self._record_unreached()

    def _pause_s(self, threads: Threads) -> float:
        ready_at = self._queues.next_ready_at() if threads.idle else None
        return _TICK_S if ready_at is None else min(_TICK_S, max(0.0, ready_at - time.monotonic()))

    def _hand_out(self, threads: Threads) -> None:
        while threads.idle and (host := self._queues.take(time.monotonic())) is not None:
            visit = self._next_request(host)
            if visit is None:
                self._queues.release(host, host.ready_at)
            else:
                threads.submit(visit)

    def _next_request(self, host: Host) -> Visit | None:
        """Return the visit that a host is asked for next, None if none needs a request now."""
        if host.rules_visits:
            return host.rules_visits.popleft()
        while host.has_work:
            if host.rules is None and host.given_up is None:
                host.awaits_rules = True
                return Visit(robots_url(self._url_at(host)), rules_of=host.origin)
            visit = host.arrivals.popleft() if host.arrivals else self._begun(host.links.pop())
            failure = host.given_up or self._refused_by_robots(host, visit)
            if failure is None:
                return visit
            self._conclude(visit, failure, host.given_up_status if host.given_up else None)
        return None

    def _url_at(self, host: Host) -> str:
        return host.arrivals[0].url if host.arrivals else request_url(self._links[host.links[-1]])

    def _begun(self, link: int) -> Visit:
        return Visit(request_url(self._links[link]), link=link)

    def _refused_by_robots(self, host: Host, visit: Visit) -> Failure | None:
        assert host.rules is not None
        return host.rules.refusal_of(visit.url, self._product)

    def _apply(self, step: Step) -> None:
        host = self._queues.at(origin_of(step.visit.url))
        offset = self._recorder.append(step.records) if step.records else None
        if step.reached:
            self._record_unreached()
        pause_s = host.delay_s
        visit, following = step.visit, step.next
        if isinstance(following, Retry):
            pause_s = max(pause_s, min(following.after_s, self._config.max_wait_s))
            visit.tries += 1
            visit.spent_s = 0.0
            self._arrive(host, visit)
        elif isinstance(following, Follow):
            visit.passed.append(visit.url)
            visit.url = following.url
            target = self._queues.at(origin_of(visit.url))
            self._arrive(target, visit)
            if target is not host:
                self._queues.wake(target)
        elif visit.rules_of is not None:
            self._take_rules(following, self._queues.at(visit.rules_of))
        else:
            self._end(host, step, following, offset)
        self._queues.release(host, time.monotonic() + max(pause_s, host.delay_s))

    def _arrive(self, host: Host, visit: Visit) -> None:
        (host.rules_visits if visit.rules_of is not None else host.arrivals).append(visit)

    def _take_rules(self, end: End, host: Host) -> None:
        assert end.rules is not None
        host.rules, host.awaits_rules = end.rules, False
        asked_s = min(end.rules.crawl_delay_s(self._product), self._config.max_wait_s)
        host.delay_s = max(self._config.per_host_delay_s, asked_s)
        self._queues.wake(host)

    def _end(self, host: Host, step: Step, end: End, offset: int | None) -> None:
        failure = end.failure
        if failure is None:
            found = Outcome(
                _link(step.visit), None, step.visit.url, step.status, step.started_at, step.decoded_bytes, offset
            )
            host.failures = 0
            self._record(found)
            return
        host.failures = host.failures + 1 if failure.reason in _HOST_FAILURES else 0
        if host.failures >= _GIVE_UP_AFTER:
            detail = f"not requested: {host.failures} pages in a row failed so ({failure.detail})"
            host.given_up, host.given_up_status = dataclasses.replace(failure, detail=detail), step.status
        self._conclude(step.visit, failure, step.status, step.started_at)

    def _conclude(self, visit: Visit, failure: Failure, status: int | None, at: dt.datetime | None = None) -> None:
        """Record why a visit has no page; hold the outcome back while it may be our own network that fails."""
        outcome = Outcome(_link(visit), failure, visit.url, status, at or dt.datetime.now(dt.UTC))
        if status is not None or failure.reason not in UNREACHED:
            self._record(outcome)
            return
        self.open -= 1
        self._unreached.append(outcome)
        self._unreached_sites.add(registered_domain(visit.url))
        if len(self._unreached_sites) >= _UNREACHED_SITES:
            raise WebtextError(
                f"none of the last {_UNREACHED_SITES} sites could be reached ({failure.reason}: {failure.detail}); "
                "check this machine's network, name server or proxy, then run again: it goes on"
            )

    def _record_unreached(self) -> None:
        for outcome in self._unreached:
            self.open += 1
            self._record(outcome)
        self._unreached.clear()
        self._unreached_sites.clear()

    def _record(self, outcome: Outcome) -> None:
        self.open -= 1
        self._recorder.conclude(outcome)
        progress.advance(1)


def _link(visit: Visit) -> int:
    assert visit.link is not None
    return visit.link
