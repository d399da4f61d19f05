"""The outcome of a link: `ok`, or dropped for one of a closed set of reasons."""

from __future__ import annotations

import datetime as dt

import msgspec

from pipelines.algorithms.web.signals import KINDS

OK = "ok"
LIVE = "live"
NOT_IN_SOURCE = "not_in_source"

REDIRECTS = frozenset({301, 302, 303, 307, 308})

# Links are dropped for these reasons without a request, which depends on other links.
NO_REQUEST = frozenset({"bad_url", "duplicate_url", "domain_limit", "removed"})
# Why a link counts as gone: another request would probably fail, too, and the site has not refused it.
_GONE = frozenset(
    """
    dns connection tls timeout incomplete bad_response bad_redirect too_many_redirects robots_unreachable
    http_not_found http_client_error http_server_error http_unexpected
    """.split()
)
_REFUSED = """
    private_address http_forbidden http_rate_limited
    too_large unsupported_content_type unsupported_encoding bad_encoding
    """.split()
# The set is closed so that counts of different runs are comparable; the exact status is in the column `status`, the
# exact error in `detail` of dropped-N.parquet. docs/fetch.md explains each.
REASONS = NO_REQUEST | _GONE | {NOT_IN_SOURCE, *_REFUSED, *(wish.replace("-", "_") for wish in KINDS)}

# The detail of a failure can quote text of any length that a server sent.
DETAIL_CHARACTERS = 300


class Failure(Exception):  # noqa: N818 - also a value
    """Why there is no page: a drop reason, or of a capture in an archive why it is refused.

    `retryable` says whether a retry may succeed.
    """

    def __init__(self, reason: str, detail: str = "", retryable: bool = False) -> None:
        super().__init__(reason, detail, retryable)
        self.reason, self.detail, self.retryable = reason, detail[:DETAIL_CHARACTERS], retryable

    def __str__(self) -> str:
        return self.detail


class Outcome(msgspec.Struct, frozen=True):
    """The outcome of the link at a position in its shard; a new `warc_file` is that of a segment."""

    link: int
    outcome: str
    final_url: str | None
    status: int | None
    fetched_at: dt.datetime
    bytes: int = 0
    warc_file: str | None = None
    warc_offset: int | None = None
    # Of a page from an archive: which, when it was captured, and how many days after the link was posted.
    source: str = LIVE
    captured_at: dt.datetime | None = None
    captured_days: int | None = None
    # The archives that were asked so far.
    archives: str | None = None
    detail: str | None = None


def is_missing(outcome: Outcome, even_if_live: bool) -> bool:
    """Return whether archives may have the page of a link: it is gone or absent, or any page of the web is wanted."""
    reason = outcome.outcome.removeprefix("dropped.")
    may_be_archived = reason in _GONE or (even_if_live and reason not in (*NO_REQUEST, "private_address"))
    return (may_be_archived and outcome.source == LIVE) or reason == NOT_IN_SOURCE


def dropped(
    link: int, failure: Failure, final_url: str | None = None, status: int | None = None,
    fetched_at: dt.datetime | None = None, source: str = LIVE,
) -> Outcome:  # fmt: skip
    """Return the outcome of a link whose page could not be fetched, by default now."""
    assert failure.reason in REASONS, failure.reason
    at = fetched_at or dt.datetime.now(dt.UTC)
    return Outcome(link, f"dropped.{failure.reason}", final_url, status, at, source=source, detail=failure.detail)


def unexpected_failure(error: Exception) -> Failure:
    """Return the failure of a page for any error: one response must not stop a fetch of weeks."""
    text = f"unexpected {type(error).__name__}: {error}"
    return error if isinstance(error, Failure) else Failure("bad_response", text)


def status_failure(status: int) -> Failure:
    """Return the failure of a page with a status other than success."""
    reason = {4: "http_client_error", 5: "http_server_error"}.get(status // 100, "http_unexpected")
    if status in (404, 410):
        reason = "http_not_found"
    elif status in (401, 402, 403, 407, 451):
        reason = "http_forbidden"
    elif status == 429:
        reason = "http_rate_limited"
    return Failure(reason, f"status {status}")
