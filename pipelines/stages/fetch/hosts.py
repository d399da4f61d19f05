"""The queues of hosts: one request at a time per host, with a delay in between, the largest hosts first.

Of one registered domain, whose hosts are often one machine, only some hosts are requested from at the same time.
"""

from __future__ import annotations

import dataclasses
import functools
import heapq
import itertools
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Mapping

from pipelines.algorithms.web.urls import registered_domain
from pipelines.stages.fetch.outcomes import Failure
from pipelines.stages.fetch.robots import RobotsRules
from pipelines.stages.fetch.visit import Visit

# Hosts without work are remembered, with their rules, for later redirects to them.
_REMEMBERED_HOSTS = 4096
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
    pause_s: float = 0.0
    visits: deque[Visit] = dataclasses.field(default_factory=deque)
    robots_visits: deque[Visit] = dataclasses.field(default_factory=deque)
    rules: RobotsRules | None = None
    awaits_rules: bool = False
    busy_since: float | None = None
    queued: bool = False
    ready_at: float = 0.0
    failures: int = 0
    give_up: tuple[Failure, int | None] | None = None

    @property
    def has_work(self) -> bool:
        """Whether a request could be sent after the delay. While the rules are awaited, no page can."""
        return bool(self.robots_visits or ((self.links or self.visits) and not self.awaits_rules))

    def adapt(self, is_overloaded: bool, max_wait_s: float) -> None:
        """Lengthen the delay after a sign of overload; else shorten it, down to that which was asked for."""
        if is_overloaded:
            self.pause_s = min(max_wait_s, _LONGEST_PAUSE_S, max(_FIRST_PAUSE_S, 2 * self.pause_s))
        else:
            self.pause_s = self.pause_s / 2 if self.pause_s > _FIRST_PAUSE_S else 0.0

    def add(self, visit: Visit) -> None:
        """Queue a visit that was redirected here or is retried."""
        (self.visits if visit.robots_of is None else self.robots_visits).append(visit)


class HostQueues:
    """Hands out hosts that are ready. A new host is opened only if no open host is ready, so that few are open."""

    def __init__(self, links: Mapping[str, list[int]], delay_s: float, per_domain: int) -> None:
        self._delay_s = delay_s
        self._per_domain = per_domain
        self._busy = Counter[str]()
        # Ready hosts of domains from which as many hosts as allowed are requested; origins that were not opened yet.
        self._waiting: defaultdict[str, deque[str]] = defaultdict(deque)
        self._unopened = {origin: positions for origin, positions in links.items() if positions}
        # The host with the most links determines how long the shard takes, so it comes first.
        self._order = deque(sorted(self._unopened, key=lambda origin: -len(self._unopened[origin])))
        self._hosts: dict[str, Host] = {}
        self._idle: OrderedDict[str, Host] = OrderedDict()
        self._heap: list[tuple[float, int, Host]] = []
        self._counter = itertools.count()
        self._with_rules: OrderedDict[str, Host] = OrderedDict()
        self._rules_bytes = 0

    def acquire(self, now: float) -> Host | None:
        """Return a ready host and mark it busy, or None; `release` returns it to the queue."""
        while True:
            if self._heap and self._heap[0][0] <= now:
                host = heapq.heappop(self._heap)[2]
                host.queued = False
                origin = host.origin
            elif self._order:
                origin = self._order.popleft()
                if origin not in self._unopened:
                    continue
            else:
                return None
            domain = _domain(origin)
            if self._busy[domain] < self._per_domain:
                self._busy[domain] += 1
                host = self.get(origin)
                host.busy_since = now
                return host
            self._waiting[domain].append(origin)

    def release(self, host: Host, ready_at: float) -> None:
        """Return a host to the queue; it is ready for its next request at `ready_at`."""
        host.busy_since = None
        host.ready_at = ready_at
        self.enqueue(host)
        domain = _domain(host.origin)
        self._busy[domain] -= 1
        if not self._busy[domain]:
            del self._busy[domain]
        waiting = self._waiting.get(domain, deque())
        while waiting:
            origin = waiting.popleft()
            if origin in self._unopened:
                self._order.appendleft(origin)
                break
            self.enqueue(self.get(origin))
            if self.get(origin).queued:
                break
        if not waiting:
            self._waiting.pop(domain, None)

    def enqueue(self, host: Host) -> None:
        """Queue a host that has work unless it is queued or busy; remember a host without work."""
        if host.busy_since is not None or host.queued:
            return
        if host.has_work:
            self._idle.pop(host.origin, None)
            heapq.heappush(self._heap, (host.ready_at, next(self._counter), host))
            host.queued = True
        elif not host.awaits_rules:
            self._idle[host.origin] = host
            if len(self._idle) > _REMEMBERED_HOSTS:
                forgotten, idle = self._idle.popitem(last=False)
                del self._hosts[forgotten]
                self._forget_rules(idle)

    def set_rules(self, host: Host, rules: RobotsRules) -> None:
        """Set the rules that a host has been waiting for, and queue it; above the limit, forget the oldest."""
        self._forget_rules(host)
        host.rules, host.awaits_rules = rules, False
        self._with_rules[host.origin] = host
        self._rules_bytes += len(rules.lines)
        while self._rules_bytes > _MAX_RULES_BYTES and len(self._with_rules) > 1:
            self._forget_rules(next(iter(self._with_rules.values())))
        self.enqueue(host)

    def _forget_rules(self, host: Host) -> None:
        if self._with_rules.pop(host.origin, None) is not None and host.rules is not None:
            self._rules_bytes -= len(host.rules.lines)
            host.rules = None

    def get(self, origin: str) -> Host:
        """Return the host of an origin; open it if necessary."""
        host = self._hosts.get(origin)
        if host is None:
            links = self._unopened.pop(origin, [])
            links.reverse()
            host = self._hosts[origin] = Host(origin, links, self._delay_s)
        return host

    def open_hosts(self) -> list[Host]:
        """Return the hosts that are requested from, or will be after their delay."""
        return [host for host in self._hosts.values() if host.busy_since is not None or host.queued]

    def next_ready_at(self) -> float | None:
        """Return when the next open host is ready, or None if none is queued."""
        return self._heap[0][0] if self._heap else None


@functools.lru_cache(1 << 16)
def _domain(origin: str) -> str:
    return registered_domain(origin) or origin
