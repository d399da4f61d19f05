"""Scrapes Arctic Shift, also in a child process without delays between requests, so that tests can kill it."""

from __future__ import annotations

from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from warm_processes import start_process

from pipelines.engine.run import RunOptions, Summary
from pipelines.stages.scrape import arctic_shift
from pipelines.stages.scrape.config import ScrapeConfig
from pipelines.stages.scrape.stage import scrape


def scrape_arctic_shift(api_url: str, output: str, options: RunOptions | None = None, **config: Any) -> Summary:
    """Scrape a window in the past, so that runs at different times are equal."""
    defaults = {"source": "arctic-shift", "profile": "none", "shards": 2, "before": "2017-12-01"}
    full = ScrapeConfig(**{**defaults, **config}, api_url=api_url)
    return scrape(full, dumps=[], output=output, options=options or RunOptions())


def start_scrape(api_url: str, output: Path, subreddits: tuple[str, ...]) -> BaseProcess:
    """Start the scrape in a child process."""
    return start_process(_scrape, api_url, str(output), subreddits)


def _scrape(api_url: str, output: str, subreddits: tuple[str, ...]) -> None:
    arctic_shift.REQUEST_DELAY_S = 0.0
    scrape_arctic_shift(api_url, output, subreddit=subreddits)
