"""The hosts' queues: one request at a time for each, with its pause in between, the largest hosts first."""

from __future__ import annotations

import dataclasses
import heapq
import itertools
from collections import OrderedDict, deque
from collections.abc import Mapping

from pipelines.stages.fetch.outcomes import Failure
from pipelines.stages.fetch.robots import Rules
from pipelines.stages.fetch.visit import Visit

# Hosts whose work is done are remembered, with their rules, for redirects that come to them later.
_REMEMBERED_HOSTS = 4096


@dataclasses.dataclass(eq=False, slots=True)
class Host:
    """One origin: the links that wait for it (in reverse), the visits that came by redirect or again, and its state.

    `rules_visits` are requests for a robots.txt that led here; they need no rules themselves.
    """

    origin: str
    links: list[int]
    delay_s: float
    arrivals: deque[Visit] = dataclasses.field(default_factory=deque)
    rules_visits: deque[Visit] = dataclasses.field(default_factory=deque)
    rules: Rules | None = None
    awaits_rules: bool = False
    busy: bool = False
    queued: bool = False
    ready_at: float = 0.0
    failures: int = 0
    given_up: Failure | None = None
    given_up_status: int | None = None

    @property
    def has_pages(self) -> bool:
        """Tell whether pages wait here."""
        return bool(self.links or self.arrivals)

    @property
    def has_work(self) -> bool:
        """Tell whether a request could go out, were it not for the pause. While rules are awaited, no page can."""
        return bool(self.rules_visits) or (self.has_pages and not self.awaits_rules)


class HostQueues:
    """Gives out hosts that may be asked now. A new host is begun only when no begun one is ready, so few are open."""

    def __init__(self, links: Mapping[str, list[int]], delay_s: float) -> None:
        self._delay_s = delay_s
        self._fresh = {origin: waiting for origin, waiting in links.items() if waiting}
        # The host with the most links decides how long the shard takes, so it comes first.
        self._order = deque(sorted(self._fresh, key=lambda origin: -len(self._fresh[origin])))
        self._hosts: dict[str, Host] = {}
        self._idle: OrderedDict[str, Host] = OrderedDict()
        self._heap: list[tuple[float, int, Host]] = []
        self._numbers = itertools.count()

    def take(self, now: float) -> Host | None:
        """Return a host whose turn it is and mark it busy, or None; `release` gives it back."""
        if self._heap and self._heap[0][0] <= now:
            host = heapq.heappop(self._heap)[2]
            host.queued = False
        else:
            begun = self._begin_next()
            if begun is None:
                return None
            host = begun
        host.busy = True
        return host

    def release(self, host: Host, ready_at: float) -> None:
        """Give back a host, which may be asked again at a time."""
        host.busy = False
        host.ready_at = ready_at
        self.wake(host)

    def wake(self, host: Host) -> None:
        """Queue a host that has work, if it is not queued or busy; remember one that has none left."""
        if host.busy or host.queued:
            return
        if host.has_work:
            self._idle.pop(host.origin, None)
            heapq.heappush(self._heap, (host.ready_at, next(self._numbers), host))
            host.queued = True
        elif not host.awaits_rules:
            self._idle[host.origin] = host
            if len(self._idle) > _REMEMBERED_HOSTS:
                forgotten, _ = self._idle.popitem(last=False)
                del self._hosts[forgotten]

    def at(self, origin: str) -> Host:
        """Return the host of an origin, begun if it was not."""
        host = self._hosts.get(origin)
        return host if host is not None else self._begin(origin)

    def next_ready_at(self) -> float | None:
        """Return when the next begun host may be asked, or None if none waits."""
        return self._heap[0][0] if self._heap else None

    def _begin_next(self) -> Host | None:
        while self._order:
            origin = self._order.popleft()
            if origin in self._fresh:
                return self._begin(origin)
        return None

    def _begin(self, origin: str) -> Host:
        links = self._fresh.pop(origin, [])
        links.reverse()
        host = self._hosts[origin] = Host(origin, links, self._delay_s)
        return host
