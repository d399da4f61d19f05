"""The options of `webtext fetch`."""

from __future__ import annotations

import dataclasses

from pipelines.core.config import option


@dataclasses.dataclass(frozen=True)
class FetchConfig:
    """What a page is, and how gently it is asked for."""

    concurrency: int = option(
        32, "Hosts that each worker asks at the same time.", identity=False, minimum=1, maximum=1024
    )
    per_host_delay_s: float = option(
        1.0,
        "Seconds between two requests to one host; its robots.txt may ask for more.",
        identity=False,
        minimum=0,
        flag="--per-host-delay",
    )
    max_wait_s: float = option(
        300.0,
        "Longest pause, in seconds, that a host gets by Crawl-delay or Retry-After.",
        identity=False,
        minimum=0,
        flag="--max-wait",
    )
    timeout_s: float = option(
        30.0,
        "Seconds for all requests of a page together, redirects included, queues excluded.",
        minimum=0.1,
        flag="--timeout",
    )
    max_bytes: int = option(
        5 * 2**20, "Largest page in bytes, after decompression; a larger one is dropped.", minimum=1
    )
    max_redirects: int = option(10, "Redirects that are followed for a page.", minimum=0)
    retries: int = option(2, "Further tries after a failed connection, a 429 or a server error.", minimum=0)
    user_agent: str = option("webtext/0.1", "Who asks; robots.txt is read for the name before the slash.")
    contact: str | None = option(
        None,
        "Address or URL at which site owners reach you; it stands in the User-Agent.",
        identity=False,
        example="mailto:me@example.org",
    )
    allow_private_addresses: bool = option(
        False, "Also fetch from private, loopback and other addresses that are not of the public internet."
    )
