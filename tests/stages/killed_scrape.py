"""Scrapes Arctic Shift in a process of its own, without pauses, so that tests can kill it.

python killed_scrape.py API_URL OUTPUT SUBREDDIT...
"""

from __future__ import annotations

import sys
from typing import Any

from pipelines.core.run import RunOptions, Summary
from pipelines.stages.scrape import api_client
from pipelines.stages.scrape.config import ScrapeConfig
from pipelines.stages.scrape.stage import scrape


def scrape_arctic_shift(api_url: str, output: str, options: RunOptions | None = None, **config: Any) -> Summary:
    """Scrape with a window that ended long ago, so that runs of different moments are the same."""
    defaults = {"source": "arctic-shift", "profile": "none", "shards": 2, "before": "2017-12-01"}
    full = ScrapeConfig(**{**defaults, **config}, api_url=api_url)
    return scrape(full, dumps=[], output=output, options=options or RunOptions())


if __name__ == "__main__":
    api_client.REQUEST_DELAY_S = 0.0
    scrape_arctic_shift(sys.argv[1], sys.argv[2], subreddit=tuple(sys.argv[3:]))
