"""One page, or one robots.txt, the step that follows from each response."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Sequence

from pipelines.algorithms.web.charset import HTML_TYPES, TEXT_TYPES, media_type
from pipelines.algorithms.web.signals import MAX_BYTES, meta_elements, page_signals
from pipelines.engine.retry import RetryPolicy, is_retryable_status
from pipelines.records.wishes import read_honor
from pipelines.stages.fetch import robots
from pipelines.stages.fetch.config import FetchConfig
from pipelines.stages.fetch.exchange import Exchange, Response, decode_body, looks_binary
from pipelines.stages.fetch.links import BadUrlError, redirect_url
from pipelines.stages.fetch.outcomes import REDIRECTS, Failure, status_failure, unexpected_failure
from pipelines.stages.fetch.transfer import Request
from pipelines.stages.fetch.warc import exchange_records

_HEAD_BYTES = 1 << 16
_SUCCESS = frozenset({200, 203})


@dataclasses.dataclass
class Visit:
    """A link's page (`link` is its position) or a host's robots.txt (`robots_of` is its origin), with the next URL.

    `history` are the URLs that redirected.
    """

    url: str
    link: int = -1
    robots_of: str | None = None
    history: list[str] = dataclasses.field(default_factory=list)
    failures: int = 0
    elapsed_s: float = 0.0
    cookies: tuple[bytes, ...] = ()


@dataclasses.dataclass(frozen=True)
class Step:
    """One request of a visit, with its WARC records (empty without a response), and what follows.

    That is a `redirect` to another URL, a retry after a pause of the host, or the end of the visit: with a page, with
    the `rules` of a robots.txt, or with a failure.
    """

    visit: Visit
    exchange: Exchange
    redirect: str | None = None
    retry_s: float | None = None
    failure: Failure | None = None
    rules: robots.RobotsRules | None = None
    records: bytes = b""


def next_request(visit: Visit, config: FetchConfig) -> Request:
    """Return the next request of a visit."""
    is_robots, remaining_s = visit.robots_of is not None, max(0.1, config.timeout - visit.elapsed_s)
    wants_body, max_bytes = (_is_robots_file, MAX_BYTES) if is_robots else (_is_page, config.max_page_bytes)
    return Request(visit.url, remaining_s, max_bytes, wants_body, truncate=is_robots, cookies=visit.cookies)


def follow(visit: Visit, exchange: Exchange, config: FetchConfig) -> Step:
    """Decide what follows from the end of a request."""
    visit.elapsed_s += exchange.seconds
    visit.cookies = exchange.cookies
    if visit.robots_of is not None:
        products = [robots.product_token(config.user_agent), *read_honor(config.honor).robots_agents]
        step = _after_robots(visit, exchange, config, products)
    else:
        step = _after_page(visit, exchange, config)
    return step if exchange.response is None else dataclasses.replace(step, records=exchange_records(step.exchange))


def unexpected_step(visit: Visit, error: Exception) -> Step:
    """Return the last step of a visit after an error of our own."""
    failure = unexpected_failure(error)
    # Without its robots.txt, a host allows nothing.
    rules = None if visit.robots_of is None else robots.rules_without_file(failure, reached=True)
    exchange = Exchange(visit.url, dt.datetime.now(dt.UTC), failure=failure)
    return Step(visit, exchange, failure=failure, rules=rules)


def _is_page(response: Response) -> bool:
    return response.status in _SUCCESS and media_type(response.header("content-type")) in (*TEXT_TYPES, "")


def _is_robots_file(response: Response) -> bool:
    return response.status // 100 == 2


def _after_page(visit: Visit, exchange: Exchange, config: FetchConfig) -> Step:
    step = _after_failure_or_redirect(visit, exchange, config.retries, config.max_redirects)
    if step is not None:
        return step
    assert exchange.response is not None
    failure = page_failure(exchange.response)
    if failure is None and (failure := wish_failure(exchange.response, config)) is not None:
        stored = dataclasses.replace(exchange.response, body=None, truncated="unspecified")
        exchange = dataclasses.replace(exchange, response=stored)
    return Step(visit, exchange, failure=failure)


def wish_failure(response: Response, config: FetchConfig) -> Failure | None:
    """Return the failure for a page whose headers or meta elements have a wish that is honored, None for others."""
    if not config.honor:
        return None
    honor = read_honor(config.honor)
    head = decode_body(response.body or b"", response.coding, _HEAD_BYTES, is_whole=False)
    wish = honor.find(page_signals(response.headers, meta_elements(head), honor.agents))
    return wish and Failure(*wish)


def page_failure(response: Response) -> Failure | None:
    """Return why a response that is not a redirect is not a page, None if it is one."""
    if response.status not in _SUCCESS:
        return status_failure(response.status)
    kind = media_type(response.header("content-type"))
    if response.body is None or not _is_page(response):
        return Failure("unsupported_content_type", kind)
    if kind not in HTML_TYPES and looks_binary(response.body, response.coding):
        return Failure("unsupported_content_type", f"binary data sent as {kind or 'no type'}")
    return None


def _after_robots(visit: Visit, exchange: Exchange, config: FetchConfig, products: Sequence[str]) -> Step:
    step = _after_failure_or_redirect(visit, exchange, config.retries, robots.MAX_REDIRECTS)
    if step is None:
        response = exchange.response
        assert response is not None
        if _is_robots_file(response):
            return Step(visit, exchange, rules=robots.parse_rules(response, products))
        step = Step(visit, exchange, failure=status_failure(response.status))
    if step.failure is None:
        return step
    rules = robots.rules_without_file(step.failure, reached=exchange.reached or bool(visit.history))
    return dataclasses.replace(step, rules=rules)


def _after_failure_or_redirect(visit: Visit, exchange: Exchange, retries: int, max_redirects: int) -> Step | None:
    """Return what follows a failure, a redirect or a temporary error; None for any other response."""
    response, policy = exchange.response, RetryPolicy(attempts=1 + retries)
    if exchange.failure is not None:
        retry_s = policy.delay_s(visit.failures + 1) if exchange.failure.retryable else None
        return Step(visit, exchange, retry_s=retry_s, failure=exchange.failure if retry_s is None else None)
    assert response is not None
    if response.status in REDIRECTS:
        target = _redirect_target(visit, response, max_redirects)
        return Step(visit, exchange, failure=target) if isinstance(target, Failure) else Step(visit, exchange, target)
    if is_retryable_status(response.status):
        retry_s = policy.delay_s(visit.failures + 1, exchange.requested_wait_s)
        return None if retry_s is None else Step(visit, exchange, retry_s=retry_s)
    return None


def _redirect_target(visit: Visit, response: Response, max_redirects: int) -> str | Failure:
    location = response.header("location")
    if location is None:
        return Failure("bad_redirect", f"status {response.status} without a Location")
    try:
        url = redirect_url(visit.url, location)
    except BadUrlError as error:
        return Failure("bad_redirect", f"{location[:200]}: {error}")
    if len(visit.history) >= max_redirects:
        return Failure("too_many_redirects", f"more than {max_redirects}")
    # A page may redirect to itself once, to check that its cookie comes back; the second time it is a loop.
    if [*visit.history, visit.url].count(url) >= 2:
        return Failure("too_many_redirects", f"a loop through {url[:200]}")
    return url
