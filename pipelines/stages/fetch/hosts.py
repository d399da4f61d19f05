"""The queues of hosts: one request at a time per host, with a delay in between, the largest hosts first."""

from __future__ import annotations

import dataclasses
import heapq
import itertools
from collections import OrderedDict, deque
from collections.abc import Mapping

from pipelines.stages.fetch.outcomes import Failure
from pipelines.stages.fetch.robots import RobotsRules
from pipelines.stages.fetch.visit import Visit

# Hosts without work are remembered, with their rules, for later redirects to them.
_REMEMBERED_HOSTS = 4096
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
    visits: deque[Visit] = dataclasses.field(default_factory=deque)
    robots_visits: deque[Visit] = dataclasses.field(default_factory=deque)
    rules: RobotsRules | None = None
    awaits_rules: bool = False
    busy: bool = False
    queued: bool = False
    ready_at: float = 0.0
    failures: int = 0
    give_up: tuple[Failure, int | None] | None = None

    @property
    def has_work(self) -> bool:
        """Whether a request could be sent after the delay. While the rules are awaited, no page can."""
        return bool(self.robots_visits or ((self.links or self.visits) and not self.awaits_rules))

    def add(self, visit: Visit) -> None:
        """Queue a visit that was redirected here or is retried."""
        (self.visits if visit.robots_of is None else self.robots_visits).append(visit)


class HostQueues:
    """Hands out hosts that are ready. A new host is opened only if no open host is ready, so that few are open."""

    def __init__(self, links: Mapping[str, list[int]], delay_s: float) -> None:
        self._delay_s = delay_s
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
        if self._heap and self._heap[0][0] <= now:
            host = heapq.heappop(self._heap)[2]
            host.queued = False
        else:
            while self._order and self._order[0] not in self._unopened:
                self._order.popleft()
            if not self._order:
                return None
            host = self.get(self._order.popleft())
        host.busy = True
        return host

    def release(self, host: Host, ready_at: float) -> None:
        """Return a host to the queue; it is ready for its next request at `ready_at`."""
        host.busy = False
        host.ready_at = ready_at
        self.enqueue(host)

    def enqueue(self, host: Host) -> None:
        """Queue a host that has work unless it is queued or busy; remember a host without work."""
        if host.busy or host.queued:
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
        """Set the rules that a host has been waiting for; forget the oldest rules of other hosts above the limit."""
        self._forget_rules(host)
        host.rules, host.awaits_rules = rules, False
        self._with_rules[host.origin] = host
        self._rules_bytes += len(rules.lines)
        while self._rules_bytes > _MAX_RULES_BYTES and len(self._with_rules) > 1:
            self._forget_rules(next(iter(self._with_rules.values())))

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

    def next_ready_at(self) -> float | None:
        """Return when the next open host is ready, or None if none is queued."""
        return self._heap[0][0] if self._heap else None
