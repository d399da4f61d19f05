"""One page, or one robots.txt, on its way: what follows from each answer."""

from __future__ import annotations

import dataclasses
import datetime as dt
import email.utils
import re

from requests.cookies import RequestsCookieJar

from pipelines.stages.fetch import robots
from pipelines.stages.fetch.config import FetchConfig
from pipelines.stages.fetch.decoding import looks_binary
from pipelines.stages.fetch.exchange import Exchange, Limits, Response, exchange
from pipelines.stages.fetch.outcomes import Failure, status_reason
from pipelines.stages.fetch.transport import Client
from pipelines.stages.fetch.urls import BadUrlError, redirect_url
from pipelines.stages.fetch.warc import exchange_records

# Types that extract reads, as HTML or as plain text; a page without the header is judged by its first bytes.
TEXT_TYPES = frozenset({"text/html", "application/xhtml+xml", "text/plain", "text/markdown", "text/x-markdown"})
_HTML_TYPES = frozenset({"text/html", "application/xhtml+xml"})
_SUCCESS = frozenset({200, 203})
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_RETRYABLE_4XX = frozenset({408, 425, 429})
_FINAL_5XX = frozenset({501, 505})
_BACKOFF_S = 1.0


@dataclasses.dataclass
class Visit:
    """A link's page (`link` is its position) or the rules of a host (`rules_of` is its origin), with its next URL."""

    url: str
    link: int | None = None
    rules_of: str | None = None
    passed: list[str] = dataclasses.field(default_factory=list)
    tries: int = 0
    spent_s: float = 0.0
    cookies: RequestsCookieJar = dataclasses.field(default_factory=RequestsCookieJar)


@dataclasses.dataclass(frozen=True)
class Follow:
    """Go on at another URL."""

    url: str


@dataclasses.dataclass(frozen=True)
class Retry:
    """Ask again, and leave the host alone for so long."""

    after_s: float


@dataclasses.dataclass(frozen=True)
class End:
    """The visit is over: with success, or for a reason."""

    failure: Failure | None
    rules: robots.Rules | None = None


@dataclasses.dataclass(frozen=True)
class Step:
    """What one request of a visit brought: WARC records (empty where there was no answer), and what follows."""

    visit: Visit
    records: bytes
    next: Follow | Retry | End
    started_at: dt.datetime
    reached: bool
    status: int | None
    decoded_bytes: int


def take_step(visit: Visit, client: Client, config: FetchConfig) -> Step:
    """Make the next request of a visit and judge its answer."""
    remaining_s = max(0.1, config.timeout_s - visit.spent_s)
    if visit.rules_of is not None:
        made = exchange(client, visit.url, visit.cookies, robots.limits(remaining_s), robots.wanted)
        following = _after_rules(visit, made, config)
    else:
        made = exchange(client, visit.url, visit.cookies, Limits(remaining_s, config.max_bytes), _wanted)
        following = _after_page(visit, made, config)
    visit.spent_s += made.seconds
    response = made.response
    return Step(
        visit,
        exchange_records(made) if response is not None else b"",
        following,
        made.started_at,
        made.reached,
        response.status if response is not None else None,
        response.decoded_bytes if response is not None else 0,
    )


def broken_step(visit: Visit, error: Exception) -> Step:
    """Return the step of a visit that an exception ended which nobody foresaw; its type and text are the detail.

    One odd answer must not stop a fetch of weeks, and would do so at every rerun. An unread robots.txt allows nothing.
    """
    failure = Failure("bad_response", f"unexpected {type(error).__name__}: {error}")
    rules = robots.rules_without_file(failure, reached=True) if visit.rules_of is not None else None
    end = End(None, rules) if rules is not None else End(failure)
    return Step(visit, b"", end, dt.datetime.now(dt.UTC), reached=False, status=None, decoded_bytes=0)


def _wanted(response: Response) -> bool:
    return response.status in _SUCCESS and _content_type(response) in (*TEXT_TYPES, "")


def _content_type(response: Response) -> str:
    # Some servers send the header twice, and what joins the two is a comma.
    return re.split("[;,]", response.header("content-type") or "", maxsplit=1)[0].strip().lower()


def _after_page(visit: Visit, made: Exchange, config: FetchConfig) -> Follow | Retry | End:
    unfinished = _unfinished(visit, made, config, config.max_redirects)
    if unfinished is not None:
        return unfinished
    assert made.response is not None
    response, kind = made.response, _content_type(made.response)
    if response.status not in _SUCCESS:
        return End(Failure(status_reason(response.status), f"status {response.status}"))
    if response.body is None:
        return End(Failure("unsupported_content_type", kind))
    if kind not in _HTML_TYPES and looks_binary(response.body, response.coding):
        return End(Failure("unsupported_content_type", f"binary data as {kind or 'an unnamed type'}"))
    return End(None)


def _after_rules(visit: Visit, made: Exchange, config: FetchConfig) -> Follow | Retry | End:
    unfinished = _unfinished(visit, made, config, robots.MAX_REDIRECTS)
    if isinstance(unfinished, End):
        assert unfinished.failure is not None
        reached = made.reached or bool(visit.passed)
        return End(None, robots.rules_without_file(unfinished.failure, reached))
    if unfinished is not None:
        return unfinished
    assert made.response is not None
    if robots.wanted(made.response):
        return End(None, robots.rules_of(made.response))
    failure = Failure(status_reason(made.response.status), f"status {made.response.status}")
    return End(None, robots.rules_without_file(failure, reached=True))


def _unfinished(visit: Visit, made: Exchange, config: FetchConfig, max_redirects: int) -> Follow | Retry | End | None:
    """Return what follows from a failure, a redirect or a status that may pass; None for an answer to be judged."""
    if made.failure is not None:
        if made.failure.retryable and visit.tries < config.retries:
            return Retry(_backoff_s(visit))
        return End(made.failure)
    assert made.response is not None
    if made.response.status in _REDIRECTS:
        return _redirected(visit, made.response, max_redirects)
    if _may_pass(made.response.status) and visit.tries < config.retries:
        return Retry(_asked_wait_s(made.response, made.started_at, _backoff_s(visit)))
    return None


def _redirected(visit: Visit, response: Response, max_redirects: int) -> Follow | End:
    location = response.header("location")
    if location is None:
        return End(Failure("bad_redirect", f"status {response.status} without a Location"))
    try:
        url = redirect_url(visit.url, location)
    except BadUrlError as error:
        return End(Failure("bad_redirect", f"{location[:200]}: {error}"))
    if len(visit.passed) >= max_redirects:
        return End(Failure("too_many_redirects", f"more than {max_redirects}"))
    # A page may send us back once, to see whether we carry its cookie; the second time it is a circle.
    if [*visit.passed, visit.url].count(url) >= 2:
        return End(Failure("too_many_redirects", f"a circle through {url[:200]}"))
    return Follow(url)


def _may_pass(status: int) -> bool:
    return status in _RETRYABLE_4XX or (status // 100 == 5 and status not in _FINAL_5XX)


def _backoff_s(visit: Visit) -> float:
    return float(_BACKOFF_S * 2**visit.tries)


def _asked_wait_s(response: Response, now: dt.datetime, default_s: float) -> float:
    """Return the pause that Retry-After asks for, as seconds or as a date; the default where it asks for none."""
    asked = (response.header("retry-after") or "").strip()
    if asked.isdecimal():
        return float(asked)
    try:
        until = email.utils.parsedate_to_datetime(asked)
        if until.tzinfo is None:
            until = until.replace(tzinfo=dt.UTC)
        return max(0.0, (until - now).total_seconds())
    except (ValueError, TypeError, IndexError, OverflowError):
        return default_s
