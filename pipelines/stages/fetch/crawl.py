"""The crawl of one shard: sends the requests of hosts and records the outcome of each link.

A host gets one request at a time, with a delay in between; the largest hosts come first. Of one registered domain,
whose hosts are often one machine, only some hosts are requested from at the same time.

A redirected visit waits in the queue of the host that it was redirected to, so delays and robots.txt apply to every
hop.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import heapq
import itertools
import time
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Mapping
from urllib.parse import urljoin

from pipelines import progress
from pipelines.algorithms.web.urls import registered_domain
from pipelines.errors import WebtextError
from pipelines.stages.fetch.config import FetchConfig
from pipelines.stages.fetch.exchange import ACCEPT_ENCODING, Exchange
from pipelines.stages.fetch.links import url_origin
from pipelines.stages.fetch.outcomes import OK, Failure, Outcome, dropped, unexpected_failure
from pipelines.stages.fetch.robots import RobotsRules, rules_without_file
from pipelines.stages.fetch.segments import SegmentWriter
from pipelines.stages.fetch.transport import Client
from pipelines.stages.fetch.visit import Visit
from pipelines.stages.fetch.warc import exchange_records

_TICK_S = 0.25

# After this many failures in a row, the remaining links of a host get the same outcome without a request: a dead host
# with a million links would otherwise delay its shard for months.
GIVE_UP_AFTER = 20
# A timeout, which costs the most time, counts as this many.
_TIMEOUT_FAILURES = 5
_HOST_FAILURES = frozenset({"dns", "connection", "tls", "timeout", "http_rate_limited"})

# If this many sites in a row do not respond, the local network is at fault; their outcomes are not recorded.
_UNREACHED_SITES = 100
UNREACHED = frozenset({"dns", "connection", "timeout"})

# The pause that is added after a sign of overload: it doubles with each, and any other answer halves it.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 16.0
# Above this, the rules that were read first are forgotten; they are requested again if they are needed.
_MAX_RULES_BYTES = 64 << 20


@dataclasses.dataclass(eq=False, slots=True)
class Host:
    """One origin: its links (in reverse), the visits that were redirected here or are retried, and its state.

    `robots_visits` are requests for a robots.txt that were redirected here; they need no rules themselves. `give_up` is
    the failure and status that the remaining links get without a request.
    """

    origin: str
    links: list[int]
    delay_s: float
    domain: str | None = None
    pause_s: float = 0.0
    visits: list[Visit] = dataclasses.field(default_factory=list)
    robots_visits: list[Visit] = dataclasses.field(default_factory=list)
    rules: RobotsRules | None = None
    awaits_rules: bool = False
    busy: bool = False
    queued: bool = False
    is_open: bool = False
    ready_at: float = 0.0
    failures: int = 0
    give_up: tuple[Failure, int | None] | None = None

    @property
    def has_work(self) -> bool:
        """Whether a request could be sent after the delay. While the rules are awaited, no page can."""
        return bool(self.robots_visits or ((self.links or self.visits) and not self.awaits_rules))

    def adapt(self, exchange: Exchange, max_wait_s: float) -> None:
        """Lengthen the pause between requests after a sign of overload; else shorten it, down to none."""
        is_timeout = exchange.failure is not None and exchange.failure.reason == "timeout"
        if is_timeout or exchange.status in (429, 503):
            self.pause_s = min(max_wait_s, _LONGEST_PAUSE_S, max(_FIRST_PAUSE_S, 2 * self.pause_s))
        else:
            self.pause_s = self.pause_s / 2 if self.pause_s > _FIRST_PAUSE_S else 0.0


class HostQueues:
    """Hands out hosts that are ready. A new host is opened only if no open host is ready, so that few are open.

    Hosts without work are remembered, with their rules, for later redirects to them.
    """

    def __init__(self, links: Mapping[str, list[int]], delay_s: float, per_domain: int) -> None:
        self._delay_s = delay_s
        self._per_domain = per_domain
        self._busy = Counter[str | None]()
        # Ready hosts of domains from which as many hosts as allowed are requested.
        self._waiting: defaultdict[str | None, deque[Host]] = defaultdict(deque)
        self._hosts = {origin: Host(origin, positions[::-1], delay_s) for origin, positions in links.items()}
        # The host with the most links determines how long the shard takes, so it comes first.
        self._unopened = deque(sorted(self._hosts.values(), key=lambda host: -len(host.links)))
        self._heap: list[tuple[float, int, Host]] = []
        self._counter = itertools.count()
        self._with_rules: deque[Host] = deque()
        self._rules_bytes = 0

    def acquire(self, now: float) -> Host | None:
        """Return a ready host and mark it busy, or None; `release` returns it to the queue."""
        while True:
            if self._heap and self._heap[0][0] <= now:
                host = heapq.heappop(self._heap)[2]
            elif self._unopened:
                host = self._unopened.popleft()
                if host.is_open:  # since a redirect led to it
                    continue
            else:
                return None
            host.queued, host.is_open = False, True
            host.domain = host.domain or registered_domain(host.origin)
            if self._busy[host.domain] < self._per_domain:
                self._busy[host.domain] += 1
                host.busy = True
                return host
            self._waiting[host.domain].append(host)

    def release(self, host: Host, ready_at: float) -> None:
        """Return a host to the queue; it is ready for its next request at `ready_at`."""
        host.busy = False
        host.ready_at = ready_at
        self.enqueue(host)
        self._busy[host.domain] -= 1
        waiting = self._waiting.get(host.domain)
        while waiting and not self.enqueue(waiting.popleft()):
            pass

    def enqueue(self, host: Host) -> bool:
        """Queue a host if it has work and is not queued or busy; return whether it is queued."""
        if not host.busy and not host.queued and host.has_work:
            heapq.heappush(self._heap, (host.ready_at, next(self._counter), host))
            host.queued = host.is_open = True
        return host.queued

    def set_rules(self, host: Host, rules: RobotsRules) -> None:
        """Set the rules that a host has been waiting for, and queue it; above the limit, forget the oldest."""
        host.rules, host.awaits_rules = rules, False
        self._with_rules.append(host)
        self._rules_bytes += rules.size_bytes
        while self._rules_bytes > _MAX_RULES_BYTES and len(self._with_rules) > 1:
            oldest = self._with_rules.popleft()
            self._rules_bytes -= oldest.rules.size_bytes if oldest.rules else 0
            oldest.rules = None
        self.enqueue(host)

    def get(self, origin: str) -> Host:
        """Return the host of an origin."""
        return self._hosts.get(origin) or self._hosts.setdefault(origin, Host(origin, [], self._delay_s))

    def next_ready_at(self) -> float | None:
        """Return when the next open host is ready, or None if none is queued."""
        return self._heap[0][0] if self._heap else None


def user_agent(config: FetchConfig) -> str:
    """Return the User-Agent header: the name and the contact."""
    return f"{config.user_agent} (+{config.contact})" if config.contact else config.user_agent


class Crawl:
    """Fetches links, by their position, and records an outcome for each.

    `suspicious` are the reasons for which sites fail if the local network is down.
    """

    def __init__(
        self, urls: Mapping[int, str], config: FetchConfig, segments: SegmentWriter, suspicious: Collection[str]
    ) -> None:
        self._urls, self._suspicious = urls, suspicious
        self._config, self._segments = config, segments
        self._open = len(urls)  # without an outcome
        self._unreached: list[Outcome] = []
        self._unreached_sites: set[str | None] = set()
        by_origin = defaultdict[str, list[int]](list)
        for link, url in urls.items():
            by_origin[url_origin(url)].append(link)
        self._queues = HostQueues(by_origin, config.per_host_delay, config.per_domain_hosts)

    def run(self) -> None:
        """Run until every link has its outcome.

        Raises WebtextError if all of many sites in a row fail for suspicious reasons, StorageError if a segment cannot
        be written.
        """
        headers = {
            "User-Agent": user_agent(self._config),
            "Accept": "text/html,application/xhtml+xml,text/plain;q=0.9,*/*;q=0.1",
            "Accept-Encoding": ACCEPT_ENCODING,
        }
        client = Client[Visit](headers, self._config.concurrency, self._config.allow_private_addresses)
        with contextlib.closing(client):
            while self._open > len(self._unreached):
                self._start_requests(client)
                ready_at = self._queues.next_ready_at() if client.idle else None
                pause_s = _TICK_S if ready_at is None else min(_TICK_S, max(0.0, ready_at - time.monotonic()))
                if self._open > len(self._unreached) and (ended := client.next_exchange(pause_s)) is not None:
                    self._follow(*ended)
                self._segments.flush_if_due()
            self._record_unreached()

    def _start_requests(self, client: Client[Visit]) -> None:
        until = time.monotonic() + _TICK_S  # rules can be slow to match, and disallow many pages in a row
        while client.idle and (now := time.monotonic()) < until and (host := self._queues.acquire(now)) is not None:
            visit = self._next_visit(host)
            if visit is None:
                self._queues.release(host, host.ready_at)
            else:
                client.start(visit.next_request(self._config), visit)

    def _next_visit(self, host: Host) -> Visit | None:
        """Return the visit that is requested next from a host, None if none is, or robots.txt disallows the next."""
        if host.robots_visits:
            return host.robots_visits.pop(0)
        while host.has_work:
            if host.rules is None and host.give_up is None:
                host.awaits_rules = True
                url = host.visits[0].url if host.visits else self._urls[host.links[-1]]
                return Visit(urljoin(url, "/robots.txt"), robots_of=host.origin)
            if host.visits:
                visit = host.visits.pop(0)
            else:
                link = host.links.pop()
                visit = Visit(self._urls[link], link=link)
            if host.give_up is not None:
                self._fail(visit, *host.give_up)
            elif host.rules is not None:
                if (refusal := host.rules.check(visit.url)) is None:
                    return visit
                self._fail(visit, refusal, None)
                return None  # rules can be slow to match
        return None

    def _follow(self, visit: Visit, exchange: Exchange) -> None:
        """Store an exchange and queue what follows from it; an unexpected error ends this visit alone."""
        host, max_wait_s = self._queues.get(url_origin(visit.url)), self._config.max_wait
        records = b""
        try:
            end = visit.follow(exchange, self._config)
            if exchange.response is not None:
                records = exchange_records(exchange)
        except WebtextError:
            raise
        except Exception as error:  # noqa: BLE001 - one response must not stop a fetch of weeks
            visit.url = exchange.url  # not that of a redirect
            exchange = Exchange(visit.url, dt.datetime.now(dt.UTC), failure=(end := unexpected_failure(error)))
            if visit.robots_of is not None:
                end = rules_without_file(end, reached=True)  # the host allows nothing
        place = self._segments.append(records) if records else (None, None)
        if exchange.reached:
            self._record_unreached()
        delay_s = max(host.delay_s, min(exchange.requested_wait_s, max_wait_s))
        host.adapt(exchange, max_wait_s)
        if isinstance(end, float):
            delay_s = max(delay_s, min(end, max_wait_s))
            target = self._queues.get(url_origin(visit.url))
            (target.visits if visit.robots_of is None else target.robots_visits).append(visit)
            self._queues.enqueue(target)  # nothing, if it is this host, which is busy
        elif isinstance(end, RobotsRules):
            owner = self._queues.get(visit.robots_of or host.origin)
            owner.delay_s = max(self._config.per_host_delay, min(end.crawl_delay_s, max_wait_s))
            self._queues.set_rules(owner, end)
        else:
            self._end(host, visit, exchange, end, place)
        self._queues.release(host, time.monotonic() + max(delay_s, host.delay_s + host.pause_s))

    def _end(
        self, host: Host, visit: Visit, exchange: Exchange, failure: Failure | None,
        place: tuple[str | None, int | None],
    ) -> None:  # fmt: skip
        if failure is None and exchange.response is not None:
            host.failures = 0
            size = exchange.response.decoded_bytes
            self._record(Outcome(visit.link, OK, visit.url, exchange.status, exchange.started_at, size, *place))
        elif failure is not None:
            count = _TIMEOUT_FAILURES if failure.reason == "timeout" else 1
            host.failures = host.failures + count if failure.reason in _HOST_FAILURES else 0
            if host.failures >= GIVE_UP_AFTER:
                detail = f"not requested: the pages before it failed in a row ({failure.detail})"
                host.give_up = Failure(failure.reason, detail), exchange.status
            self._fail(visit, failure, exchange.status, exchange.started_at)

    def _fail(self, visit: Visit, failure: Failure, status: int | None, at: dt.datetime | None = None) -> None:
        """Record a failure; defer it while the local network may be its cause."""
        outcome = dropped(visit.link, failure, visit.url, status, at)
        if status is not None or failure.reason not in self._suspicious:
            self._record(outcome)
            return
        self._unreached.append(outcome)
        self._unreached_sites.add(registered_domain(visit.url))
        if len(self._unreached_sites) >= _UNREACHED_SITES:
            raise WebtextError(
                f"none of the last {_UNREACHED_SITES} sites could be reached ({failure.reason}: {failure.detail}); "
                "check this machine's network, name server or proxy, then re-run the same command to resume"
            )

    def _record_unreached(self) -> None:
        for outcome in self._unreached:
            self._record(outcome)
        self._unreached.clear()
        self._unreached_sites.clear()

    def _record(self, outcome: Outcome) -> None:
        self._open -= 1
        self._segments.add(outcome)
        progress.advance(1)
