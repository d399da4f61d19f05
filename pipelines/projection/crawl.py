"""A simulation of a crawl: how long fetch takes, given the number of links per site and the limits of politeness.

Fetch gives a shard to each worker process, and all links of a site are in one shard. A process has so many requests in
flight, and asks the sites in turn. So, between two sites that are finished, all others advance at the same rate: that
of one site alone, or an equal part of what the process can do. The time of a shard is the sum over these intervals.
"""

from __future__ import annotations

import dataclasses
import heapq

import numpy as np
import numpy.typing as npt

from pipelines.format import plural

# Zipf's law as Mandelbrot wrote it: a site of rank r has a share of all links that falls with (r + offset)**exponent.
# Share and offset are those of 45,792 links of 2013 with 3 karma and more, without image and video hosts; the exponent
# makes the shares of all ranks add up to 1. Of the 11,101 sites of these links, the law makes 17,000.
_LARGEST_SHARE, _OFFSET = 0.023, 8
_EXPONENT = 1 + _LARGEST_SHARE * (_OFFSET + 1)
# As many sites are simulated one by one, in the shard to which chance assigns them; the smaller ones are spread evenly.
_SINGLE_SITES = 20_000
_GROUPS = 400


@dataclasses.dataclass(frozen=True)
class CrawlLimits:
    """The options of fetch, and what they meet: seconds from a request to its answer, and of processor time per page.

    `latency_s` is a mean over all links, those included that time out.
    """

    per_host_delay_s: float
    concurrency: int
    latency_s: float
    core_s: float

    @property
    def site_s(self) -> float:
        """Seconds from one request to a site to the next one."""
        return self.per_host_delay_s + self.latency_s

    @property
    def process_s(self) -> float:
        """Seconds per page of a process that has sites enough."""
        return max(self.latency_s / self.concurrency, self.core_s)


@dataclasses.dataclass(frozen=True)
class Sites:
    """The links per site, largest first; `counts` is how many sites have so many."""

    links: npt.NDArray[np.float64]
    counts: npt.NDArray[np.float64]


def zipf_sites(links: int) -> Sites:
    """Return the sites of as many links, by the law of Zipf; those that have less than two links by it have one."""
    largest = links * _LARGEST_SHARE
    ranks = int((_OFFSET + 1) * max(1.0, largest / 2) ** (1 / _EXPONENT)) - _OFFSET
    edges = np.arange(1, min(ranks, _SINGLE_SITES) + 2, dtype=np.float64)
    if ranks > _SINGLE_SITES:
        edges = np.concatenate([edges, np.geomspace(edges[-1], ranks + 1, _GROUPS)[1:]])
    counts = np.diff(edges)
    middles = np.sqrt(edges[:-1] * np.maximum(edges[:-1], edges[1:] - 1))
    sizes = largest * ((_OFFSET + 1) / (_OFFSET + middles)) ** _EXPONENT
    sizes, counts = sizes[sizes > 1], counts[sizes > 1]
    return Sites(np.append(sizes, 1.0), np.append(counts, max(0.0, links - float(sizes @ counts))))


def shard_seconds(sites: Sites, limits: CrawlLimits) -> float:
    """Return the seconds that one process takes for the sites of a shard."""
    order = np.argsort(sites.links)
    links, counts = sites.links[order], sites.counts[order]
    unfinished = np.cumsum(counts[::-1])[::-1]
    steps = np.diff(links, prepend=0.0)
    return float(steps @ np.maximum(limits.site_s, unfinished * limits.process_s))


class Crawl:
    """The crawl of sites in shards."""

    def __init__(self, sites: Sites, shards: int, limits: CrawlLimits) -> None:
        self._limits = limits
        self._largest_s = float(sites.links[0]) * limits.site_s
        is_single = sites.counts == 1
        owners = np.random.default_rng(0).integers(shards, size=len(sites.links))
        self._shard_s = []
        for shard in range(shards):
            counts = np.where(is_single, owners == shard, sites.counts / shards)
            is_here = counts > 0
            self._shard_s.append(shard_seconds(Sites(sites.links[is_here], counts[is_here]), limits))

    def seconds(self, processes: int) -> float:
        """Return the seconds that it takes: shards are begun in order, by whichever process is free."""
        busy_until = [0.0] * min(len(self._shard_s), processes)
        for seconds in self._shard_s:
            heapq.heappush(busy_until, heapq.heappop(busy_until) + seconds)
        return max(busy_until)

    def useful_processes(self) -> int:
        """Return the number of processes beyond which twice as many save less than a tenth of the time."""
        processes, shards = 1, len(self._shard_s)
        while processes < shards and self.seconds(2 * processes) < 0.9 * self.seconds(processes):
            processes = min(shards, 2 * processes)
        return processes

    def describe_limit(self, processes: int) -> str:
        """Return what it waits for."""
        if self._largest_s > 0.5 * self.seconds(processes):
            return "largest sites"
        if self._limits.core_s >= self._limits.latency_s / self._limits.concurrency:
            return "cores"
        return "open requests" if processes < len(self._shard_s) else plural(len(self._shard_s), "shard")
