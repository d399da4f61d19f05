"""The simulated crawl: equal to a simulation of every request, and to a real crawl of sites on loopback."""

from __future__ import annotations

import heapq
from pathlib import Path

import numpy as np
import pytest
import small_web

from pipelines.projection.crawl import Crawl, CrawlLimits, Sites, shard_seconds, zipf_sites
from pipelines.stages.fetch.config import FetchConfig
from pipelines.stages.fetch.stage import RunOptions, fetch


def _simulate_requests(links: list[int], limits: CrawlLimits) -> float:
    """Return the time of a shard, request by request: the site that may be asked first gets the next free thread."""
    sites = [(0.0, number) for number in range(len(links))]
    threads = [0.0] * limits.concurrency
    left, end = list(links), 0.0
    while sites:
        ready_at, site = heapq.heappop(sites)
        started = max(ready_at, heapq.heappop(threads))
        end = started + limits.latency_s
        heapq.heappush(threads, end)
        left[site] -= 1
        if left[site]:
            heapq.heappush(sites, (end + limits.per_host_delay_s, site))
    return max(threads)


@pytest.mark.parametrize(
    ("links", "concurrency", "delay"),
    [
        ([50] * 40, 8, 0.0),  # there are always sites that wait for a thread
        ([50] * 40, 64, 1.0),  # there are always idle threads
        ([400, 200, 100, *[20] * 60, *[1] * 400], 8, 1.0),
        ([1000], 32, 0.5),
    ],
)
def test_the_time_of_a_shard_is_that_of_a_simulation_of_its_requests(
    links: list[int], concurrency: int, delay: float
) -> None:
    limits = CrawlLimits(delay, concurrency, latency_s=0.5, core_s=0.0)
    sites = Sites(np.array(links, float), np.ones(len(links)))
    assert shard_seconds(sites, limits) == pytest.approx(_simulate_requests(links, limits), rel=0.1)


def test_the_time_of_a_shard_is_that_of_a_real_crawl(tmp_path: Path) -> None:
    links = {"a": 12, "b": 6, "c": 1, "d": 1}
    pages = {f"http://{name}.example/{page}": b"<p>text</p>" for name, count in links.items() for page in range(count)}
    config = FetchConfig(per_host_delay=0.2, contact="tests", concurrency=2)
    (tmp_path / "urls.txt").write_text("".join(f"{url}\n" for url in pages))
    with small_web.served(pages, tmp_path, "text/html") as environment, pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        summary = fetch(config, links=[str(tmp_path / "urls.txt")], output=str(tmp_path / "out"), options=RunOptions())
    assert summary.records_out == len(pages)
    sites = Sites(np.array(sorted(links.values(), reverse=True), float) + 1, np.ones(4))  # and a robots.txt per site
    expected = shard_seconds(sites, CrawlLimits(0.2, 2, latency_s=0.005, core_s=0.005))
    assert 0.85 * expected < summary.seconds < 3 * expected


@pytest.mark.parametrize("links", [1, 40, 50_000, 45_000_000, 1_000_000_000])
def test_all_links_are_those_of_some_site(links: int) -> None:
    sites = zipf_sites(links)
    assert float(sites.links @ sites.counts) == pytest.approx(links)
    assert np.all(np.diff(sites.links) <= 0)


def test_the_sites_of_real_links_are_like_the_law() -> None:
    sites = zipf_sites(45_792)  # links of 2013; ranks and links as counted
    for rank, links in ((1, 1048), (10, 413), (100, 65), (1000, 5)):
        assert links / 1.6 < sites.links[rank - 1] < links * 1.6


def test_more_processes_help_up_to_a_number() -> None:
    sites, limits = zipf_sites(10_000_000), CrawlLimits(1.0, 32, latency_s=2.0, core_s=0.01)
    crawl = Crawl(sites, 64, limits)
    times = [crawl.seconds(processes) for processes in (1, 2, 4, 8, 16, 32, 64, 128)]
    assert times == sorted(times, reverse=True)
    assert times[-1] == times[-2]  # there are 64 shards
    assert times[-1] >= sites.links[0] * limits.site_s
    assert crawl.seconds(crawl.useful_processes()) < 1.2 * times[-1]
    assert crawl.describe_limit(2) == "open requests"
    assert crawl.describe_limit(64) == "largest sites"
    assert Crawl(sites, 64, CrawlLimits(0.0, 32, latency_s=0.1, core_s=1.0)).describe_limit(2) == "cores"
