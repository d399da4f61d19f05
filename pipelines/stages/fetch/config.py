"""The options of `webtext fetch`."""

from __future__ import annotations

import dataclasses

from pipelines.core.config import option


@dataclasses.dataclass(frozen=True)
class FetchConfig:
    """Limits of a page, and politeness towards hosts."""

    concurrency: int = option(
        32, "Hosts that each worker requests from at the same time.", identity=False, minimum=1, maximum=1024
    )
    per_host_delay: float = option(
        1.0,
        "Seconds between two requests to one host; its robots.txt may ask for more.",
        identity=False,
        minimum=0,
        renamed_from="per_host_delay_s",
    )
    max_wait: float = option(
        300.0,
        "Longest pause, in seconds, that Crawl-delay or Retry-After can impose.",
        identity=False,
        minimum=0,
        renamed_from="max_wait_s",
    )
    timeout: float = option(
        30.0,
        "Timeout of a page in seconds: all its requests together, redirects included, queues excluded.",
        minimum=0.1,
        renamed_from="timeout_s",
    )
    max_bytes: int = option(
        5 * 2**20, "Largest page in bytes after decompression; larger pages are dropped.", minimum=1
    )
    max_redirects: int = option(10, "Maximum number of redirects to follow for a page.", minimum=0)
    retries: int = option(2, "Retries after a failed connection, a 429 or a server error.", minimum=0)
    user_agent: str = option(
        "webtext/0.1", "User-Agent header; rules in robots.txt are matched against the name before the slash."
    )
    contact: str | None = option(
        None,
        "Address or URL at which site owners can reach you; added to the User-Agent.",
        identity=False,
        example="mailto:me@example.org",
    )
    allow_private_addresses: bool = option(
        False, "Also fetch from private, loopback and other addresses outside the public internet."
    )
