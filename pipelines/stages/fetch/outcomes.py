"""The outcome of a link: `ok`, or dropped for one of a closed set of reasons."""

from __future__ import annotations

import dataclasses
import datetime as dt

OK = "ok"
LIVE = "live"
NOT_IN_SOURCE = "not_in_source"

# The set is closed so that counts of different runs are comparable; the exact status is in the column `status`, the
# exact error in `detail` of dropped-N.parquet.
REASONS = {
    "bad_url": "not an http or https URL that can be requested",
    "duplicate_url": "the same request as an earlier link",
    "domain_limit": "more than --max-pages-per-domain",
    NOT_IN_SOURCE: "the files of --source have no page of the link",
    "robots": "disallowed by robots.txt",
    "noarchive": "the page asks not to be archived (--honor-noarchive)",
    "robots_unreachable": "robots.txt could not be read (server error, timeout), which RFC 9309 counts as a refusal",
    "private_address": "the host's address is not on the public internet (see --allow-private-addresses)",
    "dns": "the host's name does not resolve",
    "connection": "no connection, or it broke before a response",
    "tls": "no TLS connection with a valid certificate",
    "timeout": "no complete page within --timeout",
    "bad_response": "the response is not HTTP, or caused an unexpected error, named in `detail`",
    "incomplete": "the body ended too early",
    "too_large": "more than --max-bytes",
    "unsupported_encoding": "a content encoding other than gzip and deflate, or a transfer encoding other than chunked",
    "bad_encoding": "the body is not in its declared content encoding",
    "unsupported_content_type": "neither HTML nor plain text",
    "too_many_redirects": "more than --max-redirects, or a redirect loop",
    "bad_redirect": "a redirect without a usable Location, or to a scheme other than http and https",
    "http_not_found": "status 404 or 410",
    "http_forbidden": "status 401, 402, 403, 407 or 451",
    "http_rate_limited": "status 429, also after the retries",
    "http_client_error": "another status from 400 to 499",
    "http_server_error": "status 500 to 599, also after the retries",
    "http_unexpected": "a status other than 200 or 203",
}

# Links are dropped for these reasons without a request, which depends on other links.
NO_REQUEST = frozenset({"bad_url", "duplicate_url", "domain_limit"})

_MAX_DETAIL_CHARACTERS = 500


@dataclasses.dataclass(frozen=True, slots=True)
class Failure:
    """Why a page could not be fetched; `retryable` says whether a retry may succeed."""

    reason: str
    detail: str
    retryable: bool = False

    def __post_init__(self) -> None:
        """Shorten the detail, which can quote a header of 64 KiB."""
        object.__setattr__(self, "detail", self.detail[:_MAX_DETAIL_CHARACTERS])


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of the link at a position in its shard; `warc_offset` is relative to the segment being written."""

    link: int
    failure: Failure | None
    final_url: str | None
    status: int | None
    fetched_at: dt.datetime
    bytes: int = 0
    warc_offset: int | None = None
    # Of a page from an archive: which, when it was captured, and how many days after the link was posted.
    source: str = LIVE
    captured_at: dt.datetime | None = None
    captured_days: int | None = None
    # The archives that were asked so far.
    archives: str | None = None

    @property
    def name(self) -> str:
        """The value of the column `outcome`."""
        if self.failure is None:
            return OK
        assert self.failure.reason in REASONS, self.failure.reason
        return f"dropped.{self.failure.reason}"


def status_reason(status: int) -> str:
    """Return the drop reason for a status other than success."""
    if status in (404, 410):
        return "http_not_found"
    if status in (401, 402, 403, 407, 451):
        return "http_forbidden"
    if status == 429:
        return "http_rate_limited"
    return {4: "http_client_error", 5: "http_server_error"}.get(status // 100, "http_unexpected")
