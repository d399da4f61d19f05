"""One page, or one robots.txt, the step that follows from each response."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from pipelines.algorithms.web.charset import HTML_TYPES, TEXT_TYPES, media_type
from pipelines.algorithms.web.signals import MAX_BYTES, meta_elements, page_signals
from pipelines.engine.retry import RetryPolicy, is_retryable_status
from pipelines.records.wishes import read_honor
from pipelines.stages.fetch import robots
from pipelines.stages.fetch.config import FetchConfig
from pipelines.stages.fetch.exchange import Exchange, Response, decode_body, looks_binary
from pipelines.stages.fetch.links import BadUrlError, redirect_url
from pipelines.stages.fetch.outcomes import REDIRECTS, Failure, status_failure
from pipelines.stages.fetch.transfer import Request

_HEAD_BYTES = 1 << 16
_SUCCESS = frozenset({200, 203})
_PAGE_TYPES = frozenset({*TEXT_TYPES, ""})


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


class Step(NamedTuple):
    """What follows from a request: a redirect to another URL, a retry after a pause of the host, or the visit's end.

    A page ends with a failure or without one, a robots.txt always with `rules`.
    """

    redirect: str | None = None
    retry_s: float | None = None
    failure: Failure | None = None
    rules: robots.RobotsRules | None = None


def next_request(visit: Visit, config: FetchConfig) -> Request:
    """Return the next request of a visit."""
    is_robots, remaining_s = visit.robots_of is not None, max(0.1, config.timeout - visit.elapsed_s)
    wants_body, max_bytes = (_is_robots_file, MAX_BYTES) if is_robots else (_is_page, config.max_page_bytes)
    return Request(visit.url, remaining_s, max_bytes, wants_body, truncate=is_robots, cookies=visit.cookies)


def follow(visit: Visit, exchange: Exchange, config: FetchConfig) -> Step:
    """Return what follows from the end of a request; of a page that its owner withholds, the body is forgotten."""
    visit.elapsed_s += exchange.seconds
    visit.cookies = exchange.cookies
    is_robots, response, failure = visit.robots_of is not None, exchange.response, exchange.failure
    if failure.retryable if failure else is_retryable_status(exchange.status or 0):
        retries = RetryPolicy(attempts=1 + config.retries)
        if (retry_s := retries.delay_s(visit.failures + 1, exchange.requested_wait_s)) is not None:
            return Step(retry_s=retry_s)
    if failure is None and response is not None:
        if response.status in REDIRECTS:
            target = _redirect_target(visit, response, robots.MAX_REDIRECTS if is_robots else config.max_redirects)
            if not isinstance(target, Failure):
                return Step(target)
            failure = target
        elif is_robots:
            failure = None if _is_robots_file(response) else status_failure(response.status)
        elif (failure := page_failure(response)) is None and (failure := wish_failure(response, config)) is not None:
            response.body, response.truncated = None, "unspecified"
    if not is_robots:
        return Step(failure=failure)
    if failure is None and response is not None:
        products = [robots.product_token(config.user_agent), *read_honor(config.honor).robots_agents]
        return Step(rules=robots.parse_rules(response, products))
    return Step(rules=robots.rules_without_file(failure, reached=exchange.reached or bool(visit.history)))


def _is_page(response: Response) -> bool:
    return response.status in _SUCCESS and media_type(response.header("content-type")) in _PAGE_TYPES


def _is_robots_file(response: Response) -> bool:
    return response.status // 100 == 2


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
    if response.body is None or kind not in _PAGE_TYPES:
        return Failure("unsupported_content_type", kind)
    if kind not in HTML_TYPES and looks_binary(response.body, response.coding):
        return Failure("unsupported_content_type", f"binary data sent as {kind or 'no type'}")
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
