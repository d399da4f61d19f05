"""The options of `webtext fetch`."""

from __future__ import annotations

import dataclasses

from pipelines.engine.config import option
from pipelines.records.wishes import HONOR_HELP


@dataclasses.dataclass(frozen=True)
class FetchConfig:
    """Limits of a page, and politeness towards hosts."""

    source: str = option(
        "live",
        "live: the web. archives: only --archive. warc: WARC/ARC in --pages.",
        choices=("live", "archives", "warc"),
        group="Source",
    )
    pages: tuple[str, ...] = option(
        (), "With --source warc: WARC and ARC files, folders or globs.", identity=False, only_with="source=warc"
    )
    concurrency: int = option(
        32, "Concurrent hosts per worker.", identity=False, minimum=1, maximum=1024, group="Politeness"
    )
    per_host_delay: float = option(
        1.0,
        "Minimum seconds between requests to a host; its robots.txt can ask for more.",
        identity=False,
        minimum=0,
        maximum=86_400,
    )
    per_domain_hosts: int = option(8, "Concurrent hosts per registered domain.", identity=False, minimum=1)
    max_wait: float = option(
        300.0,
        "Maximum backoff in seconds for Crawl-delay, Retry-After or an overloaded host.",
        identity=False,
        minimum=0,
        maximum=86_400,
    )
    honor: tuple[str, ...] = option((), HONOR_HELP)
    user_agent: str = option(
        "webtext/0.1", "User-Agent header; rules in robots.txt are matched against the name before the slash."
    )
    contact: str | None = option(
        None,
        "Email address or URL where site owners can reach you; added to the User-Agent.",
        identity=False,
        example="mailto:me@example.org",
    )
    timeout: float = option(
        30.0,
        "Per-page timeout in seconds: all requests and redirects, excluding time in queues.",
        minimum=0.1,
        maximum=86_400,
        group="Limits",
    )
    max_page_bytes: int = option(
        5 * 2**20, "Maximum page size in bytes after decompression; larger pages are dropped.", minimum=1
    )
    max_redirects: int = option(10, "Maximum redirects per page.", minimum=0)
    retries: int = option(2, "Retries after a failed connection, a 429 or a server error.", minimum=0)
    max_pages_per_domain: int | None = option(
        None,
        "Maximum links per registered domain; the others are dropped without a request.",
        minimum=1,
        example=10_000,
    )
    allow_private_addresses: bool = option(
        False, "Also fetch from private, loopback and other addresses outside the public internet."
    )
    archive: tuple[str, ...] = option(
        (),
        "Archive in which to look up pages that are gone; several are tried in order.",
        identity=False,
        choices=("commoncrawl", "wayback"),
        only_with="source=live|archives",
        group="Archives",
    )
    archive_for: str = option(
        "gone",
        "Links to look up in archives: those that are gone, or all.",
        identity=False,
        choices=("gone", "all"),
        only_with="archive",
    )
    archive_window: int | None = option(
        None,
        "Maximum days between a capture and the submission of its link.",
        identity=False,
        minimum=0,
        example=365,
        only_with="archive",
    )
    cc_index: tuple[str, ...] = option(
        (),
        "Common Crawl's columnar index: Parquet files, or a list such as cc-index-table.paths.gz.",
        identity=False,
        only_with="archive=commoncrawl",
    )
    cc_records: str = option(
        "https://data.commoncrawl.org",
        "Location of the WARC files that the index names.",
        identity=False,
        only_with="archive=commoncrawl",
    )
    wayback_url: str = option(
        "https://web.archive.org", "Base URL of the Wayback Machine.", identity=False, only_with="archive=wayback"
    )
    wayback_rate: float = option(
        20.0,
        "Requests per minute to the Wayback Machine.",
        identity=False,
        minimum=0.1,
        maximum=6000,
        only_with="archive=wayback",
    )
    wayback_requests: int = option(
        10_000,
        "Maximum requests to the Wayback Machine per run.",
        identity=False,
        minimum=1,
        only_with="archive=wayback",
    )
