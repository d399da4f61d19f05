"""robots.txt of a host, according to RFC 9309."""

from __future__ import annotations

import dataclasses
import re

from protego import Protego

from pipelines.stages.fetch.content_coding import decode_prefix
from pipelines.stages.fetch.exchange import Response
from pipelines.stages.fetch.outcomes import Failure

MAX_REDIRECTS = 5
MAX_BYTES = 500 * 1024

_CLIENT_ERRORS = {"http_not_found", "http_forbidden", "http_client_error", "http_unexpected"}
_BAD_REDIRECTS = {"bad_redirect", "too_many_redirects"}

_COMPATIBLE = re.compile(r"compatible;\s*([A-Za-z_-]+)")
_FIRST_TOKEN = re.compile(r"\s*([A-Za-z_-]+)")


@dataclasses.dataclass(frozen=True)
class RobotsRules:
    """The rules of a host; `refusal` is why nothing at all is allowed."""

    parsed: Protego | None = None
    refusal: Failure | None = None

    def check(self, url: str, product: str) -> Failure | None:
        """Return why a page may not be requested, or None if it may."""
        if self.refusal is not None:
            return self.refusal
        if self.parsed is None or self.parsed.can_fetch(url, product):
            return None
        return Failure("robots", f"robots.txt disallows it for {product}")

    def crawl_delay_s(self, product: str) -> float:
        """Return the Crawl-delay of the host, 0 if there is none."""
        return 0.0 if self.parsed is None else float(self.parsed.crawl_delay(product) or 0)


def product_token(user_agent: str) -> str:
    """Return the name that groups in robots.txt are matched against.

    `webtext` for `webtext/0.1 (+contact)`, `product` for `Mozilla/5.0 (compatible; product/1.0)`.
    """
    match = _COMPATIBLE.search(user_agent) or _FIRST_TOKEN.match(user_agent)
    return match[1].lower() if match else "*"


def parse_rules(response: Response) -> RobotsRules:
    """Parse the rules in a successful response."""
    text = decode_prefix(response.body or b"", response.coding, MAX_BYTES).decode("utf-8", "replace")
    return RobotsRules(Protego.parse(text.removeprefix("\ufeff")))


def rules_without_file(failure: Failure, reached: bool) -> RobotsRules:
    """Return the rules of a host whose robots.txt could not be read; `reached` says whether the host answered at all.

    A client error or a redirect that leads nowhere means that there is no file: everything is allowed. After a server
    error, a 429 or a timeout the rules are unknown: nothing is allowed. If the host was never reached, its pages fail
    for that same reason.
    """
    if failure.reason in _CLIENT_ERRORS | _BAD_REDIRECTS:
        return RobotsRules()
    if not reached:
        return RobotsRules(refusal=failure)
    return RobotsRules(refusal=Failure("robots_unreachable", f"{failure.reason}: {failure.detail}"))
