"""One page, or one robots.txt, the step that follows from each response."""

from __future__ import annotations

import dataclasses

from pipelines.algorithms.web.charset import HTML_TYPES, TEXT_TYPES, media_type
from pipelines.algorithms.web.signals import MAX_BYTES, meta_elements, page_signals
from pipelines.engine.retry import RetryPolicy, is_retryable_status
from pipelines.records.wishes import read_honor
from pipelines.stages.fetch import robots
from pipelines.stages.fetch.config import FetchConfig
from pipelines.stages.fetch.exchange import Exchange, Response, decode_body, looks_binary
from pipelines.stages.fetch.links import redirect_url
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

    def next_request(self, config: FetchConfig) -> Request:
        """Return the next request."""
        is_robots, remaining_s = self.robots_of is not None, max(0.1, config.timeout - self.elapsed_s)
        wants_body, max_bytes = (_is_robots_file, MAX_BYTES) if is_robots else (_is_page, config.max_page_bytes)
        return Request(self.url, remaining_s, max_bytes, wants_body, truncate=is_robots, cookies=self.cookies)

    def follow(self, exchange: Exchange, config: FetchConfig) -> float | Failure | robots.RobotsRules | None:
        """Return the pause of the host after which the visit continues, or how it ends, by the end of a request.

        A page ends with a failure or with None, a robots.txt with rules. Of a page that its owner withholds, the body
        is forgotten.
        """
        self.elapsed_s += exchange.seconds
        self.cookies = exchange.cookies
        is_robots, response, failure = self.robots_of is not None, exchange.response, exchange.failure
        if failure.retryable if failure else is_retryable_status(exchange.status or 0):
            self.failures += 1
            retries = RetryPolicy(attempts=1 + config.retries)
            if (pause_s := retries.delay_s(self.failures, exchange.requested_wait_s)) is not None:
                self.elapsed_s = 0.0
                return pause_s
        if failure is None and response is not None:
            if response.status in REDIRECTS:
                failure = self._redirect(response, robots.MAX_REDIRECTS if is_robots else config.max_redirects)
                if failure is None:
                    return 0.0
            elif is_robots and _is_robots_file(response):
                products = [robots.product_token(config.user_agent), *read_honor(config.honor).robots_agents]
                return robots.parse_rules(response, products)
            elif is_robots:
                failure = status_failure(response.status)
            elif (failure := page_failure(response)) is None and (failure := wish_failure(response, config)):
                response.body, response.truncated = None, "unspecified"
        if failure is None or not is_robots:
            return failure
        return robots.rules_without_file(failure, reached=exchange.reached or bool(self.history))

    def _redirect(self, response: Response, max_redirects: int) -> Failure | None:
        """Set the URL that a response redirects to; return a failure if that cannot be requested."""
        location = response.header("location")
        if location is None:
            return Failure("bad_redirect", f"status {response.status} without a Location")
        try:
            url = redirect_url(self.url, location)
        except Failure as failure:
            return failure
        if len(self.history) >= max_redirects:
            return Failure("too_many_redirects", f"more than {max_redirects}")
        self.history.append(self.url)
        # A page may redirect to itself once, to check that its cookie comes back; the second time it is a loop.
        if self.history.count(url) >= 2:
            return Failure("too_many_redirects", f"a loop through {url[:200]}")
        self.url = url
        return None


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
